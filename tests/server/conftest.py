"""A data directory a test, in which nothing may run afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server.processes import eventually, processes_in
from support.require import require
from support.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where an embedded server may live; short enough for its socket, and not there yet."""
    require("valkey", find_binary("valkey") is not None)
    monkeypatch.delenv("FENCEPOST_SERVER", raising=False)
    with tempfile.TemporaryDirectory(prefix="fp-", dir="/tmp") as home:
        data = Path(home).resolve() / "data"
        yield data
        alone(data)


def alone(data: Path) -> None:
    """Wait until nothing runs in ``data``; what does not end is killed, and is a failure."""
    try:
        eventually(lambda: not processes_in(data), f"no process in {data}")
    finally:
        for process in processes_in(data):
            process.kill()
