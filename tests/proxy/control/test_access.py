"""Who may use the control port: every route, every scope, every name it is called by, every origin."""

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from structlog.testing import capture_logs

from proxy.control.access import MAX_BODY, host_of
from tests.proxy.control.serving import TOKENS, Port, message, on
from tests.secrets import secret

WANTS: dict[tuple[str, str], str | None] = {
    ("GET", "/healthz"): None,
    ("GET", "/metrics"): "metrics",  # where `control.metrics` says so
    ("GET", "/docs"): "read",
    ("GET", "/admin/mode"): "read",
    ("PUT", "/admin/mode"): "mode",
    ("GET", "/admin/status"): "read",
    ("POST", "/admin/policy:validate"): "policy",
    ("GET", "/admin/approvals"): "approve",
    ("GET", "/admin/approvals/{identity}"): "approve",
    ("POST", "/admin/approvals/{identity}"): "approve",
    ("POST", "/admin/erasures"): "policy",
}
"""Every route, and the scope that opens it."""

GUARDED = [route for route, scope in WANTS.items() if scope is not None]
PLACES = ["/admin/mode", "/metrics", "/docs", "/admin/nothing", "/", "/healthz/", "//admin/mode", "/admin/mode/"]


def filled(path: str) -> str:
    return path.replace("{identity}", "ap-0")


def test_every_route_is_in_the_table() -> None:
    async def scene(port: Port) -> None:
        found = set()
        for route in port.app.routes:
            below = getattr(route, "original_router", None)
            for one in [route] if below is None else below.routes:
                assert isinstance(one, APIRoute)  # none of another kind
                found |= {(method, one.path) for method in one.methods or ()}
        assert found == WANTS.keys()

    on(None, scene)


@pytest.mark.parametrize("route", GUARDED, ids=" ".join)
def test_a_route_opens_for_its_scope_alone(route: tuple[str, str]) -> None:
    method, path = route

    async def scene(port: Port) -> None:
        for scope in TOKENS:
            response = await port.ask(method, filled(path), scope)
            if scope == WANTS[route]:
                assert response.status_code not in {401, 403}
            else:
                assert response.status_code == 403
                assert message(response) == f"this needs a token with the scope {WANTS[route]}"
                assert response.json()["error"]["code"] == "scope_missing"
            assert not [name for name in response.headers if name.startswith("access-control-")]

    on(None, scene, metrics="token")


SECRET = secret("very-secret")
WRONG: dict[str, dict[str, str]] = {
    "none": {},
    "empty": {"authorization": ""},
    "an unknown one": {"authorization": f"Bearer {secret('wrong', 'ct')}"},
    "another scheme": {"authorization": f"Basic {TOKENS['mode']}"},
    "without a scheme": {"authorization": TOKENS["mode"]},
    "the beginning of one": {"authorization": f"Bearer {TOKENS['mode'][:-1]}"},
    "a scope's name": {"authorization": "Bearer mode"},
    "as a client's key": {"x-api-key": TOKENS["mode"]},
    "as a cookie": {"cookie": f"token={TOKENS['mode']}"},
}


@pytest.mark.parametrize("kind", WRONG)
def test_without_a_known_token_every_route_is_closed(kind: str) -> None:
    async def scene(port: Port) -> None:
        for (method, path), body in product(GUARDED, (b"", b'{"mode": "off"}', b"{")):
            headers = WRONG[kind] | {"content-type": "application/json"}
            response = await port.ask(method, filled(path), content=body, headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["type"] == "authentication_error"
            assert message(response) == "a token of the control port is needed: it was not given, or is not known"
        assert port.service.regime.mode == "observe"

    on(None, scene, metrics="token")


def test_without_a_token_nobody_learns_which_paths_there_are() -> None:
    async def scene(port: Port) -> None:
        for path, method in product(PLACES, ("GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "TRACE")):
            assert (await port.ask(method, path)).status_code == 401

    on(None, scene, metrics="token")


def test_a_token_in_the_path_opens_nothing() -> None:
    async def scene(port: Port) -> None:
        for query in (f"token={TOKENS['read']}", f"access_token={TOKENS['read']}"):
            assert (await port.ask("GET", f"/admin/mode?{query}")).status_code == 401

    on(None, scene)


def test_health_is_open_and_so_are_metrics_unless_they_are_not() -> None:
    async def opened(port: Port) -> None:
        for scope in (None, "read", "metrics"):
            assert (await port.ask("GET", "/healthz", scope)).json()["status"] == "ok"
            assert b"counterproof_mode" in (await port.ask("GET", "/metrics", scope)).content

    async def closed(port: Port) -> None:
        assert (await port.ask("GET", "/healthz")).status_code == 200
        assert (await port.ask("GET", "/metrics")).status_code == 401
        assert b"counterproof_mode" in (await port.ask("GET", "/metrics", "metrics")).content

    on(None, opened)
    on(None, opened, metrics="open")
    on(None, closed, metrics="token")


def test_what_is_not_there_is_said_in_the_same_shape() -> None:
    async def scene(port: Port) -> None:
        nothing = await port.ask("GET", "/admin/nothing", "read")
        assert (nothing.status_code, message(nothing)) == (404, "not found")
        other = await port.ask("DELETE", "/admin/mode", "mode")
        assert (other.status_code, message(other)) == (405, "method not allowed")
        assert other.headers["allow"] in {"GET", "PUT"}

    on(None, scene)


def test_a_large_body_is_not_read() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    async def scene(port: Port) -> None:
        headers = {"content-type": "application/json"}
        for content in (b" " * (MAX_BODY + 1), parts()):
            response = await port.ask("POST", "/admin/policy:validate", "policy", content=content, headers=headers)
            assert response.status_code == 413
            assert message(response) == "the request's body is larger than is taken here"
        fits = await port.ask(
            "POST", "/admin/policy:validate", "policy", content=b"{}".ljust(MAX_BODY), headers=headers
        )
        assert fits.status_code == 200
        assert (await port.ask("PUT", "/admin/mode", content=b" " * (MAX_BODY + 1))).status_code == 401

    on(None, scene)


# -- the name it is called by


FINE = ["127.0.0.1:8081", "127.0.0.1", "localhost:8081", "LOCALHOST", "[::1]:8081", "[::1]", "localhost:1", "10.1.2.3"]
OTHER = [
    "evil.example",
    "evil.example:8081",
    "127.0.0.1.evil.example",
    "localhost.evil.example:8081",
    "evil.example:8081@127.0.0.1",
    "127.0.0.1@evil.example",
    "127.0.0.1:8081.evil.example",
    "127.0.0.1:80:81",
    "127.0.0.1, evil.example",
    "127.0.0.1/evil",
    "0.0.0.0:8081",
    "[::]:8081",
    "127.1",
    "127.0.0.2",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "localhost.",
    "localhost:x",
    "[::1",
    "::1",
    "[127.0.0.1]",
    "[::1]evil",
    ":8081",
    "10.1.2.4",
    "cp.example.evil",
    "",
]


@pytest.mark.parametrize("host", [*FINE, "cp.example", "CP.example:443"])
def test_the_port_is_called_by_loopback_its_own_address_and_configured_names(host: str) -> None:
    async def scene(port: Port) -> None:
        response = await port.ask("PUT", "/admin/mode", "mode", json={"mode": "block"}, headers={"host": host})
        assert response.status_code == 200

    on(None, scene, address="10.1.2.3", hosts=["cp.example"])


@pytest.mark.parametrize("host", OTHER)
def test_by_any_other_name_it_is_closed(host: str) -> None:
    async def scene(port: Port) -> None:
        for method, path, scope in (("PUT", "/admin/mode", "mode"), ("GET", "/admin/mode", "read")):
            response = await port.ask(method, path, scope, json={"mode": "off"}, headers={"host": host})
            assert response.status_code == 403
            assert response.json()["error"]["code"] == "host_not_allowed"
            assert message(response) == "the control port is not called by this name: see control.hosts"
        assert (await port.ask("GET", "/metrics", headers={"host": host})).status_code == 403
        assert (await port.ask("GET", "/healthz", headers={"host": host})).status_code == 200
        assert port.service.regime.mode == "observe"

    on(None, scene, address="10.1.2.3", hosts=["cp.example"])


@pytest.mark.parametrize(("address", "host"), [("::1", "[0:0:0:0:0:0:0:1]"), ("::ffff:10.1.2.3", "10.1.2.3:8081")])
def test_an_address_is_one_however_it_is_written(address: str, host: str) -> None:
    async def scene(port: Port) -> None:
        assert (await port.ask("GET", "/admin/mode", "read", headers={"host": host})).status_code == 200

    on(None, scene, address=address)


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"localhost"], [b"localhost", b"evil.example"]])
def test_one_name_is_given(hosts: list[bytes]) -> None:
    async def scene(port: Port) -> None:
        assert await _status(port, [(b"host", host) for host in hosts]) == 403

    on(None, scene)


async def _status(port: Port, headers: list[tuple[bytes, bytes]]) -> int:
    """The answer to a request with exactly these headers, and a token that may read."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    token = (b"authorization", f"Bearer {TOKENS['read']}".encode())
    await port.app(
        {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": "/admin/mode",
            "raw_path": b"/admin/mode",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [*headers, token],
            "server": ("127.0.0.1", 8081),
            "client": ("127.0.0.1", 5000),
        },
        receive,
        send,
    )
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize(
    ("authority", "host"),
    [("a", "a"), ("a:80", "a"), ("[::1]:80", "::1"), ("a:", None), ("a:8x", None), ("[a]", None), ("a:²", None)],
)
def test_the_host_of_an_authority(authority: str, host: str | None) -> None:
    assert host_of(authority) == host


# -- the page it is used from


ELSEWHERE = [
    "http://evil.example",
    "https://evil.example:8081",
    "http://127.0.0.1",  # another port is another origin
    "http://127.0.0.1:3000",
    "http://localhost:8081",  # and so is another name
    "http://127.0.0.1:8081.evil.example",
    "http://evil.example/http://127.0.0.1:8081",
    "file://",
    "null",
    "",
    "chrome-extension://abcdef",
    "http://127.0.0.1:8081, http://evil.example",
]


@pytest.mark.parametrize("origin", ELSEWHERE)
def test_a_page_of_another_origin_can_neither_turn_the_switch_nor_read(origin: str) -> None:
    async def scene(port: Port) -> None:
        for method, path in GUARDED:
            scope = WANTS[method, path]
            body = {"json": {"mode": "off"}} if method != "GET" else {}
            response = await port.ask(method, filled(path), scope, headers={"origin": origin}, **body)
            assert response.status_code == 403
            assert response.json()["error"]["code"] == "origin_not_allowed"
            assert "access-control-allow-origin" not in response.headers
        assert port.service.regime.mode == "observe"

    on(None, scene)


def test_a_page_of_its_own_origin_may() -> None:
    async def scene(port: Port) -> None:
        for host in ("127.0.0.1:8081", "localhost:9000", "cp.example"):
            for scheme in ("http", "https"):
                headers = {"host": host, "origin": f"{scheme}://{host.upper()}"}
                response = await port.ask("PUT", "/admin/mode", "mode", json={"mode": "block"}, headers=headers)
                assert response.status_code == 200

    on(None, scene, hosts=["cp.example"])


def test_a_second_origin_is_looked_at_too() -> None:
    async def scene(port: Port) -> None:
        own, other = (b"origin", b"http://127.0.0.1:8081"), (b"origin", b"http://evil.example")
        host = (b"host", b"127.0.0.1:8081")
        assert await _status(port, [host, own]) == 200
        assert await _status(port, [host, own, other]) == 403
        assert await _status(port, [host, other, own]) == 403

    on(None, scene)


def test_a_preflight_is_granted_nothing() -> None:
    async def scene(port: Port) -> None:
        asked = {"origin": "http://evil.example", "access-control-request-method": "PUT"}
        response = await port.ask("OPTIONS", "/admin/mode", headers=asked)
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control-")]

    on(None, scene)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_what_a_page_can_send_without_asking_turns_nothing(kind: str | None) -> None:
    async def scene(port: Port) -> None:
        headers = {} if kind is None else {"content-type": kind}
        response = await port.ask("PUT", "/admin/mode", "mode", content=b'{"mode": "off"}', headers=headers)
        assert response.status_code == 422
        assert message(response)
        assert port.service.regime.mode == "observe"

    on(None, scene)


# -- no secrets


def test_a_route_that_breaks_says_nothing_of_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(port: Port) -> None:
        def breaks(*_args: object, **_options: object) -> None:
            raise RuntimeError(f"{SECRET} content")

        monkeypatch.setattr(port.service.regime.switch, "set", breaks)
        with capture_logs() as logs:
            response = await port.ask("PUT", "/admin/mode", "mode", json={"mode": "off"})
        assert response.status_code == 500
        assert message(response) == "an error of this proxy's own; its log names the kind"
        assert [(entry["route"], entry["error"]) for entry in logs] == [("/admin/mode", "RuntimeError")]
        assert SECRET not in response.text + str(logs)

    on(None, scene)


def test_no_token_is_in_any_answer_log_or_file(tmp_path: Path) -> None:
    async def scene(port: Port) -> None:
        told = []
        for method, path in WANTS:
            for scope in (None, *TOKENS):
                for headers in ({}, {"origin": "http://evil.example"}, {"host": "evil.example"}):
                    body = {"json": {"mode": TOKENS["mode"], "reason": TOKENS["read"]}} if method != "GET" else {}
                    response = await port.ask(method, filled(path), scope, headers=headers, **body)
                    told.append(response.text + str(response.headers))
        for token in TOKENS.values():
            assert token not in "".join(told)

    with capture_logs() as logs:
        on(tmp_path, scene)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert kept
    for token in TOKENS.values():
        assert token not in str(logs)
        assert token.encode() not in kept
