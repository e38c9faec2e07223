"""Which calls are checked in a thread, for an event loop must not wait for them."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.approvals import Approvals
from proxy.judging import Judging, takes_long
from shadow.exchange import Choice, Dialect, Request
from shadow.judge import Case, Rulebook
from validators import Finding, ToolCall
from validators.policy import Policy, ToolPolicy


def request(parameters: Any) -> Request:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return Request(Dialect.CHAT, {"model": "m", "messages": [], "tools": tools})


SMALL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LARGE = {"type": "object", "required": [f"k{i}" for i in range(4900)]}
CALL = ToolCall("f", "{}")


@pytest.mark.parametrize(
    ("parameters", "calls", "aside"),
    [
        (SMALL, [CALL], False),
        (SMALL, [CALL] * 8, False),
        (SMALL, [CALL] * 9, True),
        (SMALL, [ToolCall("f", "x" * 20_000)], True),
        (LARGE, [CALL], True),
        (LARGE, [ToolCall("g", "{}")], False),  # no tool of the request: there is no schema to check it with
        ({"enum": ["x" * 1_000]}, [CALL], False),
        ({"enum": ["x" * 1_000]}, [CALL] * 5, True),
        ({"const": 2**70}, [CALL], True),
        (None, [CALL], False),
    ],
    ids=range(10),
)
def test_what_takes_long_is_told_by_calls_arguments_and_schemas(
    parameters: Any,
    calls: list[ToolCall],
    aside: bool,  # noqa: FBT001
) -> None:
    assert takes_long(request(parameters), calls) is aside


class _Seen(Case):
    """A case that says where it was asked."""

    thread: threading.Thread | None = None

    def own(self, calls: Sequence[ToolCall]) -> list[Finding]:
        self.thread = threading.current_thread()
        return super().own(calls)


class _Nobody:
    references: tuple[()] = ()


@pytest.mark.parametrize(("parameters", "aside"), [(SMALL, False), (LARGE, True)], ids=["small", "large"])
def test_what_takes_long_is_checked_in_a_thread(parameters: Any, aside: bool) -> None:  # noqa: FBT001
    case = _Seen(Rulebook(Policy(0, ToolPolicy("*"))), request(parameters), b"", "x:y")
    nobody: Any = _Nobody()

    async def main() -> None:
        approvals: Approvals | Any = None
        judging = Judging("cp-1", case, nobody, approvals, nobody, nobody)
        await judging._verdict(Choice(0, calls=(CALL,)))

    asyncio.run(main())
    assert (case.thread is not threading.main_thread()) is aside
