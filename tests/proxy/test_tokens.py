import hashlib
import hmac

import pytest

from proxy.keys import digest
from proxy.tokens import LOCAL, SCOPES, Token, Tokens
from tests.secrets import secret

A, B, C = (secret(name, "ct").encode() for name in ("ops", "auditor", "last"))
OPS = Token("ops", digest(A.decode()), frozenset({"read", "mode"}))
AUDITOR = Token("auditor", digest(B.decode()), frozenset({"read"}))
LAST = Token("last", digest(C.decode()))
TOKENS = Tokens([OPS, AUDITOR, LAST])


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ([(b"authorization", b"Bearer " + A)], OPS),
        ([(b"authorization", b"bearer  " + B + b" ")], AUDITOR),
        ([(b"Authorization", b"BEARER " + C)], LAST),
        ([(b"authorization", A)], None),
        ([(b"authorization", b"Basic " + A)], None),
        ([(b"authorization", b"Bearer " + A[:-1])], None),
        ([(b"authorization", b"Bearer " + A + b"," + A)], None),
        ([(b"authorization", b"Bearer " + OPS.digest.hex().encode())], None),
        ([(b"authorization", b"Bearer " + B[1:]), (b"authorization", b"Bearer " + A)], None),
        ([(b"x-api-key", A)], None),
        ([(b"cookie", b"token=" + A)], None),
        ([(b"authorization", b"Bearer \xff\x00")], None),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"authorization", b"")], None),
        ([], None),
    ],
)
def test_whose_token_a_request_carries(headers: list[tuple[bytes, bytes]], token: Token | None) -> None:
    assert TOKENS.find(headers) is token


@pytest.mark.parametrize("given", [A, B, C, C[1:], b""])
def test_every_digest_is_compared_whichever_is_tried(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def comparing(tried: bytes, known: bytes) -> bool:
        compared.append((tried, known))
        return compare(tried, known)

    monkeypatch.setattr(hmac, "compare_digest", comparing)
    TOKENS.find([(b"authorization", b"Bearer " + given)])
    tried = hashlib.sha256(given).digest()
    assert compared == [(tried, OPS.digest), (tried, AUDITOR.digest), (tried, LAST.digest)]


def test_a_token_is_not_kept() -> None:
    assert not [one for one in (A, B, C) if one.decode() in repr(TOKENS._tokens)]
    assert OPS.digest.hex() not in repr(OPS)
    assert str(OPS.digest) not in repr(OPS)


def test_without_tokens_nobody_is_known() -> None:
    none = Tokens()
    assert len(none) == 0
    assert none.find([(b"authorization", b"Bearer ")]) is None
    assert none.find([]) is None


def test_one_is_made_that_may_do_everything() -> None:
    one, other = Tokens(), Tokens()
    made = one.lend()
    found = one.find([(b"authorization", f"Bearer {made}".encode())])
    assert found is not None
    assert (found.name, found.scopes, len(one)) == (LOCAL, SCOPES, 1)
    assert len(made) >= 43  # 256 bits
    assert other.lend() != made
    assert other.find([(b"authorization", f"Bearer {made}".encode())]) is None
    assert made not in repr(vars(one))
