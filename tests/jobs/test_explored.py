"""The queue's protocols and scripts in every order: workers, senders, lost leases, lost replies, crashes.

What must hold at every moment: a job is in exactly one place; nothing about it counts but the words of
its latest claim; epochs increase; nothing begins before its time; a repeated turn is the same turn. And
from every moment, if all died there: nothing is lost, and nothing runs after its end. Each guard is taken
out once, and must be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from fencepost.jobs.protocol import Ack, New
from fencepost.jobs.scripts import SCRIPTS, Scripts
from fencepost.testing import Faults, Report, Scenario, ScratchServer, explore, tick
from support.jobs import a_job, altered
from support.jobs_world import JobsWorld
from support.require import require
from support.servers import find_binary

LEASE_ENDS = tick(30_000, 2)


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


Run = Callable[..., Report]


@pytest.fixture
def run(scratch: ScratchServer) -> Run:
    def one(
        world: JobsWorld,
        jobs: Sequence[New],
        actors: dict[str, Any],
        heals: bool = True,
        **more: Any,
    ) -> Report:
        limit = more.pop("limit", 300_000)
        ids = more.pop("ids", [job.id for job in jobs])
        healing = {"heal": world.heals(*ids), "healed": world.healed} if heals else {}
        scenario = Scenario(
            actors=actors,
            cells=world.cells,
            setup=world.setup(*jobs),
            invariant=more.pop("invariant", world.invariant),
            observe=world.observe,
            **healing,
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


ONE = [a_job("1", "0")]
TWO = [a_job("1", "0"), a_job("2", "0")]


# -- two workers, leases that end, late words


def late_words(world: JobsWorld, run: Run, **more: Any) -> Report:
    actors = {"a": world.works(), "b": world.works()}
    return run(world, ONE, actors, environment={"x": LEASE_ENDS}, **more)


def test_two_workers_and_a_lease_that_ends(run: Run) -> None:
    report = clean(late_words(JobsWorld(), run, crashes=frozenset({"a"})))
    assert report.states > 100


def test_two_workers_and_two_jobs(run: Run) -> None:
    world = JobsWorld()
    actors = {"a": world.works(2), "b": world.works(room=2)}
    clean(run(world, TWO, actors, environment={"x": tick(30_000)}, limit=600_000))


ANY_EPOCH = altered(
    "turn",
    "if claim and claim:match('^%d+') == epoch then\n      said",
    "if claim then\n      said",
)


def test_words_about_a_job_need_the_epoch(run: Run) -> None:
    found(late_words(JobsWorld(ANY_EPOCH), run), "a late D of 1 counted", "ended twice")


NO_COUNTER = altered(
    "turn", "math.max(tonumber(redis.call('HGET', q.head, 'epoch') or '0') + 1, now_us)", "now_us"
)


def test_epochs_need_the_counter_where_the_clock_stands_still(run: Run) -> None:
    world = JobsWorld(NO_COUNTER)
    found(run(world, TWO, {"a": world.works(), "b": world.works()}), "drew epoch")


LATE_ACKS = altered(
    "turn",
    "said = settle(q, acks, results, now_ms)\npromote(q, now_ms, room > 0 and most or 0)\n"
    "local reclaimed = reclaim(q, now_ms, most)\n",
    "promote(q, now_ms, room > 0 and most or 0)\nlocal reclaimed = reclaim(q, now_ms, most)\n"
    "said = settle(q, acks, results, now_ms)\n",
)


def test_j4_acknowledgements_go_before_taking_back(run: Run) -> None:
    world = JobsWorld(LATE_ACKS)
    actors = {"a": world.works()}
    for scripts in (SCRIPTS, LATE_ACKS):
        world = JobsWorld(scripts)
        actors = {"a": world.works()}
        report = run(world, ONE, actors, environment={"x": tick(30_000)})
        if scripts is SCRIPTS:
            clean(report)
        else:
            found(report, "refused though its claim stood")


LEAVES_THE_CLAIM = altered(
    "turn", "    redis.call('HDEL', q.claims, id)\n    local record", "    local record"
)


def test_what_is_taken_back_has_no_claim(run: Run) -> None:
    found(late_words(JobsWorld(LEAVES_THE_CLAIM), run), "claims of", "in no place", "counted")


# -- lost replies


def test_j1_lost_replies_are_harmless(run: Run) -> None:
    world = JobsWorld()
    actors = {"a": world.works(2), "b": world.works()}
    faults = Faults(times=2, on=frozenset({"turn"}), kinds=("lost", "dropped", "cut"))
    clean(run(world, TWO, actors, faults=faults, limit=600_000))


def test_j1_lost_replies_while_leases_end(run: Run) -> None:
    world = JobsWorld()
    actors = {"a": world.works(knows=True), "b": world.works(knows=True)}
    faults = Faults(times=1, kinds=("lost", "dropped"))
    clean(run(world, ONE, actors, faults=faults, environment={"x": tick(30_000)}, limit=600_000))


NO_REPLAY = altered("turn", "if turn == number then", "if false then")


def test_j1_a_repeated_turn_needs_its_first_answer(run: Run) -> None:
    world = JobsWorld(NO_REPLAY)
    actors = {"a": world.works(2), "b": world.works()}
    faults = Faults(times=1, on=frozenset({"turn"}), kinds=("lost",))
    found(run(world, TWO, actors, faults=faults), "was answered", "took")


NO_LOOK_BACK = altered(
    "turn", "if tonumber(turn) < tonumber(number) then return {'LATE'} end\n", ""
)


@pytest.mark.parametrize("scripts", [SCRIPTS, NO_LOOK_BACK], ids=["guarded", "not"])
def test_a_duplicate_of_a_turn_that_comes_late_does_nothing(run: Run, scripts: Scripts) -> None:
    world = JobsWorld(scripts)
    actors = {"a": world.works(2), "s": world.straggles("a", 1, 1)}
    report = run(world, [*TWO, a_job("3", "0")], actors)
    if scripts is SCRIPTS:
        clean(report)
    else:
        found(report, "took", "after a later one")


COUNTS_ALL = altered("turn", "if saw >= tonumber(turn or '0') then", "if true then")


def test_j1_a_crash_counts_only_if_the_worker_knew(run: Run) -> None:
    found(late_words(JobsWorld(COUNTS_ALL), run, crashes=frozenset({"a"})), "never saw")


KNOWS_LATE = altered("turn", ":match('^%d+')) - 1\n", ":match('^%d+'))\n")


def test_j1_a_turn_does_not_show_that_its_own_answer_came(run: Run) -> None:
    found(late_words(JobsWorld(KNOWS_LATE), run, crashes=frozenset({"a"})), "never saw")


# -- cancel


@pytest.mark.parametrize("running", [False, True], ids=["waiting", "running too"])
def test_cancelled_or_claimed_but_not_both(run: Run, running: bool) -> None:
    world = JobsWorld()
    actors = {"c": world.cancels("1", running), "a": world.works(), "b": world.works()}
    faults = Faults(times=1, on=frozenset({"cancel", "turn"}), kinds=("lost", "dropped"))
    clean(run(world, ONE, actors, faults=faults, environment={"x": tick(30_000)}, limit=600_000))


CANCELS_ANY = altered("cancel", "if runs and running ~= '1' then return {'RUNNING'} end\n", "")
LEAVES_READY = altered("cancel", "redis.call('ZREM', ready, id)\n", "")
LEAVES_CLAIM = altered("cancel", "redis.call('HDEL', claims, id)\n", "")


@pytest.mark.parametrize(
    ("scripts", "running", "words"),
    [
        pytest.param(LEAVES_CLAIM, True, ("claims of", "counted", "ended twice"), id="the claim"),
        pytest.param(LEAVES_READY, False, ("left in ready",), id="the place"),
    ],
)
def test_cancelling_needs(run: Run, scripts: Scripts, running: bool, words: Any) -> None:
    world = JobsWorld(scripts)

    def judge(view: Any) -> str | None:
        extra = view.value(world.keys.ready, {}).keys() - view.value(world.keys.bodies, {}).keys()
        return world.invariant(view) or (f"{extra} left in ready" if extra else None)

    actors = {"c": world.cancels("1", running), "a": world.works()}
    found(run(world, ONE, actors, invariant=judge), *words)


def test_cancelling_needs_the_look_at_the_claim(run: Run) -> None:
    world = JobsWorld(CANCELS_ANY)

    def honest(view: Any) -> str | None:
        told = view.results.get("c")
        begun = world.seen.state.begun
        return f"told {told} of a job that has begun" if told == "stopped" and begun else None

    actors = {"c": world.cancels("1"), "a": world.works()}
    found(run(world, ONE, actors, invariant=None, final=honest), "told stopped")


# -- move


def test_moved_or_promoted_but_never_early(run: Run) -> None:
    world = JobsWorld()
    jobs = [a_job("1", "1000010")]
    actors = {"m": world.moves("1", "+50"), "a": world.works(2), "b": world.works()}
    clean(run(world, jobs, actors, environment={"t": tick(10, 2)}, limit=600_000))


def test_a_move_whose_reply_is_lost_is_a_move(run: Run) -> None:
    """The link sends it again, now or later: it is moved once more, or is not there any more."""
    world = JobsWorld()
    jobs = [a_job("1", "1000010")]
    actors = {"m": world.moves("1", "+50"), "a": world.works(1), "b": world.works()}
    faults = Faults(times=2, on=frozenset({"move"}))
    clean(run(world, jobs, actors, environment={"t": tick(10)}, faults=faults, limit=600_000))


MOVES_HALF = altered("move", " + redis.call('ZREM', ready, id)", " + redis.call('ZCARD', ready)")
MOVES_CLAIMED = altered(
    "move", "if redis.call('HEXISTS', claims, id) == 1 then return {'RUNNING'} end\n", ""
)
MOVES_NOTHING = altered("move", "if not record or waited == 0 then", "if not record then")


def test_moving_needs_to_take_it_from_where_it_is(run: Run) -> None:
    world = JobsWorld(MOVES_HALF)
    jobs = [a_job("1", "1000010"), a_job("2", "1000010")]
    actors = {"m": world.moves("2", "+50"), "a": world.works(1), "b": world.works()}
    found(run(world, jobs, actors, environment={"t": tick(10)}), "2 is in", "before its time")


def test_moving_needs_a_job_that_waits(run: Run) -> None:
    world = JobsWorld(altered("move", "waited == 0", "false", MOVES_CLAIMED))
    actors = {"m": world.moves("1", "+50"), "a": world.works()}
    found(run(world, ONE, actors), "1 is in", "before its time", "no place")


EARLY = altered("turn", "local below = digits(now_ms + 1)", "local below = digits(now_ms + 1000)")


def test_promotion_needs_the_clock(run: Run) -> None:
    world = JobsWorld(EARLY)
    found(run(world, [a_job("1", "1000010")], {"a": world.works()}), "before its time")


# -- unique keys


def keyed(id: str, window: str = "r", when: str = "+0") -> New:
    return a_job(id, when, window=window, key="k", kept=True)


@pytest.mark.parametrize("window", ["r", "p"])
def test_one_job_a_key_whatever_happens_to_it(run: Run, window: str) -> None:
    world = JobsWorld()
    actors = {
        "s": world.adds(keyed("2", window)),
        "t": world.adds(keyed("3", window)),
        "a": world.works(verdict="R" if window == "r" else "D", number=0),
        "b": world.works(),
    }
    first = [keyed("1", window, "0")]
    clean(run(world, first, actors, ids=["1", "2", "3"], limit=900_000))


NO_HOLDER = altered("add", "if holder and holder ~= id and", "if false and")
KEEPS_THE_KEY = altered(
    "turn", "        if flag == 'u' or flag == 'b' then", "        if false then"
)
FREES_ANY = altered(
    "turn",
    "if redis.call('HGET', q.unique, key) == id then redis.call('HDEL', q.unique, key) end",
    "redis.call('HDEL', q.unique, key)",
)


def test_adding_needs_the_look_at_the_holder(run: Run) -> None:
    world = JobsWorld(NO_HOLDER)
    actors = {"s": world.adds(keyed("2")), "a": world.works()}
    found(run(world, [keyed("1", when="0")], actors, ids=["1", "2"]), "same key", "hold its key")


def test_a_key_is_let_go_at_the_end(run: Run) -> None:
    def left(world: JobsWorld) -> Callable[[Any], str | None]:
        def judge(view: Any) -> str | None:
            holders = view.value(world.keys.unique, {})
            gone = [id for id in holders.values() if id not in view.value(world.keys.bodies, {})]
            return world.invariant(view) or (f"{gone} hold a key, and have ended" if gone else None)

        return judge

    for scripts in (SCRIPTS, KEEPS_THE_KEY):
        world = JobsWorld(scripts)
        actors = {"a": world.works(), "s": world.adds(keyed("2"))}
        report = run(world, [keyed("1", when="0")], actors, ids=["1", "2"], invariant=left(world))
        if scripts is SCRIPTS:
            clean(report)
        else:
            found(report, "have ended")


def test_only_the_holder_lets_a_key_go(run: Run) -> None:
    """The first was retried, and has not got its key back: the second holds it."""

    def robbed(world: JobsWorld) -> Callable[[Any], str | None]:
        def judge(view: Any) -> str | None:
            waiting = view.value(world.keys.ready, {}).keys()
            holder = view.value(world.keys.unique, {}).get("k")
            return (
                f"{set(waiting)} wait, and none holds the key" if waiting and not holder else None
            )

        return judge

    for scripts in (SCRIPTS, FREES_ANY):
        world = JobsWorld(scripts)
        actors = {"a": world.works(verdict="X"), "s": world.adds(keyed("2", "p"))}
        jobs = [keyed("1", "p", "0")]
        report = run(world, jobs, actors, ids=["1", "2"], invariant=robbed(world))
        if scripts is SCRIPTS:
            clean(report)
        else:
            found(report, "none holds the key")


# -- retries and crashes


def test_failures_and_crashes_are_counted_apart(run: Run) -> None:
    world = JobsWorld()
    actors = {"a": world.works(2, verdict="R", knows=True), "b": world.works(verdict="R")}
    clean(
        run(
            world,
            ONE,
            actors,
            environment={"x": tick(30_000, 1)},
            crashes=frozenset({"a", "b"}),
            limit=900_000,
        )
    )


def test_a_job_that_kills_its_workers_is_given_up_and_shown(run: Run) -> None:
    world = JobsWorld()
    jobs = [a_job("1", "0", crashes=1)]
    actors = {"a": world.works(knows=True), "b": world.works(knows=True)}
    report = clean(
        run(world, jobs, actors, environment={"x": tick(30_000)}, crashes=frozenset({"a"}))
    )
    assert report.states > 20


# -- renewal


def test_a_renewal_prolongs_what_stands_and_nothing_else(run: Run) -> None:
    world = JobsWorld()
    actors = {"a": world.works(renews=True), "b": world.works(renews=True)}
    faults = Faults(times=1, on=frozenset({"renew"}))
    clean(run(world, ONE, actors, faults=faults, environment={"x": tick(30_000)}, limit=600_000))


RENEWS_ANY = altered(
    "renew", "local stands = claim and claim:match('^%d+') == epoch", "local stands = claim"
)
MAKES_ANEW = altered(
    "renew",
    "  if stands then redis.call('ZADD', claimed, 'XX', 'GT', digits(now_ms + lease_ms), id) end\n",
    "  redis.call('ZADD', claimed, digits(now_ms + lease_ms), id)\n",
)


def test_a_renewal_needs_the_epoch(run: Run) -> None:
    """Else a worker that lost its claim would be told that it still has it."""

    def told(world: JobsWorld) -> dict[str, Any]:
        def renewed(name: str, call: Any, answer: Any) -> None:
            epoch = int(call.args[3])
            latest = max(one.epoch for one in world.seen.state.took)
            if answer == "R" and epoch != latest:
                world._wrong("told of a claim that it still stands")

        return {**world.observe, "renew": renewed}

    for scripts in (SCRIPTS, RENEWS_ANY):
        world = JobsWorld(scripts)
        actors = {"a": world.works(renews=True), "b": world.works()}
        scenario = Scenario(
            actors=actors,
            cells=world.cells,
            setup=world.setup(*ONE),
            environment={"x": tick(30_000)},
            invariant=lambda view, world=world: world.seen.state.wrong or None,  # type: ignore[misc]
            observe=told(world),
        )
        report = explore(scenario)
        if scripts is SCRIPTS:
            clean(report)
        else:
            found(report, "still stands")


def test_a_renewal_must_not_make_a_lost_claim_anew(run: Run) -> None:
    world = JobsWorld(MAKES_ANEW)
    actors = {"a": world.works(renews=True), "b": world.works()}
    found(run(world, ONE, actors, environment={"x": tick(30_000)}), "leases of", "1 is in")


# -- adding


def test_a_job_is_added_once_whatever_is_lost(run: Run) -> None:
    world = JobsWorld()
    actors = {
        "s": world.adds(a_job("1", "+0", kept=True), a_job("2", "+0", remember=60.0)),
        "a": world.works(2, number=600_000),
    }
    faults = Faults(times=2, on=frozenset({"add"}), kinds=("lost", "dropped"))
    clean(run(world, [], actors, faults=faults, ids=["1", "2"], limit=600_000))


LOOKS_AT_NO_RESULT = altered(
    "add", "if result and redis.call('EXISTS', result) == 1 then return 'K', id end\n", ""
)
REMEMBERS_NOTHING = altered(
    "add",
    "if remember_ms ~= '0' and is_remembered(q, 'i' .. id, now_ms) then return 'K', id end\n",
    "",
)


@pytest.mark.parametrize(
    ("scripts", "job"),
    [
        pytest.param(LOOKS_AT_NO_RESULT, a_job("1", kept=True), id="the outcome that is kept"),
        pytest.param(REMEMBERS_NOTHING, a_job("1", remember=60.0), id="the id that is remembered"),
    ],
)
def test_adding_once_needs(run: Run, scripts: Scripts, job: New) -> None:
    world = JobsWorld(scripts)
    number = 600_000 if job.kept else 0
    actors = {"s": world.adds(job), "a": world.works(2, number=number)}
    faults = Faults(times=1, on=frozenset({"add"}), kinds=("lost",))
    found(run(world, [], actors, faults=faults, ids=["1"]), "added twice", "after it had ended")


# -- tokens


def test_j3_nobody_sleeps_while_there_is_work(run: Run) -> None:
    for scripts in (SCRIPTS, CALLS_NOBODY):
        world = JobsWorld(scripts)
        actors = {"a": world.sleeps(full=True), "b": world.sleeps(), "s": world.adds(*TWO)}

        def slept(view: Any, world: JobsWorld = world) -> str | None:
            """All wait for a token, there is none, and somebody could work."""
            ready = view.value(world.keys.ready, {})
            over = world.keys.wake not in view.keys and not world.awake.state
            return f"all sleep over {sorted(ready)}" if ready and over else None

        report = run(world, [], actors, heals=False, invariant=slept)
        if scripts is SCRIPTS:
            clean(report)
        else:
            found(report, "all sleep", "deadlock")


CALLS_NOBODY = altered("turn", "  chain(q, room - #taken / 4, wait_us, look_ms)\n", "")


def test_a_late_word_is_no_word(run: Run) -> None:
    """What the acknowledgement of a claim that was lost says is read nowhere."""
    world = JobsWorld()
    actors = {"a": world.works(), "s": world.straggles("a", 2, 0, [Ack("1", 7, "D")])}
    clean(run(world, ONE, actors))
