"""From ``fencepost serve`` to the first page: what somebody waits who has just typed it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benches.runner import Case, Row, Scale

_MAIN: Final = "from fencepost.cli import main; main()"
_LIMIT: Final = 60.0


@contextlib.contextmanager
def _serving(data: Path) -> Iterator[float]:
    """Seconds from the start of the process to the first page."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("FENCEPOST_")}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "serve", "--port", "0", "--data", str(data)],
        stdout=subprocess.PIPE,
        text=True,
        env={**env, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], _LIMIT)
        line = process.stdout.readline() if ready else ""
        found = re.search(r"http://\S+", line)
        if found is None:
            raise RuntimeError(f"fencepost serve said {line!r} and no address")
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(found[0], timeout=5) as page:
                page.read()
                break
            if time.perf_counter() - start > _LIMIT or process.poll() is not None:
                raise RuntimeError("fencepost serve showed no page")
            time.sleep(0.002)
        yield time.perf_counter() - start
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _page(scale: Scale) -> list[Row]:
    first, again = [], []
    for _ in range(scale.rounds // 2):
        with tempfile.TemporaryDirectory(prefix="fpb-") as home:
            with _serving(Path(home) / "data") as seconds:
                first.append(seconds)
            with _serving(Path(home) / "data") as seconds:
                again.append(seconds)
    return [
        Row("serve: first page, new data", "s", statistics.median(first)),
        Row("serve: first page, data from before", "s", statistics.median(again)),
    ]


def cases() -> list[Case]:
    return [Case("serve first page", _page)]
