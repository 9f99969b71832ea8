"""Write-behind in every order: writers, readers, flushers, expiry, crashes, lost replies, lost data.

What must hold: a read never gives less than what was answered when it began; the source never goes
back to an older version; and from every state, with everybody dead, one flush brings the newest value
to the source and leaves the cache with it or with nothing. Each guard is taken out once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.cache.scripts import BEHIND, BehindScripts, Scripts
from fencepost.testing import (
    Faults,
    Move,
    Report,
    Scenario,
    ScratchServer,
    delete,
    expiry,
    explore,
    failover,
    flush_all,
)
from support.behind import BehindWorld
from support.cache import altered
from support.require import require
from support.servers import find_binary


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


class Explored:
    """Explores on one server."""

    def __init__(self, server: ScratchServer) -> None:
        self.server = server

    def __call__(
        self,
        world: BehindWorld,
        actors: dict[str, Any],
        environment: dict[str, Move] | None = None,
        **more: Any,
    ) -> Report:
        heal = more.pop("heal", True)
        scenario = Scenario(
            actors=actors,
            environment=environment or {},
            cells=world.cells,
            setup=world.setup,
            observe={"put": world.written},
            invariant=world.never_back,
            heal=world.flushes(times=2) if heal else None,
            healed=world.healed if heal else None,
            **more,
        )
        return explore(scenario, server=self.server, limit=300_000)


@pytest.fixture
def run(scratch: ScratchServer) -> Explored:
    return Explored(scratch)


def clean(report: Report) -> None:
    report.check()
    assert not report.bounded_by, report


def found(report: Report, *words: str) -> None:
    assert report.finding is not None, "the guard is not missed"
    assert any(word in report.finding.message for word in words), report.finding.message


def changed(verb: str, old: str, new: str) -> BehindScripts:
    """The journal's scripts with one line of one of them changed."""
    script = getattr(BEHIND, verb)
    assert script.plain.count(old) == 1, f"{verb}.lua has {script.plain.count(old)} × {old!r}"
    change = {verb: script.with_text(script.plain.replace(old, new))}
    return dataclasses.replace(BEHIND, **change)


# -- readers, writers, a flusher


def test_who_reads_after_a_write_is_given_it_or_a_newer_one(run: Explored) -> None:
    world = BehindWorld()
    actors = {"w": world.writes(2), "r": world.reads(2), "f": world.flushes()}
    clean(run(world, actors, {"x": expiry(2)}))


def test_two_writers_a_reader_and_a_flusher(run: Explored) -> None:
    world = BehindWorld()
    actors = {
        "w": world.writes(2),
        "v": world.writes(3),
        "r": world.reads(),
        "f": world.flushes(2),
    }
    clean(run(world, actors))


def test_an_invalidation_does_not_bring_back_what_the_source_has(run: Explored) -> None:
    world = BehindWorld()
    actors = {
        "w": world.writes(2),
        "i": world.invalidates(),
        "r": world.reads(2),
        "f": world.flushes(),
    }
    clean(run(world, actors))


def lost_entry(world: BehindWorld) -> Move:
    return delete(world.keys.entry)


def test_an_entry_that_is_lost_alone_is_read_from_the_journal(run: Explored) -> None:
    world = BehindWorld()
    actors = {"w": world.writes(2), "r": world.reads(2), "f": world.flushes()}
    clean(run(world, actors, {"x": lost_entry(world)}))


# -- flushers that are doubled, paused, killed, or hear nothing


def test_two_flushers_and_a_change_of_mind(run: Explored) -> None:
    world = BehindWorld()
    actors = {"w": world.writes(2, 3), "f": world.flushes(), "g": world.flushes()}
    clean(run(world, actors))


def test_a_flusher_killed_at_any_point_costs_nothing(run: Explored) -> None:
    world = BehindWorld()
    actors = {"w": world.writes(2, 3), "f": world.flushes(), "g": world.flushes()}
    clean(run(world, actors, crashes=frozenset({"f", "w"})))


def test_replies_are_lost_at_any_point(run: Explored) -> None:
    world = BehindWorld()
    actors = {"w": world.writes(2), "v": world.writes(3), "f": world.flushes(tries=3)}
    labels = frozenset({"put", "claim", "ack", "save"})
    clean(run(world, actors, faults=Faults(times=1, on=labels)))


# -- the server loses its data


def test_everything_is_lost_and_an_old_flusher_comes_back(run: Explored) -> None:
    """What was not saved is gone, as it may be; but nothing older is saved over what came after."""
    world = BehindWorld()
    actors = {"w": world.writes(2), "v": world.writes(3), "f": world.flushes()}
    clean(run(world, actors, {"x": flush_all()}, heal=False))


def test_a_failover_to_a_replica_that_has_less(run: Explored) -> None:
    """A journal that comes back holds what was saved long ago: its version is compared."""
    world = BehindWorld()
    actors = {"w": world.writes(2, 3), "f": world.flushes(2)}
    clean(run(world, actors, {"x": failover()}, heal=False))


# -- each guard is missed


@pytest.mark.parametrize(
    ("scripts", "words"),
    [
        pytest.param(
            changed(
                "put",
                "redis.call('SET', entry, value)",
                "redis.call('SET', entry, value, 'PX', ttl_ms)",
            ),
            (),
            id="an unsaved entry may end since the journal answers",
        ),
        pytest.param(
            changed("put", "stop(lease, marks, intents, known, remember_ms)\n", ""),
            ("was answered before", "the cache holds"),
            id="put takes the lease",
        ),
        pytest.param(
            changed("ack", "if kept[1] and kept[1] ~= version then", "if false then"),
            ("the source holds",),
            id="ack compares the version",
        ),
    ],
)
def test_the_journal_needs(run: Explored, scripts: BehindScripts, words: tuple[str, ...]) -> None:
    world = BehindWorld(behind_scripts=scripts)
    actors = {"w": world.writes(2, 3), "r": world.reads(), "f": world.flushes()}
    report = run(world, actors, {"x": expiry(2)})
    if words:
        found(report, *words)
    else:
        clean(report)


NO_JOURNAL = altered("claim", "if unsaved then return {'VALUE', unsaved} end\n", "")
FORGETS = altered(
    "invalidate", "if redis.call('EXISTS', journal) == 1 then return {'INVALIDATED'} end\n", ""
)


def test_a_load_needs_to_be_refused_beside_a_journal(run: Explored) -> None:
    world = BehindWorld(scripts=NO_JOURNAL)
    actors = {"w": world.writes(2), "r": world.reads(2)}
    found(run(world, actors, {"x": lost_entry(world)}), "was answered before")


def test_an_invalidation_may_forget_the_entry_since_the_journal_answers(run: Explored) -> None:
    """Keeping it is for ``peek`` and for speed: what counts is that no load is granted."""
    world = BehindWorld(scripts=FORGETS)
    actors = {"w": world.writes(2), "i": world.invalidates(), "r": world.reads(2)}
    clean(run(world, actors))
    both: Scripts = dataclasses.replace(FORGETS, claim=NO_JOURNAL.claim)
    world = BehindWorld(scripts=both)
    actors = {"w": world.writes(2), "i": world.invalidates(), "r": world.reads(2)}
    found(run(world, actors), "was answered before")


@pytest.mark.parametrize("compares", ["fence", "version"])
def test_one_of_fence_and_version_is_enough_for_whole_batches(run: Explored, compares: str) -> None:
    kept = {"fenced": compares == "fence", "versioned": compares == "version"}
    world = BehindWorld(source=kept)
    actors = {"w": world.writes(2, 3), "f": world.flushes(), "g": world.flushes()}
    clean(run(world, actors))


def test_without_either_a_paused_flusher_writes_the_older_value(run: Explored) -> None:
    world = BehindWorld(source={"fenced": False, "versioned": False})
    actors = {"w": world.writes(2, 3), "f": world.flushes(), "g": world.flushes()}
    found(run(world, actors), "came after")


def test_a_journal_that_comes_back_needs_the_versions(run: Explored) -> None:
    world = BehindWorld(source={"versioned": False})
    actors = {"w": world.writes(2, 3), "f": world.flushes(2)}
    found(run(world, actors, {"x": failover()}, heal=False), "came after")


def test_lost_data_needs_the_epoch(run: Explored) -> None:
    """Fences begin anew then: a flusher of the time before has one that is not too small."""
    world = BehindWorld(source={"epochs": False, "versioned": False})
    actors = {
        "w": world.writes(2),
        "v": world.writes(3),
        "f": world.flushes(),
        "g": world.flushes(),
    }
    found(run(world, actors, {"x": flush_all()}, heal=False), "came after")


def test_an_entry_that_is_lost_is_not_made_of_nothing(run: Explored) -> None:
    blind = changed(
        "ack",
        "redis.pcall('GETRANGE', entry, 2, 23) == kept[2]:sub(3, 24) and left_ms > 0",
        "left_ms > 0",
    )
    world = BehindWorld(behind_scripts=blind)
    actors = {"w": world.writes(2), "f": world.flushes()}
    found(run(world, actors, {"x": lost_entry(world)}), "foreign", "Unreadable", "corrupt")
