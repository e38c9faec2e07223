"""What block mode needs of the door: which requests are held, which cannot be, and how held answers reach a client."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from proxy.approvals import Approvals
from proxy.aside import Aside
from proxy.audit import Witness
from proxy.block import Holding, Record
from proxy.http import Refusal, Send
from proxy.keys import CREDENTIALS
from proxy.paths import Denied
from proxy.regime import Regime
from proxy.switch import Modes
from shadow.countersign import Countersigning
from shadow.exchange import Request
from shadow.judge import Case
from shadow.mirror import Mirror

GENERATING = (
    "/chat",
    "/responses",
    "/messages",
    "/conversations",
    "/interactions",
    "/batch",
    "/batches",
    "/invocations",
    "/generate",
    "/generative_scoring",
    "/realtime",
)
"""Routes by which an engine generates, or hands out what it generated, and whose tool calls are not held back."""

_HARMLESS = (  # posted to
    "/*/messages/count_tokens",
    "/*/*/render",
    "/*/chat/completions/render",
    "/*/*/derender",
    "/*/chat/completions/derender",
)

UNVERIFIABLE = Refusal(
    422,
    "unverifiable_request",
    "tool calls are held here until they are verified, and this request's answer cannot be (by its path, its encoding, "
    "its size, tools or state of the server's own, or a body that is no JSON object); see policy.unverifiable_paths "
    "and policy.built_in",
    code="unverifiable_request",
)


class Blocking:
    """Makes the case of each request, and holds the answers of those that begin in block mode."""

    def __init__(self, regime: Regime, approvals: Approvals, record: Record, witness: Witness, aside: Aside) -> None:
        self._regime, self._approvals, self._record, self._witness = regime, approvals, record, witness
        self._aside = aside
        self._generates, self._generates_posted = Denied(GENERATING), Denied(GENERATING, _HARMLESS)

    def refuses(self, method: str, path: bytes) -> bool:
        """Whether a raw path, other than that of a dialect that is held, is refused in block mode."""
        if self._regime.policy.unverifiable_paths != "refuse":
            return False
        # `GET /v1/responses/render` gives a stored response: clients name theirs.
        return self._generates_posted(path) if method == "POST" else self._generates(path)

    def allows(self, built_in: Sequence[str]) -> bool:
        """Whether a request with such tools of the server's own, or such state, can be served in block mode."""
        policy = self._regime.policy
        return policy.unverifiable_paths == "release" or set(built_in) <= set(policy.built_in)

    @property
    def refuses_unread(self) -> bool:
        """Whether a request of a held dialect is refused that cannot be read."""
        return self._regime.policy.unverifiable_paths == "refuse"

    def case(
        self, request: Request, body: bytes, mirror: Mirror, conversation: str, heads: Mapping[bytes, bytes]
    ) -> Case:
        """A request under the rulebook in force."""
        references = sum(reference.role != "twin" for reference in mirror.references)
        book = self._regime.book(references)
        self._regime.saw(request.tool_names)
        headers = {name: heads[name.encode()].decode("latin-1") for name in book.headers if name.encode() in heads}
        scope = f"{_credential(heads)}:{conversation}"
        return Case(book, request, body, scope, headers, self._approvals.approved, self._approvals.went_out)

    def begin(self, exchange: str, case: Case, mirror: Mirror, modes: Modes) -> Holding:
        """Holds the answer of a request that began with these modes; its references are warmed."""
        signing = Countersigning(case.request, mirror.references if case.policy.agree else (), mirror.primary)
        of_calls = modes.of_calls(case.request.model)
        holding = Holding(
            exchange,
            case,
            signing,
            self._regime.terms,
            self._approvals,
            self._record,
            self._witness,
            of_calls,
            aside=self._aside.run,
        )
        holding.warm()
        return holding

    def turned_away(self, exchange: str, why: str, *, model: str = "", dialect: str = "", client: str = "") -> None:
        """A request was refused before it was passed on; as `Witness.turned_away`."""
        self._witness.turned_away(exchange, why, model=model, dialect=dialect, client=client)


def _credential(heads: Mapping[bytes, bytes]) -> str:
    """Whose request it is: a hash, for what only this process compares."""
    told = b"\0".join(heads.get(name, b"") for name in sorted(CREDENTIALS))
    return hashlib.sha256(told).hexdigest()[:16]


class Answering:
    """The client's side of a held answer: its head goes out with its first bytes, so that it can still be another."""

    def __init__(
        self, send: Send, start: Callable[[int | None], Awaitable[None]], refuse: Callable[[Refusal], Awaitable[None]]
    ) -> None:
        self._send, self._start, self._refuse = send, start, refuse
        self.begun = False
        self._refused = False

    async def write(self, data: bytes, *, length: int | None = None) -> None:
        """Sends some of the answer, its head first; `length` where it is all there will be."""
        if not self.begun:
            self.begun = True
            await self._start(length)
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def refuse(self, refused: Refusal) -> None:
        """Answers with an error instead."""
        self.begun = self._refused = True
        await self._refuse(refused)

    async def end(self) -> None:
        """Nothing more is to come."""
        if not self._refused:
            await self.write(b"")
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
