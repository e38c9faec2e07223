"""Mode and policy follow their file: a good version is taken, a bad one is refused out loud, and the old one stays."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy import regime
from proxy.configfile import load
from proxy.errors import StartError
from proxy.metrics import Metrics
from proxy.policies import PolicySettings
from proxy.regime import Regime
from proxy.settings import Settings
from shadow.exchange import Choice, Dialect, Request
from shadow.judge import Case
from shadow.wire import answers
from tests.proxy.serving import Proxy, proxy
from tests.secrets import secret
from tests.standin import StandIn
from tests.standin.asking_it import PARIS, TOOLS, chat
from validators import ToolCall

SECRET, HIDDEN = secret("primary"), secret("hidden")
PRIMARY = f"primary: {{base_url: http://vllm:8000/v1, api_key: {SECRET}}}\n"
SHADOW = "shadows: [{name: a, base_url: http://a/v1}]\n"
SEND = ToolCall("send", '{"city": "Paris"}')

Logs = list[Any]


def rules(cel: str, more: str = "") -> str:
    return f"policy:\n  tools:\n    - match: send\n      rules:\n        - id: it\n          cel: {cel}\n{more}"


@dataclass
class Followed:
    """A regime that follows its file, and what it logs."""

    file: Path
    regime: Regime
    metrics: Metrics
    logs: Logs

    def write(self, text: str) -> None:
        """A new version, in one go as a rename makes it."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(PRIMARY + text)
        fresh.rename(self.file)

    def count(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("counterproof_policy_reloads_total", {"result": result}) or 0

    def mode(self) -> list[str]:
        """The modes that the gauge says are in force."""
        value = self.metrics.registry.get_sample_value
        return [mode for mode in ("off", "observe", "block") if value("counterproof_mode", {"mode": mode})]

    def stale(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value("counterproof_set_stale", {"set": name})

    def told(self, event: str) -> Logs:
        return [entry for entry in self.logs if entry["event"] == event]

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not reached():
                await asyncio.sleep(0.01)

    async def taken(self, count: float = 1) -> None:
        await self.until(lambda: self.count("taken") >= count)
        assert self.count("taken") == count

    async def refused(self, count: float = 1) -> Any:
        """The log entry of the latest of so many refusals."""
        await self.until(lambda: self.count("refused") >= count)
        assert self.count("refused") == count
        return self.told("a new version of the configuration is refused; the old one stays")[-1]

    async def looks(self, count: int = 6) -> None:
        """Returns after so many looks at the file."""
        await asyncio.sleep(count * regime._LOOK_EVERY_S)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regime, "_LOOK_EVERY_S", 0.05)


def following(
    tmp_path: Path,
    text: str,
    scene: Callable[[Followed], Awaitable[None]],
    before: Callable[[Followed], None] = lambda _: None,
    read: Callable[[Path], Settings] = lambda file: load(file, {}, {}),
) -> None:
    """Plays a scene with a regime that follows a file of this text; `before` happens between reading and following."""

    async def main() -> None:
        metrics = Metrics()
        with capture_logs() as logs:
            one = Regime(load(file, {}, {}), metrics, path=file, load=lambda: read(file))
            stage = Followed(file, one, metrics, logs)
            before(stage)
            await one.open()
            try:
                await scene(stage)
            finally:
                await one.close()

    file = tmp_path / "cp.yaml"
    file.write_text(PRIMARY + text)
    asyncio.run(main())


def found(one: Regime, call: ToolCall = SEND) -> list[str]:
    """What the rulebook in force finds of a call."""
    return [finding.reason for finding in case(one).own([call])]


def case(one: Regime) -> Case:
    tools = [{"type": "function", "function": {"name": "send"}}]
    return Case(one.book(0), Request(Dialect.CHAT, {"tools": tools}), b"", "")


# -- a good version


def test_a_good_version_is_taken(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        old = one.regime.book(0).version
        assert found(one.regime) == []
        one.write(rules("'false'"))
        await one.taken()
        assert found(one.regime) == ["rule"]
        new = one.regime.book(0).version
        assert new != old
        assert [entry["policy"] for entry in one.told("a new policy is in force")] == [new]
        assert one.count("refused") == 0

    following(tmp_path, rules("'true'"), scene)


def test_a_policy_where_there_was_none(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        judges = [one.regime.judges]
        for count, text in enumerate((rules("'false'"), ""), start=1):
            one.write(text)
            await one.taken(count)
            judges.append(one.regime.judges)
        assert judges == [False, True, False]
        assert found(one.regime) == []

    following(tmp_path, "", scene)


def test_what_began_keeps_its_rulebook(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        begun = case(one.regime)
        one.write(rules("'in_set(args.city, \"cities\")'", "  sets: {cities: {inline: [Rome]}}\n"))
        await one.taken()
        assert begun.own([SEND]) == []
        assert [finding.reason for finding in case(one.regime).own([SEND])] == ["rule"]
        assert begun.rulebook.version != one.regime.book(0).version
        assert begun.rulebook.repeats is one.regime.book(0).repeats  # what was called before stays known
        assert begun.rulebook.lock is one.regime.book(0).lock
        assert one.regime.book(0) is one.regime.book(0)
        assert one.regime.book(1) is not one.regime.book(0)

    text = rules("'in_set(args.city, \"cities\")'", "  sets: {cities: {inline: [Paris]}}\n")
    following(tmp_path, text, scene)


def test_terms_follow_as_well(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        before = one.regime.terms
        one.write("policy: {refusal: error, hold_keepalive: 3s, status_wait: 1s, unverifiable_paths: release}\n")
        await one.taken()
        now = one.regime.terms
        assert (before.form, before.keepalive, before.status_wait, before.unread_passes) == ("message", None, 20, False)
        assert (now.form, now.keepalive, now.status_wait, now.unread_passes) == ("error", 3, 1, True)

    following(tmp_path, "", scene)


def test_what_cannot_be_meant_is_told_at_start_and_with_each_version(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        words = "tools[1] ('get_it') never applies: tools[0] ('get*') takes all it could"
        assert [entry["warning"] for entry in one.told("policy")] == [words]
        one.write("policy: {tools: [{match: '*'}, {match: a}, {match: b}]}\n")
        await one.taken()
        assert len(one.told("policy")) == 3

    following(tmp_path, "policy: {tools: [{match: get*}, {match: get_it}]}\n", scene)


@pytest.mark.parametrize(("shadows", "count"), [("", 1), (SHADOW, 0), (SHADOW.replace("}", ", role: twin}"), 1)])
def test_what_has_no_effect_without_references_is_told_where_there_are_none(
    tmp_path: Path, shadows: str, count: int
) -> None:
    async def scene(one: Followed) -> None:
        assert len(one.told("policy")) == count

    following(tmp_path, shadows + "policy: {default: {on: {unverified: refuse}}}\n", scene)


def test_the_first_look_sees_what_was_written_since_it_was_read(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        await one.taken()
        assert found(one.regime) == ["rule"]

    following(tmp_path, "", scene, before=lambda one: one.write(rules("'false'")))


def test_the_same_once_more_is_no_new_version(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        book = one.regime.book(0)
        one.write(rules("'true'"))
        one.file.touch()
        await one.looks()
        one.write(rules('"true"  # in other words'))
        await one.looks()
        assert one.regime.book(0) is book
        assert (one.count("taken"), one.count("refused")) == (0, 0)
        assert one.logs == []

    following(tmp_path, rules("'true'"), scene)


# -- a bad version


BAD = {
    "a rule": (
        rules("'args.n <'"),
        "cp.yaml:7: policy.tools.0.rules.0.cel: rule 'it', column 9: the expression ends too early",
    ),
    "an action": (
        "policy:\n  default:\n    on: {mismatch: rlease}\n",
        "cp.yaml:4: policy.default.on.mismatch: Input should be 'refuse', 'hold', 'substitute' or 'release'",
    ),
    "an unknown key": ("policy:\n  tool: []\n", "cp.yaml:3: policy.tool: unknown key; did you mean 'tools'?"),
    "another section": ("mirror: {other: 7}\n", "cp.yaml:2: mirror.other: Input should be less than or equal to 1"),
    "a mode": ("mode: blok\n", "cp.yaml:2: mode: Input should be 'off', 'observe' or 'block'"),
    "no YAML": ("policy: {tools: [\n", "cp.yaml:3: not YAML: "),
    "a set that is not there": (rules("'in_set(args.city, \"x\")'"), "cp.yaml:7: policy.tools.0.rules.0.cel: rule "),
    "a set without values": ("policy: {sets: {x: {file: none.txt}}}\n", "policy.sets.x: it cannot be read"),
    "a set in Redis": ("policy: {sets: {x: {redis: k}}}\n", "cp.yaml:2: policy.sets.x.redis: "),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_version_is_refused_out_loud_and_the_old_one_stays(tmp_path: Path, name: str) -> None:
    text, fault = BAD[name]

    async def scene(one: Followed) -> None:
        book = one.regime.book(0)
        one.write("mode: block\n" + text if name == "a set without values" else text)
        entry = await one.refused()
        assert entry["log_level"] == "error"
        (problem,) = entry["problems"]
        assert problem.replace(f"{tmp_path}/", "").startswith(fault), problem
        assert SECRET not in repr(one.logs)
        assert one.regime.book(0) is book
        assert found(one.regime) == ["rule"]
        assert one.mode() == ["observe"]
        await one.looks()
        assert one.count("refused") == 1  # once for each version
        one.write(rules("'true'"))
        await one.taken()
        assert found(one.regime) == []

    following(tmp_path, rules("'false'"), scene)


def test_secrets_are_in_no_log(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        text = f"primary: {{base_url: 'http://user:{HIDDEN}@h/v1', api_key: [{SECRET}]}}\npolicy: {{x: 1}}\n"
        one.file.write_text(text)
        entry = await one.refused()
        assert len(entry["problems"]) == 3
        one.write(f"state: {{url: 'redis://user:{HIDDEN}@127.0.0.1:9/0'}}\npolicy: {{sets: {{x: {{redis: k}}}}}}\n")
        await one.refused(2)
        assert not [key for key in (SECRET, HIDDEN) if key in repr(one.logs)]

    following(tmp_path, "", scene)


def test_a_version_that_asks_for_more_references_than_run_is_refused(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        more = SHADOW.replace("]", ", {name: b, base_url: http://b/v1}]")
        one.write(more + "policy: {agree: 2}\n")
        entry = await one.refused()
        assert entry["problems"] == [
            "policy.agree: 2 references must countersign, and primary has 1 until the next start"
        ]
        assert one.regime.book(1).policy.agree == 1

    following(tmp_path, SHADOW, scene)


def test_sections_that_wait_for_the_next_start_are_named(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        one.write("mirror: {other: 1}\nlisten: {port: 9}\n" + rules("'false'"))
        await one.taken()
        (entry,) = one.told("these sections have changed, and are taken over at the next start only")
        assert entry["sections"] == ["mirror", "listen"]

    following(tmp_path, "", scene)


def test_an_error_of_another_kind_does_not_end_the_following(tmp_path: Path) -> None:
    def read(file: Path) -> Settings:
        if b"strange" in file.read_bytes():
            raise RuntimeError(SECRET)
        return load(file, {}, {})

    async def scene(one: Followed) -> None:
        one.write("# strange\n")
        entry = await one.refused()
        assert entry["problems"] == ["it cannot be read (RuntimeError)"]
        one.write(rules("'false'"))
        await one.taken()
        assert SECRET not in repr(one.logs)

    following(tmp_path, "", scene, read=read)


# -- a file that comes and goes


def test_a_file_that_is_gone_changes_nothing_and_may_come_back(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        book = one.regime.book(0)
        await one.looks()
        one.file.unlink()
        gone = "the configuration's file is gone; what is in force stays"
        await one.until(lambda: bool(one.told(gone)))
        await one.looks()
        assert len(one.told(gone)) == 1
        assert one.regime.book(0) is book
        one.write(rules("'true'"))
        await one.taken()
        assert one.count("refused") == 0

    following(tmp_path, rules("'false'"), scene)


def test_a_half_written_version_is_not_looked_at_before_it_keeps_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regime, "_LOOK_EVERY_S", 0.2)
    whole = PRIMARY + rules("'false'") + "# " + "x" * 200

    async def scene(one: Followed) -> None:
        for end in range(0, len(whole), 16):  # as somebody who writes slowly
            one.file.write_text(whole[:end])
            await asyncio.sleep(0.02)
        one.file.write_text(whole)
        await one.taken()
        assert one.count("refused") == 0

    following(tmp_path, rules("'true'"), scene)


def test_a_version_that_stays_half_is_refused_until_it_is_whole(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        one.file.write_text("")
        entry = await one.refused()
        assert entry["problems"][0].endswith(
            "is empty; the least that is needed is primary: {base_url: http://host:8000/v1}"
        )
        one.file.write_text(PRIMARY + rules("'false'"))
        await one.taken()

    following(tmp_path, rules("'true'"), scene)


def test_a_file_behind_a_link_is_followed(tmp_path: Path) -> None:
    """As a Kubernetes volume has it: the folder's link changes, the file's own does not."""
    for version, cel in (("v1", "'true'"), ("v2", "'false'")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "cp.yaml").write_text(PRIMARY + rules(cel))
    (tmp_path / "data").symlink_to("v1")

    async def main() -> None:
        file, metrics = tmp_path / "data" / "cp.yaml", Metrics()
        one = Regime(load(file, {}, {}), metrics, path=file, load=lambda: load(file, {}, {}))
        stage = Followed(file, one, metrics, [])
        with capture_logs():
            await one.open()
            try:
                (tmp_path / "next").symlink_to("v2")
                (tmp_path / "next").rename(tmp_path / "data")
                await stage.taken()
                assert found(one) == ["rule"]
            finally:
                await one.close()

    asyncio.run(main())


# -- sets


def test_sets_change_with_the_policy_and_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "cities.txt").write_text("Paris\n")
    in_cities = "'in_set(args.city, \"cities\")'"

    async def scene(one: Followed) -> None:
        assert found(one.regime) == []  # its name is relative to the configuration's folder
        one.write(rules(in_cities, "  sets: {cities: {inline: [Rome]}}\n"))
        await one.taken()
        assert found(one.regime) == ["rule"]
        one.write(rules(in_cities, "  sets: {cities: {file: cities.txt}}\n"))
        await one.taken(2)
        assert found(one.regime) == []
        (tmp_path / "cities.txt").write_text("Rome\nOslo\n")
        await one.until(lambda: found(one.regime) == ["rule"])
        assert one.count("taken") == 2

    following(tmp_path, rules(in_cities, "  sets: {cities: {file: cities.txt}}\n"), scene)


def test_a_set_that_is_dropped_is_not_stale_any_more(tmp_path: Path) -> None:
    (tmp_path / "cities.txt").write_text("Paris\n")

    async def scene(one: Followed) -> None:
        assert one.stale("cities") == 0
        (tmp_path / "cities.txt").unlink()
        await one.until(lambda: one.stale("cities") == 1)
        one.write("")
        await one.taken()
        assert one.stale("cities") == 0

    following(tmp_path, "policy: {sets: {cities: {file: cities.txt}}}\n", scene)


def test_a_set_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    sets = "policy: {sets: {a: {file: none.txt}, b: {file: '.'}, c: {inline: [x]}}}\n"
    with pytest.raises(StartError) as caught:
        following(tmp_path, sets, lambda _one: asyncio.sleep(0))
    assert [problem.split(": ")[0] for problem in caught.value.problems] == ["policy.sets.a", "policy.sets.b"]


# -- the mode


def test_the_mode_follows_by_itself(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        book = one.regime.book(0)
        for count, mode in enumerate(("block", "off", "observe"), start=1):
            one.write(f"mode: {mode}\n" + rules("'true'"))
            await one.taken(count)
            assert one.regime.mode == mode
            assert one.mode() == [mode]
        assert [(entry["before"], entry["mode"]) for entry in one.told("mode")] == [
            ("observe", "block"),
            ("block", "off"),
            ("off", "observe"),
        ]
        assert one.regime.book(0) is book
        assert one.told("a new policy is in force") == []

    following(tmp_path, rules("'true'"), scene)


def test_a_mode_that_was_set_by_other_means_stays_until_the_file_s_own_changes(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        one.regime.switch.set("block", who="someone")
        modes = []
        for count, text in enumerate(("", "mode: off\n"), start=1):
            one.write(text + rules("'false'"))
            await one.taken(count)
            modes.append(str(one.regime.mode))
        assert modes == ["block", "off"]

    following(tmp_path, "", scene)


# -- without a file, and the end


def test_without_a_file_nothing_is_followed() -> None:
    async def main() -> None:
        one = Regime(load(None, {"primary": {"base_url": "http://h"}, "mode": "block"}, {}), Metrics())
        await one.open()
        assert one.mode == "block"
        assert one.policy == PolicySettings()
        assert len(one._tasks) == 0
        await one.close()

    asyncio.run(main())


def test_the_end_ends_the_following(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        assert len(one.regime._tasks) == 1
        await one.regime.close()
        one.write(rules("'false'"))
        await one.looks()
        assert found(one.regime) == []

    following(tmp_path, "", scene)


# -- globs that apply to nothing


def test_globs_that_apply_to_no_tool_that_was_offered_are_told_once(tmp_path: Path) -> None:
    words = "globs of the policy apply to no tool that was offered"

    async def scene(one: Followed) -> None:
        for _ in range(999):
            one.regime.saw(["Run-Command", "ping"])
            one.regime.saw([])
        assert one.told(words) == []
        one.regime.saw(["x" * 1_000_000, *(f"tool{i}" for i in range(200)), "send"])  # as many as are looked at
        (entry,) = one.told(words)
        assert (entry["globs"], entry["requests"]) == (["send*", "shut"], 1000)
        for _ in range(1001):
            one.regime.saw(["ping"])
        assert len(one.told(words)) == 1
        one.write("policy: {tools: [{match: pong}]}\n")
        await one.taken()
        for _ in range(1000):
            one.regime.saw(["ping"])
        assert [entry["globs"] for entry in one.told(words)] == [["send*", "shut"], ["pong"]]

    following(tmp_path, "policy: {tools: [{match: run_command}, {match: send*}, {match: shut}]}\n", scene)


def test_globs_that_all_apply_are_not_spoken_of(tmp_path: Path) -> None:
    async def scene(one: Followed) -> None:
        for _ in range(1001):
            one.regime.saw(["run_command", "ping"])
        assert one.logs == []

    following(tmp_path, "policy: {tools: [{match: run*}]}\n", scene)


# -- a whole proxy


def read(body: bytes) -> Choice:
    answer = answers.read(Dialect.CHAT, body, stream=True)
    assert answer.problem is None
    return answer.choices[0]


@pytest.mark.slow
def test_a_serving_proxy_follows_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regime, "_LOOK_EVERY_S", 0.5)
    file = tmp_path / "cp.yaml"
    paris = "'args.city != \"Paris\"'"

    async def ask(door: Proxy, seed: int) -> tuple[str, Choice]:
        body = chat(tools=TOOLS, stream=True, seed=seed)
        status, raw, response = await door.chat(body)
        assert status == 200
        return response.headers["x-counterproof-mode"], read(raw)

    async def written(door: Proxy, text: str, result: str, count: int) -> None:
        file.write_text(text)
        async with asyncio.timeout(10):
            while await door.metric("counterproof_policy_reloads_total", result=result) < count:
                await asyncio.sleep(0.02)

    async def main() -> None:
        async with StandIn([PARIS]) as engine, proxy(tmp_path, engine, file=file) as door:
            mode, choice = await ask(door, 1)
            assert (mode, len(choice.calls)) == ("off", 1)
            await written(door, "mode: block\n", "taken", 1)
            mode, choice = await ask(door, 2)
            assert (mode, len(choice.calls)) == ("block", 1)
            await written(door, "mode: block\n" + rules(paris), "taken", 2)
            mode, choice = await ask(door, 3)
            assert (mode, choice.calls) == ("block", ())
            assert "[counterproof]" in choice.content
            await written(door, "mode: block\n" + rules("'args.'"), "refused", 1)
            mode, choice = await ask(door, 4)
            assert (mode, choice.calls) == ("block", ())
            await written(door, "mode: observe\n" + rules(paris), "taken", 3)
            mode, choice = await ask(door, 5)
            assert (mode, len(choice.calls)) == ("observe", 1)
            async with asyncio.timeout(10):
                while not await door.metric("counterproof_gate_total", action="would_refuse", verdict="violation"):
                    await asyncio.sleep(0.02)
            assert await door.metric("counterproof_mode", mode="observe") == 1
            assert await door.metric("counterproof_policy_reloads_total", result="refused") == 1

    file.write_text("mode: off\n")
    with capture_logs() as logs:
        asyncio.run(main())
    (refused,) = [entry for entry in logs if "is refused" in entry["event"]]
    assert "cp.yaml:7: policy.tools.0.rules.0.cel" in refused["problems"][0]
