"""Builds one proxy from its settings: the data app, the control app, and what stands behind both.

The data app is the forwarder itself, raw ASGI: every path there belongs to a primary. FastAPI serves the control port.
"""

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import Counter, Gauge

from proxy.approvals import Approvals
from proxy.aside import Aside
from proxy.audit import SELF, Audit, AuditError, AuditFile, Kind, NoAudit, Turns, Witness
from proxy.blocking import Blocking
from proxy.control import control_app
from proxy.control.approvals import approval_routes
from proxy.control.erasures import erasure_routes
from proxy.control.mode import mode_routes
from proxy.control.policy import policy_routes
from proxy.control.scrape import METRICS, scrape_routes
from proxy.control.status import status_routes
from proxy.errors import StartError
from proxy.forward import Forwarder
from proxy.ledger import Content, Ledger, LedgerError, examination_record, exchange_record, verdict_record
from proxy.metrics import Metrics
from proxy.regime import Regime
from proxy.routes import Routes, Upstream
from proxy.settings import ControlSettings, PrimarySettings, Settings, ShadowSettings
from proxy.tokens import Tokens
from shadow.examine import Examination
from shadow.exchange import Exchange, Request
from shadow.judge import Judged
from shadow.mirror import Mirror
from shadow.reference import Peer, Reference
from validators import Finding

_DRAIN_SECONDS = 5.0  # what the mirror may still finish at shutdown


class Recorder:
    """Writes what the mirror finds into metrics and ledger."""

    def __init__(self, metrics: Metrics, ledger: Ledger | None, content: Content) -> None:
        self._metrics, self._ledger, self._content = metrics, ledger, content

    def outcome(self, shadow: str, outcome: str, reason: str) -> None:
        """One exchange has ended for one shadow."""
        self._metrics.outcome(shadow, outcome, reason)

    def waiting(self, shadow: str, count: int, size: int) -> None:
        """How much waits for a shadow."""
        self._metrics.waiting(shadow, count, size)

    def exchange(self, exchange: Exchange, findings: Sequence[tuple[int, Finding]]) -> None:
        """An exchange was understood."""
        self._metrics.findings(exchange, findings)
        if self._ledger:
            self._ledger.exchange(exchange_record(exchange, findings, self._content))

    def judged(
        self, exchange: str, request: Request, judged: Judged, done: str, waited: float | None, conversation: str = ""
    ) -> None:
        """A choice's calls were decided about."""
        self._metrics.judged(request, judged, done, waited)
        if waited is not None:
            self._metrics.found_alone(request, judged)
        if self._ledger:
            record = verdict_record(request, judged, done, waited, self._content)
            self._ledger.verdict(exchange, record, conversation)

    def examined(self, exchange: Exchange, examination: Examination, lag: float) -> None:
        """A shadow was asked."""
        self._metrics.examined(exchange, examination, lag)
        if self._ledger:
            record = examination_record(examination, self._content, exchange.request.tool_names)
            self._ledger.examination(exchange.id, record, lag)


class Service:
    """One proxy. `open` starts what works in the background, `close` ends it; the apps serve in between.

    `path` is the file that mode and policy follow, `load` reads it anew.

    Raises:
        StartError: the ledger or the audit cannot be opened.
    """

    def __init__(
        self, settings: Settings, *, path: Path | None = None, load: Callable[[], Settings] | None = None
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(first_tools=settings.named_tools, first_models=settings.named_models)
        self.ledger = self._open_ledger(settings)
        self.audit = self._open_audit(settings)
        self._turns = Turns(self.audit)
        self.regime = Regime(
            settings, self.metrics, path=path, load=load, record=self._turns.record, record_policy=self._policy
        )
        self.approvals = Approvals(audit=self.audit)
        self._recorder = Recorder(self.metrics, self.ledger, Content(settings.ledger.content))
        default = self._upstream("primary", settings.primary, settings.shadows)
        rules = [
            (route, self._upstream(f"primary of {route.model}", route.primary, route.shadows))
            for route in settings.routes
        ]
        routes = Routes(default, rules)
        self.mirrors = [upstream.mirror for upstream in routes.all]
        every = settings.audit.receipts == "all"
        witness = Witness(self.audit, all_releases=every, count=self.metrics.turned_away)
        aside = Aside()
        blocking = Blocking(self.regime, self.approvals, self._recorder, witness, aside)
        self.data = Forwarder(settings, routes, self.metrics, self.regime, blocking, aside)
        self.tokens = Tokens(token.value() for token in settings.control.tokens)
        self.control = self._control(settings.control)

    def _control(self, control: ControlSettings) -> FastAPI:
        scraped = control.metrics == "open"
        routes = [
            scrape_routes(self.metrics, self.mirrors, self._refresh, open_to_all=scraped),
            mode_routes(self.regime.switch, self._turns.recorded),
            status_routes(self.regime, self.mirrors, self.approvals, lambda: self.data.in_flight),
            policy_routes(self.settings),
            approval_routes(self.approvals),
            erasure_routes(self.ledger, self.audit, self.approvals),
        ]
        return control_app(self.tokens, routes, hosts=control.hosts, open_to_all=[METRICS] if scraped else [])

    def _upstream(self, name: str, primary: PrimarySettings, shadows: Sequence[ShadowSettings]) -> Upstream:
        references = [Reference(shadow.endpoint(), shadow.role) for shadow in shadows]
        peer = Peer(primary.endpoint(name), reference=False)
        mirror = Mirror(peer, references, self.settings.mirror.limits(), self._recorder)
        return Upstream(primary, mirror, own_keys=bool(self.settings.client_keys))

    def _open_ledger(self, settings: Settings) -> Ledger | None:
        if settings.ledger.path is None:
            return None
        lost = Counter("counterproof_ledger_lost", "Records that could not be written.", registry=self.metrics.registry)
        try:
            return Ledger(settings.ledger.path, keep=settings.ledger.keep, on_loss=lost.inc)
        except LedgerError as error:
            raise StartError(f"ledger.path: {error}") from None

    def _open_audit(self, settings: Settings) -> Audit:
        if (path := settings.audit_path) is None:
            return NoAudit()
        registry = self.metrics.registry
        lost = Counter("counterproof_audit_lost", "Records that could not be kept.", registry=registry)
        up = Gauge("counterproof_audit_up", "1 while the audit can be written.", registry=registry)
        about = {"version": version("counterproof"), "mode": settings.mode, "policy": settings.policy.version}
        try:
            return AuditFile(path, about, on_loss=lost.inc, on_up=up.set)
        except AuditError as error:
            if self.ledger:
                self.ledger.close()
            raise StartError(f"audit.path: {error}") from None

    def _policy(self, event: str, version: str | None) -> None:
        self.audit.note(Kind.POLICY, SELF, {"event": event, "version": version})

    def _refresh(self) -> None:
        """What is only true at the moment of a scrape."""
        self.metrics.process(self.data.in_flight, len(asyncio.all_tasks()))
        self.metrics.approvals(len(self.approvals))

    async def open(self) -> None:
        """Connects and starts the mirrors; needs a running loop.

        Raises:
            StartError: a named set cannot be read.
        """
        try:
            await self.regime.open()
        except StartError:
            self._close_files()
            raise
        await self.data.open()
        for mirror in self.mirrors:
            mirror.start()

    async def close(self) -> None:
        """Ends everything: lets the mirrors finish what they can within seconds, writes the ledger and the audit."""
        await self.data.close()
        await asyncio.gather(*(mirror.drain(_DRAIN_SECONDS) for mirror in self.mirrors))
        for mirror in self.mirrors:
            await mirror.close()
        await self.regime.close()
        self._close_files()

    def _close_files(self) -> None:
        if self.ledger:
            self.ledger.close()
        self.audit.close()
