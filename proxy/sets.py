"""PLACEHOLDER so that the tree imports; the helper who writes sets.py overwrites this file."""
from typing import Any
from pydantic import BaseModel
from validators.rules import Sets
class SetError(Exception): ...
class SetSource(BaseModel):
    inline: list[str] | None = None
class SetKeeper:
    def __init__(self, sources: Any, on_stale: Any = None) -> None: self.sets = Sets()
    async def open(self) -> None: ...
    async def close(self) -> None: ...
