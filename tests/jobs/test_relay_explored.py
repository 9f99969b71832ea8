"""The relay in every order: two relays that may die anywhere, a worker, lost replies, a clock that goes on.

What must hold: the job of a row is added once, whoever dies or comes late; and once a relay lives, it is
added and the row is gone. Each guard is taken out once, and must be missed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fencepost._core.keys import job_keys
from fencepost._core.script import Script, read_contract
from fencepost.jobs import relay as module
from fencepost.jobs.protocol import Place
from fencepost.jobs.relay import PATIENCE, SCRIPTS, RelayScripts, Row, relay
from fencepost.testing import (
    Cell,
    Faults,
    Report,
    Scenario,
    ScratchServer,
    SimPort,
    View,
    explore,
    tick,
)
from support.require import require
from support.servers import find_binary

PLACE = Place("mail", job_keys("t", "mail"))
RECORD = b"1 20000 5 3 - - 0\n\x92\xa7welcome\x91\x07"
# A worker that runs whatever is ready to its end, in one step.
RUNS = """-- runs: take a job and end it.
-- KEYS   ready, bodies
-- ->     n   how many
local ready, bodies = KEYS[1], KEYS[2]

local popped = redis.call('ZPOPMIN', ready)
if #popped == 0 then return 0 end
return redis.call('HDEL', bodies, popped[1])
"""
RUN = Script(read_contract(RUNS), RUNS, int)


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


class Outbox:
    """A table as a cell: each call is one transaction."""

    def __init__(self, rows: int) -> None:
        self.total = rows
        self.rows = Cell(tuple(range(rows)))
        self.added = Cell(())  # the ids that were created, in order

    def read(self, most: int) -> list[Row]:
        return [Row(n, f"id{n}", "mail", "+0", False, RECORD, 0) for n in self.rows.state[:most]]

    def delete(self, numbers: Sequence[int]) -> None:
        self.rows.state = tuple(n for n in self.rows.state if n not in numbers)

    def saw(self, actor: str, call: Any, letters: str | None) -> None:
        ids = [call.args[n] for n in range(3, len(call.args), 4)]
        made = [id for id, letter in zip(ids, letters or "", strict=False) if letter == "C"]
        self.added.state = (*self.added.state, *made)

    # -- what must hold

    def once(self, view: View) -> str | None:
        added = self.added.state
        return f"added twice: {added}" if len(set(added)) < len(added) else None

    def kept(self, view: View) -> str | None:
        """After a relay has lived: every job was added, and no row is left."""
        if self.rows.state:
            return f"rows are left: {self.rows.state}"
        body = view.keys.get(PLACE.keys.bodies)
        there = {*self.added.state, *(body.value if body else ())}
        return None if len(there) == self.total else "a job was lost"


def look(
    scratch: ScratchServer,
    scripts: RelayScripts = SCRIPTS,
    work: Any = relay,
    rows: int = 1,
    ticks: int = 2,
    **more: Any,
) -> Report:
    outbox = Outbox(rows)

    async def relays(io: SimPort) -> int:
        return await work(io, lambda _: PLACE, outbox, 10, scripts)

    async def works(io: SimPort) -> None:
        for _ in range(2):
            await io.run(RUN((PLACE.keys.ready, PLACE.keys.bodies)))

    scenario = Scenario(
        actors={"a": relays, "b": relays, "w": works},
        environment={"x": tick(int(PATIENCE * 1500), ticks)} if ticks else {},
        cells=[outbox.rows, outbox.added],
        crashes=frozenset({"a", "b"}),
        invariant=outbox.once,
        heal=relays,
        healed=lambda view: outbox.once(view) or outbox.kept(view),
        observe={"relay": outbox.saw},
        **more,
    )
    return explore(scenario, server=scratch, limit=400_000)


def without(verb: str, old: str, new: str) -> RelayScripts:
    script = getattr(SCRIPTS, verb)
    assert script.plain.count(old) == 1
    return dataclasses.replace(SCRIPTS, **{verb: script.with_text(script.plain.replace(old, new))})


def test_a_row_is_added_once_whoever_dies(scratch: ScratchServer) -> None:
    report = look(scratch)
    report.check()
    assert report.complete
    assert report.states > 500


def test_a_row_is_added_once_whatever_reply_is_lost(scratch: ScratchServer) -> None:
    report = look(scratch, ticks=1, faults=Faults(times=1))
    report.check()
    assert report.complete


def test_two_rows(scratch: ScratchServer) -> None:
    report = look(scratch, rows=2, ticks=1)
    report.check()
    assert report.complete


@pytest.mark.parametrize(
    ("verb", "old", "new"),
    [
        # One that read long ago adds what another has added, deleted and let go.
        ("relay", "if now_ms > until_ms then return {'LATE'} end\n", ""),
        # One that died before it deleted its row: the next one adds the job again when it has ended.
        ("relay", "ARGV[i + 2], remember_ms,", "ARGV[i + 2], '0',"),
        # Its id is let go as soon as the row is gone, and another one still holds the row.
        ("let_go", "digits(now_ms + keep_ms)", "digits(now_ms)"),
    ],
)
def test_each_guard_is_missed(scratch: ScratchServer, verb: str, old: str, new: str) -> None:
    report = look(scratch, without(verb, old, new))
    assert report.finding is not None, "the guard is not missed"
    assert "added twice" in report.finding.message


async def deletes_first(io: Any, place_of: Any, store: Any, most: int, scripts: Any) -> int:
    """The usual relay of those who fear to send twice."""
    rows = await io.call(store.read, most)
    if not rows:
        return 0
    await io.call(store.delete, [row.number for row in rows])
    keys = PLACE.keys
    names = (
        keys.bodies,
        keys.due,
        keys.ready,
        keys.claims,
        keys.unique,
        keys.remembered,
        keys.wake,
    )
    words: list[Any] = [250, 10**15, 0]
    for row in rows:
        words += (row.id, row.left, "k", row.record)
    await io.run(scripts.relay(names, words))
    return len(rows)


def test_deleting_first_loses_jobs(scratch: ScratchServer) -> None:
    report = look(scratch, work=deletes_first, ticks=0)
    assert report.finding is not None
    assert "lost" in report.finding.message


def test_patience_and_memory_fit_together() -> None:
    """What a relay holds is refused before its id is let go; while rows stand, ids last far longer."""
    assert module.REMEMBER > 100 * PATIENCE
