"""Every protocol of the like cache, with every fault at every step, and every order of two flushers.

The faults of a step: ``lost`` (it was applied, the reply was not heard), ``cut`` (it was not sent),
``crash`` (the process dies before it). Afterwards the system is left to itself, and then rows,
counter and cache must be the same set, and what was acknowledged must be in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost._core import commands
from fencepost.errors import FencepostError, OutcomeUnknown, Unavailable
from fencepost.likes import protocol
from fencepost.likes.protocol import LikeStatus
from fencepost.testing import Play, SimPort
from support.likes import Actor, Lab, LabMaker, drifted, field, goes_wrong, without

FAULTS = ("lost", "cut", "crash")
Scene = Callable[[Lab], tuple[int, Actor]]


# -- the protocols, each from where it takes the most steps


def warm_set(lab: Lab) -> tuple[int, Actor]:
    item = lab.item("u1")
    lab.seen(item)
    return item, lab.set(item, "u2", True)


def cold_set(lab: Lab) -> tuple[int, Actor]:
    item = lab.item("u1")
    return item, lab.set(item, "u2", True)


def cold_unlike(lab: Lab) -> tuple[int, Actor]:
    item = lab.item("u1", "u2")
    return item, lab.set(item, "u2", False)


def dirty_set(lab: Lab) -> tuple[int, Actor]:
    """Closed shard, lost header, journal not empty: every path there is."""
    item = lab.item("u1", "u2")
    lab.unlike(item, "u2")
    lab.lose_header(item)
    lab.delete(lab.keys.opening)
    return item, lab.set(item, "u2", True)


SETS: list[tuple[Scene, bool]] = [
    (warm_set, True),
    (cold_set, True),
    (cold_unlike, False),
    (dirty_set, True),
]


def cold_status(lab: Lab) -> tuple[int, Actor]:
    item = lab.item("u1")
    return item, lab.status(item, "u1")


def dirty_status(lab: Lab) -> tuple[int, Actor]:
    item = lab.item("u2")
    lab.like(item, "u1")
    lab.unlike(item, "u2")
    lab.lose_header(item)
    return item, lab.status(item, "u1")


def flushing(lab: Lab) -> tuple[int, Actor]:
    item = lab.item("u2")
    lab.like(item, "u1")
    lab.unlike(item, "u2")
    return item, lab.flush(item)


def flushing_a_closed_shard(lab: Lab) -> tuple[int, Actor]:
    item, actor = flushing(lab)
    lab.delete(lab.keys.opening)
    return item, actor


def draining(lab: Lab) -> tuple[int, Actor]:
    item, _ = flushing(lab)
    return item, lab.draining(1.0)


def due_flush(lab: Lab) -> tuple[int, Actor]:
    item, _ = flushing(lab)
    return item, lambda io: protocol.flush_due(io, lab.shard, lab.known)


OTHERS: list[Scene] = [
    cold_status,
    dirty_status,
    flushing,
    flushing_a_closed_shard,
    draining,
    due_flush,
]


def steps_of(lab: Lab, scene: Scene) -> list[str]:
    """The steps that a protocol takes when nothing fails."""
    _, actor = scene(lab)
    play = lab.play(a=actor)
    play.run("a.*")
    play.result("a")
    return [word.removeprefix("a.") for word in str(play).split()]


def run_with_fault(play: Play, at: int, fault: str) -> str | None:
    """Run an actor ``a`` with one fault before or in its step number ``at``; the step it hit."""
    for number in range(200):
        step = play.waits_at("a")
        if step is None:
            return None
        if number < at:
            play.run(f"a.{step}")
            continue
        play.run("a.crash" if fault == "crash" else f"a.{step}!{fault}")
        play.run("a.*")
        return step
    raise AssertionError(f"no end: {play}")


def heal(lab: Lab) -> None:
    lab.open()
    assert lab.drain() == 0


def outcome(play: Play) -> Any:
    """What the caller was told: a value or an error of ours; None if it died."""
    try:
        return play.result("a")
    except FencepostError as error:
        return error


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("scene", "want"), SETS, ids=[scene.__name__ for scene, _ in SETS])
def test_click_with_a_fault_at_every_step(lab: Lab, scene: Scene, want: bool, fault: str) -> None:
    """Acknowledged is there, not sent is not, unknown is one of both; nothing is doubled."""
    steps = steps_of(lab, scene)
    assert len(steps) >= 1
    for at, name in enumerate(steps):
        lab.open()
        item, actor = scene(lab)
        play = lab.play(a=actor)
        assert run_with_fault(play, at, fault) == name
        told = outcome(play)
        lab.open()
        shown = lab.seen(item, "u2").liked
        if isinstance(told, protocol.LikeResult):
            assert shown is want, play
        elif isinstance(told, Unavailable):
            assert shown is not want, play
        elif isinstance(told, OutcomeUnknown):
            assert shown is (want if at == len(steps) - 1 else not want), play
            lab.do(lab.set(item, "u2", want))  # as the caller would: it is absolute
            shown = want
        else:
            assert told is None
            assert shown is not want, play
        likers = {"u1"} | ({"u2"} if shown else set())
        heal(lab)
        lab.holds(item, likers, {"u1", "u2"})


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scene", OTHERS)
def test_other_protocols_with_a_fault_at_every_step(lab: Lab, scene: Scene, fault: str) -> None:
    """Whatever becomes of a reader or a flusher, the set is u1's, at once and when all is flushed."""
    steps = steps_of(lab, scene)
    for at, name in enumerate(steps):
        lab.open()
        item, actor = scene(lab)
        play = lab.play(a=actor)
        assert run_with_fault(play, at, fault) == name
        told = outcome(play)
        if isinstance(told, LikeStatus):
            assert told == LikeStatus(True, 1)
        lab.open()
        lab.holds(item, {"u1"}, {"u2"})


def test_faults_would_be_seen(make_lab: LabMaker) -> None:
    """The control: with an ack that removes the user whatever the entry is, some fault shows."""
    exact = "stands[n] == ARGV[i + 2 * n - 1]"
    lab = make_lab(scripts=without("ack", exact, "true"))
    item, actor = flushing(lab)
    play = lab.run("a.claim a.commit", a=actor)
    lab.unlike(item, "u1")
    play.run("a.ack")
    with goes_wrong():
        lab.holds(item, set(), {"u1", "u2"})


def test_lost_reply_of_a_commit_is_repeated_with_the_same_result(lab: Lab) -> None:
    """COMMIT's reply is lost, and nobody else came between: the next flush finds the rows there."""
    item, actor = flushing(lab)
    play = lab.run("a.claim a.commit!lost", a=actor)
    with pytest.raises(OutcomeUnknown):
        play.result("a")
    assert lab.rows(item) == {"u1"}
    assert lab.flushed(item).changed == 0
    lab.holds(item, {"u1"}, {"u2"})


def test_acks_go_out_together(lab: Lab) -> None:
    """Several items: one claim, one commit, one write of acks; a lost one leaves all to the next."""
    items = [lab.item("u1") for _ in range(3)]
    for item in items:
        lab.like(item, "u2")
    play = lab.run("a.claim a.commit a.ack!lost", a=lab.flush(*items))
    with pytest.raises(OutcomeUnknown):
        play.result("a")
    for item in items:
        lab.holds(item, {"u1", "u2"})


# -- all orders


Choose = Callable[[list[str]], str]


def every_order(run: Callable[[Choose], None], limit: int = 20_000) -> Iterator[int]:
    """Run something again and again until it has been given every choice there is.

    A run is the list of its choices; the next run is the same list with the last number that can
    grow grown by one (TigerBeetle's way of making "which one?" exhaustive).
    """
    path: list[list[int]] = []  # [chosen, out of]
    for number in range(limit):
        depth = 0

        def choose(names: list[str]) -> str:
            nonlocal depth
            if depth == len(path):
                path.append([0, len(names)])
            assert path[depth][1] == len(names), "the same choices gave another run"
            depth += 1
            return names[path[depth - 1][0]]

        run(choose)
        del path[depth:]
        yield number
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1][0] += 1
    raise AssertionError(f"more than {limit} orders")


Cast = Callable[[int], dict[str, Actor]]


def play_every_order(lab: Lab, prepare: Callable[[], int], cast: Cast, likers: set[str]) -> int:
    """Play actors in every order of their steps, each time on an item of its own.

    Returns:
        How many orders there are.
    """

    def once(choose: Choose) -> None:
        item = prepare()
        actors = cast(item)
        play = lab.play(**actors)
        while waiting := [name for name in actors if play.waits_at(name) is not None]:
            name = choose(waiting)
            play.run(f"{name}.{play.waits_at(name)}")
        try:
            for name in actors:
                play.result(name)
            lab.shows(item, likers, {"u1", "u2"})
            assert lab.drain() == 0
            assert lab.rows(item) == likers
            lab.shows(item, likers, {"u1", "u2"})
        except AssertionError as error:
            error.add_note(f"the schedule: {play}")
            raise

    orders = sum(1 for _ in every_order(once))
    assert drifted(lab.engine) == []
    return orders


def dirty_item(lab: Lab) -> int:
    """SQL: u2. Then u1 likes, and nothing is flushed."""
    item = lab.item("u2")
    lab.like(item, "u1")
    return item


def losing(lab: Lab, item: int) -> Actor:
    """The header is lost at some moment."""
    return lambda io: io.run(commands.raw("DEL", lab.keys.header(str(item))))


def two_flushers(lab: Lab) -> int:
    return play_every_order(
        lab,
        lambda: dirty_item(lab),
        lambda item: {
            "f": lab.flush(item),
            "g": lab.flush(item),
            "u1": lab.set(item, "u1", False),
        },
        {"u2"},
    )


def test_two_flushers_and_a_change_of_mind_in_every_order(lab: Lab) -> None:
    """A like is in the journal; two flushers run while it is taken back: 140 orders, and those in
    which one is refused and begins again."""
    assert two_flushers(lab) >= 140


def test_two_flushers_control(make_lab: LabMaker) -> None:
    exact = "stands[n] == ARGV[i + 2 * n - 1]"
    with goes_wrong():
        two_flushers(make_lab(scripts=without("ack", exact, "true")))


def test_two_flushers_of_parts_in_every_order(make_lab: LabMaker) -> None:
    """A claim holds one of two changes: what is left is for the next."""
    lab = make_lab(batch_changes=1)

    def two_changes() -> int:
        item = dirty_item(lab)
        lab.unlike(item, "u2")
        return item

    orders = play_every_order(
        lab,
        two_changes,
        lambda item: {"f": lab.flush(item), "g": lab.flush(item)},
        {"u1"},
    )
    assert orders >= 20


def loader_and_flusher(lab: Lab) -> int:
    return play_every_order(
        lab,
        lambda: dirty_item(lab),
        lambda item: {
            "r": lambda io: protocol.load(io, lab.shard, lab.known, str(item), "u1"),
            "f": lab.flush(item),
            "lost": losing(lab, item),
        },
        {"u1", "u2"},
    )


def test_loader_flusher_and_a_lost_header_in_every_order(lab: Lab) -> None:
    assert loader_and_flusher(lab) >= 140


def test_loader_and_flusher_control(make_lab: LabMaker) -> None:
    """Without the look at the journal, at the begin and at the fill, some order is wrong."""
    scripts = without("begin", "redis.call('HLEN', journal) > 0", "false")
    blind = without("fill", "  if not clean then return {'DIRTY'} end\n  if field", "  if field")
    with goes_wrong():
        loader_and_flusher(make_lab(scripts=dataclasses.replace(scripts, fill=blind.fill)))


# -- a flusher that stops and comes back


def test_paused_flusher_resumes_after_all_is_done(lab: Lab) -> None:
    """It was stopped behind its claim for as long as it takes; others flushed older and newer
    changes; its commit is refused, it claims anew and finds nothing."""
    item = dirty_item(lab)
    play = lab.run("paused.claim", paused=lab.flush(item))
    for liked in (False, True, False):
        lab.do(lab.set(item, "u1", liked))
        lab.flushed(item)
    play.run("paused.commit paused.claim paused.ack")
    assert play.result("paused").entries == 0
    lab.holds(item, {"u2"}, {"u1"})


def test_paused_flusher_resumes_before_its_ack(lab: Lab) -> None:
    """Its commit stands; what it acknowledges late is gone or newer by now."""
    item = dirty_item(lab)
    play = lab.run("paused.claim paused.commit", paused=lab.flush(item))
    lab.flushed(item)
    lab.unlike(item, "u1")
    play.run("paused.ack")
    lab.holds(item, {"u2"}, {"u1"})


def test_flushers_that_die_one_after_the_other(lab: Lab) -> None:
    """Each claims and dies: fences grow, nothing else changes."""
    item = dirty_item(lab)
    for _ in range(5):
        lab.run("f.claim f.crash", f=lab.flush(item))
    assert lab.opening()["f"] == "5"
    lab.holds(item, {"u1", "u2"})


def test_flush_takes_what_came_meanwhile_the_next_time(lab: Lab) -> None:
    item = dirty_item(lab)
    play = lab.run("f.claim", f=lab.flush(item))
    lab.like(item, "u3")
    play.run("f.commit f.ack")
    assert (play.result("f").entries, lab.rows(item)) == (1, {"u1", "u2"})
    assert set(lab.journal(item)) == {field("u3")}
    lab.holds(item, {"u1", "u2", "u3"})


def test_drain_flushes_long_journals_in_parts(make_lab: LabMaker) -> None:
    lab = make_lab(batch_changes=3, batch_items=2)
    items = [lab.item() for _ in range(5)]
    users = {f"u{number}" for number in range(8)}
    for item in items:
        for user in users:
            lab.like(item, user)
    assert lab.drain() == 0
    for item in items:
        assert lab.rows(item) == users
    assert drifted(lab.engine) == []


def test_drain_ends_at_its_deadline(lab: Lab) -> None:
    """Somebody likes faster than it is flushed: the drain says what is left."""
    item = dirty_item(lab)
    times = iter(range(100))

    async def against_the_clock(io: SimPort) -> int:
        io.clock = lambda: float(next(times))
        left: int = await lab.draining(8.0)(io)
        return left

    play = lab.play(d=against_the_clock)
    while (step := play.waits_at("d")) is not None:
        if step == "ack":
            lab.do(lab.set(item, "u1", "u1" not in lab.rows(item)))
        play.run(f"d.{step}")
    assert play.result("d") == 1


def test_drain_goes_on_after_trouble(lab: Lab) -> None:
    """An unavailable server or database is waited out, until the deadline."""
    item = dirty_item(lab)
    actor = lab.draining(1.0)
    play = lab.run("d.zrange d.claim!cut d.sleep d.zrange d.claim d.commit!cut d.sleep", d=actor)
    play.run("d.zrange d.claim d.commit d.ack d.zrange")
    assert play.result("d") == 0
    assert lab.rows(item) == {"u1", "u2"}
