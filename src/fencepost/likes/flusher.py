"""The flusher: brings what is due into SQL, as long as it runs. Any number may run at once.

It owns nothing: a flusher that dies costs the others one claim time, a paused one that comes back
is refused by the fence, and what it had claimed is still in the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fencepost._core.backoff import Backoff
from fencepost._core.port import Port
from fencepost.errors import FencepostError
from fencepost.likes.pressure import Level, Pressure, look
from fencepost.likes.protocol import (
    FlushReport,
    Known,
    Shard,
    dirty_items,
    drain,
    flush_items,
    look_due,
)

log = logging.getLogger("fencepost.likes")
_TROUBLE = Backoff(0.1, 5.0)
_TELL = 5.0  # seconds between two words on a recovery
_POLL = 0.25  # seconds: a change that comes while nothing is due is seen after this, at the latest


@dataclass(slots=True)
class FlushStats:
    """What the flushers of this process did since it began."""

    passes: int = 0
    done: FlushReport = field(default_factory=FlushReport)
    failures: int = 0
    last_failure: str = ""


async def flush_forever(
    io: Port,
    shards: Sequence[Shard],
    known: list[Known | None],
    stats: FlushStats,
    pressure: Pressure,
    stopped: Callable[[], bool],
) -> None:
    """Flush what is due in all shards until ``stopped()``; trouble is logged and waited out."""
    trouble, told = 0, 0.0
    while not stopped():
        wait, failed = _POLL, False
        try:
            if io.now() >= pressure.next_look:
                await look(io, shards, pressure)
            dues = await io.all([look_due(one) for one in shards])
        except FencepostError as error:
            dues, failed = [], True
            _note(stats, error)
        for number, due in enumerate(dues):
            if 0 <= due.wait_ms < wait * 1000:
                wait = due.wait_ms / 1000
            if stopped():
                continue
            try:
                items = due.items
                if (
                    not items and pressure.level >= Level.EAGER
                ):  # nothing is due, and yet it is late
                    limit = shards[number].options.batch_items
                    items = tuple(await dirty_items(io, shards[number], limit))
                if not items:
                    continue
                report, known[number] = await flush_items(io, shards[number], known[number], items)
            except Exception as error:  # whatever one shard's rows do, the other shards go on
                failed = True
                _note(stats, error)
                continue
            stats.done += report
            options = shards[number].options
            if len(items) == options.batch_items or report.entries >= options.batch_changes:
                wait = 0.0  # there is more
        stats.passes += 1
        if (trouble and not failed) or told:
            told = _progress(pressure, shards[0].name, told, io.now())
        trouble = trouble + 1 if failed else 0
        await io.sleep(_TROUBLE.delay(trouble, io.chance()) if failed else max(wait, 0.002))


async def drain_all(
    io: Port,
    shards: Sequence[Shard],
    known: list[Known | None],
    stats: FlushStats,
    within: float,
) -> int:
    """Flush everything now, due or not; how many items are left after ``within`` seconds."""
    until = io.now() + within
    left = 0
    for number, shard in enumerate(shards):
        done, remaining, known[number] = await drain(io, shard, known[number], until)
        stats.done += done
        left += remaining
    return left


def _progress(pressure: Pressure, name: str, told: float, now: float) -> float:
    """Tell how a recovery goes, every few seconds until nothing waits; when it was told last, or 0."""
    if not pressure.dirty:
        log.info("likes %r: the flush goes on, and nothing waits any more", name)
        return 0.0
    if now - told < _TELL:
        return told
    log.info(
        "likes %r: the flush goes on; %d items wait, the oldest for %.0f s",
        name,
        pressure.dirty,
        pressure.oldest,
    )
    return now


def _note(stats: FlushStats, error: Exception) -> None:
    stats.failures += 1
    words = f"{type(error).__name__}: {error}"
    if words != stats.last_failure:  # once a kind: an outage of hours is not a million lines
        log.warning(
            "a flush failed and will be tried again: %s",
            words,
            exc_info=not isinstance(error, FencepostError),
        )
    stats.last_failure = words
