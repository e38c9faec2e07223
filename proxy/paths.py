"""Which paths of the engine the data port serves: those that change the engine are denied. Pure.

A path is denied by what any server behind this one might make of it: percent signs decoded as often as they are
nested, back slashes, doubled slashes, dots, case, path parameters and a mount prefix cannot carry it past the list.
"""

import functools
import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

ADMINISTRATIVE = (
    "/collective_rpc",
    "/pause",
    "/resume",
    "/is_paused",
    "/abort_requests",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/release_kv_cache_memory",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/init_weight_transfer_engine",
    "/shutdown_weight_transfer_engine",
    "/start_weight_update",
    "/start_draft_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/update_weight_version",
    "/weight_info",
    "/weight_checker",
    "/get_world_size",
    "/server_info",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/fault_tolerance",
    "/start_profile",
    "/stop_profile",
)
"""vLLM 0.32's routes that change the engine or show its inside: weights, pause, sleep, caches, LoRA, scaling, profiler,
collective calls, development routes."""

_MOST_PASSES = 5  # decodings; a path that is still encoded then is no honest one
_REMEMBERED_LENGTH = 256  # longer paths are looked at anew each time, so that the memory of answers stays small
_PERCENT = re.compile(rb"%[0-9a-fA-F]{2}")
_PARAMETERS = re.compile("[;?#]")  # the last two where a server decodes first, and then looks for a query


def segments(path: bytes) -> tuple[str, ...] | None:
    """A raw path's segments in the plainest form; None for one that climbs above the root or is encoded too often."""
    for _ in range(_MOST_PASSES):
        if not _PERCENT.search(path):
            break
        path = unquote_to_bytes(path)
    else:
        return None
    plain: list[str] = []
    for segment in path.decode("latin-1").lower().replace("\\", "/").split("/"):
        name = "".join(char for char in _PARAMETERS.split(segment, 1)[0] if char.isprintable()).strip()
        if name == "..":
            if not plain:
                return None
            plain.pop()
        elif name not in {"", "."}:
            plain.append(name)
    return tuple(plain)


class Denied:
    """Says whether a raw path is denied: it, or what it lies below, matches `deny` at any depth, and not `allow`.

    Patterns are paths whose segments may hold `*` and `?`. `allow` is held against the whole path.
    """

    def __init__(self, deny: Sequence[str], allow: Sequence[str] = ()) -> None:
        self._deny = re.compile("|".join(f"/{_pattern(path)}/" for path in deny) or "(?!)")
        self._allow = re.compile("|".join(f"/{_pattern(path)}/" for path in allow) or "(?!)")
        self._remembered = functools.lru_cache(maxsize=1024)(self._denied)

    def __call__(self, path: bytes) -> bool:
        """Whether the path is not served."""
        return self._remembered(path) if len(path) <= _REMEMBERED_LENGTH else self._denied(path)

    def _denied(self, path: bytes) -> bool:
        found = segments(path)
        if found is None:
            return True
        plain = f"/{'/'.join(found)}/"
        # At any depth: an engine that runs under a root path serves its routes below that as well.
        return self._deny.search(plain) is not None and self._allow.fullmatch(plain) is None


def _pattern(path: str) -> str:
    """A path as a regular expression; `*` and `?` stay within their segment."""
    plain = re.escape("/".join(part for part in path.lower().split("/") if part))
    return plain.replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
