import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.errors import StartError
from proxy.keys import digest
from proxy.tokenfile import default_path, lent, read
from proxy.tokens import Token, Tokens
from tests.secrets import secret


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def known(tokens: Tokens, token: str | None) -> bool:
    return tokens.find([(b"authorization", f"Bearer {token}".encode())]) is not None


def test_the_token_is_there_while_the_proxy_serves(tmp_path: Path) -> None:
    path, tokens = tmp_path / "state" / "control.token", Tokens()
    with lent(tokens, path, 8081):
        assert known(tokens, read(path))
        assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert not path.exists()
    assert read(path) is None


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_only_the_owner_can_read_it_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "control.token"
    before = os.umask(umask)
    try:
        with lent(Tokens(), path, 8081):
            assert mode(path) == 0o600
    finally:
        os.umask(before)


def test_it_goes_away_when_serving_fails(tmp_path: Path) -> None:
    path = tmp_path / "control.token"
    with pytest.raises(RuntimeError), lent(Tokens(), path, 8081):
        raise RuntimeError
    assert not path.exists()


def test_what_a_killed_proxy_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.token"
    path.write_text("of another proxy\n")
    path.chmod(0o644)
    before = path.stat()
    held = path.open()  # so that its inode is not used again
    with held, lent(Tokens(), path, 8081):
        assert mode(path) == 0o600
        assert path.stat().st_ino != before.st_ino
        assert read(path) != "of another proxy"
        assert held.read() == "of another proxy\n"


def test_no_link_is_followed(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "control.token"
    precious.write_text("kept")
    path.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        read(path)
    with lent(Tokens(), path, 8081):
        assert not path.is_symlink()
    assert precious.read_text() == "kept"


def test_one_that_appears_in_between_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "control.token"

    def unlink(*_args: object, **_options: object) -> None:
        path.touch()

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(StartError, match="cannot be written: File exists"), lent(Tokens(), path, 8081):
        pass
    assert path.read_bytes() == b""


def test_a_folder_that_others_can_write_in_is_refused(tmp_path: Path) -> None:
    for bits in (0o777, 0o770, 0o702, 0o1777):
        tmp_path.chmod(bits)
        with pytest.raises(StartError) as caught, lent(Tokens(), tmp_path / "t", 8081):
            pass
        assert str(caught.value).endswith("its folder may be written by others; it needs one of its own")
        assert not (tmp_path / "t").exists()
    tmp_path.chmod(0o700)


def test_a_configured_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "token", tmp_path / "folder"):
        with pytest.raises(StartError) as caught, lent(Tokens(), path, 8081):
            pass
        assert str(caught.value).startswith(f"control.token_file: {path}: cannot be written: ")


def test_where_the_default_place_cannot_be_written_nobody_gets_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with capture_logs() as logs, lent(Tokens(), None, 8081):
        pass
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "nobody can use the admin API" in logs[0]["event"]


def test_where_there_is_no_home_nobody_gets_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setattr(Path, "home", none)
    with capture_logs() as logs, lent(Tokens(), None, 8081):
        pass
    assert [entry["log_level"] for entry in logs] == ["warning"]


def test_the_default_place_is_by_user_and_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path(8081) == tmp_path / "counterproof" / "control-8081.token"
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path(9) == tmp_path / ".local" / "state" / "counterproof" / "control-9.token"
    with lent(Tokens(), None, 9):
        assert mode(default_path(9)) == 0o600
        assert mode(default_path(9).parent) == 0o700
    assert not default_path(9).exists()


def test_with_configured_tokens_none_is_made(tmp_path: Path) -> None:
    tokens = Tokens([Token("ops", digest(secret("ops", "ct")))])
    with capture_logs() as logs, lent(tokens, tmp_path / "t", 8081):
        assert not (tmp_path / "t").exists()
        assert len(tokens) == 1
    assert logs == []


def test_the_file_of_a_later_proxy_stays(tmp_path: Path) -> None:
    path, later = tmp_path / "t", Tokens()
    with lent(Tokens(), path, 8081):
        other = lent(later, path, 8081)
        other.__enter__()
    assert known(later, read(path))
    other.__exit__(None, None, None)
    assert not path.exists()


def test_the_token_is_in_no_log(tmp_path: Path) -> None:
    with capture_logs() as logs, lent(Tokens(), tmp_path / "t", 8081):
        token = read(tmp_path / "t")
    assert token
    assert len(logs) == 1
    assert token not in str(logs)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="not a file of this user's own"):
            read(tmp_path / name)
