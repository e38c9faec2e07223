import hashlib

import pytest

from proxy.keys import ClientKeys, digest
from tests.secrets import secret

A, B = secret("agents").encode(), secret("batch").encode()
KEYS = ClientKeys([("agents", digest(A.decode())), ("batch", hashlib.sha256(B).digest())])


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([(b"authorization", b"Bearer " + A)], "agents"),
        ([(b"authorization", b"bearer   " + A + b" ")], "agents"),
        ([(b"x-api-key", B)], "batch"),
        ([(b"Authorization", b"Bearer " + B)], "batch"),
        ([(b"authorization", b"Bearer " + B), (b"x-api-key", B[1:])], "batch"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", B)], "batch"),
        ([(b"authorization", b"Bearer " + A[:-1])], None),
        ([(b"authorization", B)], None),
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
