"""The judge: histories on one side, what SQL and the cache say at the end on the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from robustness.model import Mark, Op, Truth, follow

Pair = tuple[int, str]


@dataclass(frozen=True)
class Ending:
    """Everything at the end, when all is flushed and nobody acts any more.

    Args:
        rows: Who likes what, says SQL.
        counts: Each item's like_count, says SQL.
        cached: What the cache answers for each pair: liked, and the item's count.
        backlog: Items that still wait in the journal.
        audit: What fencepost's own audit finds.
    """

    rows: frozenset[Pair]
    counts: Mapping[int, int]
    cached: Mapping[Pair, tuple[bool, int]]
    backlog: int = 0
    audit: Sequence[str] = ()


@dataclass
class Judgement:
    """What is wrong, and how much of what was said could be held against the end.

    Args:
        wrong: One sentence a fault.
        exact: Pairs of which only one thing can be true.
        pairs: All pairs.
        requests: Requests by outcome.
    """

    wrong: list[str] = field(default_factory=list)
    exact: int = 0
    pairs: int = 0
    requests: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        asked = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.requests.items()))
        head = f"{asked}; {self.exact} of {self.pairs} pairs known exactly"
        return "\n  ".join([head, *self.wrong[:40]])


def judge(
    histories: Iterable[Sequence[Op | Mark]], unannounced: Sequence[str], ending: Ending
) -> Judgement:
    """Hold the end against what users were told.

    Args:
        histories: One a client.
        unannounced: Answers that are no contract of ours: a 500, a 503 that says nothing.
        ending: How it ended.
    """
    truth, judgement = Truth(), Judgement()
    for history in histories:
        follow(history, truth)
        judgement.requests.update(op.outcome for op in history if isinstance(op, Op))
    judgement.pairs = len(truth.pairs)
    judgement.exact = sum(len(pair.may_be) == 1 for pair in truth.pairs.values())
    judgement.wrong += [f"unannounced: {one}" for one in unannounced]
    judgement.wrong += [f"a wrong answer: {one}" for one in truth.wrong]
    if ending.backlog:
        judgement.wrong.append(f"{ending.backlog} items are still in the journal")
    judgement.wrong += _against_rows(truth, ending)
    judgement.wrong += _within(ending)
    judgement.wrong += [f"audit: {one}" for one in ending.audit]
    return judgement


def _against_rows(truth: Truth, ending: Ending) -> list[str]:
    wrong = []
    for (item, user), pair in sorted(truth.pairs.items()):
        there = (item, user) in ending.rows
        if there in pair.may_be:
            continue
        what = "an acknowledged like is not in SQL" if not there else "an unliked like is in SQL"
        wrong.append(f"{what}: {user} of item {item}")
    strangers = ending.rows - truth.pairs.keys()
    return wrong + [f"a row that nobody asked for: {pair}" for pair in sorted(strangers)]


def _within(ending: Ending) -> list[str]:
    """Rows, counter and cache say the same."""
    by_item = Counter(item for item, _ in ending.rows)
    wrong = [
        f"like_count of item {item} is {count}, it has {by_item[item]} rows"
        for item, count in sorted(ending.counts.items())
        if count != by_item[item]
    ]
    for pair, (liked, count) in sorted(ending.cached.items()):
        if liked != (pair in ending.rows):
            wrong.append(f"the cache says {liked} of {pair}, SQL says {pair in ending.rows}")
        if count != by_item[pair[0]]:
            wrong.append(f"the cache counts {count} of {pair}, SQL has {by_item[pair[0]]} rows")
    return wrong
