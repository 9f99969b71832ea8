"""The cache's protocols and scripts in every order: readers, writers, expiry, crashes, lost replies.

What must hold: a read never gives less than what was known when it began, and when all is quiet the
cache holds what the source has, or nothing. Each guard is taken out once, and must be missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.cache import loading, protocol, write
from fencepost.cache.judge import judge
from fencepost.cache.region import Ask
from fencepost.cache.scripts import SCRIPTS, Scripts
from fencepost.testing import (
    Faults,
    Move,
    Report,
    Scenario,
    ScratchServer,
    expiry,
    explore,
    restart_empty,
)
from support.cache import KEY, CacheWorld, altered, make_region, packed
from support.require import require
from support.servers import find_binary

TAGGED = Ask(tags=("g",))


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
        world: CacheWorld,
        actors: dict[str, Any],
        environment: dict[str, Move] | None = None,
        **more: Any,
    ) -> Report:
        scenario = Scenario(
            actors=actors,
            environment=environment or {},
            cells=world.cells,
            final=more.pop("final", world.not_stale),
            **more,
        )
        return explore(scenario, server=self.server, limit=300_000)


@pytest.fixture
def run(scratch: ScratchServer) -> Explored:
    return Explored(scratch)


def clean(report: Report) -> Report:
    """Nothing was found, and every order was tried."""
    report.check()
    assert not report.bounded_by, report
    return report


def found(report: Report, *words: str) -> None:
    """Something was found, and it says so."""
    assert report.finding is not None, "the guard is not missed"
    assert any(word in report.finding.message for word in words), report.finding.message


def own(*letters: str) -> Any:
    """Which keys may expire."""
    return lambda key: key.rpartition(":")[2] in letters


# -- readers, a writer, expiry


def test_two_readers_a_writer_and_expiry(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(), "b": world.reads(), "w": world.changes()}
    report = clean(run(world, actors, {"x": expiry(2, own("v", "l", "m"))}))
    assert report.states > 1_000


NO_TOKEN = altered("publish", "writing or older or owner ~= token", "writing or older")
KEEPS_LEASE = altered("invalidate", "  redis.call('DEL', lease)\n", "")


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param(NO_TOKEN, id="publish compares the token"),
        pytest.param(KEEPS_LEASE, id="invalidate takes the lease"),
    ],
)
def test_two_readers_a_writer_and_expiry_need(run: Explored, scripts: Scripts) -> None:
    world = CacheWorld(make_region(scripts=scripts, rounds=2, wait=0))
    actors = {"a": world.reads(), "b": world.reads(), "w": world.changes()}
    found(run(world, actors, {"x": expiry(1, own("v", "l", "m"))}), "holds 1", "read 1")


def test_replies_of_claim_publish_and_release_are_lost(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(), "b": world.reads(), "w": world.changes()}
    labels = frozenset({"claim", "publish", "release"})
    clean(run(world, actors, faults=Faults(times=2, on=labels)))


def test_a_repeated_claim_is_one_claim(run: Explored) -> None:
    """Without that, the request whose reply was lost locks its own sender out."""
    scripts = altered(
        "claim", "if owner and owner:sub(1, #token) == token then return {'WON'} end\n", ""
    )
    for guarded in (True, False):
        world = CacheWorld(make_region(scripts=SCRIPTS if guarded else scripts, wait=0))

        def final(view: Any) -> str | None:
            late = [one for one in view.results.values() if isinstance(one, Exception)]
            return f"locked out: {late[0]}" if late else None

        report = run(
            world,
            {"a": world.reads()},
            faults=Faults(times=1, on=frozenset({"claim"}), kinds=("resent",)),
            final=final,
        )
        if guarded:
            clean(report)
        else:
            found(report, "locked out")


def test_a_loader_that_dies_leaves_nothing_behind(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(), "b": world.reads(), "w": world.changes()}
    clean(run(world, actors, {"x": expiry(1, own("l"))}, crashes=frozenset({"a", "w"}), final=None))
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(), "b": world.reads(2)}
    clean(run(world, actors, {"x": expiry(1, own("l"))}, crashes=frozenset({"a"})))


def test_renewals_are_lost_and_come_late(run: Explored) -> None:
    """A renewal whose reply or request is lost, or that comes when the lease has gone to another."""
    world = CacheWorld(rounds=2, wait=0)
    actors = {
        "a": world.reads(),
        "b": world.reads(),
        "w": world.changes(),
        "n": world.renews("a.1", times=2),
    }
    faults = Faults(times=1, on=frozenset({"renew"}))
    clean(run(world, actors, {"x": expiry(1, own("l"))}, faults=faults))


def test_a_renewal_that_makes_a_lease_anew_brings_the_old_load_back(run: Explored) -> None:
    renewing = altered(
        "renew",
        "  return {'LOST', why_lost(token, redis.call('EXISTS', lease) == 1, entry, seen, marks)}",
        "  redis.call('SET', lease, token, 'PX', lease_ms)",
    )
    world = CacheWorld(make_region(scripts=renewing, rounds=2, wait=0))
    actors = {"a": world.reads(), "w": world.changes(), "n": world.renews("a.1")}
    found(run(world, actors), "holds 1", "read 1")


def test_a_set_stops_the_loads_from_before(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(), "b": world.reads(), "s": world.sets()}
    clean(run(world, actors, {"x": expiry(1, own("v", "l"))}))
    keeps = altered("set", "  redis.call('DEL', lease)\n", "")
    world = CacheWorld(make_region(scripts=keeps, rounds=2, wait=0))
    actors = {"a": world.reads(), "s": world.sets()}
    found(run(world, actors), "holds 1", "read 1")


def test_a_server_that_comes_back_empty(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(), "b": world.reads(), "w": world.changes()}
    clean(run(world, actors, {"x": restart_empty()}))


def test_a_waiter_gets_what_was_loaded_meanwhile(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=4)
    actors = {"a": world.reads(patience=5), "b": world.reads(patience=5), "w": world.changes()}
    clean(run(world, actors))


# -- the double check after the claim


def test_loads_rise_without_the_second_look_and_values_stay_right(run: Explored) -> None:
    def final(world: CacheWorld) -> Any:
        return lambda view: (
            f"loads {world.truth.state.loads}" if world.truth.state.loads > 1 else None
        )

    guarded = CacheWorld(wait=4)
    actors = {"a": guarded.reads(patience=5), "b": guarded.reads(patience=5)}
    clean(run(guarded, actors, final=final(guarded)))
    blind = altered("claim", "  if there then return {'VALUE', there} end\n", "")
    world = CacheWorld(make_region(scripts=blind, wait=4))
    actors = {"a": world.reads(patience=5), "b": world.reads(patience=5)}
    found(run(world, actors, final=final(world)), "loads 2")
    world = CacheWorld(make_region(scripts=blind, wait=0))
    actors = {"a": world.reads(), "b": world.reads(), "w": world.changes()}
    clean(run(world, actors))


def test_loads_rise_where_a_claim_does_not_wait_and_values_stay_right(run: Explored) -> None:
    """Admission is the claim's: whose lease is overwritten publishes nothing, so only loads rise."""
    greedy = altered(
        "claim",
        "if owner then return {'WAIT', redis.call('PTTL', lease), owner:sub(1, 22)} end\n",
        "",
    )
    world = CacheWorld(make_region(scripts=greedy, wait=4))

    def final(view: Any) -> str | None:
        loads = world.truth.state.loads
        return f"loads {loads}" if loads > 1 else None

    actors = {"a": world.reads(patience=5), "b": world.reads(patience=5)}
    found(run(world, actors, final=final), "loads 2")
    world = CacheWorld(make_region(scripts=greedy, rounds=2, wait=0))
    actors = {"a": world.reads(), "b": world.reads(), "w": world.changes()}
    clean(run(world, actors))


# -- early and stale


def seeded(raw: bytes, region: Any, *more: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [("SET", region.keys(KEY).entry, raw, "PX", 60_000), *more]


def test_early_refresh_and_invalidate(run: Explored) -> None:
    old = packed(1, fresh_until=1_000_001, cost_ms=1_000)
    world = CacheWorld(rounds=2, wait=0)
    actors = {"e": world.refreshes(old), "w": world.changes(), "a": world.reads()}
    clean(run(world, actors, {"x": expiry(1, own("v", "l"))}, setup=seeded(old, world.region)))


def test_early_refresh_happens_once_a_fleet(run: Explored) -> None:
    old = packed(1, fresh_until=1_000_001, cost_ms=1_000)
    world = CacheWorld()

    def final(view: Any) -> str | None:
        loads = world.truth.state.loads
        return None if loads == 1 else f"{loads} loads"

    actors = {name: world.refreshes(old) for name in "abc"}
    clean(run(world, actors, setup=seeded(old, world.region), final=final))


def test_early_refresh_needs_the_lease_taken_by_invalidate(run: Explored) -> None:
    old = packed(1, fresh_until=1_000_001, cost_ms=1_000)
    world = CacheWorld(make_region(scripts=KEEPS_LEASE, rounds=2, wait=0))
    actors = {"e": world.refreshes(old), "w": world.changes()}
    found(run(world, actors, setup=seeded(old, world.region)), "holds 1")


# -- tags


def tag_writer(world: CacheWorld, region: Any = None) -> Any:
    source = world.source

    def save() -> None:
        source.state = source.state._replace(value=2)

    async def work(io: Any) -> None:
        await io.call(save)
        await write.invalidate_tags(io, region or world.region, ("g",))
        await io.call(world.known(2))

    return work


def test_tag_invalidate_and_readers(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(ask=TAGGED), "b": world.reads(ask=TAGGED), "w": tag_writer(world)}
    clean(run(world, actors, {"x": expiry(1, lambda key: True)}))


def test_tag_invalidate_and_background_refresh(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    old = packed(1, fresh_until=1_000_001, cost_ms=1_000, stamps={"g": "first"})
    stamp = ("SET", world.region.stamp("g"), "first", "PX", 60_000)
    actors = {
        "e": world.refreshes(old, ask=TAGGED),
        "w": tag_writer(world),
        "a": world.reads(ask=TAGGED),
    }
    setup = seeded(old, world.region, stamp)
    clean(run(world, actors, {"x": expiry(1, lambda key: True)}, setup=setup))


def test_tags_are_compared_by_every_read(run: Explored, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(io: Any, region: Any, stored: Any, ask: Ask, stamps: Any) -> str:
        return judge(stored, io.server_ms(), ask.stale)

    monkeypatch.setattr(protocol, "state_of", blind)
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(ask=TAGGED), "b": world.reads(ask=TAGGED), "w": tag_writer(world)}
    found(run(world, actors), "read 1")


def test_stamps_are_read_before_the_load(run: Explored, monkeypatch: pytest.MonkeyPatch) -> None:
    real, read = loading.stamps_of, loading._read

    async def nothing(io: Any, region: Any, tags: Any) -> dict[str, str]:
        return dict.fromkeys(tags, "")

    async def late(*args: Any) -> Any:
        done = await read(*args)
        stamps = await real(args[0], args[1], ("g",))
        object.__setattr__(done.said, "tags", ("g",))
        late_stamps.update(stamps)
        return done

    late_stamps: dict[str, str] = {}

    async def of_load(io: Any, region: Any, said: Any, given: Any, stamps: Any) -> dict[str, str]:
        return dict(late_stamps)

    monkeypatch.setattr(loading, "stamps_of", nothing)
    monkeypatch.setattr(loading, "_read", late)
    monkeypatch.setattr(loading, "with_tags_of_load", of_load)
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(ask=TAGGED), "b": world.reads(ask=TAGGED), "w": tag_writer(world)}
    found(run(world, actors), "read 1", "holds 1")


def test_tags_named_by_the_load(run: Explored) -> None:
    """Tags that only the loader knows: the epoch tells whether their stamps can be trusted."""
    region = make_region(rounds=2, wait=0)
    region.tagging[0] = True
    world = CacheWorld(region)
    actors = {"a": _loader_tags(world), "b": _loader_tags(world), "w": tag_writer(world)}
    clean(run(world, actors))


def test_tags_named_by_the_load_need_the_epoch(
    run: Explored, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = write.invalidate_tags

    async def without_epoch(io: Any, region: Any, tags: tuple[str, ...]) -> None:
        from fencepost._core import commands

        await io.all([commands.delete(region.stamp(tag)) for tag in tags])

    assert real is not without_epoch
    monkeypatch.setattr(write, "invalidate_tags", without_epoch)
    region = make_region(rounds=2, wait=0)
    region.tagging[0] = True
    world = CacheWorld(region)
    actors = {"a": _loader_tags(world), "b": _loader_tags(world), "w": tag_writer(world)}
    found(run(world, actors), "read 1", "holds 1")


def _loader_tags(world: CacheWorld) -> Any:
    from fencepost.cache import Loaded
    from support.cache import read_through

    source, truth = world.source, world.truth

    def begin() -> int:
        return truth.state.floor

    def load() -> Any:
        return Loaded(source.state.value, tags=("g",))

    async def work(io: Any) -> Any:
        floor = await io.call(begin)
        entry = await read_through(io, world.region, load)
        assert entry.value >= floor, f"read {entry.value}, {floor} was known before"
        return entry.value

    return work


# -- revisions


def test_a_lagging_replica_does_not_bring_an_older_revision_back(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {
        "a": world.reads(lagging=True, revisions=True),
        "b": world.reads(revisions=True),
        "w": world.changes(revision=True),
    }
    clean(run(world, actors, {"x": expiry(1, own("v", "l"))}))


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param(
            altered(
                "publish",
                "local floor = redis.call('HGET', marks, 'revision')",
                "local floor = nil",
            ),
            id="publish asks the marks",
        ),
        pytest.param(
            altered(
                "invalidate",
                "  if revision:match('^%d') then redis.call('HSET', marks, 'revision', revision) end\n",
                "",
            ),
            id="invalidate leaves the mark",
        ),
        pytest.param(
            altered("publish", "if writing or older or owner", "if writing or owner"),
            id="publish compares",
        ),
    ],
)
def test_a_lagging_replica_needs(run: Explored, scripts: Scripts) -> None:
    world = CacheWorld(make_region(scripts=scripts, rounds=2, wait=0))
    actors = {"a": world.reads(lagging=True, revisions=True), "w": world.changes(revision=True)}
    found(run(world, actors), "read 1", "holds 1")


def test_without_revisions_an_owner_may_publish_what_a_lagging_replica_said(run: Explored) -> None:
    """The limit: ownership is not freshness."""
    world = CacheWorld(rounds=2, wait=0)
    actors = {"a": world.reads(lagging=True), "w": world.changes()}
    found(run(world, actors), "read 1", "holds 1")


# -- writes


def test_two_writers_through_and_a_reader(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"p": world.writes_through(), "q": world.writes_through(), "a": world.reads()}
    clean(run(world, actors, {"x": expiry(1, own("v", "l"))}))


def test_writers_whose_announcement_runs_out(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"p": world.writes_through(), "q": world.writes_through(), "a": world.reads()}
    clean(run(world, actors, {"x": expiry(1, own("w"))}))


def test_writers_and_lost_replies(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"p": world.writes_through(), "q": world.writes_through()}
    labels = frozenset({"write_begin", "write_end"})
    faults = Faults(times=2, on=labels, kinds=("resent",))
    clean(run(world, actors, {"x": expiry(1, own("v", "l"))}, faults=faults))


def test_a_write_around_among_writes_through(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"p": world.writes_through(), "q": world.writes_around(), "a": world.reads()}
    clean(run(world, actors, {"x": expiry(1, own("v", "l", "w"))}))


def test_an_invalidate_among_writes_through(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"p": world.writes_through(), "w": world.changes(9)}
    clean(run(world, actors, {"x": expiry(1, own("v", "l"))}))


def with_deaths(world: CacheWorld) -> dict[str, Any]:
    """One writer may die at any step. What it made stale must end with its announcement: an entry
    whose life that shortened does, one that was written since lasts."""
    return {
        "crashes": frozenset({"p"}),
        "observe": {
            "write_begin": world.shortened,
            "write_end": world.lengthened,
            "publish": world.lengthened,
        },
    }


def test_a_writer_that_dies_between_save_and_end(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"p": world.writes_through(), "q": world.writes_through(), "a": world.reads()}
    clean(run(world, actors, **with_deaths(world)))


def test_an_announcement_runs_out_after_its_writer_died(run: Explored) -> None:
    world = CacheWorld(rounds=2, wait=0)
    actors = {"p": world.dies_after_save(), "a": world.reads(), "b": world.reads()}
    clean(run(world, actors, **with_deaths(world)))


def test_a_load_that_began_beside_a_writer_who_died_is_not_published(run: Explored) -> None:
    """It may have read before the save, and the announcement has run out when it comes: its lease
    says that it was taken while somebody wrote."""
    scripts = altered(
        "claim", "redis.call('EXISTS', intents) == 1 and token .. '!' or token", "token"
    )
    world = CacheWorld(make_region(scripts=scripts, rounds=2, wait=0))
    actors = {"p": world.dies_after_save(), "a": world.reads()}
    found(run(world, actors, **with_deaths(world)), "the cache holds 1")


def test_a_writer_that_outlives_its_announcement_and_dies(run: Explored) -> None:
    """The limit: both together leave the older value until the entry's own end."""
    world = CacheWorld(rounds=2, wait=0)
    actors = {"p": world.writes_through(), "q": world.writes_through(), "a": world.reads()}
    found(run(world, actors, {"x": expiry(1, own("w"))}, **with_deaths(world)), "the cache holds")


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param(
            altered(
                "write_begin",
                "  for _, writer in ipairs(redis.call('HKEYS', intents)) do"
                " redis.call('HSET', intents, writer, 'shared') end\n",
                "",
            ),
            id="begin marks the others",
        ),
        pytest.param(
            altered(
                "write_begin",
                "redis.call('EXISTS', intents) == 0 and 'alone' or 'shared'",
                "'alone'",
            ),
            id="begin sees the others",
        ),
        pytest.param(
            altered(
                "write_end", "redis.call('HGET', intents, token) == 'alone' and value", "value"
            ),
            id="end publishes only alone",
        ),
    ],
)
def test_writers_need(run: Explored, scripts: Scripts) -> None:
    world = CacheWorld(make_region(scripts=scripts, rounds=2, wait=0))
    actors = {"p": world.writes_through(), "q": world.writes_through(), "a": world.reads()}
    found(run(world, actors, **with_deaths(world)), "the cache holds")


def test_a_begin_takes_the_lease_of_loads_from_before(run: Explored) -> None:
    scripts = altered("write_begin", "  redis.call('DEL', lease)\n", "")
    world = CacheWorld(make_region(scripts=scripts, rounds=2, wait=0))
    actors = {"p": world.writes_through(), "a": world.reads()}
    found(run(world, actors, **with_deaths(world)), "the cache holds")


def test_an_end_that_outlived_its_intent_marks_the_others(run: Explored) -> None:
    scripts = altered(
        "write_end",
        "  for _, writer in ipairs(redis.call('HKEYS', intents)) do"
        " redis.call('HSET', intents, writer, 'shared') end\n",
        "",
    )
    world = CacheWorld(make_region(scripts=scripts, rounds=2, wait=0))
    actors = {"p": world.writes_through(), "q": world.writes_through()}
    found(run(world, actors, {"x": expiry(1, own("w"))}), "the cache holds")


def test_an_invalidate_marks_the_writers(run: Explored) -> None:
    scripts = altered(
        "invalidate",
        "  for _, writer in ipairs(redis.call('HKEYS', intents)) do"
        " redis.call('HSET', intents, writer, 'shared') end\n",
        "",
    )
    world = CacheWorld(make_region(scripts=scripts, rounds=2, wait=0))
    actors = {"p": world.writes_through(), "w": world.changes(9)}
    found(run(world, actors), "the cache holds")
