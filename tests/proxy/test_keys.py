import hashlib

import pytest

from proxy.keys import ClientKeys, digest

KEYS = ClientKeys([("agents", digest("sk-agents-0123456789")), ("batch", hashlib.sha256(b"sk-batch").digest())])


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([(b"authorization", b"Bearer sk-agents-0123456789")], "agents"),
        ([(b"authorization", b"bearer   sk-agents-0123456789 ")], "agents"),
        ([(b"x-api-key", b"sk-batch")], "batch"),
        ([(b"Authorization", b"Bearer sk-batch")], "batch"),
        ([(b"authorization", b"Bearer sk-batch"), (b"x-api-key", b"no")], "batch"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"sk-batch")], "batch"),
        ([(b"authorization", b"Bearer sk-agents")], None),
        ([(b"authorization", b"sk-batch")], None),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"authorization", b"Bearer \xff\xfe")], None),
        ([(b"x-api-key", b"")], None),
        ([], None),
    ],
)
def test_who_a_request_is_from(headers: list[tuple[bytes, bytes]], name: str | None) -> None:
    assert KEYS.name(headers) == name


def test_without_keys_everybody_may_come_in() -> None:
    assert not ClientKeys([])
    assert KEYS
