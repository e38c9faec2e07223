"""What the door reads of a request before it passes it on: whose it is, what is put in, and whether it is held."""

import json
import time
from collections.abc import Mapping

import orjson
import structlog

from proxy import http
from proxy.aside import Aside
from proxy.blocking import UNVERIFIABLE, Blocking
from proxy.dialects import HELD
from proxy.gates.stored import WITHHELD, Keeping, Withheld
from proxy.http import Refusal
from proxy.inject import Injection, plan
from proxy.metrics import Metrics
from proxy.passage import Passage
from proxy.paths import segments
from proxy.regime import Regime
from proxy.routes import Routes, model_of
from proxy.settings import Settings
from proxy.upload import Upload
from shadow.conversation import conversation_key
from shadow.exchange import Dialect, Request
from shadow.judge import Case
from shadow.wire import dialects

log = structlog.get_logger("counterproof.door")

DIALECTS = {path: dialect for dialect, path in dialects.PATHS.items()}
"""The (decoded) paths whose exchanges may be compared."""

MAX_EDITED = 256 * 1024 * 1024  # an answer that must be edited whole is not held beyond this
_WITHHELD_S = 30 * 86400.0
_ASIDE = 256 * 1024  # a body larger than this is read in a thread
# A thread alone does not help: the parser keeps the interpreter to itself until it is done, and that is a matter of how
# many objects it makes. So many, counted by what begins them (inside texts too), take it 20 to 80 ms.
_MOST_VALUES = 250_000
_MOST_TOOLS = 10_000  # they are gone through several times, on the loop
_COUNTED_AT_ONCE = 1024 * 1024


class _TooLargeError(Exception):
    """A request is too large to be read here, by its bytes or by what they hold."""


class Reading:
    """Reads requests, and keeps in mind which answers were withheld."""

    def __init__(
        self, settings: Settings, routes: Routes, metrics: Metrics, regime: Regime, blocking: Blocking, aside: Aside
    ) -> None:
        self._aside = aside
        self._most = int(settings.listen.max_body_bytes)
        self._conversation_header = (settings.conversation.header or "").lower().encode()
        self._copy_limit = int(settings.mirror.max_body_bytes)
        self._routes = routes
        self._compares = any(upstream.mirror.references for upstream in routes.all)
        self._metrics, self._regime, self._blocking = metrics, regime, blocking
        self.withheld = Withheld(time.monotonic, _WITHHELD_S)

    def unserved(self, passage: Passage) -> Refusal | None:
        """Why a request is not passed on, now that it was read."""
        if passage.refused:
            return WITHHELD
        return UNVERIFIABLE if passage.mode == "block" and self._unverifiable(passage) else None

    def turned_away(self, passage: Passage, refusal: Refusal, client: str) -> None:
        """Records a refusal of these two kinds; `client` is the name of its key, "" where it has none."""
        posted = DIALECTS.get(passage.scope["path"]) if passage.scope["method"] == "POST" else None
        if refusal is WITHHELD:
            why = "withheld"
        elif passage.built_in:
            why = "built_in"
        else:
            why = "unverifiable_path" if posted is None else "unread"
        model, dialect = passage.request.model if passage.request else "", posted.value if posted else ""
        self._blocking.turned_away(passage.id, why, model=model, dialect=dialect, client=client)

    def _unverifiable(self, passage: Passage) -> bool:
        """Whether a request's answer might bring calls that nobody would hold back."""
        scope = passage.scope
        if passage.holding is not None:
            return False
        if scope["method"] == "POST" and (dialect := DIALECTS.get(scope["path"])) is not None:
            return dialect in HELD and self._blocking.refuses_unread
        return self._blocking.refuses(scope["method"], scope["raw_path"])

    async def read(self, passage: Passage, upload: Upload) -> None:
        """Reads as much of the body as somebody needs: what may be compared, or what names a model to route by."""
        scope = passage.scope
        if not http.has_body(passage.heads):
            passage.to = self._routes.pick_by_path(scope["path"])
            passage.body = await upload.read(0) or None
            return
        dialect = DIALECTS.get(scope["path"]) if scope["method"] == "POST" else None
        # Whatever the mode is now: what was not let out then is not built on.
        builds = bool(self.withheld) and (segments(scope["raw_path"]) or ())[-1:] == ("responses",)
        dialect = None if passage.mode == "off" else dialect
        needed = self._compares or passage.mode == "block" or self._regime.judges
        if not (self._routes.by_model or builds) and (dialect is None or not needed):
            # What came with the head is at hand, and can be sent twice; nothing is waited for.
            first = await upload.read_first()
            passage.body = upload.stream() if first is None else first
            return
        whole = await upload.read(self._most if self._routes.by_model or builds else self._copy_limit)
        passage.body = upload.stream() if whole is None else whole
        if builds and whole is not None:  # else it is larger than anything that is passed on
            passage.refused = await self._builds_on_withheld(whole, passage.heads)
        if dialect is not None and self._can_wait(passage):
            passage.later, passage.copy = dialect, []
        elif dialect is not None and whole is not None and len(whole) > _ASIDE:
            await self.understand_aside(passage, dialect)
        elif dialect is not None:
            self.understand(passage, dialect)
        if self._routes.by_model and whole is not None:
            if passage.request is not None:
                model = passage.request.model
            else:
                model = await self._aside.run(model_of, whole) if len(whole) > _ASIDE else model_of(whole)
            passage.to = self._routes.pick(model)

    def _can_wait(self, passage: Passage) -> bool:
        """Whether a request can be read once it is answered: nothing could be put in now, and nothing is held."""
        if self.withheld:
            return False
        return not self._routes.by_model and passage.mode != "block" and not passage.to.mirror.ready

    def understand(self, passage: Passage, dialect: Dialect) -> None:
        """Reads the request and decides what is put in. Broken JSON is the primary's business, and no shadow's."""
        try:
            if (read := self._read(passage, dialect)) is not None:
                request, conversation = read
                if self._plan(passage, request, conversation):
                    passage.injection = self._injection(passage, request)
        except _TooLargeError:
            passage.unread = True
        except Exception as error:  # noqa: BLE001  (whatever a client wrote, it still gets the primary's answer)
            _not_understood(passage, error)

    async def understand_aside(self, passage: Passage, dialect: Dialect) -> None:
        """As `understand`, for what takes its time: others do not wait for it. The passage is written to here only."""
        try:
            if (read := await self._aside.run(self._read, passage, dialect)) is not None:
                request, conversation = read
                if self._plan(passage, request, conversation):
                    passage.injection = await self._aside.run(self._injection, passage, request)
        except _TooLargeError:
            passage.unread = True
        except Exception as error:  # noqa: BLE001  (likewise)
            _not_understood(passage, error)
        finally:
            passage.later = None

    def _read(self, passage: Passage, dialect: Dialect) -> tuple[Request, str] | None:
        """The request and its conversation's key, None where it is not understood. In any thread.

        Raises:
            _TooLargeError: it is too large for that.
        """
        if passage.heads.get(b"content-encoding"):
            return None
        body = passage.body
        if not isinstance(body, bytes) or len(body) > self._copy_limit or (len(body) > _ASIDE and _is_wide(body)):
            raise _TooLargeError
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(value, dict):
            return None
        if len(body) > _ASIDE and isinstance(tools := value.get("tools"), list) and len(tools) > _MOST_TOOLS:
            raise _TooLargeError
        request = dialects.request_of(dialect, value)
        header = self._conversation_header
        named = passage.heads.get(header) if header else None
        return request, conversation_key(request, named.decode("latin-1") if named else None)

    def _plan(self, passage: Passage, request: Request, conversation: str) -> bool:
        """Whether this exchange is in the sample and is held; says whether something may be put into it."""
        passage.to = self._routes.pick(request.model)
        mode = passage.modes.mode_for(request.model)
        if passage.later is None:
            passage.mode = mode
        if mode == "off":
            return False
        passage.request = request
        mirror = passage.to.mirror
        passage.conversation = conversation
        passage.sampled = mirror.wants(request, conversation)
        if not request.tells_tokens:
            passage.built_in = dialects.built_in(request)
            for kind in passage.built_in:
                self._metrics.built_in(request.dialect.value, kind)
        held = passage.mode == "block" and request.dialect in HELD and self._blocking.allows(passage.built_in)
        if held:
            passage.holding = self._blocking.begin(passage.id, self.case(passage, request), mirror, passage.modes)
            passage.keeping = Keeping(self.withheld) if request.dialect is Dialect.RESPONSES else None
        if passage.later is not None or not (passage.sampled or held):
            return False
        passage.copy = [] if passage.sampled else None
        return mirror.ready or bool(held and mirror.references and request.tool_choice != "none")

    def _injection(self, passage: Passage, request: Request) -> Injection | None:
        """What is put in. In any thread."""
        body, can = passage.body, passage.to.mirror.primary.can
        assert isinstance(body, bytes)  # it was read
        level = passage.to.level(request.dialect, request.model)
        k, longest = (can.max_logprobs, can.max_model_len) if can else (0, None)
        keeps = can is None or can.keeps_responses is not False
        return plan(request, body, level, k, room=MAX_EDITED, longest=longest, keeps_responses=keeps)

    async def _builds_on_withheld(self, body: bytes, heads: Mapping[bytes, bytes]) -> bool:
        """Whether a request goes on from a response that was withheld; one that cannot be read here may."""
        if heads.get(b"content-encoding", b"identity") != b"identity":
            return True
        try:  # as servers read it: NaN, and other encodings than UTF-8
            sent = await self._aside.run(json.loads, body) if len(body) > _ASIDE else json.loads(body)
        except (ValueError, RecursionError):
            return False  # no server makes anything of it
        before = sent.get("previous_response_id") if isinstance(sent, dict) else None
        return isinstance(before, str) and self.withheld.knows(before)

    def case(self, passage: Passage, request: Request) -> Case:
        """The request under the rulebook that is in force now."""
        body = passage.body if isinstance(passage.body, bytes) else b""
        return self._blocking.case(request, body, passage.to.mirror, passage.conversation, passage.heads)


def is_large(passage: Passage) -> bool:
    """Whether reading a passage's request takes so long that it is done aside."""
    return isinstance(passage.body, bytes) and len(passage.body) > _ASIDE


def _is_wide(body: bytes) -> bool:
    """Whether JSON may hold more values than are made objects of here."""
    count = 0
    for start in range(0, len(body), _COUNTED_AT_ONCE):  # others have their turn in between
        end = start + _COUNTED_AT_ONCE
        count += body.count(b"{", start, end) + body.count(b"[", start, end) + body.count(b'":', start, end)
        if count > _MOST_VALUES:
            return True
    return False


def _not_understood(passage: Passage, error: Exception) -> None:
    passage.request = passage.injection = passage.copy = None
    log.error("a request was not understood", exchange=passage.id, error=type(error).__name__)
