"""The flusher: brings what is due to the source, as long as it runs. Any number may run at once.

It owns nothing: a flusher that dies costs the others one claim time, a paused one that comes back
is refused by the fence, and what it had claimed is still in the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from fencepost._core.backoff import Backoff
from fencepost._core.port import Port
from fencepost.errors import FencepostError
from fencepost.journal.pressure import Level, Pressure, look
from fencepost.journal.protocol import Flush, Shard, dirty_items, drain, look_due

R = TypeVar("R")
_TROUBLE: Final = Backoff(0.1, 5.0)
_TELL: Final = 5.0  # seconds between two words on a recovery
_POLL: Final = (
    0.25  # seconds: a change that comes while nothing is due is seen after this, at the latest
)


@dataclass(slots=True)
class FlushStats(Generic[R]):
    """What the flushers of this process did since it began; ``done`` is the sum of their reports."""

    done: R
    passes: int = 0
    failures: int = 0
    last_failure: str = ""


async def flush_forever(
    io: Port,
    shards: Sequence[Shard],
    flush: Flush,
    stats: FlushStats[R],
    pressure: Pressure,
    stopped: Callable[[], bool],
) -> None:
    """Flush what is due in all shards until ``stopped()``; trouble is logged and waited out."""
    trouble, told, log = 0, 0.0, log_of(shards[0])
    while not stopped():
        wait, failed = _POLL, False
        try:
            if io.now() >= pressure.next_look:
                await look(io, shards, pressure)
            dues = await io.all([look_due(one) for one in shards])
        except FencepostError as error:
            dues, failed = [], True
            note(log, stats, error)
        for number, due in enumerate(dues):
            if 0 <= due.wait_ms < wait * 1000:
                wait = due.wait_ms / 1000
            if stopped():
                continue
            options = shards[number].options
            try:
                items = due.items
                if (
                    not items and pressure.level >= Level.EAGER
                ):  # nothing is due, and yet it is late
                    items = tuple(await dirty_items(io, shards[number], options.batch_items))
                if not items:
                    continue
                report = await flush(number, items)
            except Exception as error:  # whatever one shard's rows do, the other shards go on
                failed = True
                note(log, stats, error)
                continue
            if len(items) == options.batch_items or report.entries >= options.batch_changes:
                wait = 0.0  # there is more
        stats.passes += 1
        if (trouble and not failed) or told:
            told = _progress(log, pressure, shards[0], told, io.now())
        trouble = trouble + 1 if failed else 0
        await io.sleep(_TROUBLE.delay(trouble, io.chance()) if failed else max(wait, 0.002))


async def drain_all(io: Port, shards: Sequence[Shard], flush: Flush, within: float) -> int:
    """Flush everything now, due or not; how many items are left after ``within`` seconds."""
    until = io.now() + within
    left = 0
    for shard in shards:
        left += await drain(io, shard, flush, until)
    return left


def tell_left(shard: Shard, left: int) -> None:
    """Say what a drain left."""
    if left:
        log_of(shard).warning(
            "%s %r: %d items are still in the journal; they are safe there and the next flusher takes them",
            shard.what,
            shard.name,
            left,
        )


def log_of(shard: Shard) -> logging.Logger:
    """Where the flushers of a journal tell of trouble."""
    return logging.getLogger(f"fencepost.{shard.what}")


def _progress(
    log: logging.Logger, pressure: Pressure, shard: Shard, told: float, now: float
) -> float:
    """Tell how a recovery goes, every few seconds until nothing waits; when it was told last, or 0."""
    if not pressure.dirty:
        log.info("%s %r: the flush goes on, and nothing waits any more", shard.what, shard.name)
        return 0.0
    if now - told < _TELL:
        return told
    log.info(
        "%s %r: the flush goes on; %d items wait, the oldest for %.0f s",
        shard.what,
        shard.name,
        pressure.dirty,
        pressure.oldest,
    )
    return now


def note(log: logging.Logger, stats: FlushStats[R], error: Exception) -> None:
    """Count a failure, and say it once."""
    stats.failures += 1
    words = f"{type(error).__name__}: {error}"
    if words != stats.last_failure:  # once a kind: an outage of hours is not a million lines
        log.warning(
            "a flush failed and will be tried again: %s",
            words,
            exc_info=not isinstance(error, FencepostError),
        )
    stats.last_failure = words
