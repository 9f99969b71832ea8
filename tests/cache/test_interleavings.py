"""Races of caches that were reported in public, each as a play on the real scripts, by name.

Where a wrong variant is easy to build, it runs beside and must be seen to fail. What has no
interleaving in it (keys, codecs, breakers) stands in the other files of this folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fencepost import Client
from fencepost.cache import Loaded, protocol, write
from fencepost.cache.protocol import Look
from fencepost.cache.region import PLAIN, Ask, Region
from fencepost.errors import WaitTimeout
from fencepost.testing import Play
from support.cache import KEY, Actor, altered, make_region, packed, read_through, unpacked

TAGGED = Ask(tags=("g",))
LOAD = "{0}.get {0}.claim {0}.load {0}.publish"


class Stage:
    """One key of one region, a source, and plays on them."""

    def __init__(self, client: Client, region: Region) -> None:
        self.client, self.region = client, region
        self.keys = region.keys(KEY)
        self.value: Any = "old"
        self.loads = 0

    def reads(self, ask: Ask = PLAIN) -> Actor:
        def load() -> Any:
            self.loads += 1
            return self.value

        return lambda io: read_through(io, self.region, load, ask)

    def refreshes(self, ask: Ask = PLAIN) -> Actor:
        """A background refresh of what is stored now."""

        def load() -> Any:
            self.loads += 1
            return self.value

        seen = Look("early", self.stored)
        quiet = Ask(ask.tags, background=True)
        return lambda io: protocol.refresh(io, self.region, KEY, load, quiet, seen)

    def invalidates(self, hard: bool = True, revision: int | None = None) -> Actor:
        return lambda io: write.invalidate(io, self.region, (KEY,), hard=hard, revision=revision)

    def drops_tag(self) -> Actor:
        return lambda io: write.invalidate_tags(io, self.region, ("g",))

    def play(self, schedule: str, **actors: Actor) -> Play:
        play = Play(self.client.port, **actors)
        play.run(schedule)
        return play

    def put(self, value: Any, **more: Any) -> None:
        self.client.command("SET", self.keys.entry, packed(value, **more), "PX", 600_000)

    @property
    def stored(self) -> Any:
        return unpacked(self.client.command("GET", self.keys.entry))

    @property
    def held(self) -> Any:
        return None if self.stored is None else self.stored.value


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[Client]:
    with Client.from_url(server_url) as client:
        yield client


@pytest.fixture
def stage(client: Client, namespace: str) -> Stage:
    return Stage(client, make_region(namespace, wait=0))


KEEPS_LEASE = altered("invalidate", "  redis.call('DEL', lease)\n", "")
UNCONDITIONAL = altered("publish", "writing or older or owner ~= token", "false")


def other(stage: Stage, **changes: Any) -> Stage:
    """The same without a guard, under another name."""
    region = make_region(stage.region.prefix[1:9], "other", wait=0, **changes)
    return Stage(stage.client, region)


# -- a paused owner


def test_a_paused_owner_resumes_after_its_successor_published(stage: Stage) -> None:
    """All libraries that lock a refresh and then SET bring the old value back."""

    def run(on: Stage) -> Any:
        play = on.play("a.get a.claim a.load", a=on.reads())
        on.client.command("DEL", on.keys.lease)
        on.value = "new"
        play.add(b=on.reads())
        play.run(LOAD.format("b") + " a.publish")
        return play, on.held

    play, held = run(stage)
    assert held == "new"
    play.run("a.claim")  # refused, it looks again
    assert (play.result("a").value, play.result("a").status) == ("new", "reread")
    _, held = run(other(stage, scripts=UNCONDITIONAL))
    assert held == "old"  # wrong


# -- FusionCache#625, open-metadata#28902, caffeine#193: an invalidate while a load runs


def test_remove_while_a_factory_runs(stage: Stage) -> None:
    def run(on: Stage) -> Play:
        play = on.play("a.get a.claim a.load", a=on.reads(), w=on.invalidates())
        on.value = "new"
        play.run("w.invalidate")
        play.add(b=on.reads())
        play.run("b.get b.claim a.publish") if on is stage else play.run("a.publish")
        return play

    play = run(stage)
    assert stage.held is None  # nothing is cached from the old load
    play.run("b.load b.publish")
    assert play.result("b").value == "new"  # and who came after did not join it
    play.run("a.claim")
    assert play.result("a").value == "new"
    wrong = other(stage, scripts=KEEPS_LEASE)
    run(wrong)
    assert wrong.held == "old"  # wrong


# -- FusionCache#535 and #628: a tag that is dropped while a load runs, in front and behind


def test_a_tag_is_dropped_while_a_load_runs(stage: Stage) -> None:
    play = stage.play(
        "a.get a.claim a.stamp a.load w.delete w.delete a.publish",
        a=stage.reads(TAGGED),
        w=stage.drops_tag(),
    )
    assert play.result("a").published
    stage.value = "new"
    play.add(b=stage.reads(TAGGED))
    play.run("b.get b.claim b.stamp b.load b.publish")  # a miss at once
    assert play.result("b").value == "new"


def test_a_tag_is_dropped_while_a_background_refresh_runs(stage: Stage) -> None:
    stage.play("a.*", a=stage.reads(TAGGED))
    stage.value = "between"
    stage.play(
        "e.claim e.stamp e.load w.delete w.delete e.publish",
        e=stage.refreshes(TAGGED),
        w=stage.drops_tag(),
    )
    stage.value = "new"
    play = stage.play("b.*", b=stage.reads(TAGGED))
    assert play.result("b").value == "new"


def test_a_tag_is_dropped_while_its_stamp_is_made(stage: Stage) -> None:
    """The stamp before the load, or after it: after it, the late entry looks valid."""
    play = stage.play("a.get a.claim", a=stage.reads(TAGGED), w=stage.drops_tag())
    play.run("w.delete w.delete a.stamp a.load a.publish")
    assert play.result("a").value == "old"
    assert (
        stage.play("b.*", b=stage.reads(TAGGED)).result("b").status == "hit"
    )  # read after the drop


# -- FusionCache#648, rockscache#12: gone means gone


def test_a_hard_invalidation_beats_what_may_be_served_stale(stage: Stage) -> None:
    stage.put("old", fresh_until=1, stale_ms=10**12)
    stage.value = "new"
    play = stage.play("w.invalidate a.*", w=stage.invalidates(), a=stage.reads())
    assert play.result("a").value == "new"


def test_a_soft_invalidation_is_never_a_hit(stage: Stage) -> None:
    stage.put("old", stale_ms=600_000)
    stage.value = "new"
    play = stage.play("w.invalidate a.*", w=stage.invalidates(hard=False), a=stage.reads())
    assert (play.result("a").value, play.result("a").status) == ("new", "loaded")


# -- caffeine#1478, #373: a refresh that was dropped, and one that is stuck


def test_a_refresh_that_was_dropped_does_not_block_the_next(stage: Stage) -> None:
    stage.put("old")
    play = stage.play(
        "e.claim e.load w.invalidate e.publish", e=stage.refreshes(), w=stage.invalidates()
    )
    stage.value = "new"
    play.add(b=stage.reads())
    play.run("b.*")
    assert stage.held == "new"


def test_a_refresh_that_is_stuck_does_not_hold_up_the_end(stage: Stage) -> None:
    stage.put("old")
    play = stage.play("e.claim", e=stage.refreshes())
    stage.client.command("DEL", stage.keys.entry)  # its hard end
    assert play.waits_at("e") == "load"
    assert stage.held is None


# -- rockscache#4, FusionCache#644, #646: every exit gives the lease back


def test_a_loader_that_fails_gives_its_lease_back(stage: Stage) -> None:
    def fails() -> Any:
        raise KeyError(KEY)

    play = stage.play(
        "a.get a.claim b.get b.claim",
        a=lambda io: read_through(io, stage.region, fails),
        b=stage.reads(),
    )
    with pytest.raises(WaitTimeout):
        play.result("b")
    play.run("a.fails a.release")
    with pytest.raises(KeyError):
        play.result("a")
    assert stage.client.command("EXISTS", stage.keys.lease) == 0


def test_a_value_that_can_not_be_stored_gives_its_lease_back(stage: Stage) -> None:
    stage.value = Loaded("v", revision=-1)
    play = stage.play("a.get a.claim a.load a.release", a=stage.reads())
    with pytest.raises(ValueError, match="revision"):
        play.result("a")
    assert stage.client.command("EXISTS", stage.keys.lease) == 0


# -- django-redis-cache#128, dogpile's default: the crash of a holder


def test_a_holder_that_dies_blocks_nobody_for_longer_than_its_lease(stage: Stage) -> None:
    play = stage.play("a.get a.claim a.crash", a=stage.reads())
    left = stage.client.command("PTTL", stage.keys.lease)
    assert 0 < left <= 5_000  # no lease is without an end
    stage.client.command("DEL", stage.keys.lease)
    play.add(b=stage.reads())
    play.run(LOAD.format("b"))
    assert stage.held == "old"


# -- lost replies


@pytest.mark.parametrize("fault", ["lost", "cut"])
def test_a_claim_whose_reply_is_lost_for_good(stage: Stage, fault: str) -> None:
    """Beyond what the link repeats: the caller is told, and the key is free after a lease."""
    play = stage.play(f"a.get a.claim!{fault}", a=stage.reads())
    with pytest.raises(Exception, match=r"lost|cut"):
        play.result("a")


def test_a_publication_whose_reply_is_lost_for_good(stage: Stage) -> None:
    play = stage.play("a.get a.claim a.load a.publish!lost", a=stage.reads())
    entry = play.result("a")
    assert (entry.value, entry.status, entry.reason) == ("old", "loaded_unpublished", "unreachable")
    assert stage.held == "old"  # it was applied, and says only that nobody knows


# -- revisions, PROTOCOL C3


def test_a_lagging_replica_after_an_invalidation(stage: Stage) -> None:
    stage.value = Loaded("older", revision=1)
    play = stage.play(
        "w.invalidate a.get a.claim a.load a.publish",
        w=stage.invalidates(revision=2),
        a=stage.reads(),
    )
    assert stage.held is None
    stage.value = Loaded("new", revision=2)
    play.run("a.claim a.load a.publish")  # read again, from one that has caught up
    assert play.result("a").value == "new"


# -- limits, shown


def test_an_owner_that_reads_a_lagging_copy_is_accepted(stage: Stage) -> None:
    """Ownership is not freshness: without revisions nobody can tell."""
    stage.play("w.invalidate", w=stage.invalidates())
    stage.value = "lagging"
    play = stage.play("a.*", a=stage.reads())
    assert play.result("a").published
    assert stage.held == "lagging"


def test_a_failover_gives_two_owners(stage: Stage) -> None:
    """The new primary never heard of the lease: both may publish, one after the other."""
    play = stage.play("a.get a.claim a.load", a=stage.reads())
    dump = stage.client.command("GET", stage.keys.lease)
    stage.client.command("DEL", stage.keys.lease)  # what the replica had not got
    stage.value = "new"
    play.add(b=stage.reads())
    play.run(LOAD.format("b"))
    assert stage.held == "new"
    stage.client.command("SET", stage.keys.lease, dump, "PX", 5_000)  # and failed back
    play.run("a.publish")
    assert stage.held == "old"
