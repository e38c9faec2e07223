from collections.abc import Callable

import pytest

from proxy.paths import ADMINISTRATIVE, Denied

DENIED = Denied(ADMINISTRATIVE)


@pytest.mark.parametrize(
    "variant",
    [
        lambda p: p,
        lambda p: p + b"/",
        lambda p: b"/" + p,
        lambda p: b"/." + p,
        lambda p: b"/v1/.." + p,
        lambda p: b"/v1/%2e%2e" + p,
        lambda p: b"/v1/%2E." + p,
        lambda p: p.upper(),
        lambda p: p.title(),
        lambda p: b"/%2f" + p[1:],
        lambda p: p.replace(b"/", b"/%2f"),
        lambda p: b"/%5c" + p[1:],
        lambda p: b"\\" + p[1:],
        lambda p: b"".join(b"%%%02x" % char for char in p),
        lambda p: b"".join(b"%%25%02X" % char for char in p),
        lambda p: b"/" + b"".join(b"%%2525%02x" % char for char in p[1:]),
        lambda p: p + b";v=1",
        lambda p: p + b"%3fv=1",
        lambda p: p + b"%23part",
        lambda p: p + b"%00",
        lambda p: p + b"%20",
        lambda p: p + b"/anything",
        lambda p: b"/engine/root/path" + p,
        lambda p: b"/v1" + p,
        lambda p: b"//host" + p,
    ],
)
def test_no_way_of_writing_it_carries_an_administrative_path_past_the_list(variant: Callable[[bytes], bytes]) -> None:
    written = [variant(path.encode()) for path in ADMINISTRATIVE]
    assert [path for path in written if not DENIED(path)] == []


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/chat/completions",
        b"/v1/chat/completions/",
        b"/v1/chat/completions/batch",
        b"/v1/completions",
        b"/v1/responses/resp_pause",
        b"/v1/messages",
        b"/v1/models",
        b"/v1/models/a%2Fb",
        b"/tokenize",
        b"/health",
        b"/version",
        b"/metrics",
        b"/v1/files/sleeping",
        b"/sleepless",
        b"/",
        b"/%zz",
        b"/nothing//here",
        b"/a/../b",
        b"/caf%C3%A9",
        b"/100%25",
    ],
)
def test_other_paths_are_served(path: bytes) -> None:
    assert not DENIED(path)


@pytest.mark.parametrize(
    "path",
    [
        b"/..",
        b"/../sleep",
        b"/%2e%2e/x",
        b"/a/../../b",
        b"/v1/..%2f..%2fx",
        b"/\\..",
        b"/%25252525252541",
    ],
)
def test_a_path_that_climbs_above_the_root_or_is_encoded_again_and_again_is_denied(path: bytes) -> None:
    assert DENIED(path)


def test_a_path_of_any_length_is_looked_at_in_bounded_time() -> None:
    assert not DENIED(b"/" + b"%25" * 20_000 + b"41")
    assert DENIED(b"/a" * 30_000 + b"/sleep")
    assert not DENIED(b"/a" * 30_000)


def test_the_lists_are_configurable() -> None:
    denied = Denied(["/sleep", "/v1/adapters/*", "/fault?"], ["/V1/Adapters/mine"])
    assert denied(b"/v1/adapters/other")
    assert denied(b"/v1/adapters/other/deeper")
    assert denied(b"/faults")
    assert not denied(b"/v1/adapters/mine")
    assert denied(b"/v1/adapters/mine/deeper")
    assert not denied(b"/pause")
