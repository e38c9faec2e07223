import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from proxy.admin import Admin, AdminError, connect
from proxy.errors import StartError
from proxy.settings import ControlSettings
from proxy.tokenfile import default_path
from tests.secrets import secret
from tests.watching import WATCH

TOKEN, OTHER = secret("admin", "ct"), secret("another", "ct")


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers everything alike: its URL, and what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            asked.append((self.command, self.path, dict(self.headers.items()), sent))
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def error(status: int, message: str) -> bytes:
    return json.dumps({"error": {"message": f"[counterproof] {message}", "code": status}}).encode()


def kept(path: Path, token: str = TOKEN) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(token + "\n")
    WATCH.see("configuration", str(path))  # a token may stand in its own file
    return path


def sends(admin: Admin) -> str | None:
    """The credentials that a client sends."""
    with admin:
        found: str | None = admin._client.headers.get("authorization")
        return found


# -- asking


def test_it_asks_and_gives_what_is_answered() -> None:
    with answering(200, b'{"a": [1]}') as (url, asked), Admin(url, TOKEN) as admin:
        assert admin.get("/admin/x", since="2h") == {"a": [1]}
        assert admin.put("/admin/x", {"b": None}) == {"a": [1]}
        assert admin.post("/admin/y", {"c": "\udc80"}) == {"a": [1]}
    assert [(method, path, sent) for method, path, _headers, sent in asked] == [
        ("GET", "/admin/x?since=2h", b""),
        ("PUT", "/admin/x", b'{"b": null}'),
        ("POST", "/admin/y", b'{"c": "\\udc80"}'),
    ]
    for _method, _path, headers, _sent in asked:
        assert headers["authorization"] == f"Bearer {TOKEN}"
    assert asked[1][2]["content-type"] == asked[2][2]["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("status", "body", "token", "told"),
    [
        (401, error(401, "a token is needed"), TOKEN, "this token is not known there"),
        (401, error(401, "a token is needed"), None, "a token is needed: --token, COUNTERPROOF_TOKEN, or the file"),
        (403, error(403, "this needs a token with the scope mode"), TOKEN, "this needs a token with the scope mode"),
        (422, error(422, "expiry: lies ahead"), TOKEN, "expiry: lies ahead"),
        (404, b"<html>", TOKEN, "what answers there is no control port of Counterproof (HTTP 404)"),
        (200, b"<html>", TOKEN, "what answers there is no control port of Counterproof (HTTP 200)"),
        (500, b'{"error": "x"}', TOKEN, "what answers there is no control port of Counterproof (HTTP 500)"),
        (500, b"[]", TOKEN, "what answers there is no control port of Counterproof (HTTP 500)"),
        (502, b'{"error": {"message": 1}}', TOKEN, "what answers there is no control port of Counterproof (HTTP 502)"),
        (204, b"", TOKEN, "what answers there is no control port of Counterproof (HTTP 204)"),
    ],
)
def test_a_failure_is_one_clear_line(status: int, body: bytes, token: str | None, told: str) -> None:
    with answering(status, body) as (url, _asked), Admin(url, token) as admin:
        with pytest.raises(AdminError) as caught:
            admin.get("/admin/mode")
    assert str(caught.value).startswith(f"{url}: {told}")
    assert caught.value.status == status
    assert TOKEN not in str(caught.value)


def test_nothing_answers() -> None:
    with answering(200, b"{}") as (url, _asked):
        pass
    with Admin(url, TOKEN) as admin, pytest.raises(AdminError) as caught:
        admin.get("/admin/mode")
    assert str(caught.value) == f"{url}: no proxy answers there (ConnectError)"
    assert caught.value.status == 0


def test_the_token_follows_neither_a_redirect_nor_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, b"{}") as (other, asked_there):
        with answering(307, b"", location=f"{other}/admin/mode") as (url, asked), Admin(url, TOKEN) as admin:
            with pytest.raises(AdminError, match="HTTP 307"):
                admin.put("/admin/mode", {"mode": "off"})
        assert len(asked) == 1
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, other)
        with answering(200, b'{"a": 1}') as (url, _asked), Admin(url, TOKEN) as admin:
            assert admin.get("/admin/mode") == {"a": 1}
    assert asked_there == []


# -- where, and with which token


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9100"),
        ("0.0.0.0", "http://127.0.0.1:9100"),
        ("::", "http://[::1]:9100"),
        ("::1", "http://[::1]:9100"),
        ("cp.example", "http://cp.example:9100"),
    ],
)
def test_the_port_is_where_it_is_configured(host: str, url: str) -> None:
    with connect(None, TOKEN, ControlSettings(host=host, port=9100)) as admin:
        assert admin.url == url


def test_a_token_that_is_given_is_taken(tmp_path: Path) -> None:
    settings = ControlSettings(token_file=kept(tmp_path / "t", OTHER))
    for url in (None, "http://cp.example:8081/", "http://localhost:8081"):
        assert sends(connect(url, TOKEN, settings)) == f"Bearer {TOKEN}"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9100", "http://localhost:9100/", "http://[::1]:9100", None])
def test_on_this_machine_the_file_s_token_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert sends(connect(url, None, ControlSettings(port=9100))) is None
    kept(default_path(9100))
    assert sends(connect(url, None, ControlSettings(port=9100))) == f"Bearer {TOKEN}"
    other = kept(tmp_path / "other", OTHER)
    assert sends(connect(url, None, ControlSettings(port=9100, token_file=other))) == f"Bearer {OTHER}"


@pytest.mark.parametrize(
    "url", ["http://cp.example:9100", "http://127.0.0.1.evil.example:9100", "http://10.0.0.5:9100"]
)
def test_the_file_s_token_goes_to_no_other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = ControlSettings(token_file=kept(default_path(9100)))
    assert sends(connect(url, None, settings)) is None


@pytest.mark.parametrize("url", ["", "127.0.0.1:8081", "ftp://h", "http://", f"http://user:{OTHER}@h:1", "http://h:x"])
def test_what_is_no_url_is_a_fault(url: str) -> None:
    with pytest.raises(StartError) as caught:
        connect(url, TOKEN, ControlSettings())
    assert str(caught.value).startswith("command line: --control: ")
    assert OTHER not in str(caught.value)


@pytest.mark.parametrize("token", [f"ct {TOKEN}", f"{TOKEN}\n", f"{TOKEN}é", f"{TOKEN}\udc80", ""])
def test_what_is_no_token_is_a_fault_and_not_repeated(token: str) -> None:
    with pytest.raises(StartError) as caught:
        connect(None, token, ControlSettings())
    assert str(caught.value).startswith("command line: --token: ")
    assert TOKEN not in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StartError) as caught:
            connect(None, None, ControlSettings(token_file=path))
        assert str(caught.value) == f"{path}: cannot be read: it is not a file of this user's own"


def test_a_file_with_no_token_in_it_is_a_fault(tmp_path: Path) -> None:
    for content in ("", "two words", f"ü{TOKEN}"):
        with pytest.raises(StartError) as caught:
            connect(None, None, ControlSettings(token_file=kept(tmp_path / "t", content)))
        assert str(caught.value) == f"{tmp_path / 't'}: holds no token"
