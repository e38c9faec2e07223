"""What stops a start. Each is one clear line (or one per fault) on standard error, and exit code 2."""

from shadow.errors import CounterproofError


class StartError(CounterproofError):
    """Something must be mended before this program can start; `problems` has one line each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ConfigError(StartError):
    """The configuration has faults; each line names file, line and key, and the near-miss where there is one."""
