from pathlib import Path
from typing import Any

import pytest

from tests.proxy.control.serving import Port, message, on

SENDS = {"match": "send", "rules": [{"id": "it", "cel": "args.city == 'Paris'"}]}


async def validated(port: Port, document: Any) -> Any:
    response = await port.ask("POST", "/admin/policy:validate", "policy", json=document)
    assert response.status_code == 200
    return response.json()


def test_a_policy_without_faults_has_a_version() -> None:
    async def scene(port: Port) -> None:
        found = await validated(port, {"tools": [SENDS]})
        assert (found["valid"], found["faults"], found["warnings"]) == (True, [], [])
        before = port.service.regime.policy.version
        assert found["version"] != before
        assert port.service.regime.policy.version == before  # nothing is put in force
        assert (await validated(port, {}))["version"] == before

    on(None, scene)


def test_every_fault_has_its_place() -> None:
    document = {
        "defualt": {},
        "agree": -1,
        "tools": [{"match": "send"}, {"match": "a", "on": {"mismatch": "explode"}}],
    }

    async def scene(port: Port) -> None:
        found = await validated(port, document)
        assert (found["valid"], found["version"]) == (False, None)
        assert {fault["at"] for fault in found["faults"]} == {
            "policy.defualt",
            "policy.agree",
            "policy.tools.1.on.mismatch",
        }
        assert "did you mean 'default'?" in str(found["faults"])

    on(None, scene)


def test_rules_are_compiled() -> None:
    rules = [{"id": "a", "cel": "args.city =="}, {"id": "b", "cel": "in_set(args.city, 'cities')"}]

    async def scene(port: Port) -> None:
        found = await validated(port, {"tools": [{"match": "send", "rules": rules}]})
        assert [fault["at"] for fault in found["faults"]] == [
            "policy.tools.0.rules.0.cel",
            "policy.tools.0.rules.1.cel",
        ]

    on(None, scene)


@pytest.mark.parametrize(
    ("document", "at"),
    [({"agree": 1}, "policy.agree"), ({"sets": {"a": {"redis": "key"}}}, "policy.sets.a.redis")],
)
def test_it_is_held_against_the_rest_of_the_configuration(document: Any, at: str) -> None:
    async def scene(port: Port) -> None:
        assert [fault["at"] for fault in (await validated(port, document))["faults"]] == [at]

    on(None, scene)


def test_what_cannot_be_meant_is_a_warning() -> None:
    async def scene(port: Port) -> None:
        found = await validated(port, {"tools": [{"match": "get*"}, {"match": "get_it"}]})
        assert found["valid"] is True
        assert found["warnings"] == ["tools[1] ('get_it') never applies: tools[0] ('get*') takes all it could"]

    on(None, scene)


def test_no_set_is_read(tmp_path: Path) -> None:
    (tmp_path / "set.txt").write_text("secret\n")

    async def scene(port: Port) -> None:
        for file in (str(tmp_path / "set.txt"), "none.txt"):
            assert (await validated(port, {"sets": {"a": {"file": file}}}))["valid"] is True

    on(tmp_path, scene)


@pytest.mark.parametrize("document", [[], "policy", None, 1])
def test_what_is_no_policy_at_all(document: Any) -> None:
    async def scene(port: Port) -> None:
        response = await port.ask("POST", "/admin/policy:validate", "policy", json=document)
        assert response.status_code == 422
        assert message(response)

    on(None, scene)
