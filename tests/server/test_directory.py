"""Which directories are trusted with data and sockets."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fencepost.errors import Refused
from fencepost.server import start
from fencepost.server.directory import MAX_SOCKET_BYTES, claim, default_data, socket_for


def test_default_is_under_the_users_data_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_data() == tmp_path / "fencepost" / "embedded"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", unusable)
        assert default_data() == tmp_path / ".local" / "share" / "fencepost" / "embedded"


def test_new_directory_is_ours_alone(tmp_path: Path) -> None:
    claim(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    claim(tmp_path / "a" / "b")


def test_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    for link in ("link", "dangling"):
        with pytest.raises(Refused, match="is a symlink"):
            start(tmp_path / link)
    assert not list((tmp_path / "real").iterdir())


def test_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="is not a directory"):
        start(tmp_path / "file")
    with pytest.raises(Refused, match="cannot make the directory"):
        start(tmp_path / "file" / "below")


def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(Refused, match="belongs to uid 65534, and we are uid 0"):
        start(tmp_path / "theirs")


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(Refused, match="chmod 700"):
        start(tmp_path / "open")


def test_lock_file_that_is_a_symlink_is_refused(tmp_path: Path) -> None:
    claim(tmp_path / "data")
    (tmp_path / "data" / "start.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match=r"cannot open .*start\.lock"):
        start(tmp_path / "data")
    assert not (tmp_path / "elsewhere").exists()


def path_of(length: int) -> Path:
    """A data directory whose socket's path has so many bytes; names stay under 255."""
    room = length - len("/socket")
    text = "/" + "é" * 20  # what counts is bytes, not characters
    while room - len(os.fsencode(text)) > 100:
        text += "/" + "x" * 50
    return Path(text + "/" + "x" * (room - len(os.fsencode(text)) - 1))


def test_longest_path_stays_and_one_byte_more_moves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fits, long = path_of(MAX_SOCKET_BYTES), path_of(MAX_SOCKET_BYTES + 1)
    runtime = Path("/tmp") / f"fencepost-{os.geteuid()}"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert socket_for(fits) == fits / "socket"
    assert socket_for(long).parent == runtime
    assert socket_for(long) != socket_for(path_of(MAX_SOCKET_BYTES + 2))
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700


def test_runtime_directory_of_the_session_comes_first_unless_it_is_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = path_of(200)
    deep = tmp_path / ("y" * 100)
    deep.mkdir()
    for base, used in ((tmp_path, True), (deep, False), (tmp_path / "none", False)):
        fits = len(os.fsencode(base / "fencepost" / ("0" * 24))) <= MAX_SOCKET_BYTES
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
        assert (socket_for(long).parent == base / "fencepost") == (used and fits)


def test_runtime_directory_that_others_can_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    runtime = data.parent / "r"
    (runtime / "fencepost").mkdir(parents=True, mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with pytest.raises(Refused, match="chmod 700"):
        socket_for(path_of(200))
