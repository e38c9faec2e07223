"""Fixtures of these tests that live elsewhere."""

from tests.proxy.commandline import run
from tests.redis_server import redis_server

__all__ = ["redis_server", "run"]
