"""The judge is seen to judge: every sentence it can say is provoked, in a run and by itself."""

from __future__ import annotations

import random
import re
import signal
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from robustness.faults import (
    AROUND,
    FAULTS,
    EmptyServer,
    Fault,
    LockDatabase,
    Planned,
    plan,
    storms,
)
from robustness.fleet import Fleet, eventually
from robustness.model import Mark, Op
from robustness.test_robustness import run
from robustness.validate import Ending, Judgement, judge

LIKE = Op(1, "u", True, "ok", True)
UNLIKE = Op(1, "u", False, "ok", False)
SEES_LIKE, SEES_NONE = Op(1, "u", None, "ok", True), Op(1, "u", None, "ok", False)
MAYBE_LIKE = Op(1, "u", True, "unknown")
CALM, LOSS = Mark("calm"), Mark("loss")
LIKED = Ending(frozenset({(1, "u")}), {1: 1}, {(1, "u"): (True, 1)})
NOT_LIKED = Ending(frozenset(), {1: 0}, {(1, "u"): (False, 0)})


def judged(history: Sequence[Op | Mark], ending: Ending, *unannounced: str) -> Judgement:
    return judge([history], unannounced, ending)


@pytest.mark.parametrize(
    ("history", "ending"),
    [
        ([LIKE, SEES_LIKE], LIKED),
        ([LIKE, UNLIKE, SEES_NONE], NOT_LIKED),
        ([MAYBE_LIKE], LIKED),
        ([MAYBE_LIKE], NOT_LIKED),
        ([MAYBE_LIKE, UNLIKE], LIKED),  # it came late
        ([MAYBE_LIKE, SEES_NONE, SEES_LIKE], LIKED),  # likewise
        ([Op(1, "u", True, "refused")], NOT_LIKED),
        ([LIKE, LOSS, SEES_NONE, SEES_LIKE, CALM], NOT_LIKED),
        ([LIKE, LOSS, CALM, LIKE], LIKED),
    ],
)
def test_what_may_be(history: Sequence[Op | Mark], ending: Ending) -> None:
    assert judged(history, ending).wrong == []


@pytest.mark.parametrize(
    ("history", "ending", "sentence"),
    [
        ([LIKE], NOT_LIKED, "an acknowledged like is not in SQL: u of item 1"),
        ([LIKE, UNLIKE], LIKED, "an unliked like is in SQL: u of item 1"),
        ([LIKE, SEES_NONE], LIKED, "told False, can only be {True}"),
        ([MAYBE_LIKE, SEES_LIKE, CALM, SEES_NONE], LIKED, "a wrong answer"),
        ([MAYBE_LIKE, UNLIKE, CALM, UNLIKE], LIKED, "an unliked like is in SQL"),
        ([Op(1, "u", True, "refused")], LIKED, "an unliked like is in SQL"),
        ([Op(1, "u", True, "ok", False)], LIKED, "asked for True, told False"),
        ([LIKE, LOSS, CALM, UNLIKE], LIKED, "an unliked like is in SQL"),
        ([LIKE], Ending(LIKED.rows, {1: 2}, {}), "like_count of item 1 is 2, it has 1 rows"),
        ([LIKE], Ending(LIKED.rows, {1: 1}, {(1, "u"): (False, 1)}), "the cache says False"),
        ([LIKE], Ending(LIKED.rows, {1: 1}, {(1, "u"): (True, 2)}), "the cache counts 2"),
        ([LIKE], Ending(LIKED.rows, {1: 1}, {}, backlog=3), "3 items are still in the journal"),
        ([LIKE], Ending(LIKED.rows, {1: 1}, {}, audit=["x"]), "audit: x"),
        ([], LIKED, "a row that nobody asked for"),
    ],
)
def test_what_can_not_be(history: Sequence[Op | Mark], ending: Ending, sentence: str) -> None:
    assert any(sentence in one for one in judged(history, ending).wrong)


def test_an_unannounced_answer_is_a_fault() -> None:
    assert judged([], NOT_LIKED, "GET /: 500").wrong == ["unannounced: GET /: 500"]


def test_a_seed_says_everything() -> None:
    kinds = (*FAULTS, EmptyServer)
    told = [str(one) for one in plan(7, 40, kinds)]
    assert told == [str(one) for one in plan(7, 40, kinds)]
    assert told != [str(one) for one in plan(8, 40, kinds)]
    assert {type(one.fault) for one in plan(7, len(kinds), kinds)} == set(kinds)
    in_storms = {type(one.fault) for storm in storms(7, len(AROUND)) for one in storm}
    assert in_storms == set(FAULTS)


# -- in a run


class DropJournal(Fault):
    """Sabotage: what is owed to SQL is taken out of the journal, and nobody declares a loss."""

    def strike(self, fleet: Fleet) -> None:
        for worker in fleet.flushers:
            worker.tell(signal.SIGSTOP)

    def heal(self, fleet: Fleet) -> None:
        eventually(lambda: len(fleet.command("KEYS", "*}:P:*")) > 3, "something is owed")
        fleet.command("DEL", *fleet.command("KEYS", "*}:P:*"))
        for worker in fleet.flushers:
            worker.tell(signal.SIGCONT)


class WritePast(Fault):
    """Sabotage: a row of somebody's, written past fencepost."""

    def strike(self, fleet: Fleet) -> None:
        connection: sqlite3.Connection = fleet.sql()
        connection.execute(
            "INSERT INTO activities_likes (activity_id, user_id) VALUES (?, 'stranger')",
            (fleet.items[0],),
        )
        connection.close()


@pytest.mark.timeout(300)
def test_a_run_reports_what_was_broken_on_purpose(tmp_path: Path) -> None:
    """A journal entry that is dropped, and a row written past everything: whole runs must fail."""
    sabotage = [DropJournal, WritePast]
    found = run(tmp_path, 1, [(Planned(kind(random.Random(1)), 0.5),) for kind in sabotage])
    told = "\n".join(found.wrong)
    assert re.search("an acknowledged like is not in SQL|an unliked like is in SQL", told), told
    assert "a row that nobody asked for" in told
    assert re.search(r"like_count of item \d+ is", told)
    assert "the cache" in told
    assert "audit: rows" in told


@pytest.mark.robustness
def test_a_run_reports_a_guard_that_is_missing(tmp_path: Path) -> None:
    """An ack that removes whatever is there, newer changes too: users click while a commit waits for
    the database, and what they were told is never written."""
    locked = [(Planned(LockDatabase(random.Random(n)), 1.5),) for n in range(5)]
    told = "\n".join(run(tmp_path, 1, locked, careless=True).wrong)
    assert re.search("an acknowledged like is not in SQL|an unliked like is in SQL", told), told
    assert run(tmp_path / "careful", 1, locked).wrong == []


# -- the track record

RECORD = Path(__file__).with_name("README.md")


def test_every_command_of_the_track_record_names_a_test() -> None:
    commands = re.findall(r"`pytest (\S+?)::(\w+)", RECORD.read_text(encoding="utf-8"))
    assert len(commands) > 10
    root = RECORD.parent.parent.parent
    missing = [
        f"{path}::{name}"
        for path, name in commands
        if not (root / path).is_file() or f"def {name}(" not in (root / path).read_text("utf-8")
    ]
    assert missing == []
