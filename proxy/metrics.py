"""Prometheus metrics: names and labels are contracts that dashboards and alerts hold on to.

Label values are bounded: a tool or model beyond a limit becomes `other`. No content, no ids, no keys.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client import Counter as Total
from prometheus_client import Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from proxy.tallies import Counts, Registry, Times
from shadow.breaker import Circuit
from shadow.choice import ChoiceReport
from shadow.divergence import Outcome, flips, window
from shadow.examine import Examination
from shadow.exchange import Exchange, Request
from shadow.judge import Judged
from shadow.reference import Peer, Reference, State
from shadow.wire.dialects import told
from validators import Finding, Word

OTHER = "other"
NO_SHADOW = "none"
"""The `shadow` label of findings that need no reference."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)


class Bounded:
    """Lets through the first `limit` different values, those of `first` before all; later ones become `other`."""

    def __init__(self, limit: int, first: Iterable[str] = ()) -> None:
        self._limit = limit
        self._known: set[str] = set()
        for value in first:
            self(value)

    def __call__(self, value: str, *, admit: bool = True) -> str:
        """The value, or `other`; without `admit` only if it is known already."""
        if value in self._known:
            return value
        if not admit or len(self._known) >= self._limit or not value or len(value) > 128:
            return OTHER
        self._known.add(value)
        return value


class Metrics:
    """All metrics of one process, in a registry of their own.

    At most so many `tools` and `models` are told apart. `first_tools` and `first_models` have their places from the
    start on; a client's names take one once a primary has answered with them.
    """

    def __init__(
        self,
        *,
        tools: int = 200,
        models: int = 50,
        first_tools: Iterable[str] = (),
        first_models: Iterable[str] = (),
    ) -> None:
        self.registry = Registry()
        self._tool, self._model = Bounded(tools, first_tools), Bounded(models, first_models)
        registry = self.registry
        self._requests = Counts(
            "counterproof_requests",
            "Requests answered to clients.",
            ["dialect", "model", "code", "stream"],
        )
        registry.tally(self._requests)
        self._coverage = Counts(
            "counterproof_coverage",
            "Requests of a dialect by who looks at their calls: held (block mode), mirrored, sampled_out, unread, off.",
            ["dialect", "coverage"],
        )
        registry.tally(self._coverage)
        self._upstream = Times(
            "counterproof_upstream_seconds", "Time spent waiting for the primary.", "dialect", _SECONDS
        )
        registry.tally(self._upstream)
        self._overhead = Times(
            "counterproof_overhead_seconds",
            "Total time of a request minus waiting for the primary.",
            "dialect",
            _OVERHEAD,
        )
        registry.tally(self._overhead)
        self._first_byte = Times(
            "counterproof_time_to_first_byte_seconds",
            "From the request's first byte to the first byte of its answer.",
            "dialect",
            _SECONDS,
        )
        registry.tally(self._first_byte)
        self._mirror = Counts(
            "counterproof_mirror",
            "What became of each answered exchange, per shadow.",
            ["shadow", "outcome", "reason"],
        )
        registry.tally(self._mirror)
        self._queue = Gauge(
            "counterproof_mirror_queue", "Exchanges that wait for the shadow.", ["shadow"], registry=registry
        )
        self._queue_bytes = Gauge(
            "counterproof_mirror_queue_bytes", "Bytes that wait for the shadow.", ["shadow"], registry=registry
        )
        self._lag = Histogram(
            "counterproof_mirror_lag_seconds",
            "From an answer's last byte to the shadow's verdict.",
            ["shadow"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._positions = Total(
            "counterproof_positions",
            "Output positions looked at by teacher forcing on the primary's token history.",
            ["shadow", "model", "region", "window", "basis"],
            registry=registry,
        )
        self._flips = Total(
            "counterproof_flips",
            "Positions whose top-1 differs from the reference; near_tie: by less than 0.1 nats of the reference's.",
            ["shadow", "model", "region", "window", "basis", "margin"],
            registry=registry,
        )
        self._undetermined = Total(
            "counterproof_undetermined",
            "Positions under a grammar of which nothing can be said.",
            ["shadow", "model", "region", "window"],
            registry=registry,
        )
        self._first_divergence = Histogram(
            "counterproof_first_divergence_tokens",
            "Output tokens before the first flip of an answer that has one.",
            ["shadow", "model"],
            buckets=_TOKENS,
            registry=registry,
        )
        self._calls = Total(
            "counterproof_tool_calls",
            "Tool calls by verdict; shadow `none` for what needs no reference.",
            ["model", "tool", "shadow", "verdict"],
            registry=registry,
        )
        self._prompt_differs = Total(
            "counterproof_prompt_differs",
            "Exchanges whose messages the shadow's own template turns into other prompt ids.",
            ["shadow", "model"],
            registry=registry,
        )
        self._injection_off = Total(
            "counterproof_injection_refused",
            "Injected requests that the primary answered with an error and that were repeated as the client sent them.",
            ["model"],
            registry=registry,
        )
        self._built_in = Total(
            "counterproof_built_in",
            "Requests with tools that the server runs by itself, or with state that it keeps, by kind.",
            ["dialect", "kind"],
            registry=registry,
        )
        self._gate = Total(
            "counterproof_gate",
            "Choices with tool calls by what was done (block mode) or would have been done (observe mode); by the tool "
            "`other` also requests and answers that were refused before their calls were known.",
            ["tool", "action", "verdict"],
            registry=registry,
        )
        self._gate_wait = Histogram(
            "counterproof_gate_wait_seconds",
            "In block mode, from a call's end to what was done about it.",
            ["tool", "action", "verdict"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._mode = Gauge("counterproof_mode", "1 for the mode in force.", ["mode"], registry=registry)
        self._policy_reloads = Total(
            "counterproof_policy_reloads",
            "New versions of mode and policy: taken, or refused while the old one stays.",
            ["result"],
            registry=registry,
        )
        for result in ("taken", "refused"):  # from 0 on, so that an alert sees the first one
            self._policy_reloads.labels(result)
        self._set_stale = Gauge(
            "counterproof_set_stale",
            "1 while a named set cannot be read and its old values stay.",
            ["set"],
            registry=registry,
        )
        self._pending = Gauge("counterproof_approvals_pending", "Calls that wait for a person now.", registry=registry)
        self._open = Gauge("counterproof_open_requests", "Requests of clients that are open now.", registry=registry)
        self._tasks = Gauge("counterproof_tasks", "Tasks in the event loop now.", registry=registry)
        ProcessCollector(registry=registry)
        self._up = Gauge(
            "counterproof_shadow_up",
            "1 while a shadow is found, warm and fit for this primary.",
            ["shadow"],
            registry=registry,
        )
        self._circuit = Gauge(
            "counterproof_shadow_circuit_open",
            "1 while a shadow is not asked because it failed several times in a row.",
            ["shadow"],
            registry=registry,
        )

    # --- the door ---------------------------------------------------------------------------------------------

    def request(
        self,
        *,
        dialect: str,
        model: str,
        code: int,
        stream: bool,
        upstream: float,
        total: float,
        first_byte: float | None,
    ) -> None:
        """One request has been answered; times in seconds."""
        named = self._model(model, admit=code < 400) if model else ""
        self._requests.add(dialect, named, str(code), "true" if stream else "false")
        self._upstream.observe(dialect, upstream)
        self._overhead.observe(dialect, max(0.0, total - upstream))
        if first_byte is not None:
            self._first_byte.observe(dialect, first_byte)

    def covered(self, dialect: str, coverage: str) -> None:
        """One request of a dialect, and who looks at its calls."""
        self._coverage.add(dialect, coverage)

    def built_in(self, dialect: str, kind: str) -> None:
        """A request has a tool that the server runs by itself, or state that it keeps."""
        self._built_in.labels(dialect, told(kind)).inc()

    def injection_refused(self, model: str) -> None:
        """An injected request was repeated plain."""
        self._injection_off.labels(self._model(model)).inc()

    # --- the mirror -------------------------------------------------------------------------------------------

    def outcome(self, shadow: str, outcome: str, reason: str) -> None:
        """One exchange has ended for one shadow."""
        self._mirror.add(shadow, outcome, reason)

    def waiting(self, shadow: str, count: int, size: int) -> None:
        """How many exchanges and bytes wait for a shadow now."""
        self._queue.labels(shadow).set(count)
        self._queue_bytes.labels(shadow).set(size)

    def findings(self, exchange: Exchange, findings: Sequence[tuple[int, Finding]]) -> None:
        """What was found without a reference."""
        self._count_calls(exchange, NO_SHADOW, [finding for _choice, finding in findings])

    def examined(self, exchange: Exchange, examination: Examination, lag: float) -> None:
        """A shadow's view of one exchange."""
        shadow, model = examination.shadow, self._model_of(exchange)
        self._lag.labels(shadow).observe(max(0.0, lag))
        if examination.prompt_differs:
            self._prompt_differs.labels(shadow, model).inc()
        for report in examination.choices:
            self._count_positions(shadow, model, report)
            self._count_calls(exchange, shadow, report.findings)
            if flipped := flips(report.positions):
                self._first_divergence.labels(shadow, model).observe(flipped[0].index)

    def _model_of(self, exchange: Exchange) -> str:
        return self._model(exchange.request.model, admit=exchange.status < 400)

    def _count_calls(self, exchange: Exchange, shadow: str, findings: Sequence[Finding]) -> None:
        """By tool: only names that the request itself offered, since a model can make a name of anything."""
        offered = exchange.request.tool_names
        for finding in findings:
            answered = exchange.status < 400
            tool = self._tool(finding.tool, admit=answered) if finding.tool in offered else OTHER
            self._calls.labels(self._model_of(exchange), tool, shadow, finding.word.value).inc()

    def _count_positions(self, shadow: str, model: str, report: ChoiceReport) -> None:
        """Counted by their labels first: a long answer has tens of thousands of positions and a handful of labels."""
        seen: Counter[tuple[str, str, str, str | None]] = Counter()
        for position in report.positions:
            basis = "" if position.outcome is Outcome.UNDETERMINED else position.basis.value
            where = window(report.prompt_tokens + position.index)
            seen[position.region.value, where, basis, position.clarity()] += 1
        for (region, where, basis, clarity), count in seen.items():
            if not basis:
                self._undetermined.labels(shadow, model, region, where).inc(count)
                continue
            self._positions.labels(shadow, model, region, where, basis).inc(count)
            if clarity is not None:
                self._flips.labels(shadow, model, region, where, basis, clarity).inc(count)

    def judged(self, request: Request, judged: Judged, done: str, waited: float | None) -> None:
        """What was (or would have been) done about a choice's calls; `waited` in seconds, None where nobody did."""
        verdict, names = judged.verdict, {call.name for call in judged.calls}
        for name in names:
            tool = self._tool(name) if name in request.tool_names else OTHER
            self._gate.labels(tool, done, verdict.word.value).inc()
            if waited is not None:
                self._gate_wait.labels(tool, done, verdict.word.value).observe(max(0.0, waited))

    def turned_away(self, _why: str) -> None:
        """An answer or a request was refused whose calls are not known."""
        self._gate.labels(OTHER, "refused", Word.UNVERIFIED.value).inc()

    def found_alone(self, request: Request, judged: Judged) -> None:
        """What was found without a reference of calls whose client waited; an examined exchange tells it by itself."""
        for shadow, finding in judged.verdict.findings:
            if shadow == NO_SHADOW:
                tool = self._tool(finding.tool) if finding.tool in request.tool_names else OTHER
                self._calls.labels(self._model(request.model), tool, NO_SHADOW, finding.word.value).inc()

    def mode(self, mode: str) -> None:
        """The mode in force has changed."""
        for known in ("off", "observe", "block"):
            self._mode.labels(known).set(known == mode)

    def policy_reload(self, result: str) -> None:
        """A new version was `taken` or `refused`."""
        self._policy_reloads.labels(result).inc()

    def set_stale(self, name: str, stale: bool) -> None:  # noqa: FBT001  (a callback)
        """A named set cannot be read, or can be again."""
        self._set_stale.labels(name).set(stale)

    def approvals(self, pending: int) -> None:
        """How many calls wait for a person now."""
        self._pending.set(pending)

    def process(self, in_flight: int, tasks: int) -> None:
        """Refreshes what is open at the moment of a scrape."""
        self._open.set(in_flight)
        self._tasks.set(tasks)

    def references(self, references: Sequence[Reference], primary: Peer) -> None:
        """Refreshes what is only true at the moment of a scrape."""
        for reference in references:
            state, _why = reference.standing(primary)
            self._up.labels(reference.name).set(state is State.READY)
            self._circuit.labels(reference.name).set(reference.breaker.state is not Circuit.CLOSED)

    def taken(self) -> Collector:
        """What is counted up to now, for `text` in another thread; to be called on the thread that counts."""
        return self.registry.taken()

    def text(self, accept: str, taken: Collector | None = None) -> tuple[bytes, str]:
        """The exposition in the format that a scraper accepts, and its content type; of `taken`, or of now."""
        encode, content_type = choose_encoder(accept)
        return encode(taken or self.registry), content_type
