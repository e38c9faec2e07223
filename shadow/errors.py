"""What can go wrong with a second opinion.

    CounterproofError
    └── EngineError            an engine did not give what was asked; `reason` is a metric label
        ├── Unreachable        no connection, or one that broke
        ├── TimedOut           no whole answer in time
        ├── Refused            4xx: this engine does not take this request; `not_comparable`, never a divergence
        ├── Failed             5xx
        └── Garbage            200, but not what the API sends (or not believable)

Messages carry addresses and status codes, never prompts, output or keys.
"""


class CounterproofError(Exception):
    """The root of what this program raises for its users."""


class EngineError(CounterproofError):
    """An engine did not give what was asked."""

    reason = "failed"


class Unreachable(EngineError):  # noqa: N818  (named for what is reported)
    """No connection to the engine, or one that broke."""

    reason = "unreachable"


class TimedOut(EngineError):  # noqa: N818
    """No whole answer within the time allowed."""

    reason = "timeout"


class Refused(EngineError):  # noqa: N818
    """The engine answered 4xx."""

    reason = "refused"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Failed(EngineError):  # noqa: N818
    """The engine answered 5xx."""

    reason = "server_error"

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class Garbage(EngineError):  # noqa: N818
    """The engine answered 200 with something that is not what the API sends."""

    reason = "garbage"
