"""A server of one's own for a while: private, empty, nothing durable. The explorer empties it freely."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from fencepost._core import commands
from fencepost._core.port import Port, run_sync
from fencepost.client import Client
from fencepost.errors import Refused, Unavailable
from fencepost.wire.address import parse_url
from fencepost.wire.sock import Connection, open_connection

_READY_WITHIN = 15.0  # seconds; a process starts when the machine lets it
_ANSWERS_WITHIN = 30.0  # seconds, likewise

# Becomes the server, and leaves somebody behind who ends it when our end of a pipe is closed: by
# `close`, or by whatever ends this process.
_WATCHED = """
exec 3<&0
(read -r nothing <&3; kill -9 $$; rm -rf "$0") > /dev/null 2>&1 &
exec "$@" 0< /dev/null 3<&-
"""
_PATIENCE: Final = 60.0
"""Seconds that an answer may take: a busy machine is no finding."""


class ScratchServer:
    """A server that may be emptied at any time.

    Args:
        url: A server that is up already; it must be empty. None starts one that ends with ``close``.

    Raises:
        Refused: The server holds keys: an exploration would delete them.
        Unavailable: There is no server binary, or it did not start.
    """

    def __init__(self, url: str | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._home: Path | None = None
        self._may_be_emptied = False
        self._line: Connection | None = None
        if url is None:
            url = self._start()
        self.url = url
        self._client = Client.from_url(url, budget=_PATIENCE)
        self.port: Port = self._client.port
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _start(self) -> str:
        from fencepost.server.binary import find_binary

        binary = find_binary()
        self._home = Path(tempfile.mkdtemp(prefix="fp-", dir="/tmp"))  # socket paths are short
        address = self._home / "s"
        server = [
            str(binary),
            *("--port", "0", "--unixsocket", str(address), "--unixsocketperm", "700"),
            *("--dir", str(self._home), "--save", "", "--appendonly", "no"),
        ]
        self._process = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _WATCHED, str(self._home), *server],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return f"unix://{address}"

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + (_READY_WITHIN if self._process else 0.0)
        while True:
            try:
                told = run_sync(self.port.run(commands.raw("INFO", "keyspace")))
            except Unavailable:
                if time.monotonic() > until or (self._process and self._process.poll() is not None):
                    raise
                time.sleep(0.005)
                continue
            # In whichever database: FLUSHALL asks for none.
            if held := sum(map(int, re.findall(rb"keys=(\d+)", told))):
                raise Refused(
                    f"{self.url} holds {held} keys, an exploration would delete them; give an empty server"
                )
            self._may_be_emptied = True
            return

    def empty(self) -> None:
        """Delete all keys."""
        run_sync(self.port.run(commands.raw("FLUSHALL")))

    def line(self) -> Connection:
        """A connection of one's own, for many calls in one write; it is opened once."""
        if self._line is None or self._line.lost:
            self._line = open_connection(parse_url(self.url), _ANSWERS_WITHIN, _READY_WITHIN)
        return self._line

    def close(self) -> None:
        """End what was started; a server that was given is left empty."""
        if self._process is None and self._may_be_emptied:
            with contextlib.suppress(Unavailable):
                self.empty()
        if self._line is not None:
            self._line.close("the server is not needed any more")
        self._client.close()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
