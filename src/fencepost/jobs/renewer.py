"""The renewer: a thread of a worker that prolongs its claims, whatever its loop and its jobs do.

It has a connection of its own. A loop that a job holds up for minutes loses no claim; a thread that
hangs keeps its claim for as long as its process lives.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from fencepost._core.aio import clock
from fencepost._core.observe import log
from fencepost._core.port import run_sync
from fencepost._core.sync import SyncPort
from fencepost.errors import FencepostError
from fencepost.jobs.protocol import Me, Place, renew
from fencepost.wire.pool import SyncServer

if TYPE_CHECKING:
    from fencepost.jobs.job import Job

_TOGETHER: Final = 500
_TICK: Final = 0.5


class Renewer:
    """See the module.

    Args:
        server: A connection of its own.
        place: Which queue.
        me: Which worker.
        running: The jobs that run; asked in the thread.
        lost: Told of a job whose claim is over, in the thread.
    """

    def __init__(
        self,
        server: SyncServer,
        place: Place,
        me: Me,
        running: Callable[[], Iterable[Job]],
        lost: Callable[[Job, str], None],
    ) -> None:
        self._server = server
        self._port = SyncPort(server.run, server.all, server.server_ms)
        self._place = place
        self._me = me
        self._running = running
        self._lost = lost
        self._stir = threading.Event()
        self._closed = False
        self._shortest = 60.0
        self._thread = threading.Thread(target=self._main, name="fencepost-renewer", daemon=True)
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def knows(self, lease: float) -> None:
        """A job with such a lease begins."""
        if lease < self._shortest:
            self._shortest = lease
            # The pause that is under way may be too long for it.
            self._stir.set()

    def close(self) -> None:
        """Stop."""
        self._closed = True
        self._stir.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        self._server.close()

    def _main(self) -> None:
        while not self._closed:
            self._stir.wait(min(self._shortest / 10, _TICK))
            self._stir.clear()
            try:
                self._look()
            except FencepostError as error:
                self.counts["failed"] += 1
                log.debug("claims could not be renewed: %s", error)
            except Exception:
                log.exception("claims could not be renewed")

    def _look(self) -> None:
        now = clock()
        due = []
        for job in self._running():
            if job.ended:
                continue
            if job.lost:
                self._lost(job, "it was not renewed in time")
            elif job.due <= now:
                due.append(job)
        for at in range(0, len(due), _TOGETHER):
            self._renew(due[at : at + _TOGETHER])

    def _renew(self, jobs: list[Job]) -> None:
        sent = clock()
        held = [(job.id, job.fence, job.lease) for job in jobs]
        said = run_sync(renew(self._port, self._place, self._me, held))
        for job, letter in zip(jobs, said, strict=True):
            if letter == "R":
                self.counts["renewed"] += 1
                job.renewed(sent)
            elif not job.ended:
                self.counts["lost"] += 1
                self._lost(job, "the server gave it to another, or cancelled it")
