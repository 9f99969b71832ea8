"""A lock on several servers in every order: holders, servers that come back, lost replies, late requests.

One server plays all of them, with keys of its own for each. What must hold: two are never inside while
nothing but data loss ends their votes; fences increase; when all have ended, nothing of them is left.
Each guard is taken out once, and must be missed. T1 to T5 are the names of the known mistakes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost._core.port import run_sync
from fencepost._core.script import SERVER
from fencepost.lock.protocol import Grant, drift
from fencepost.lock.quorum import protocol, tally
from fencepost.lock.quorum.place import Votes
from fencepost.lock.quorum.scripts import VOTE_SCRIPTS, Joined, Kept, Vote, VoteScripts
from fencepost.testing import Faults, Move, Play, Report, Scenario, ScratchServer, explore
from support.lock import Seen
from support.quorum import QuorumWorld, altered
from support.require import require
from support.servers import find_binary

ORDERS = list(itertools.permutations(range(3)))
DEEP = pytest.mark.explore
BORN = "'max_ttl', max_ttl_ms, 'open', '0', 'durable', '0')\n    since, open = now_ms, false\n"
BORN_OPEN = BORN.replace("'open', '0'", "'open', '1'").replace("false", "true")


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


Run = Callable[..., Report]


@pytest.fixture
def run(scratch: ScratchServer) -> Run:
    def one(
        world: QuorumWorld,
        actors: dict[str, Any],
        environment: dict[str, Move] | None = None,
        **more: Any,
    ) -> Report:
        limit = more.pop("limit", 400_000)
        scenario = Scenario(
            actors=actors,
            environment=environment or {},
            cells=world.cells,
            setup=world.setup,
            invariant=more.pop("invariant", world.invariant),
            final=more.pop("final", world.nothing_left),
            **more,
        )
        return explore(scenario, server=scratch, limit=limit)

    return one


def clean(report: Report) -> Report:
    """Nothing was found, and every order was tried."""
    report.check()
    assert not report.bounded_by, report
    return report


def found(report: Report, *words: str) -> None:
    """Something was found, and it says so."""
    assert report.finding is not None, "the guard is not missed"
    assert any(word in report.finding.message for word in words), report.finding.message


# -- who is inside


@pytest.mark.parametrize(
    "order", [ORDERS[-1], *(pytest.param(one, marks=DEEP) for one in ORDERS[:-1])], ids=str
)
def test_two_holders_one_at_a_time_whatever_arrives_first(run: Run, order: Any) -> None:
    world = QuorumWorld()
    clean(run(world, {"a": world.holds(), "b": world.holds(order)}))


LOOKS_AWAY = altered("vote", "if not held[1] and overtaken", "if overtaken")


def test_a_server_must_look_before_it_votes(run: Run) -> None:
    world = QuorumWorld(LOOKS_AWAY)
    found(run(world, {"a": world.holds(), "b": world.holds()}), "entered beside")


def test_a_reply_that_is_lost_leaves_nothing_behind(run: Run) -> None:
    world = QuorumWorld()
    faults = Faults(times=2, kinds=("lost", "dropped"), on=frozenset({"vote", "release"}))
    clean(run(world, {"a": world.holds()}, faults=faults))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=DEEP) for kind in ("cut", "lost", "dropped")]
)
def test_nothing_is_left_behind_whatever_is_lost(run: Run, kind: str) -> None:
    world = QuorumWorld()
    faults = Faults(times=1, kinds=(kind,), on=frozenset({"vote", "agree", "release"}))
    clean(run(world, {"a": world.holds(), "b": world.holds((2, 1, 0))}, faults=faults))


def test_what_is_given_up_needs_undoing(run: Run) -> None:
    world = QuorumWorld()
    faults = Faults(times=1, kinds=("dropped",), on=frozenset({"release"}))
    actors = {"a": world.holds(undoes=False), "b": world.holds((2, 1, 0), undoes=False)}
    found(run(world, actors, faults=faults), "for nobody")


# -- T1: the fence of a quorum


UNEVEN = (10, 1, 2)
"""What the servers know at first: one of them took part in an older lease that the others did not."""


def cut_one_vote(times: int = 2) -> Faults:
    """A server out of reach: each gets its majority elsewhere."""
    return Faults(times=times, kinds=("cut",), on=frozenset({"vote"}))


async def highest_vote(io: Any, place: Any, ask: Any, sent: float, answers: Any) -> Grant:
    """The usual way: the highest of the majority, and nobody else is told."""
    fence = max(one.fence for one in answers if isinstance(one, Vote))
    return Grant(fence, sent, sent + ask.ttl - drift(ask.ttl), ask.attempt)


def one_after_the_other(world: QuorumWorld) -> dict[str, Any]:
    """The second begins when the first has left."""

    def left(view: Any) -> bool:
        return bool(world.seen.state.taken) and not world.seen.state.inside

    return {"a": world.holds(), "b": world.holds(after=left)}


def test_t1_fences_increase_though_majorities_differ(run: Run) -> None:
    world = QuorumWorld(highs=UNEVEN)
    clean(run(world, one_after_the_other(world), faults=cut_one_vote()))


@DEEP
def test_t1_fences_increase_also_where_two_ask_at_once(run: Run) -> None:
    world = QuorumWorld(highs=UNEVEN)
    actors = {"a": world.holds(), "b": world.holds()}
    clean(run(world, actors, faults=cut_one_vote()))


def test_t1_needs_the_fence_to_be_written_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "conclude", highest_vote)
    world = QuorumWorld(highs=UNEVEN)
    found(run(world, one_after_the_other(world), faults=cut_one_vote()), "drew fence")


@DEEP
def test_t1_writing_back_needs_the_vote_to_stand(run: Run) -> None:
    """A server that does not know the attempt any more must not count as one that knows the fence."""
    world = QuorumWorld(highs=UNEVEN, alone=False)
    actors = {"a": world.holds(), "b": world.holds(), "o": world.steals(0, 1)}
    faults = cut_one_vote(1)
    clean(run(world, actors, faults=faults))


@DEEP
def test_t1_clocks_that_differ_do_not_lower_a_fence(run: Run) -> None:
    """The caller's clock is only a proposal: one that is behind draws a greater fence all the same."""
    world = QuorumWorld()
    actors = {"a": world.holds(clock_ms=5000.0), "b": world.holds((1, 2, 0), clock_ms=1.0)}
    clean(run(world, actors, faults=cut_one_vote()))


# -- T2: late requests


def test_t2_a_late_vote_is_given_to_nobody(run: Run) -> None:
    world = QuorumWorld()
    actors = {"a": world.holds(doubt=True), "s": world.straggles("a.1", 0)}
    clean(run(world, actors))
    actors = {"a": world.holds(doubt=True), "s": world.straggles("a.1", 0, "prolong")}
    clean(run(world, actors))


NO_MARK = altered("vote", "if redis.call('EXISTS', ended) == 1 then return {'ENDED'} end\n", "")
JOINS_ALWAYS = altered("prolong", " or redis.call('EXISTS', ended) == 1", "")


@pytest.mark.parametrize(
    ("scripts", "what"),
    [
        pytest.param(NO_MARK, "vote", id="a vote"),
        pytest.param(JOINS_ALWAYS, "prolong", id="a vote that is asked for anew"),
    ],
)
def test_t2_needs_the_mark_of_an_ended_attempt(run: Run, scripts: VoteScripts, what: str) -> None:
    world = QuorumWorld(scripts)
    actors = {"a": world.holds(doubt=True), "s": world.straggles("a.1", 0, what)}
    found(run(world, actors), "for nobody")


COMES_LATE = """
a.before a.vote b.before b.vote b.vote b.vote b.enter a.vote a.vote a.release!dropped a.listen
b.leave b.release b.release b.release a.vote a.vote a.vote!cut
"""
"""A round of a comes to nothing, and what gives its vote at the server 0 back is still on its way."""


@pytest.mark.parametrize("named", [True, False], ids=["a name a round", "one name for all"])
def test_t2_what_gives_a_vote_back_comes_late_and_takes_nothing(
    scratch: ScratchServer, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """The next round bears another name; else the late request takes its vote, and a third gets in."""
    if not named:
        monkeypatch.setattr(Votes, "abandon", lambda self, attempt, new: attempt)
    world = QuorumWorld()
    scratch.empty()
    polls = world.place.polls
    for born in polls.born:  # they may vote
        run_sync(scratch.port.run(polls.scripts.init((born,), (0, 0, 1, 30_000, SERVER))))
    actors = {"a": world.holds(wait=5.0), "b": world.holds((1, 2, 0)), "c": world.holds((0, 2, 1))}
    play = Play(scratch.port, **actors)
    try:
        play.run(COMES_LATE)
        if not named:
            play.run("a.agree a.enter")
        run_sync(scratch.port.run(polls.release(0, "a.1")))  # here it is
        play.run("c.before c.vote c.vote c.vote c.*")
        assert world.seen.state.wrong == ("" if named else "c entered beside a")
        assert "c" not in world.seen.state.inside
    finally:
        play.close()
        scratch.empty()


# -- T3: a server that comes back


def one_comes_back(world: QuorumWorld) -> dict[str, Any]:
    """Somebody is inside by two of three; a rival asks."""
    return {"a": world.holds(gives_back=False), "b": world.holds((2, 1, 0))}


def test_t3_one_of_the_majority_comes_back_empty_and_nobody_gets_in(run: Run) -> None:
    world = QuorumWorld()
    moves = {"x": world.comes_back_empty(0)}
    faults = cut_one_vote(1)
    clean(run(world, one_comes_back(world), moves, faults=faults, final=None))


def test_t3_one_of_the_majority_loses_its_last_second_and_nobody_gets_in(run: Run) -> None:
    """Its birth record is still there, and names another process: what it forgot is a vote."""
    world = QuorumWorld()
    moves = {"x": world.loses_its_tail(0)}
    faults = cut_one_vote(1)
    clean(run(world, one_comes_back(world), moves, faults=faults, final=None))


ONLY_EMPTY = altered("vote", "elseif known[1] ~= me then", "elseif not known[1] then")
TRUSTS_EMPTY = altered("vote", BORN, BORN_OPEN)


@pytest.mark.parametrize(
    ("scripts", "move"),
    [
        pytest.param(TRUSTS_EMPTY, "comes_back_empty", id="empty"),
        pytest.param(ONLY_EMPTY, "loses_its_tail", id="its tail lost"),
    ],
)
def test_t3_needs_the_birth_guard(run: Run, scripts: VoteScripts, move: str) -> None:
    world = QuorumWorld(scripts)
    moves = {"x": getattr(world, move)(0)}
    faults = cut_one_vote(1)
    report = run(world, one_comes_back(world), moves, faults=faults, final=None)
    found(report, "entered beside")


def stolen_then_forgotten(world: QuorumWorld) -> tuple[dict[str, Any], dict[str, Move]]:
    """An operator takes the lock away at two servers, a rival gets it there, one of them forgets both."""

    def free(view: Any) -> bool:
        return all(world.locks[n].lock not in view.keys for n in (0, 1))

    actors = {
        "a": world.holds(renews=1, gives_back=False),
        "o": world.steals(0, 1),
        "b": world.holds(after=free, gives_back=False),
    }
    return actors, {"x": world.loses_its_tail(0)}


UNGUARDED = altered("prolong", "elseif known[1] ~= me then", "elseif false then")


@DEEP
def test_t3_a_newborn_prolongs_nothing_either(run: Run) -> None:
    """What it holds may be older than what it forgot: the vote of another's majority."""
    world = QuorumWorld(alone=False)
    actors, moves = stolen_then_forgotten(world)
    clean(run(world, actors, moves, final=None))


@DEEP
def test_t3_needs_newborns_to_prolong_nothing(run: Run) -> None:
    world = QuorumWorld(UNGUARDED, alone=False)
    actors, moves = stolen_then_forgotten(world)
    report = run(world, actors, moves, final=None)
    found(report, "was renewed behind")


# -- T4: a fresh quorum


def test_t4_a_fresh_quorum_waits_for_the_longest_lease_and_then_votes(run: Run) -> None:
    """That all are empty can't be told from a power cut that somebody's lease has outlived."""

    def too_early(view: Any) -> str | None:
        early = view.server.clock_ms < 1_000_000 + 30_000
        return "somebody got in" if world.seen.state.taken and early else None

    world = QuorumWorld(highs=(None, None, None), alone=False)
    actors = {"a": world.holds(), "b": world.holds()}
    moves = {"w": world.waits()}
    clean(run(world, actors, moves, invariant=too_early, final=None))

    def nobody(view: Any) -> str | None:
        return "somebody got in" if world.seen.state.taken else None

    found(run(world, actors, moves, invariant=nobody, final=None), "somebody got in")


def test_t4_needs_the_wait(run: Run) -> None:
    world = QuorumWorld(TRUSTS_EMPTY, highs=(None, None, None))

    def nobody(view: Any) -> str | None:
        return "somebody got in" if world.seen.state.taken else None

    found(run(world, {"a": world.holds()}, invariant=nobody, final=None), "somebody got in")


# -- T5: a newborn has forgotten its fence


def born_anew(scripts: VoteScripts = VOTE_SCRIPTS) -> QuorumWorld:
    """The servers 0 and 1 were the majority of the fence 11; 0 came back empty, and 2 knows of none."""
    world = QuorumWorld(scripts, highs=(None, 11, 2), alone=False)
    world.seen.state = Seen(taken=(("long ago", 11),))
    return world


def next_majority(world: QuorumWorld) -> tuple[dict[str, Any], dict[str, Move]]:
    """A newborn is met, waits, and is half of the next majority."""
    return {"m": world.meets(0), "b": world.holds((0, 2, 1))}, {"w": world.waits()}


def test_t5_a_newborn_votes_only_when_it_knows_the_fence_of_the_others(run: Run) -> None:
    world = born_anew()
    actors, moves = next_majority(world)
    clean(run(world, actors, moves, faults=cut_one_vote(3), final=None))


FORGETFUL = altered("admit", "math.max(floor, tonumber(refusal[3]))", "tonumber(refusal[3])")


def test_t5_needs_the_newborn_to_be_told(run: Run) -> None:
    world = born_anew(FORGETFUL)
    actors, moves = next_majority(world)
    found(run(world, actors, moves, faults=cut_one_vote(3), final=None), "drew fence")


# -- renewal


def prolonged_by_anybody(answers: Any, majority: int) -> Any:
    """A vote that is given anew counts at once."""
    some = [Kept(f"s{n}") if isinstance(one, Joined) else one for n, one in enumerate(answers)]
    return tally.prolonged(some, majority)


def robbed_on_a_majority(world: QuorumWorld) -> dict[str, Any]:
    def free(view: Any) -> bool:
        return all(world.locks[n].lock not in view.keys for n in (0, 1)) and bool(
            world.seen.state.inside
        )

    return {
        "a": world.holds(renews=1),
        "o": world.steals(0, 1),
        "b": world.holds(after=free),
    }


def test_a_lock_that_was_taken_away_is_not_taken_back_behind_the_next_holder(run: Run) -> None:
    world = QuorumWorld(alone=False)
    clean(run(world, robbed_on_a_majority(world), final=None))


def test_a_renewal_must_not_count_votes_that_are_given_anew(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "prolonged", prolonged_by_anybody)
    world = QuorumWorld(alone=False)
    report = run(world, robbed_on_a_majority(world), final=None)
    found(report, "was renewed behind")


def test_a_renewal_asks_a_server_that_came_back_for_its_vote_anew(run: Run) -> None:
    """Once its wait is over: then two may go, and the lease still stands."""
    world = QuorumWorld()
    moves = {"x": world.comes_back_empty(0)}
    actors = {"a": world.holds(renews=2)}
    clean(run(world, actors, moves))


@DEEP
def test_nobody_gets_in_while_servers_come_back_one_after_the_other(run: Run) -> None:
    world = QuorumWorld()
    moves = {"x": world.comes_back_empty(0), "y": world.comes_back_empty(1)}
    actors = {"a": world.holds(renews=1, gives_back=False), "b": world.holds()}
    clean(run(world, actors, moves, final=None))
