"""A queue against a model of it, with a clock that the test moves: whatever comes in whatever order.

The queue is the real one. Time passes by moving its times nearer (``fencepost.testing.due``), in whole
minutes; what an example takes of real time is far below the half minute that separates two moments here.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost.jobs import protocol
from fencepost.jobs.protocol import Ack, Me
from fencepost.jobs.scripts import SCRIPTS, Claim, Scripts, Turned
from fencepost.testing.due import _shift
from support.jobs import Bench, a_job, altered

MINUTE = 60_000
WINDOWS = st.sampled_from(["-", "r", "p", "p"])
LEASE = 90.0  # seconds: over after two minutes, not after one
JOBS = st.sampled_from(["1", "2", "3", "4"])
WORKERS = st.sampled_from(["a", "b"])
CRASHES = 2


@dataclasses.dataclass
class Job:
    """What the model knows of a job."""

    due: int
    priority: int
    window: str
    key: str
    state: str = "waits"
    epoch: int = 0
    worker: str = ""
    turn: int = 0
    ends: int = 0
    tries: int = 0
    crashes: int = 0
    unseen: int = 0


@dataclasses.dataclass
class Worker:
    me: Me
    shown: int = 0
    claims: list[Claim] = dataclasses.field(default_factory=list)
    last: Any = None


class QueueModel(RuleBasedStateMachine):
    """Rules are what senders, workers, operators and time do."""

    url = ""
    scripts: Scripts = SCRIPTS

    def __init__(self) -> None:
        super().__init__()
        self.client = Client.from_url(self.url, namespace=f"m{secrets.token_hex(5)}")
        self.bench = Bench(self.client, self.scripts)
        self.now = 0
        self.jobs: dict[str, Job] = {}
        self.holders: dict[str, str] = {}
        self.epoch = 0
        self.workers = {name: Worker(Me(name)) for name in ("a", "b")}

    def teardown(self) -> None:
        keys = self.client.command("KEYS", f"*{self.client.namespace}:*")
        if keys:
            self.client.command("DEL", *keys)
        self.client.close()

    # -- senders and operators

    @initialize(windows=st.lists(WINDOWS, min_size=3, max_size=3), first=st.integers(0, 1))
    def begin(self, windows: list[str], first: int) -> None:
        """With something to do: chance alone adds little before it cancels it."""
        for n, window in enumerate(windows):
            self.add(str(n + 1), first * n, 5, window)

    @rule(id=JOBS, minutes=st.integers(0, 2), priority=st.integers(4, 6), window=WINDOWS)
    def add(self, id: str, minutes: int, priority: int, window: str) -> None:
        key = "-" if window == "-" else f"k{window}"
        [added] = self.bench.add(
            a_job(
                id,
                f"+{minutes * MINUTE}",
                lease=LEASE,
                priority=priority,
                window=window,
                key=key,
                crashes=CRASHES,
                result_ttl=0,
            )
        )
        holder = self.holders.get(key, id) if window != "-" else id
        if holder != id:
            assert added.id == holder
            runs = self.jobs[holder].state == "runs"
            assert added.verdict.value == ("running" if runs else "kept")
        elif id in self.jobs:
            assert (added.verdict.value, added.id) == ("kept", id)
        else:
            assert (added.verdict.value, added.id) == ("created", id)
            self.jobs[id] = Job(self.now + minutes, priority, window, key)
            if window != "-":
                self.holders[key] = id

    @rule(id=JOBS, running=st.booleans())
    def cancel(self, id: str, running: bool) -> None:
        answer = run_sync(protocol.cancel(self.bench.io, self.bench.place, id, running)).value
        job = self.jobs.get(id)
        if job is None:
            assert answer == "gone"
        elif job.state == "runs":
            assert answer == ("stopped" if running else "running")
            if running:
                self._gone(id)
        else:
            assert answer == "cancelled"
            self._gone(id)

    @rule(id=JOBS, minutes=st.integers(0, 3))
    def move(self, id: str, minutes: int) -> None:
        call = protocol.move(self.bench.io, self.bench.place, id, f"+{minutes * MINUTE}")
        moved = isinstance(run_sync(call), protocol.Moved)
        job = self.jobs.get(id)
        assert moved == (job is not None and job.state == "waits")
        if moved and job is not None:
            job.due = self.now + minutes

    @rule(id=JOBS)
    def replay(self, id: str) -> None:
        revived = run_sync(protocol.revive(self.bench.io, self.bench.place, [id]))
        job = self.jobs.get(id)
        assert revived == (job is not None and job.state == "dead")
        if revived and job is not None:
            job.state, job.due = "waits", self.now
            job.tries = job.crashes = job.unseen = 0
            if job.window != "-":
                self.holders.setdefault(job.key, id)

    # -- time

    @rule(minutes=st.integers(1, 2))
    def passes(self, minutes: int) -> None:
        left = minutes * MINUTE
        while left > 0:
            left -= self.bench.run(_shift(self.bench.place, left))
        self.now += minutes

    # -- workers

    turns: ClassVar[dict[str, Any]] = {
        "name": WORKERS,
        "room": st.sampled_from([0, 1, 2, 3, 3]),
        "says": st.lists(st.sampled_from("DRRSBX"), max_size=3),
        "minutes": st.integers(0, 2),
        "lost": st.booleans(),
    }

    def turn(self, name: str, room: int, says: list[str], minutes: int, lost: bool) -> None:
        """A worker says what became of some of its claims, late or not, and takes more."""
        worker = self.workers[name]
        acks = []
        for verdict, claim in zip(says, worker.claims, strict=False):
            number = minutes * MINUTE if verdict in "RS" else 0
            acks.append(Ack(claim.id, claim.epoch, verdict, number, "no"))
        worker.claims = worker.claims[len(acks) :]
        call = protocol.turning(self.bench.place, worker.me, room, acks)
        answer = self.bench.run(call)
        assert isinstance(answer, Turned)
        if lost:  # its reply, and it is sent again
            again = self.bench.run(call)
            assert (again.applied, again.claims) == (answer.applied, answer.claims)
        worker.shown = max(worker.shown, worker.me.turn)
        worker.me.turn += 1
        for ack, applied in zip(acks, answer.applied, strict=True):
            assert applied == self._end(ack, minutes)
        self._reclaim()
        self._took(worker, room, answer.claims)

    # Rules are drawn alike, and turns are what most depends on.
    works = rule(**turns)(turn)
    works_more = rule(**turns)(turn)
    works_still_more = rule(**turns)(turn)

    def _end(self, ack: Ack, minutes: int) -> bool:
        job = self.jobs.get(ack.id)
        if job is None or job.state != "runs" or job.epoch != ack.epoch:
            return False
        if ack.verdict == "D":
            self._gone(ack.id)
            return True
        if ack.verdict in "RX":
            job.tries += 1
        if ack.verdict == "X":
            self._dies(ack.id)
        else:
            job.state = "waits"
            job.due = self.now + (minutes if ack.verdict in "RS" else 0)
            self._regains(ack.id)
        return True

    def _reclaim(self) -> None:
        for id, job in self.jobs.items():
            if job.state == "runs" and job.ends <= self.now:
                if self.workers[job.worker].shown >= job.turn:
                    job.crashes += 1
                else:
                    job.unseen += 1
                if job.crashes >= CRASHES or job.unseen >= 10:
                    self._dies(id)
                else:
                    job.state, job.due = "waits", self.now
                    self._regains(id)

    def _took(self, worker: Worker, room: int, claims: tuple[Claim, ...]) -> None:
        free = {
            id: job for id, job in self.jobs.items() if job.state == "waits" and job.due <= self.now
        }
        assert len(claims) == min(room, len(free))
        taken = [claim.id for claim in claims]
        assert set(taken) <= free.keys()
        order = [free[id].priority for id in taken]
        assert order == sorted(order)
        left = [job.priority for id, job in free.items() if id not in taken]
        assert not left or not order or max(order) <= min(left)
        for claim in claims:
            job = self.jobs[claim.id]
            assert claim.epoch > self.epoch
            counts = claim.counts
            assert (counts.tries, counts.crashes, counts.unseen) == (
                job.tries,
                job.crashes,
                job.unseen,
            )
            self.epoch = job.epoch = claim.epoch
            job.state, job.worker, job.turn = "runs", worker.me.name, worker.me.turn
            job.ends = self.now + 2
            if job.window == "p" and self.holders.get(job.key) == claim.id:
                del self.holders[job.key]
            worker.claims.append(claim)

    @rule(name=WORKERS)
    @precondition(lambda self: any(one.claims for one in self.workers.values()))
    def renew(self, name: str) -> None:
        worker = self.workers[name]
        held = [(claim.id, claim.epoch, LEASE) for claim in worker.claims]
        if not held:
            return
        said = run_sync(protocol.renew(self.bench.io, self.bench.place, worker.me, held))
        worker.shown = max(worker.shown, worker.me.turn)
        for claim, letter in zip(worker.claims, said, strict=True):
            job = self.jobs.get(claim.id)
            stands = job is not None and job.state == "runs" and job.epoch == claim.epoch
            assert letter == ("R" if stands else "L")
            if stands and job is not None:
                job.ends = self.now + 2

    # -- what follows

    def _gone(self, id: str) -> None:
        job = self.jobs.pop(id)
        if self.holders.get(job.key) == id:
            del self.holders[job.key]

    def _dies(self, id: str) -> None:
        job = self.jobs[id]
        job.state = "dead"
        if self.holders.get(job.key) == id:
            del self.holders[job.key]

    def _regains(self, id: str) -> None:
        job = self.jobs[id]
        if job.window == "p":
            self.holders.setdefault(job.key, id)

    @invariant()
    def figures(self) -> None:
        figures = run_sync(protocol.count(self.bench.io, self.bench.place))
        states = [job.state for job in self.jobs.values()]
        assert figures.ready + figures.due == states.count("waits")
        assert figures.running == states.count("runs")
        assert figures.dead == states.count("dead")
        unique = self.client.command("HGETALL", self.bench.keys.unique)
        assert {key.decode(): id.decode() for key, id in unique.items()} == self.holders


def _machine(url: str, scripts: Scripts) -> type[QueueModel]:
    class Machine(QueueModel):
        pass

    Machine.url, Machine.scripts = url, scripts
    return Machine


def _check(url: str, examples: int, steps: int, derandomize: bool = False) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        _machine(url, SCRIPTS),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_queue_does_what_its_model_does(server_url: str) -> None:
    _check(server_url, 25, 30, derandomize=True)


@pytest.mark.explore
def test_a_queue_does_what_its_model_does_for_long(server_url: str) -> None:
    _check(server_url, 2000, 60)


KEEPS_NO_KEY = altered("turn", "regain_key(q, id, window, key)\n  if verdict", "if verdict")
FORGIVES_NOTHING = altered("revive", "redis.call('HDEL', counts, id)\n", "")


def _failed_and_waits(model: QueueModel) -> None:
    model.begin(windows=["p", "-", "-"], first=0)
    model.turn("b", 1, [], 0, False)
    model.turn("b", 0, ["R"], 0, False)
    model.figures()


def _died_and_replayed(model: QueueModel) -> None:
    model.begin(windows=["-", "-", "-"], first=0)
    model.turn("a", 1, [], 0, False)
    model.turn("a", 0, ["X"], 0, False)
    model.replay("1")
    model.turn("b", 3, [], 0, True)


@pytest.mark.parametrize(
    ("scripts", "happens"),
    [
        pytest.param(KEEPS_NO_KEY, _failed_and_waits, id="its key, when it waits again"),
        pytest.param(FORGIVES_NOTHING, _died_and_replayed, id="what was counted against it"),
    ],
)
def test_a_queue_that_differs_from_its_model_is_seen(
    server_url: str, scripts: Scripts, happens: Callable[[QueueModel], None]
) -> None:
    for used in (SCRIPTS, scripts):
        model = _machine(server_url, used)()
        try:
            if used is SCRIPTS:
                happens(model)
            else:
                with pytest.raises(AssertionError):
                    happens(model)
        finally:
            model.teardown()
