"""What is kept of a job's life, and what a queue shows to who looks at it from outside."""

from __future__ import annotations

import dataclasses

import pytest

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost.errors import Refused
from fencepost.jobs import Retry
from fencepost.jobs.inspect import history, listed, queues, schedules, workers
from fencepost.jobs.protocol import Me
from support.jobs import Bench, a_job, done, says

A, B = "a:1", "b:2"


@pytest.fixture
def told(client: Client) -> Bench:
    """A queue that keeps what happens."""
    bench = Bench(client)
    bench.place = dataclasses.replace(bench.place, history=8)
    return bench


def test_life_of_a_job_whose_worker_was_lost(told: Bench) -> None:
    told.add(a_job("x"))
    [first] = told.take(Me(A))
    told.lapse("x")
    b = Me(B)
    [second] = told.take(b)
    told.turn(b, 0, says(second, "R", 0, "no route"))
    [third] = told.take(b)
    told.turn(b, 0, done(third))
    entries = run_sync(history(told.io, told.place, "x"))
    assert [(one.what, one.epoch, one.worker) for one in entries] == [
        ("added", 0, ""),
        ("lost with its worker", first.epoch, A),
        ("failed, to be tried again", second.epoch, B),
        ("done", third.epoch, B),
    ]
    assert all(one.due <= one.began <= one.at for one in entries[1:])
    assert entries == sorted(entries, key=lambda one: one.at)
    assert entries[0].late == 0
    assert run_sync(history(told.io, told.place, "y")) == []


def test_what_is_refused_is_not_told(told: Bench) -> None:
    """A late acknowledgement changed nothing, so nothing happened."""
    told.add(a_job("x"))
    late = Me(A)
    [old] = told.take(late)
    told.lapse("x")
    [new] = told.take(Me(B))
    assert told.turn(late, 0, done(old)).applied == (False,)
    whats = [one.what for one in run_sync(history(told.io, told.place))]
    assert whats == ["added", "lost with its worker"]
    assert new.epoch > old.epoch


def test_history_is_bounded_and_off_by_default(told: Bench, bench: Bench, client: Client) -> None:
    told.add(*[a_job(f"j{n}") for n in range(50)])
    assert len(run_sync(history(told.io, told.place))) == 8
    other = Bench(client, name="other")
    other.add(a_job("x"))
    me = Me(A)
    other.turn(me, 0, *[done(one) for one in other.take(me)])
    assert run_sync(history(other.io, other.place)) == []
    with pytest.raises(Refused, match="history"):
        client.jobs("x", history=-1)


def test_lateness_is_counted(bench: Bench) -> None:
    bench.add(a_job("x", "+3600000"), a_job("y"))
    now = bench.look("x").at
    bench.client.command("ZADD", bench.keys.due, "XX", int(now * 1000) - 3_600_000 - 5000, "x")
    turned = bench.turn(Me(A))
    assert len(turned.claims) == 2
    assert 4.9 <= turned.late < 60


def test_a_worker_counts_how_late_its_jobs_are(client: Client) -> None:
    jobs = client.jobs("mail", history=100)

    @jobs.job()
    def greet(name: str) -> None:
        raise Retry("not yet", after=3600) if name == "bob" else SystemExit(name)

    jobs.add_many([greet.message("ann"), greet.message("bob")])
    worker = jobs.worker(name="w")
    worker.run(burst=True, signals=False)
    assert worker.counts["late_ms"] >= 0
    words = {one.what for one in run_sync(history(client.port, jobs._place))}
    assert words == {"added", "failed, to be tried again"}


def test_what_there_is(bench: Bench) -> None:
    bench.add(a_job("d", "+60000", priority=2), a_job("r2", priority=7), a_job("r1", priority=1))
    bench.add(a_job("x", priority=0))
    me = Me(A)
    [claim] = bench.take(me, 1)
    io, place = bench.io, bench.place

    def ids(state: str, most: int = 10, first: int = 0) -> list[str]:
        return [one.id for one in run_sync(listed(io, place, state, most, first))]

    assert (ids("due"), ids("ready"), ids("running"), ids("dead")) == (
        ["d"],
        ["r1", "r2"],
        ["x"],
        [],
    )
    assert ids("ready", 1, 1) == ["r2"]
    [running] = run_sync(listed(io, place, "running", 10))
    assert (running.epoch, running.worker, running.task) == (claim.epoch, A, "task")
    assert running.arguments == (1,)
    assert running.lease > running.at > 1e9
    [due] = run_sync(listed(io, place, "due", 10))
    assert 59 < due.at - running.at < 120
    bench.turn(me, 0, says(claim, "X", 0, "no route"))
    [dead] = run_sync(listed(io, place, "dead", 10))
    assert (dead.id, dead.counts.why) == ("x", "no route")
    assert bench.place.name in run_sync(queues(io, bench.client.namespace))
    assert set(run_sync(workers(io, place))) == {A}
    assert run_sync(schedules(io, place)) == {}


def test_a_job_that_nobody_can_read_is_listed(bench: Bench) -> None:
    bench.add(a_job("x")._replace(record=b"\x00"))
    [one] = run_sync(listed(bench.io, bench.place, "ready", 10))
    assert (one.id, one.task, one.arguments) == ("x", "", ())
