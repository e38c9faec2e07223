import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from proxy import sets as module
from proxy.sets import SetError, SetKeeper, SetSource, values_in
from tests.redis_server import RedisServer
from tests.secrets import secret

SOON = 0.01
SECRET, PASSWORD = "s3cret-value", secret("redis")


class Heard:
    """What `on_stale` has been told, and a keeper that looks every few milliseconds."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []

    def __call__(self, name: str, stale: bool) -> None:  # noqa: FBT001  (the callback's form)
        self.told.append((name, stale))

    @asynccontextmanager
    async def keeper(self, sources: Mapping[str, SetSource], **more: Any) -> Any:
        keeper = SetKeeper(sources, on_stale=self, file_every_s=SOON, redis_every_s=SOON, **more)
        await keeper.open()
        try:
            yield keeper
        finally:
            await keeper.close()


@pytest.fixture
def heard() -> Heard:
    return Heard()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(SOON)


def renamed(path: Path, text: str) -> None:
    """The file anew, at once: as a careful writer does it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.rename(path)


# What a set is


@pytest.mark.parametrize("source", [{}, {"inline": ["a"], "file": "b"}, {"file": "a", "redis": "b"}, {"redis": ""}])
def test_a_source_is_exactly_one_of_three(source: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SetSource.model_validate(source)


def test_a_source_knows_no_other_keys_and_no_other_values_than_texts() -> None:
    with pytest.raises(ValidationError, match="extra"):
        SetSource.model_validate({"inline": ["a"], "path": "x"})
    with pytest.raises(ValidationError, match="string"):
        SetSource.model_validate({"inline": [1]})
    assert SetSource.model_validate({"inline": []}).inline == ()


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (b"", set()),
        (b"a\nb\n", {"a", "b"}),
        (b"a\r\nb\r\n\r\n", {"a", "b"}),
        (b"\xef\xbb\xbfa\n", {"a"}),
        (b"# words\n  a  \n\n\t# more\nb # not one\n", {"a", "b # not one"}),
        ("é\u2028ß\n漢".encode(), {"é\u2028ß", "漢"}),
        (b"a\na\na", {"a"}),
    ],
)
def test_a_file_has_a_value_a_line(raw: bytes, values: set[str]) -> None:
    assert values_in(raw) == values


def problem(tmp_path: Path, source: SetSource, **more: Any) -> str:
    keeper = SetKeeper({"fine": SetSource(inline=("a",)), "mine": source}, directory=tmp_path, **more)
    with pytest.raises(SetError) as caught:
        asyncio.run(keeper.open())
    return str(caught.value)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff\xfea\x00", "it is not UTF-8"),
        (b"a\x00b", "it is no text file"),
        (b"a" * (module.MAX_VALUE_BYTES + 1), "a value is longer than 4096 bytes"),
        ("é".encode() * module.MAX_VALUE_BYTES, "a value is longer than 4096 bytes"),
        (b"\n".join(b"%d" % i for i in range(module.MAX_VALUES + 1)), "it has more than 200000 values"),
        (b"#" * (module.MAX_FILE_BYTES + 1), "it is larger than 16777216 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, raw: bytes, reason: str) -> None:
    (tmp_path / "values").write_bytes(raw)
    assert problem(tmp_path, SetSource(file=Path("values"))) == f"mine: {reason}"


def test_a_file_that_is_none_stops_the_start(tmp_path: Path) -> None:
    assert problem(tmp_path, SetSource(file=Path("gone"))) == "mine: it cannot be read: FileNotFoundError"
    assert problem(tmp_path, SetSource(file=Path())) == "mine: it is no regular file"
    os.mkfifo(tmp_path / "pipe")
    assert problem(tmp_path, SetSource(file=Path("pipe"))) == "mine: it is no regular file"


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    sources = {name: SetSource(file=tmp_path / name) for name in ("one", "two")} | {"three": SetSource(redis="key")}
    with pytest.raises(SetError) as caught:
        asyncio.run(SetKeeper(sources).open())
    assert [line.partition(":")[0] for line in caught.value.problems] == ["one", "two", "three"]


def test_values_written_out_are_there_before_anything_is_opened() -> None:
    assert SetKeeper({"a": SetSource(inline=("x",))}).sets.contains("a", "x")


# Files that change


def test_a_changed_file_is_read_again(tmp_path: Path, heard: Heard) -> None:
    path = tmp_path / "values"
    path.write_text("a\n")

    async def scenario() -> None:
        async with heard.keeper({"mine": SetSource(file=Path("values"))}, directory=tmp_path) as keeper:
            assert keeper.sets.snapshot() == {"mine": {"a"}}
            renamed(path, "b\n")
            await until(lambda: keeper.sets.contains("mine", "b"))
            assert not keeper.sets.contains("mine", "a")
            with path.open("a") as file:
                file.write("c\n")
            await until(lambda: keeper.sets.contains("mine", "c"))
            assert keeper.sets.contains("mine", "b")

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(entry["event"], entry["values"]) for entry in logs] == [("a set has new values", n) for n in (1, 2)]
    assert heard.told == [("mine", False)]


def test_a_link_that_turns_elsewhere_is_followed(tmp_path: Path, heard: Heard) -> None:
    # As Kubernetes changes a mounted ConfigMap.
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "values").write_text(f"v{version}")
    (tmp_path / "now").symlink_to("1")

    async def scenario() -> None:
        async with heard.keeper({"mine": SetSource(file=tmp_path / "now" / "values")}) as keeper:
            (tmp_path / "next").symlink_to("2")
            (tmp_path / "next").rename(tmp_path / "now")
            await until(lambda: keeper.sets.contains("mine", "v2"))

    asyncio.run(scenario())


@pytest.mark.parametrize("spoilt", [None, b"\xff", b"a\0b"])
def test_a_set_whose_file_is_spoilt_keeps_its_values_says_so_once_and_heals(
    tmp_path: Path, heard: Heard, spoilt: bytes | None
) -> None:
    path = tmp_path / "values"
    path.write_text(f"{SECRET}\n")

    async def scenario() -> None:
        async with heard.keeper({"mine": SetSource(file=path), "other": SetSource(inline=("x",))}) as keeper:
            if spoilt is None:
                path.unlink()
            else:
                path.write_bytes(spoilt)
            await until(lambda: ("mine", True) in heard.told)
            await asyncio.sleep(10 * SOON)  # some more looks: none of them may take the old members away
            assert keeper.sets.contains("mine", SECRET)
            renamed(path, f"{SECRET}\n")
            await until(lambda: heard.told[-1] == ("mine", False))
            assert keeper.sets.contains("mine", SECRET)
            renamed(path, "other\n")
            await until(lambda: keeper.sets.contains("mine", "other"))

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert heard.told == [("mine", False), ("other", False), ("mine", True), ("mine", False)]
    assert [entry["event"] for entry in logs] == [
        "a set is stale; its old values stay",
        "a set is current again",
        "a set has new values",
    ]
    assert SECRET not in repr(logs)


def test_a_file_that_comes_back_as_it_was_is_current_again(tmp_path: Path, heard: Heard) -> None:
    path = tmp_path / "values"
    path.write_text("a\n")

    async def scenario() -> None:
        async with heard.keeper({"mine": SetSource(file=path)}):
            path.rename(tmp_path / "away")
            await until(lambda: heard.told[-1] == ("mine", True))
            (tmp_path / "away").rename(path)
            await until(lambda: heard.told[-1] == ("mine", False))

    asyncio.run(scenario())


def test_a_file_is_read_only_when_it_has_kept_still(tmp_path: Path) -> None:
    path = tmp_path / "values"
    path.write_text("a\n")
    file = module._File(path)
    assert file.read() == {"a"}
    assert file.look() is None
    path.write_text("")
    assert file.look() is None
    path.write_text("b\nhalf of")
    assert file.look() is None
    path.write_text("b\nhalf of a line\n")
    assert file.look() is None
    assert file.look() == frozenset({"b", "half of a line"})
    assert file.look() is None


def test_a_spoilt_file_is_not_read_over_and_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "values"
    path.write_bytes(b"\xff")
    file = module._File(path)
    reads: list[bytes] = []

    def counting(raw: bytes) -> frozenset[str]:
        reads.append(raw)
        return values_in(raw)

    monkeypatch.setattr(module, "values_in", counting)
    for look in (file.read, file.look, file.look, file.look):
        with pytest.raises(module._UnusableError, match="UTF-8"):
            look()
    assert len(reads) == 1
    renamed(path, "a")
    assert [file.look(), file.look()] == [None, frozenset({"a"})]


def test_files_are_read_outside_of_the_loop(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "values"
    path.write_text("a\n")
    threads = set()

    def noting(raw: bytes) -> frozenset[str]:
        threads.add(threading.current_thread())
        return values_in(raw)

    async def scenario() -> None:
        async with heard.keeper({"mine": SetSource(file=path)}) as keeper:
            renamed(path, "b\n")
            await until(lambda: keeper.sets.contains("mine", "b"))

    monkeypatch.setattr(module, "values_in", noting)
    asyncio.run(scenario())
    assert threads
    assert threading.main_thread() not in threads


def test_nothing_is_followed_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "values"
    path.write_text("a\n")

    async def scenario() -> None:
        keeper = SetKeeper({"mine": SetSource(file=path)}, file_every_s=SOON)
        await keeper.open()
        await keeper.close()
        renamed(path, "b\n")
        await asyncio.sleep(10 * SOON)  # so long that it would have been seen
        assert keeper.sets.contains("mine", "a")
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


# Sets in Redis


def test_a_redis_set_is_read_and_followed(redis_server: RedisServer, heard: Heard) -> None:
    client = redis_server.client()
    client.sadd("accounts", "a", "é")

    async def scenario() -> None:
        sources = {"mine": SetSource(redis="accounts")}
        async with heard.keeper(sources, redis_url=redis_server.url) as keeper:
            assert keeper.sets.snapshot() == {"mine": {"a", "é"}}
            client.sadd("accounts", "b")
            await until(lambda: keeper.sets.contains("mine", "b"))
            client.srem("accounts", "a")
            await until(lambda: not keeper.sets.contains("mine", "a"))

    with client:
        asyncio.run(scenario())
    assert heard.told == [("mine", False)]


def test_a_set_stays_while_redis_is_away_and_heals(redis_server: RedisServer, heard: Heard) -> None:
    def fill(value: str) -> None:
        with redis_server.client() as client:
            client.sadd("accounts", value)

    async def scenario() -> None:
        sources = {"mine": SetSource(redis="accounts")}
        async with heard.keeper(sources, redis_url=redis_server.url) as keeper:
            redis_server.stop()
            await until(lambda: heard.told[-1] == ("mine", True))
            await asyncio.sleep(10 * SOON)  # some more tries
            assert keeper.sets.contains("mine", SECRET)
            await asyncio.to_thread(redis_server.start)
            await asyncio.sleep(10 * SOON)  # and some in which it answers, and is empty
            assert keeper.sets.contains("mine", SECRET)
            fill("new")
            await until(lambda: keeper.sets.contains("mine", "new"))

    fill(SECRET)
    with capture_logs() as logs:
        asyncio.run(scenario())
    assert heard.told == [("mine", False), ("mine", True), ("mine", False)]
    assert SECRET not in repr(logs)


@pytest.mark.parametrize("spoil", ["delete", "retype", "bytes"])
def test_a_key_that_is_no_usable_set_any_more_leaves_the_old_values(
    redis_server: RedisServer, heard: Heard, spoil: str
) -> None:
    client = redis_server.client()
    client.sadd("accounts", "a")

    async def scenario() -> None:
        sources = {"mine": SetSource(redis="accounts")}
        async with heard.keeper(sources, redis_url=redis_server.url) as keeper:
            if spoil == "bytes":
                client.sadd("accounts", b"\xff")
            else:
                client.delete("accounts")
            if spoil == "retype":
                client.set("accounts", "a")
            await until(lambda: heard.told[-1] == ("mine", True))
            assert keeper.sets.snapshot() == {"mine": {"a"}}
            client.delete("accounts")
            client.sadd("accounts", "b")
            await until(lambda: keeper.sets.snapshot() == {"mine": {"b"}})

    with client:
        asyncio.run(scenario())
    assert heard.told[-1] == ("mine", False)


def test_what_is_wrong_with_a_redis_set_stops_the_start(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server.client() as client:
        client.set("text", "a")
        client.sadd("large", *range(11))
    monkeypatch.setattr(module, "MAX_REDIS_VALUES", 10)
    reasons = {
        "gone": "there is no such set in Redis",
        "text": "Redis refuses to read it: no set, or no right to",
        "large": "it has more than 10 values",
    }
    for key, reason in reasons.items():
        assert problem(tmp_path, SetSource(redis=key), redis_url=redis_server.url) == f"mine: {reason}"


def test_no_redis_stops_the_start_and_no_message_holds_its_password(redis_server: RedisServer, tmp_path: Path) -> None:
    redis_server.stop()
    source = SetSource(redis="accounts")
    url = redis_server.url.replace("//", f"//user:{PASSWORD}@")
    assert problem(tmp_path, source, redis_url=url) == "mine: Redis does not answer: ConnectionError"
    assert problem(tmp_path, source) == "mine: it is kept in Redis, and no Redis is configured"
    assert problem(tmp_path, source, redis_url=f"http://{PASSWORD}@x") == "mine: the URL of Redis is none"


def test_a_redis_that_is_silent_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> str:
        async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await over.wait()
            writer.close()

        over = asyncio.Event()
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        keeper = SetKeeper({"mine": SetSource(redis="a")}, redis_url=f"redis://127.0.0.1:{port}")
        with pytest.raises(SetError) as caught:
            await keeper.open()
        over.set()
        server.close()
        await server.wait_closed()
        return str(caught.value)

    monkeypatch.setattr(module, "_REDIS_TIMEOUT_S", 0.05)
    assert asyncio.run(scenario()).startswith("mine: Redis does not answer: TimeoutError")
