"""The scripts of a queue, one call at a time on a real server."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost.jobs import protocol
from fencepost.jobs.protocol import Ack, Me
from fencepost.jobs.scripts import Late
from support.jobs import Bench, a_job, done, says
from support.require import require
from support.servers import ServerProcess, find_binary

A, B = "a", "b"


def test_added_taken_and_ended(bench: Bench) -> None:
    assert bench.letters(a_job("1")) == ["created"]
    assert bench.letters(a_job("1")) == ["kept"]
    me = Me(A)
    [claim] = bench.take(me)
    assert claim.id == "1"
    assert bench.state("1") == "running"
    assert bench.take(me) == []
    answer = bench.turn(me, 10, done(claim))
    assert answer.applied == (True,)
    assert bench.left() == set()


def test_every_key_of_a_queue_shares_a_slot(bench: Bench, client: Client) -> None:
    bench.add(a_job("1", window="1000", key="k"), a_job("2", "+60000", remember=5.0), a_job("3"))
    me = Me(A)
    first, second = bench.take(me)
    bench.turn(me, 0, done(first, keep=1000), says(second, "X", 0, "no"))
    keys = client.command("KEYS", f"*{client.namespace}:jobs:*")
    assert len(keys) >= 9
    assert len({key.partition(b"{")[2].partition(b"}")[0] for key in keys}) == 1


def test_nothing_begins_before_its_time(bench: Bench, client: Client) -> None:
    """Others cut times to whole seconds, and began up to 0.75 s early."""
    seconds, micros = map(int, client.command("TIME"))
    now_ms = seconds * 1000 + micros // 1000
    bench.add(a_job("at", str(now_ms + 60_000)), a_job("after", "+60000"))
    answer = bench.turn(Me(A))
    assert answer.claims == ()
    assert answer.wait is not None
    assert 50 < answer.wait <= 60
    # To the millisecond: what is due in this one begins, what is due in the next does not.
    for name, due_ms in (("now", now_ms), ("next", now_ms + 1_000_000)):
        bench.add(a_job(name, str(due_ms)))
    assert [one.id for one in bench.take(Me(B))] == ["now"]


def test_ready_by_priority_then_by_time(bench: Bench) -> None:
    bench.add(a_job("late", priority=7), a_job("first", priority=0), a_job("plain"))
    bench.add(a_job("due", "+60000", priority=1))
    bench.come("due")
    assert [one.id for one in bench.take(Me(A))] == ["first", "due", "plain", "late"]


def test_those_of_one_priority_run_in_the_order_in_which_they_were_sent(bench: Bench) -> None:
    jobs = [a_job(f"{n:04}") for n in range(300)]
    bench.add(*jobs)
    assert [one.id for one in bench.take(Me(A), 300)] == [job.id for job in jobs]


def test_promotion_and_reclaim_are_bounded(bench: Bench) -> None:
    """Others promoted all that was overdue in one call: 119 to 912 ms for 50,000."""
    jobs = [a_job(f"{n:04}", "+60000") for n in range(500)]
    bench.add(*jobs)
    for n in range(500):
        bench.client.command("ZADD", bench.keys.due, 1, f"{n:04}")
    taken = bench.take(Me(A), 10)
    assert len(taken) == 10
    assert bench.client.command("ZCARD", bench.keys.due) == 500 - protocol.PROMOTE
    assert len(bench.take(Me(B), 490)) == 490  # those that there is room for, at least
    lapsed = [f"{n:04}" for n in range(500)]
    for name in lapsed:
        bench.client.command("ZADD", bench.keys.claimed, "XX", 1, name)
    assert bench.turn(Me("c"), 0).reclaimed == protocol.PROMOTE


# -- epochs


def test_every_claim_has_an_epoch_of_its_own_and_they_increase(bench: Bench) -> None:
    bench.add(*[a_job(f"{n}") for n in range(10)])
    me = Me(A)
    epochs = [one.epoch for one in bench.take(me, 4)] + [one.epoch for one in bench.take(me, 6)]
    assert epochs == sorted(set(epochs))
    now = time.time() * 1e6
    assert abs(epochs[0] - now) < 60e6


def test_an_id_that_is_used_again_never_draws_an_old_epoch(bench: Bench, client: Client) -> None:
    """J2: also after all is lost; the clock carries the epoch over that."""
    me, seen = Me(A), []
    for loses in (False, True, False):
        bench.add(a_job("1"))
        [claim] = bench.take(me)
        seen.append(claim)
        assert bench.turn(me, 0, done(claim)).applied == (True,)
        if loses:
            client.command("DEL", *bench.keys.turn)
    assert [one.epoch for one in seen] == sorted({one.epoch for one in seen})
    bench.add(a_job("1"))
    bench.take(me)
    stale = bench.turn(me, 0, *[done(one) for one in seen])
    assert stale.applied == (False,) * 3
    assert bench.state("1") == "running"


@pytest.mark.parametrize("verdict", ["D", "C", "R", "S", "B", "X", "P"])
def test_j2_whatever_a_late_worker_says_is_refused(bench: Bench, verdict: str) -> None:
    """Paused beyond its lease; another took over and ended the job, or still runs it."""
    bench.add(a_job("1"))
    late, other = Me(A), Me(B)
    [old] = bench.take(late)
    bench.lapse("1")
    [new] = bench.take(other)
    assert new.epoch > old.epoch
    assert bench.turn(late, 0, says(old, verdict, 1000)).applied == (False,)
    assert bench.look("1").epoch == new.epoch
    held = ((old.id, old.epoch, 20.0), (new.id, new.epoch, 20.0))
    assert run_sync(protocol.renew(bench.io, bench.place, late, held)) == "LR"
    assert bench.turn(other, 0, done(new, b"\x01", 60_000)).applied == (True,)
    assert bench.turn(late, 0, says(old, verdict, 1000)).applied == (False,)
    assert bench.look("1").outcome == b"\x01"


# -- turns that are repeated


def test_j1_a_repeated_turn_is_the_same_turn(bench: Bench) -> None:
    bench.add(a_job("1"), a_job("2"), a_job("3"))
    me = Me(A)
    [first] = bench.take(me, 1)
    call = protocol.turning(bench.place, me, 1, [done(first)])
    told: Any = bench.run(call)
    again: Any = bench.run(call)
    assert (told.applied, told.claims) == (again.applied, again.claims)
    assert told.applied == (True,)
    assert [one.id for one in told.claims] == ["2"]
    assert bench.state("3") == "ready"
    me.turn += 1
    assert [one.id for one in bench.take(me, 1)] == ["3"]
    me.turn -= 1
    assert bench.run(call) == Late()  # a duplicate that was long on its way


def test_j1_a_claim_that_its_worker_never_saw_is_no_crash(bench: Bench) -> None:
    bench.add(a_job("1", crashes=1))
    for n in range(5):
        [claim] = bench.take(Me(f"gone{n}"))
        bench.lapse("1")
    assert (claim.counts.crashes, claim.counts.unseen) == (0, 4)
    me = Me(A)
    [claim] = bench.take(me)
    bench.run(protocol.knowing(bench.place, me))
    bench.lapse("1")
    assert bench.take(Me(B)) == []
    assert bench.state("1") == "dead"
    assert bench.look("1").counts.why == "lost by worker a"


@pytest.mark.parametrize("shows", ["turn", "renew", "known"])
def test_j1_a_worker_shows_that_it_knows_by_its_next_word(bench: Bench, shows: str) -> None:
    bench.add(a_job("1"))
    me = Me(A)
    [claim] = bench.take(me)
    match shows:
        case "turn":
            bench.turn(me, 0)
        case "renew":
            held = [(claim.id, claim.epoch, 20.0)]
            run_sync(protocol.renew(bench.io, bench.place, me, held))
        case "known":
            bench.run(protocol.knowing(bench.place, me))
    bench.lapse("1")
    [again] = bench.take(Me(B))
    assert (again.counts.crashes, again.counts.tries) == (1, 0)


def test_j1_the_turn_that_takes_a_claim_back_shows_that_its_own_worker_knew(bench: Bench) -> None:
    """The model found it: a worker that lives and has lost its claim knew of it."""
    bench.add(a_job("1"))
    me = Me(A)
    bench.take(me)
    bench.lapse("1")
    assert bench.turn(me, 0).reclaimed == 1
    [again] = bench.take(Me(B))
    assert (again.counts.crashes, again.counts.unseen) == (1, 0)


def test_a_body_that_kills_its_readers_before_they_say_a_word_is_given_up(bench: Bench) -> None:
    bench.add(a_job("1"))
    for n in range(10):
        assert bench.take(Me(f"gone{n}"))
        bench.lapse("1")
    assert bench.take(Me(A)) == []
    assert bench.state("1") == "dead"


# -- tokens


def test_j3_one_token_however_many_are_added(bench: Bench) -> None:
    bench.add(a_job("1"))
    bench.add(a_job("2"), a_job("3"))
    assert bench.tokens() == 1
    bench.client.command("DEL", bench.keys.wake)
    bench.add(a_job("far", "+60000"))
    assert bench.tokens() == 0  # who sleeps looks sooner than that
    bench.add(a_job("soon", "+500"))
    assert bench.tokens() == 1


def test_j3_who_leaves_work_calls_the_next(bench: Bench) -> None:
    bench.add(a_job("1"), a_job("2"))
    me = Me(A)
    bench.client.command("DEL", bench.keys.wake)  # the token that woke it
    [first] = bench.take(me, 1)
    assert bench.tokens() == 1
    bench.client.command("DEL", bench.keys.wake)
    [second] = bench.take(me, 1, done(first))
    assert bench.tokens() == 0
    # Nothing is ready, but something is due before others would look, and this one has no room for it.
    bench.add(a_job("soon", "+500"))
    bench.client.command("DEL", bench.keys.wake)
    bench.turn(me, 0)
    assert bench.tokens() == 1
    bench.client.command("DEL", bench.keys.wake)
    bench.turn(me, 1)
    assert bench.tokens() == 0  # it has: it will come
    bench.turn(me, 0, done(second))


def test_who_may_take_nothing_calls_nobody(bench: Bench) -> None:
    """Else a full or paused queue would keep its workers awake."""
    bench.add(a_job("1"), a_job("2"))
    me = Me(A)
    bench.client.command("DEL", bench.keys.wake)
    [first] = bench.take(me, 5, limit=1)
    answer = bench.turn(me, 5, limit=1)
    assert (answer.claims, answer.wait, bench.tokens()) == ((), None, 0)
    [second] = bench.take(me, 5, done(first), limit=1)
    assert second.id == "2"
    run_sync(protocol.pause(bench.io, bench.place, True))
    bench.add(a_job("3"))
    bench.client.command("DEL", bench.keys.wake)
    answer = bench.turn(me, 5, done(second))
    assert (answer.claims, answer.wait, bench.tokens()) == ((), None, 0)
    run_sync(protocol.pause(bench.io, bench.place, False))
    assert bench.tokens() == 1
    assert [one.id for one in bench.take(me)] == ["3"]


# -- order in a turn


def test_j4_an_acknowledgement_in_the_turn_that_would_take_its_job_back_has_won(
    bench: Bench,
) -> None:
    bench.add(a_job("1"))
    me = Me(A)
    [claim] = bench.take(me)
    bench.lapse("1")
    answer = bench.turn(me, 5, done(claim))
    assert (answer.applied, answer.reclaimed, answer.claims) == ((True,), 0, ())
    assert bench.left() == set()


def test_j4_what_is_lost_is_taken_in_the_turn_that_takes_it_back(bench: Bench) -> None:
    bench.add(a_job("1"), a_job("2"))
    [old] = bench.take(Me(A), 1)
    bench.lapse("1")
    first, second = bench.take(Me(B))
    assert (first.id, second.id) == ("1", "2")  # before those that came later
    assert first.epoch > old.epoch


# -- unique keys


def test_unique_while_pending(bench: Bench) -> None:
    one, two = a_job("1", window="p", key="k"), a_job("2", window="p", key="k")
    assert bench.add(one)[0].id == "1"
    [kept] = bench.add(two)
    assert (kept.verdict.value, kept.id) == ("kept", "1")
    me = Me(A)
    [claim] = bench.take(me)
    assert bench.letters(two) == ["created"]
    bench.turn(me, 0, says(claim, "R", 60_000))
    assert bench.letters(a_job("3", window="p", key="k")) == ["kept"]
    assert bench.letters(a_job("4", window="p", key="other")) == ["created"]


def test_unique_while_running(bench: Bench) -> None:
    def another(n: int) -> Any:
        return bench.add(a_job(str(n), window="r", key="k"))[0]

    another(1)
    assert another(2).verdict.value == "kept"
    me = Me(A)
    [claim] = bench.take(me)
    refused = another(3)
    assert (refused.verdict.value, refused.id) == ("running", "1")
    bench.turn(me, 0, says(claim, "R", 0, "again"))
    assert another(4).verdict.value == "kept"
    [claim] = bench.take(me)
    bench.turn(me, 0, done(claim))
    assert another(5).verdict.value == "created"
    assert bench.client.command("HGETALL", bench.keys.unique) == {b"k": b"5"}


def test_unique_for_a_while_after_the_end(bench: Bench) -> None:
    bench.add(a_job("1", window="60000", key="k"))
    me = Me(A)
    [claim] = bench.take(me)
    assert bench.letters(a_job("2", window="60000", key="k")) == ["running"]
    bench.turn(me, 0, done(claim))
    assert bench.letters(a_job("3", window="60000", key="k")) == ["recent"]
    bench.client.command("ZADD", bench.keys.remembered, 1, "kk")  # the while is over
    assert bench.letters(a_job("4", window="60000", key="k")) == ["created"]
    bench.take(me)
    assert bench.client.command("ZSCORE", bench.keys.remembered, "kk") is None


def test_debounced_the_one_that_waits_is_moved_and_takes_the_newer_arguments(bench: Bench) -> None:
    bench.add(a_job("1", "+60000", window="p", key="k", priority=3))
    newer = a_job("2", "+90000", window="p", key="k", moves=True, priority=1)
    [moved] = bench.add(newer)
    assert (moved.verdict.value, moved.id) == ("moved", "1")
    assert bench.client.command("ZCARD", bench.keys.due) == 1
    assert bench.client.command("HGET", bench.keys.bodies, "1") == newer.record
    bench.add(a_job("3", "+0", window="p", key="k", moves=True))
    [claim] = bench.take(Me(A))
    assert claim.id == "1"


def test_an_id_that_is_remembered_is_not_used_again(bench: Bench) -> None:
    """What an occurrence of a schedule, or a row of an outbox, rests on."""
    bench.add(a_job("1", remember=60.0))
    me = Me(A)
    [claim] = bench.take(me)
    bench.turn(me, 0, done(claim))
    assert bench.letters(a_job("1", remember=60.0)) == ["kept"]
    assert bench.take(me) == []
    bench.client.command("ZADD", bench.keys.remembered, 1, "i1")
    assert bench.letters(a_job("1", remember=60.0)) == ["created"]


def test_a_job_that_has_run_is_not_added_again_when_its_first_reply_was_lost(bench: Bench) -> None:
    bench.add(a_job("1"))
    me = Me(A)
    [claim] = bench.take(me)
    bench.turn(me, 0, done(claim, keep=60_000))
    assert bench.add(a_job("1"), a_job("2"), again=True)[0].verdict.value == "kept"
    assert [one.id for one in bench.take(me)] == ["2"]


# -- what became of a job


def test_failed_tries_are_counted_and_the_last_words_kept(bench: Bench) -> None:
    bench.add(a_job("1"))
    me = Me(A)
    for n in range(3):
        [claim] = bench.take(me)
        assert (claim.counts.tries, claim.counts.crashes) == (n, 0)
        bench.turn(me, 0, says(claim, "R", 60_000, f"no {n}"))
        assert bench.state("1") == "due"
        bench.come("1")
    [claim] = bench.take(me)
    bench.turn(me, 0, says(claim, "S", 60_000))
    bench.come("1")
    [claim] = bench.take(me)
    assert claim.counts.tries == 3
    assert claim.counts.why == "no 2"
    bench.turn(me, 0, says(claim, "X", 0, "for good"))
    assert bench.state("1") == "dead"
    [dead] = run_sync(protocol.dead_list(bench.io, bench.place, 0, 10))
    assert (dead.counts.tries, dead.counts.why) == (4, "for good")


def test_a_job_that_is_handed_back_is_the_next(bench: Bench) -> None:
    bench.add(a_job("1"), a_job("2"))
    me = Me(A)
    [claim] = bench.take(me, 1)
    bench.turn(me, 0, says(claim, "B"))
    again = bench.take(Me(B))
    assert [one.id for one in again] == ["1", "2"]
    assert [one.counts.tries + one.counts.crashes + one.counts.unseen for one in again] == [0, 0]


def test_the_dead_are_run_again_or_forgotten(bench: Bench) -> None:
    bench.add(a_job("1", window="r", key="k"), a_job("2"))
    me = Me(A)
    claims = bench.take(me)
    bench.turn(me, 0, *[says(claim, "X", 0, "no") for claim in claims])
    assert bench.client.command("EXISTS", bench.keys.unique) == 0
    assert run_sync(protocol.revive(bench.io, bench.place, ["1", "1", "nobody"])) == 1
    assert bench.letters(a_job("3", window="r", key="k")) == ["kept"]
    [claim] = bench.take(me)
    assert (claim.id, claim.counts.tries) == ("1", 0)
    bench.turn(me, 0, done(claim))
    assert run_sync(protocol.discard(bench.io, bench.place, ["1", "2"])) == 1
    assert bench.left() == set()


def test_a_record_that_is_none_is_claimed_like_any_other(bench: Bench) -> None:
    """The worker that can't read it says so; nothing that was with it is held up."""
    bench.client.command("HSET", bench.keys.bodies, "1", b"\xff\x00garbage")
    bench.client.command("ZADD", bench.keys.ready, 1, "1")
    bench.add(a_job("2"))
    me = Me(A)
    first, second = bench.take(me)
    bench.turn(me, 0, says(first, "P", 0, "not to be read"), done(second))
    assert bench.state("1") == "dead"
    bench.client.command("ZADD", bench.keys.ready, 1, "no-body")
    assert bench.take(me) == []
    bench.client.command("ZADD", bench.keys.claimed, 1, "no-claim")
    assert bench.turn(me, 1).reclaimed == 1


def test_cancelled_moved_or_neither(bench: Bench) -> None:
    def cancel(job: str, running: bool = False) -> str:
        return run_sync(protocol.cancel(bench.io, bench.place, job, running)).value

    def move(job: str, when: str) -> Any:
        return run_sync(protocol.move(bench.io, bench.place, job, when))

    bench.add(a_job("1", window="r", key="k"), a_job("2", "+60000"), a_job("3"))
    assert cancel("1") == "cancelled"
    assert bench.state("1") == "cancelled"
    assert cancel("1") == "gone"
    assert bench.client.command("EXISTS", bench.keys.unique) == 0
    assert move("2", "+0").due_ms
    assert bench.state("2") == "ready"
    assert move("3", "+60000")
    assert bench.state("3") == "due"
    me = Me(A)
    [claim] = bench.take(me)
    assert claim.id == "2"
    assert move("2", "+1").running
    assert not move("1", "+1").running
    assert cancel("2") == "running"
    assert cancel("2", running=True) == "stopped"
    held = [(claim.id, claim.epoch, 20.0)]
    assert run_sync(protocol.renew(bench.io, bench.place, me, held)) == "L"
    assert bench.turn(me, 0, done(claim, b"\x01", 60_000)).applied == (False,)
    assert bench.state("2") == "cancelled"


def test_a_renewal_prolongs_and_never_shortens(bench: Bench) -> None:
    bench.add(a_job("1", lease=60.0))
    me = Me(A)
    [claim] = bench.take(me)

    def renew(lease: float) -> float:
        held = [(claim.id, claim.epoch, lease)]
        assert run_sync(protocol.renew(bench.io, bench.place, me, held)) == "R"
        return float(bench.client.command("ZSCORE", bench.keys.claimed, "1"))

    first = renew(60.0)
    assert renew(0.1) >= first
    assert renew(600.0) > first + 500_000


def test_figures(bench: Bench) -> None:
    bench.add(a_job("1"), a_job("2"), a_job("3"), a_job("4", "+60000"), a_job("5", "+60000"))
    me = Me(A)
    first, _ = bench.take(me, 2)
    bench.turn(me, 0, says(first, "X"))
    bench.come("4")
    figures = run_sync(protocol.count(bench.io, bench.place))
    assert (figures.ready, figures.due, figures.overdue) == (1, 2, 1)
    assert (figures.running, figures.dead, figures.paused) == (1, 1, False)
    assert figures.late > 1e9  # ``come`` says 1970


def test_workers_that_are_gone_are_forgotten(bench: Bench) -> None:
    for n in range(3):
        bench.turn(Me(f"w{n}"), 0)
        bench.client.command("ZADD", bench.keys.alive, 1, f"w{n}")
    bench.turn(Me(A), 0)
    bench.turn(Me(B), 0)
    assert bench.client.command("ZRANGE", bench.keys.alive, 0, -1) == [b"a", b"b"]
    assert bench.client.command("HKEYS", bench.keys.workers) == [b"a", b"b"]


def test_an_acknowledgement_of_nothing_is_refused(bench: Bench) -> None:
    assert bench.turn(Me(A), 0, Ack("nobody", 7, "D")).applied == (False,)


# -- servers


def test_the_scripts_on_redis() -> None:
    """Its Lua is older, and it forbids undeclared globals, too."""
    require("redis", find_binary("redis") is not None)
    with ServerProcess("redis") as server, Client.from_url(server.unix_url) as client:
        bench = Bench(client)
        bench.add(a_job("1", window="r", key="k"), a_job("2", "+60000"), a_job("3", priority=0))
        me = Me(A)
        third, first = bench.take(me)
        assert (third.id, first.id) == ("3", "1")
        held = [(first.id, first.epoch, 60.0)]
        assert run_sync(protocol.renew(bench.io, bench.place, me, held)) == "R"
        assert bench.turn(me, 0, done(third), says(first, "R", 0, "no")).applied == (True, True)
        assert run_sync(protocol.move(bench.io, bench.place, "2", "+0"))
        bench.lapse(*[claim.id for claim in bench.take(Me(B))])
        again = bench.take(me)
        assert [(claim.id, claim.counts.tries) for claim in again] == [("1", 1), ("2", 0)]
        bench.turn(me, 0, says(again[0], "X", 0, "for good"), done(again[1], keep=1000))
        assert [bench.state(one) for one in "123"] == ["dead", "done", "gone"]
        assert run_sync(protocol.revive(bench.io, bench.place, ["1"])) == 1
        assert run_sync(protocol.cancel(bench.io, bench.place, "1", False)).value == "cancelled"
        assert run_sync(protocol.count(bench.io, bench.place)).ready == 0
