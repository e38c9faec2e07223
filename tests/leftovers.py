"""Names the test that left an HTTP response open, and not one that runs while it is found. A pytest plugin.

What is left open tells so when it is collected, which may be many tests later. Collecting everything after each test
would cost much more than most tests; what a test itself made is little.
"""

import gc
import warnings
from collections.abc import Iterator

import aiohttp
import pytest


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What the test left behind tells so in the test's own teardown: this fixture is the last to end."""
    gc.freeze()  # what is there before the test is not looked at again
    yield
    gc.collect()


@pytest.fixture(autouse=True, scope="session")
def _told() -> Iterator[None]:
    """A response tells that it was left open, whichever of it and its connection is collected first."""
    delete = aiohttp.ClientResponse.__del__

    def told(response: aiohttp.ClientResponse) -> None:
        left = not response.closed and response.connection is not None
        delete(response)
        if left:
            warnings.warn("a response was left open", ResourceWarning, source=response, stacklevel=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aiohttp.ClientResponse, "__del__", told)
        yield
        gc.unfreeze()  # for the last look, which is pytest's own
        gc.collect()
