"""The keys that a running process asks for, sampled into a trace for ``fencepost simulate``.

Nothing of it touches the server: no MONITOR, which halves a busy server and shows it everybody's data, and
no change of its settings. The process itself writes down what it asks for.

*Which* requests: all requests of a share of the keys (Waldspurger, Park, Garthwaite, Ahmad: "Efficient
MRC construction with SHARDS", FAST 2015), not a share of all requests. So the distances between two requests
of one key shrink with the share, and a cache of 1,000 entries behaves on a tenth of the keys as one of 100.

*What* is written: 4 bytes a request, of a hash of the key under a secret that is drawn anew for each
recording and kept nowhere. Names can't be had back, not by trying them either.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
import threading
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fencepost.errors import Refused

_BLOCK: Final = 8192  # requests that are kept in memory before they are written
_RANGE: Final = 1 << 32


class Recorder:
    """Writes a sample of keys to a file; quick enough to stand beside each read.

    Args:
        path: The file, made anew, readable by its owner only.
        rate: The share of the keys that are followed, above 0 and at most 1.
        limit: Requests after which it stops: a trace does not fill a disk.

    Raises:
        Refused: The share or the limit can't work.
        OSError: The file can't be made.
    """

    def __init__(self, path: Path | str, rate: float = 1.0, limit: int = 10_000_000) -> None:
        if not 0 < rate <= 1:
            raise Refused(f"the share of the keys is above 0 and at most 1, got {rate!r}")
        if limit < 1:
            raise Refused(f"the limit is at least 1 request, got {limit!r}")
        self.path, self.rate, self.limit = Path(path), rate, limit
        self.written = 0
        self._secret = secrets.token_bytes(32)
        self._below = int(rate * _RANGE)
        self._pending = array("I")
        self._lock = threading.Lock()
        self._pid = os.getpid()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(handle, "wb")

    def see(self, key: str | bytes) -> None:
        """Somebody asks for this key."""
        data = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(data, digest_size=8, key=self._secret).digest()
        # One half chooses, the other one is written: the sample's numbers use their whole range.
        if int.from_bytes(digest[4:], "little") >= self._below:
            return
        with self._lock:
            if self._file.closed or self._pid != os.getpid() or self._left() <= 0:
                return
            self._pending.append(int.from_bytes(digest[:4], "little"))
            if len(self._pending) >= _BLOCK:
                self._write()

    def see_all(self, keys: Iterable[str | bytes]) -> None:
        """The same for several."""
        for key in keys:
            self.see(key)

    def close(self) -> None:
        """Write the rest. Further keys are dropped."""
        with self._lock:
            if not self._file.closed and self._pid == os.getpid():
                self._write()
                self._file.close()

    def _left(self) -> int:
        return self.limit - self.written - len(self._pending)

    def _write(self) -> None:
        block = self._pending
        if sys.byteorder == "big":
            block.byteswap()
        try:
            self._file.write(block.tobytes())
            self._file.flush()
            self.written += len(block)
        except OSError:  # the disk is full, say: the recording ends, the process goes on
            with contextlib.suppress(OSError):  # it tries to write the rest once more
                self._file.close()
        self._pending = array("I")
