"""The client of one engine: asks what `shadow.ask` builds, over one connection pool, at most so much at once."""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx2
import orjson

from shadow import ask
from shadow.errors import EngineError, Failed, Garbage, Refused, TimedOut, Unreachable
from shadow.exchange import Answer, Choice, Dialect, Request, TopK
from shadow.wire import answers, dialects
from shadow.wire.assembly import ids_of

_READ_HERE = 128 * 1024
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""An answer without end is `Garbage`; scoring a long context takes tens of megabytes."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine is and how to ask it.

    `base_url` as OpenAI clients write it (`http://host:8000/v1`); `model` is the name it serves, None for its first;
    `api_key` is sent as a bearer token and never printed; `timeout` in seconds is for one whole answer.
    """

    name: str
    base_url: str
    model: str | None = None
    api_key: str | None = None
    timeout: float = 120.0
    max_concurrency: int = 4

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.base_url!r})"


class Engine:
    """One engine over HTTP. Use as an async context manager, or call `close`.

    Every method raises `EngineError` (see `shadow.errors`) and nothing else.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.model = endpoint.model or ""
        self.longest: int | None = None  # tokens of its context, once it was asked
        self._slots = asyncio.Semaphore(endpoint.max_concurrency)
        headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(endpoint.timeout, connect=min(5.0, endpoint.timeout)),
            headers=headers | {"accept-encoding": "identity"},
            limits=httpx2.Limits(max_connections=max(8, 4 * endpoint.max_concurrency)),
            trust_env=False,
        )
        self._root = endpoint.base_url.rstrip("/").removesuffix("/v1")

    @property
    def name(self) -> str:
        """The engine's name in configuration, metrics and ledger."""
        return self.endpoint.name

    def with_slots(self, slots: asyncio.Semaphore) -> Self:
        """The same engine over the same connections, for whoever must not queue behind what others ask of it."""
        beside = copy.copy(self)
        beside._slots = slots  # noqa: SLF001  (its own)
        return beside

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection pool."""
        await self._http.aclose()

    async def get(self, path: str) -> bytes:
        """GET a path below the server's root; the body of a 200."""
        return await self._request("GET", path, None)

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        """POST a JSON object to a path below the server's root; the body of a 200."""
        return await self._request("POST", path, orjson.dumps(body))

    async def _request(self, method: str, path: str, content: bytes | None) -> bytes:
        headers = {"content-type": "application/json"} if content is not None else {}
        try:
            async with asyncio.timeout(self.endpoint.timeout):
                async with self._http.stream(method, self._root + path, content=content, headers=headers) as response:
                    body = await self._read(response)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise TimedOut(f"{self.name}: no answer from {path} in {self.endpoint.timeout:g} s") from error
        except httpx2.HTTPError as error:
            raise Unreachable(f"{self.name}: {type(error).__name__} at {self._root}{path}") from error
        if response.status_code >= 500:
            raise Failed(f"{self.name}: {path} answered {response.status_code}", response.status_code)
        if response.status_code != 200:
            raise Refused(f"{self.name}: {path} answered {response.status_code}", response.status_code)
        return body

    async def _read(self, response: httpx2.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise Garbage(f"{self.name}: an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
            parts.append(part)
        return b"".join(parts)

    # --- ways to ask ------------------------------------------------------------------------------------------

    async def score(self, prompt: Sequence[int], output: Sequence[int]) -> TopK:
        """Teacher forcing over a whole answer by prompt logprobs.

        Returns the engine's candidates of each output position on the history `prompt + output[:i]`, shape
        (len(output), k or k + 1). Costs a whole prefill: such requests never read the prefix cache. Unmasked.
        Method: https://docs.vllm.ai (`prompt_logprobs`).
        """
        body = ask.scoring(self.model, prompt, output)
        async with self._slots:
            answer = await self.post("/v1/completions", body)
        return await asyncio.to_thread(ask.read_scoring, answer, prompt, output)

    async def probe(self, prompt: Sequence[int], output: Sequence[int], start: int = 0) -> TopK:
        """Teacher forcing of positions `start` to the end, one cached prefill each, through the prefix cache.

        Same numbers as `score` on the CPU; on GPUs prefill and decode kernels can differ, so each way is a claim of
        its own. Returns shape (len(output) - start, k). Unmasked.
        """
        # The first fills the cache with the history; the rest then computes at most a block of tokens each.
        rows = [await self._probe(prompt, output, start)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._probe(prompt, output, i), name=f"probe:{self.name}:{i}")
                    for i in range(start + 1, len(output))
                ]
        except* EngineError as failed:
            raise failed.exceptions[0] from None
        return ask.believable(TopK.of(rows + [task.result() for task in tasks]))

    async def _probe(self, prompt: Sequence[int], output: Sequence[int], i: int) -> list[tuple[int, float]]:
        async with self._slots:
            body = ask.probing(self.model, [*prompt, *output[:i]])
            return ask.read_probe(await self.post("/v1/completions", body))

    async def go_on(self, request: Request, history: Sequence[int], *, used: int, expected: int, stream: bool = False
                    ) -> Choice:  # fmt: skip
        """`continue`: the engine's own answer from `history` (prompt ids + the output before the call).

        It keeps the request's grammar and parsers, so its tool calls are parsed by the engine itself. `used` output
        tokens are already spent of the client's limit, `expected` is how many the primary wrote from here.
        """
        body = ask.continuation(request, self.model, history, used=used, expected=expected, longest=self.longest)
        return await self._chat(body, stream=stream, want_prompt=tuple(history))

    async def warm(self, request: Request) -> None:
        """Has the engine read a chat request's prompt, so that what goes on from it finds it cached: one token."""
        body = ask.warming(request, self.model)
        async with self._slots:
            await self.post("/v1/chat/completions", body)

    async def replay(self, request: Request, prompt: Sequence[int] | None = None, *, expected: int) -> Choice:
        """The whole request again, free, greedy; on the primary's prompt ids where they are given (chat only).

        `expected` is how many tokens the primary wrote: the bound where the client set none.
        """
        if not request.tells_tokens:
            return await self._replay_elsewhere(request, expected)
        body = ask.repetition(request, self.model, expected=expected, longest=self.longest)
        if request.dialect is Dialect.COMPLETIONS:
            async with self._slots:
                answer = answers.read(request.dialect, await self.post("/v1/completions", body), stream=False)
            return self._whole(answer)
        if prompt is not None:
            body["kv_transfer_params"] = {"prompt_token_ids": list(prompt)}
        return await self._chat(body, stream=False, want_prompt=None if prompt is None else tuple(prompt))

    async def _replay_elsewhere(self, request: Request, expected: int) -> Choice:
        """In the client's own dialect: what the server makes of it is a part of what is compared."""
        body = dialects.replayed(request, self.model, room=ask.room(expected, self.longest))
        async with self._slots:
            raw = await self.post(dialects.PATHS[request.dialect], body)
        return self._whole(await asyncio.to_thread(dialects.read, request.dialect, raw, stream=False))

    async def _chat(self, body: dict[str, Any], *, stream: bool, want_prompt: tuple[int, ...] | None) -> Choice:
        async with self._slots:
            raw = await self.post("/v1/chat/completions", body | {"stream": stream})
        if len(raw) <= _READ_HERE:  # a thread's turn may come later than reading takes
            answer = answers.read(Dialect.CHAT, raw, stream=stream)
        else:
            answer = await asyncio.to_thread(answers.read, Dialect.CHAT, raw, stream=stream)
        choice = self._whole(answer)
        # An engine that ignores the ids would answer on another history, and that looks like a verdict.
        if want_prompt is not None and choice.prompt_ids != want_prompt:
            raise Garbage(f"{self.name}: the prompt ids were not used")
        return choice

    def _whole(self, answer: Answer) -> Choice:
        if answer.problem is not None or 0 not in answer.choices:
            raise Garbage(f"{self.name}: the answer is {answer.problem or 'empty'}")
        return answer.choices[0]

    async def prompt_ids(self, request: Request, *, render: bool) -> tuple[int, ...] | None:
        """The ids that this engine's own template makes of a chat request: by its render route, else /tokenize.

        None where that cannot be said: the client's own ids or template made its prompt, or /tokenize lacks a field.
        """
        if any(request.body.get(name) is not None for name in ask.NOT_RENDERED):
            return None
        body = ask.allowed(request, self.model)
        if render:
            return _ids(await self.post("/v1/chat/completions/render", body), "token_ids", self.name)
        if any(body.get(name) is not None for name in ask.NOT_TOKENIZED):
            return None
        kept = {name: body[name] for name in ask.TOKENIZED if name in body}
        return _ids(await self.post("/tokenize", kept), "tokens", self.name)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """The ids of a text, without special tokens added."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        return _ids(await self.post("/tokenize", body), "tokens", self.name)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        text = read_object(await self.post("/detokenize", {"model": self.model, "tokens": list(ids)})).get("prompt")
        if not isinstance(text, str):
            raise Garbage(f"{self.name}: /detokenize gave no text")
        return text


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object, or Garbage."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise Garbage("not a JSON object")
    return value


def _ids(body: bytes, key: str, name: str) -> tuple[int, ...]:
    found = ids_of(read_object(body).get(key))
    if found is None:
        raise Garbage(f"{name}: no token ids in the answer")
    return found
