"""A door in front of a real engine, which has its small model do what a larger one does by itself."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
_TIMEOUT_S = 300.0


@dataclass
class EngineDoor:
    """What requests of responses and messages become on their way to the engine at `root_url`, and what they were.

    Two things are put into those that offer tools. Every tool is strict, for without the grammar the small model's
    arguments are not the schema's, and not every client asks for it. And where a text of `calls` stands in a request,
    the tool of that name must be called: the small model calls nothing by itself.
    """

    root_url: str
    calls: dict[str, str]
    base_url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of each request as it came."""

    def about(self, prompt: str) -> list[tuple[str, dict[str, Any]]]:
        """The requests of the conversation with this prompt, which needs no escape in JSON, oldest first."""
        return [(path, body) for path, body in self.asked if prompt in json.dumps(body)]

    def edited(self, path: str, raw: bytes) -> bytes:
        """A request as the engine gets it."""
        path = path.partition("?")[0]
        if path not in {RESPONSES, MESSAGES}:
            return raw
        body = json.loads(raw)
        self.asked.append((path, body))
        if not body.get("tools"):
            return raw
        edited = body | {"tools": [tool | {"strict": True} for tool in body["tools"]]}
        for text, name in self.calls.items():
            if text in json.dumps(body):
                edited["tool_choice"] = {"type": "function" if path == RESPONSES else "tool", "name": name}
        return json.dumps(edited).encode()


@contextlib.contextmanager
def opened(root_url: str, calls: dict[str, str]) -> Iterator[EngineDoor]:
    """Serves a door in front of the engine at `root_url`."""
    door = EngineDoor(root_url, calls)
    with httpx2.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
        with ThreadingHTTPServer(("127.0.0.1", 0), _handler(door, client)) as server:
            door.base_url = f"http://127.0.0.1:{server.server_port}/v1"
            thread = threading.Thread(target=server.serve_forever, name="engine door")
            thread.start()
            try:
                yield door
            finally:
                server.shutdown()
                thread.join()


def _handler(door: EngineDoor, client: httpx2.Client) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            self._pass_on(door.edited(self.path, raw))

        def _pass_on(self, content: bytes | None) -> None:
            headers = {"content-type": "application/json"} if content is not None else {}
            url = door.root_url + self.path
            with client.stream(self.command, url, content=content, headers=headers) as answer:
                self.send_response(answer.status_code)
                self.send_header("content-type", answer.headers.get("content-type", ""))
                self.end_headers()  # the body ends with the connection, as HTTP/1.0 has it
                for chunk in answer.iter_raw():
                    self.wfile.write(chunk)
                    self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Nothing: what a test asks is no news."""

    return Handler
