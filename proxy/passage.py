"""One request on its way through the door, and what the mirror is handed of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import getrandbits

from proxy.block import Holding
from proxy.gates.stored import Keeping
from proxy.http import Scope
from proxy.inject import Injection
from proxy.pool import Body
from proxy.routes import Upstream
from proxy.switch import Mode, Modes
from shadow.exchange import Dialect, Request, Timings
from shadow.judge import Case
from shadow.mirror import Capture
from shadow.wire import sse


@dataclass(slots=True)
class Passage:
    """One request on its way: what was read of it, and the clocks (monotonic seconds, `began_at` epoch).

    `modes` are those that it began with, and `mode` is its own of them: the strongest until its model is known.
    `request` is None where it is not understood, `unread` says that it was too large for that (in bytes or values),
    `later` that it is read once it is answered; `copy` is the answer so far, None where none is kept, and `problem`
    says why. `keeping` keeps a held answer from being fetched elsewhere.
    """

    scope: Scope
    heads: dict[bytes, bytes]
    to: Upstream
    modes: Modes
    id: str = field(default_factory=lambda: f"cp-{getrandbits(128):032x}")  # a name, and no secret
    began: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    waited: float = 0.0
    waiting_since: float | None = None
    first_byte: float | None = None
    ended: float = 0.0
    body: Body = None
    request: Request | None = None
    later: Dialect | None = None
    refused: bool = False
    keeping: Keeping | None = None
    built_in: Sequence[str] = ()
    injection: Injection | None = None
    conversation: str = ""
    sampled: bool = False
    unread: bool = False
    status: int = 0
    answered: bool = False
    sse: bool = False
    copy: list[bytes] | None = None
    copied: int = 0
    last: bytes = b""
    problem: str | None = None
    mode: Mode = field(init=False)
    holding: Holding | None = None
    answered_by: int = 0

    def __post_init__(self) -> None:
        self.mode = self.modes.strongest

    @property
    def complete(self) -> bool:
        """Whether a stream's last event has gone to the client."""
        return self.sse and self.last.rstrip().endswith(sse.DONE)

    def leave_uncompared(self, problem: str) -> None:
        """Keeps no copy, for a reason."""
        self.copy, self.problem = None, problem


def capture(passage: Passage, request: Request, case: Case | None) -> Capture:
    """What the mirror is handed of an exchange that was answered."""
    holding = passage.holding
    now = time.monotonic()
    return Capture(
        id=passage.id,
        request=request,
        body=b"".join(passage.copy or ()),
        stream=passage.sse,
        status=passage.answered_by or passage.status,
        conversation=passage.conversation,
        began_at=passage.began_at,
        timings=Timings(passage.began, passage.first_byte or now, passage.ended or now),
        problem=passage.problem,
        case=case,
        to_judge=None if holding is None else frozenset(holding.left),
        continued=holding.signing.continued if holding else {},
    )
