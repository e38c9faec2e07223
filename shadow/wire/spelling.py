"""A key as lenient readers take it: in any case (Go's and .NET's JSON), or without underscores (protobuf's). Pure."""

from collections.abc import Collection

# What `casefold` leaves: Java takes both for an i.
_ALIKE = str.maketrans({"\N{LATIN SMALL LETTER DOTLESS I}": "i", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}": "i"})


def folded(key: str) -> str:
    """The one spelling of all those that some reader takes for the same key: `Tool_Calls` is `toolcalls`."""
    plain = key.lower() if key.isascii() else key.translate(_ALIKE).casefold()
    return plain.replace("_", "")


class Vocabulary:
    """The keys that a dialect's readers know."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)
        self._folded = frozenset(map(folded, names))

    def respelled(self, keys: Collection[str]) -> bool:
        """Whether one of these keys is known, and spelled otherwise: some readers take it, and some do not."""
        if self._names.issuperset(keys):  # as nearly always
            return False
        return any(folded(key) in self._folded for key in keys if key not in self._names)


def repeated(keys: list[str]) -> bool:
    """Whether two of an object's keys are the same to some reader."""
    return len({folded(key) for key in keys}) < len(keys)
