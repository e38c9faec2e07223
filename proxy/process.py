"""What a serving process asks of its system: descriptors, memory given back, a byte path that threads let run."""

import contextlib
import ctypes
import resource
import sys

# Comparisons run in threads beside the byte path: the usual 5 ms would be how long each of them can hold it up.
_SWITCH_INTERVAL_S = 0.0005

# glibc's mallopt(3). By default each thread gets an arena of its own, and every large block that is freed makes the
# next one of its size come out of an arena: what exchanges and scores leave there is never given back.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BLOCK = 4 * 1024 * 1024
_MALLOC = {_M_ARENA_MAX: 2, _M_MMAP_THRESHOLD: _LARGE_BLOCK, _M_TRIM_THRESHOLD: _LARGE_BLOCK}


def prepare() -> None:
    """Sets up this process to serve; what the system does not allow stays as it was."""
    _raise_descriptor_limit()
    _give_memory_back()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def _raise_descriptor_limit() -> None:
    """Two descriptors per open stream: the usual soft limit of 1024 would end at 500 streams."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _give_memory_back() -> None:
    """Bounds glibc's arenas; another C library has no `mallopt`, or takes no notice."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC.items():
            mallopt(option, value)
