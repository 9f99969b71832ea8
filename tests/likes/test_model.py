"""Likes against a dict of sets: random clicks, reads, losses and flushers that die, in any order.

Hypothesis writes the schedule and shrinks it when something is wrong; every step runs the real
scripts on the real server and the real statements, on SQLite and on PostgreSQL. Replies are lost on
their way from the server and from the database, whose transactions fail before and after COMMIT.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import create_engine

from fencepost.errors import OutcomeUnknown, Unavailable
from fencepost.likes import SqlLikes
from fencepost.likes.protocol import LikeStatus
from fencepost.likes.scripts import SCRIPTS, Scripts
from support.likes import TABLES, Lab, count_of, drifted, metadata, without

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from fencepost.likes.store import Committed, Place
    from fencepost.testing import Play
    from support.likes import Actor

USERS = ["u1", "u2"]
VARIANTS: list[dict[str, Any]] = [{}, {"full_max": 0}, {"batch_changes": 1}]
users = st.sampled_from(USERS)


class Machine(RuleBasedStateMachine):
    """One item and two users; flushers and readers that may be left standing anywhere, and go on later."""

    lab: ClassVar[Unreliable]

    @initialize(first=st.sets(users))
    def begin(self, first: set[str]) -> None:
        self.item = self.lab.item(*sorted(first))
        self.truth = set(first)
        self.standing: list[Play] = []

    # -- users

    @rule(user=users, liked=st.booleans())
    def click(self, user: str, liked: bool) -> None:
        result = self.lab.do(self.lab.set(self.item, user, liked))
        before = user in self.truth
        (self.truth.add if liked else self.truth.discard)(user)
        assert result.changed is (before is not liked)
        assert result.count == len(self.truth)

    @rule(user=users)
    def change_mind(self, user: str) -> None:
        self.click(user, user not in self.truth)

    @rule(user=users)
    def look(self, user: str) -> None:
        assert self.lab.seen(self.item, user) == LikeStatus(user in self.truth, len(self.truth))

    # -- flushers and readers, by the step

    @rule(steps=st.integers(0, 2))
    def bring_a_flusher(self, steps: int) -> None:
        self.bring(self.lab.flush(self.item), steps)

    @rule(user=users, steps=st.integers(0, 3))
    def bring_a_reader(self, user: str, steps: int) -> None:
        self.bring(self.lab.status(self.item, user), steps)

    def bring(self, actor: Actor, steps: int) -> None:
        self.standing.append(self.lab.play(a=actor))
        self.step(self.standing[-1], steps)

    @precondition(lambda self: self.standing)
    @rule(which=st.integers(0, 5), steps=st.integers(1, 4))
    def go_on(self, which: int, steps: int) -> None:
        if self.standing:
            self.step(self.standing[which % len(self.standing)], steps)

    def step(self, play: Play, steps: int) -> None:
        for _ in range(steps):
            step = play.waits_at("a")
            if step is None:
                self.standing.remove(play)
                play.result("a")
                break
            play.run(f"a.{step}")
        assert drifted(self.lab.engine) == []

    @rule(user=users, steps=st.integers(1, 3))
    def flush_around_a_change(self, user: str, steps: int) -> None:
        self.bring_a_flusher(steps)
        self.change_mind(user)
        self.go_on(-1, 9)

    @rule(user=users, steps=st.integers(1, 3))
    def read_around_a_change(self, user: str, steps: int) -> None:
        self.bring_a_reader(user, steps)
        self.change_mind(user)
        self.go_on(-1, 9)

    @rule(user=users, liked=st.booleans(), fault=st.sampled_from(["lost", "dropped", "cut"]))
    def click_into_the_dark(self, user: str, liked: bool, fault: str) -> None:
        """The first answer does not come: the user asks again, and is told what is true."""
        play = self.lab.play(a=self.lab.set(self.item, user, liked))
        play.run(f"a.set!{fault} a.*")
        before = user in self.truth
        (self.truth.add if liked else self.truth.discard)(user)
        result = self.lab.do(self.lab.set(self.item, user, liked))
        assert result.count == len(self.truth)
        if fault != "lost":
            assert result.changed is (before is not liked)

    @rule(when=st.sampled_from(["before", "after"]))
    def database_fails(self, when: str) -> None:
        """A flush whose transaction is undone by an error, or committed without a word."""
        play = self.lab.play(a=self.lab.flush(self.item))
        with self.lab.failing(when):
            play.run("a.claim")
            if play.waits_at("a") == "commit":
                play.run("a.commit")
                with pytest.raises((Unavailable, OutcomeUnknown)):
                    play.result("a")
        play.run("a.*")
        assert drifted(self.lab.engine) == []

    @precondition(lambda self: self.standing)
    @rule(which=st.integers(0, 5), fault=st.sampled_from(["lost", "cut", "crash"]))
    def fail(self, which: int, fault: str) -> None:
        play = self.standing.pop(which % len(self.standing))
        step = play.waits_at("a")
        if step is not None:
            play.run("a.crash" if fault == "crash" else f"a.{step}!{fault} a.*")

    # -- losses that lose nothing

    @rule()
    def expire(self) -> None:
        """What may expire does, if it may."""
        item = str(self.item)
        for key in (self.lab.keys.header(item), self.lab.keys.tokens(item)):
            if self.lab.life(key) > 0:
                self.lab.delete(key)

    @rule(part=st.sampled_from(["H", "G", "E"]))
    def lose(self, part: str) -> None:
        item, keys = str(self.item), self.lab.keys
        self.lab.delete({"H": keys.header(item), "G": keys.tokens(item), "E": keys.opening}[part])
        self.lab.open()

    # -- a loss of all: what SQL has is the truth from the moment that the shard is open again

    @rule()
    def lose_everything(self) -> None:
        self.lab.flushall()
        self.lab.open()
        self.truth = self.lab.rows(self.item)

    # -- what always holds

    @invariant()
    def dirty_stays(self) -> None:
        """A header (if there is one) does not expire while something is owed to SQL."""
        item = str(getattr(self, "item", 0))
        if self.lab.command("HLEN", self.lab.keys.journal(item)):
            assert self.lab.life(self.lab.keys.header(item)) < 0

    def teardown(self) -> None:
        if not hasattr(self, "item"):
            return
        self.lab.open()
        self.lab.shows(self.item, self.truth, USERS)
        assert self.lab.drain() == 0
        assert self.lab.rows(self.item) == self.truth
        assert count_of(self.lab.engine, self.item) == len(self.truth)
        self.lab.shows(self.item, self.truth, USERS)


class Unreliable(Lab):
    """A lab whose database fails when it is told to."""

    @contextlib.contextmanager
    def failing(self, when: str) -> Iterator[None]:
        """Each transaction ends in an error: undone (``before``), or committed (``after``)."""

        def broken(place: Place, *args: Any) -> Committed:
            if when == "after":
                commit(place, *args)
                raise OutcomeUnknown("the reply to COMMIT was lost")
            raise Unavailable("the database undid it")

        commit = self.store.commit
        self.store.commit = broken  # type: ignore[method-assign]
        broken.__name__ = "commit"
        try:
            yield
        finally:
            self.store.commit = commit  # type: ignore[method-assign]


def run(
    url: str,
    namespace: str,
    home: Path,
    variants: list[dict[str, Any]],
    scripts: Scripts = SCRIPTS,
    engine: Engine | None = None,
    **bounds: Any,
) -> None:
    common: dict[str, Any] = {
        "deadline": None,
        "derandomize": True,
        "database": None,
        "report_multiple_bugs": False,
        "suppress_health_check": list(HealthCheck),
    }
    for number, options in enumerate(variants):
        name = f"{namespace}-{number}"
        with Unreliable(url, name, home, scripts=scripts, engine=engine, **options) as lab:
            machine = type("LikesMachine", (Machine,), {"lab": lab})
            run_state_machine_as_test(machine, settings=settings(**{**common, **bounds}))


def test_likes_are_sets(server_url: str, namespace: str, tmp_path: Path) -> None:
    """Whole items, sparse items, and journals that are flushed one change at a time."""
    run(server_url, namespace, tmp_path, VARIANTS, max_examples=20, stateful_step_count=20)


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    engine = create_engine(postgres_url)
    metadata.create_all(engine)
    SqlLikes(engine, **TABLES).create_tables()
    yield engine
    engine.dispose()


@pytest.mark.parametrize("variant", range(len(VARIANTS)), ids=["whole", "sparse", "one by one"])
def test_likes_are_sets_on_postgresql(
    server_url: str, namespace: str, tmp_path: Path, engine: Engine, variant: int
) -> None:
    """The same machine on the other database, where a flush is one statement."""
    some = VARIANTS[variant : variant + 1]
    run(
        server_url,
        namespace,
        tmp_path,
        some,
        engine=engine,
        max_examples=8,
        stateful_step_count=20,
    )


@pytest.mark.explore
@pytest.mark.parametrize("variant", range(len(VARIANTS)), ids=["whole", "sparse", "one by one"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_likes_are_sets_in_long(
    server_url: str,
    namespace: str,
    tmp_path: Path,
    kind: str,
    variant: int,
    request: pytest.FixtureRequest,
) -> None:
    engine = request.getfixturevalue("engine") if kind == "postgres" else None
    some = VARIANTS[variant : variant + 1]
    bounds = {"max_examples": 300, "stateful_step_count": 40, "derandomize": False}
    run(server_url, namespace, tmp_path, some, engine=engine, **bounds)


@pytest.mark.parametrize(
    ("verb", "guard", "instead"),
    [
        ("ack", "stands[n] == ARGV[i + 2 * n - 1]", "true"),
        ("begin", "redis.call('HLEN', journal) > 0", "false"),
        ("set", "redis.call('PERSIST', header)", ""),
        ("fill", "HSETNX", "HSET"),
    ],
    ids=["exact ack", "dirty", "persist", "known stays"],
)
def test_machine_sees_a_missing_guard(
    server_url: str, namespace: str, tmp_path: Path, verb: str, guard: str, instead: str
) -> None:
    """The control: the same machine finds each of these by itself."""
    scripts = without(verb, guard, instead)
    if verb == "begin":
        twice = "  if not clean then return {'DIRTY'} end\n  if field"
        scripts = dataclasses.replace(scripts, fill=without("fill", twice, "  if field").fill)
    with pytest.raises(AssertionError):
        run(
            server_url,
            namespace,
            tmp_path,
            VARIANTS[:1],
            scripts,
            max_examples=150,
            stateful_step_count=20,
            phases=[Phase.generate],
        )
