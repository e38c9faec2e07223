"""`counterproof check`: what each engine can do, whether each shadow may speak about this primary, named sets."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.errors import StartError
from proxy.regime import keeper_of, sets_unread
from proxy.sets import SetError
from proxy.settings import Settings
from shadow.capabilities import Capabilities, discover, refusal_as_pair
from shadow.engine import Endpoint, Engine
from shadow.errors import EngineError


@dataclass(frozen=True, slots=True)
class Checked:
    """One engine that was asked: what it can do, or why nothing came back; `refusal` is why the pair cannot be."""

    name: str
    base_url: str
    can: Capabilities | None
    error: str | None = None
    refusal: str | None = None

    @property
    def fit(self) -> bool:
        """True where the engine answered and nothing speaks against the pair."""
        return self.error is None and self.refusal is None

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        return {
            "name": self.name,
            "base_url": self.base_url,
            "fit": self.fit,
            "error": self.error,
            "refusal": self.refusal,
            "capabilities": self.can.as_dict() if self.can else None,
        }


async def check_sets(settings: Settings, path: Path | None) -> None:
    """Reads every named set once; `path` is the configuration's file.

    Raises:
        StartError: a set cannot be read, as it would be at start.
    """
    keeper = keeper_of(settings.policy, settings.state, path)
    try:
        await keeper.open()
    except SetError as error:
        raise StartError(*sets_unread(error)) from None
    finally:
        await keeper.close()


async def check(settings: Settings, progress: Callable[[str], None]) -> list[Checked]:
    """Asks the primary and all shadows at once; the primary's result stands first."""
    endpoints = [settings.primary.endpoint(), *(shadow.endpoint() for shadow in settings.shadows)]
    found = await asyncio.gather(*(_ask(endpoint, endpoint is endpoints[0], progress) for endpoint in endpoints))
    primary, shadows = found[0], found[1:]
    return [primary, *(_paired(primary, shadow) for shadow in shadows)]


async def _ask(endpoint: Endpoint, is_primary: bool, progress: Callable[[str], None]) -> Checked:  # noqa: FBT001
    async with Engine(endpoint) as engine:
        try:
            can = await discover(engine, reference=not is_primary)
        except EngineError as error:
            return Checked(endpoint.name, endpoint.base_url, None, str(error))
        finally:
            progress(endpoint.name)
    return Checked(endpoint.name, endpoint.base_url, can)


def _paired(primary: Checked, shadow: Checked) -> Checked:
    if primary.can is None or shadow.can is None:
        return shadow
    refusal = refusal_as_pair(primary.can, shadow.can)
    return Checked(shadow.name, shadow.base_url, shadow.can, shadow.error, refusal)
