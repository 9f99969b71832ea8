"""The scenarios in which the like cache is explored, by name; each is a function of the world's options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.testing import (
    Faults,
    Scenario,
    delete,
    expiry,
    failover,
    flush_all,
    restart_empty,
    tick,
)
from likes.explored import LikesWorld, Objecting

LIKE, UNLIKE = True, False


def same_user(**options: Any) -> Scenario:
    """Two devices of one user."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": expiry()},
        a=w.sets((1, 1, UNLIKE), (1, 1, LIKE)),
        b=w.sets((1, 1, UNLIKE)),
        f=w.flush(),
    )


def two_users(**options: Any) -> Scenario:
    """Two users of one item; both like it, one of them is known perhaps."""
    w = LikesWorld(**{"items": {1: (1, 2)}, **options})
    return w.scenario(
        {"x": expiry()}, a=w.sets((1, 1, UNLIKE)), b=w.sets((1, 2, UNLIKE)), f=w.flush()
    )


def last_unlike(**options: Any) -> Scenario:
    """The last like goes while a page is read, a flusher runs and keys expire."""
    w = LikesWorld(**options)
    return w.scenario({"x": expiry()}, s=w.sets((1, 1, UNLIKE)), d=w.status(1), f=w.flush(2))


def back_and_forth(**options: Any) -> Scenario:
    """Unlike and like again between flushes."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": expiry()}, s=w.sets((1, 1, UNLIKE), (1, 1, LIKE), (1, 1, UNLIKE)), f=w.flush(2)
    )


def two_loads(**options: Any) -> Scenario:
    """Two loads of different users around a change and its flush."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": expiry()}, d=w.status(1), e=w.status(2), s=w.sets((1, 2, LIKE)), f=w.flush()
    )


def pair_beside_flush(**options: Any) -> Scenario:
    """The load of one pair beside changes of the same user, flushed and dropped again."""
    w = LikesWorld(**{"items": {1: (1, 2)}, **options})
    return w.scenario(
        d=w.status(1), s=w.sets((1, 2, UNLIKE)), t=w.sets((1, 2, LIKE)), f=w.flush(2), e=w.evict(2)
    )


def two_flushers(**options: Any) -> Scenario:
    """Two flushers; each may pause anywhere and go on later."""
    w = LikesWorld(**options)
    return w.scenario(s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)), f=w.flush(), g=w.flush())


def flushers_part_by_part(**options: Any) -> Scenario:
    """Two flushers, two users, and transactions of one change each."""
    w = LikesWorld(**{"batch_changes": 1, **options})
    return w.scenario(
        s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)), t=w.sets((1, 2, LIKE)), f=w.flush(), g=w.flush()
    )


def flusher_dies(**options: Any) -> Scenario:
    """A flusher dies at any step, another goes on, a reader loads."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": expiry()},
        crashes=("f",),
        s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)),
        f=w.flush(),
        g=w.flush(),
    )


def lost_replies(**options: Any) -> Scenario:
    """Any request of anybody is cut, dropped, loses its reply or is sent twice; everybody tries again."""
    w = LikesWorld(**options)
    return w.scenario(
        faults=Faults(times=2),
        s=w.sets((1, 1, UNLIKE), tries=3),
        f=w.flush(tries=3),
    )


def lost_reply_and_reader(**options: Any) -> Scenario:
    """One fault anywhere, with a reader and an expiry between."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": expiry()},
        faults=Faults(times=1),
        s=w.sets((1, 1, UNLIKE), tries=2),
        d=w.status(1, tries=2),
        f=w.flush(tries=2),
    )


LIFE = frozenset(("forget", "invalidate", "evict"))


def lost_reply_of_forget(**options: Any) -> Scenario:
    """An item is deleted, and one of its tombstones is cut, dropped, or loses its reply; it is tried again."""
    w = LikesWorld(**options)
    return w.scenario(
        faults=Faults(times=1, on=LIFE),
        s=w.sets((1, 2, LIKE)),
        f=w.flush(),
        k=w.forget(tries=2),
    )


def lost_reply_of_invalidate(**options: Any) -> Scenario:
    """SQL is written past us, and the invalidation meets a fault; it is tried again."""
    w = LikesWorld(**options)
    return w.scenario(
        faults=Faults(times=1, on=LIFE), o=w.outside(9, tries=2), d=w.status(1), f=w.flush()
    )


def lost_reply_of_evict(**options: Any) -> Scenario:
    """Memory is bounded, and that meets a fault; it is tried again."""
    w = LikesWorld(**options)
    return w.scenario(
        faults=Faults(times=1, on=LIFE),
        s=w.sets((1, 1, UNLIKE)),
        d=w.status(1),
        e=w.evict(1, tries=2),
        f=w.flush(),
    )


def lost_reply_of_inspect(**options: Any) -> Scenario:
    """An audit beside a client and a flusher meets a fault, or none; it is tried again."""
    w = LikesWorld(**options)
    return w.scenario(
        faults=Faults(times=1, on=frozenset(("inspect",))),
        s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)),
        f=w.flush(),
        a=w.audits(tries=2),
    )


def lost_reply_of_due(**options: Any) -> Scenario:
    """Two flushers ask what is due, and one of the answers is lost; it is asked again."""
    w = LikesWorld(**{"flush_delay": 0.001, **options})
    return w.scenario(
        {"t": tick(10, times=2)},
        faults=Faults(times=1, on=frozenset(("due",))),
        s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)),
        f=w.flush_due(times=2, tries=2),
        g=w.flush_due(),
    )


def invalidated_and_forgotten(**options: Any) -> Scenario:
    """SQL is written past us and invalidated, the item is deleted, a flusher works."""
    w = LikesWorld(**options)
    return w.scenario(s=w.sets((1, 2, LIKE)), o=w.outside(9), f=w.flush(), k=w.forget())


def several_items(**options: Any) -> Scenario:
    """Two items of one shard in one batch."""
    w = LikesWorld(**{"items": {1: (1,), 2: ()}, **options})
    return w.scenario(
        {"x": expiry()}, s=w.sets((1, 1, UNLIKE)), t=w.sets((2, 2, LIKE)), f=w.flush()
    )


def comes_back_empty(**options: Any) -> Scenario:
    """The server restarts without its data, an old flusher holds a claim."""
    w = LikesWorld(**options)
    return w.scenario({"x": restart_empty()}, s=w.sets((1, 2, LIKE)), d=w.status(1), f=w.flush())


def emptied(**options: Any) -> Scenario:
    """FLUSHALL at any moment: nothing tells the connections."""
    w = LikesWorld(**options)
    return w.scenario({"x": flush_all()}, s=w.sets((1, 2, LIKE)), d=w.status(1), f=w.flush())


def emptied_twice(**options: Any) -> Scenario:
    """FLUSHALL twice, while users go on."""
    w = LikesWorld(**options)
    return w.scenario({"x": flush_all(2)}, s=w.sets((1, 2, LIKE), (1, 2, UNLIKE)), f=w.flush(2))


def slow_opener(**options: Any) -> Scenario:
    """A shard that was never opened: openers race, FLUSHALL comes between, an old flusher ends late."""
    w = LikesWorld(**{"opened": False, "full": False, **options})
    return w.scenario({"x": flush_all()}, d=w.status(1), s=w.sets((1, 2, LIKE)), f=w.flush())


def late_opener(**options: Any) -> Scenario:
    """FLUSHALL, and an opener of an older epoch is the first to come; an old flusher ends late."""
    w = LikesWorld(**{"full": False, **options})
    return w.scenario({"x": flush_all()}, o=w.late_opener(), s=w.sets((1, 2, LIKE)), f=w.flush())


def born(**options: Any) -> Scenario:
    """A shard that was never opened, and three who come first."""
    w = LikesWorld(**{"opened": False, **options})
    return w.scenario(s=w.sets((1, 2, LIKE)), d=w.status(1), f=w.flush())


def opening_lost(**options: Any) -> Scenario:
    """The opening record alone is lost."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": delete(w.keys.opening)}, s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)), f=w.flush()
    )


def header_lost(**options: Any) -> Scenario:
    """A dirty header is lost, which no TTL would do."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": delete(w.keys.header("1"))},
        s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)),
        d=w.status(1),
        f=w.flush(),
    )


def fails_over(**options: Any) -> Scenario:
    """A replica that stopped at any earlier moment becomes the primary at any later one."""
    w = LikesWorld(**{"witness": True, **options})
    return w.scenario({"x": failover()}, s=w.sets((1, 2, LIKE), (1, 2, UNLIKE)), f=w.flush(2))


def fails_over_unseen(**options: Any) -> Scenario:
    """The same behind a proxy that keeps the connections up."""
    w = LikesWorld(**options)
    return w.scenario({"x": failover(hidden=True)}, d=w.status(1), e=w.status(2), f=w.flush())


def deleted(**options: Any) -> Scenario:
    """The application deletes the item while it is liked, read and flushed."""
    w = LikesWorld(**options)
    return w.scenario(
        s=w.sets((1, 2, LIKE), (1, 2, UNLIKE)), d=w.status(1), f=w.flush(), k=w.delete_item()
    )


def forgotten(**options: Any) -> Scenario:
    """The application deletes the item the right way."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": expiry()}, s=w.sets((1, 2, LIKE)), d=w.status(1), f=w.flush(), k=w.forget()
    )


def evicted(**options: Any) -> Scenario:
    """A clean state is dropped to bound memory, at any moment."""
    w = LikesWorld(**options)
    return w.scenario(
        s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)), d=w.status(1), e=w.evict(1), f=w.flush()
    )


def written_outside(**options: Any) -> Scenario:
    """Somebody writes SQL past the like cache, then invalidates."""
    w = LikesWorld(**options)
    return w.scenario(
        {"x": expiry()}, o=w.outside(9), s=w.sets((1, 2, LIKE)), d=w.status(1), f=w.flush()
    )


def opener_dies(**options: Any) -> Scenario:
    """Who opens the shard first may die half-way, or lose a reply; another comes."""
    w = LikesWorld(**{"opened": False, "rounds": 4, **options})
    return w.scenario(
        faults=Faults(times=1),
        crashes=("s",),
        s=w.sets((1, 1, UNLIKE), tries=2),
        d=w.status(1, tries=2),
    )


def parts_of_several_items(**options: Any) -> Scenario:
    """Two items, and transactions of one change each: a batch ends in the middle."""
    w = LikesWorld(**{"items": {1: (1,), 2: ()}, "batch_changes": 1, **options})
    return w.scenario(
        s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)), t=w.sets((2, 2, LIKE)), f=w.flush(), g=w.flush()
    )


def grows_old(**options: Any) -> Scenario:
    """A busy header outlives its age: it is loaded anew after a flush."""
    w = LikesWorld(**options)
    return w.scenario(
        {"t": tick(100_000_000), "x": expiry()},
        s=w.sets((1, 1, UNLIKE), (1, 1, LIKE)),
        d=w.status(1),
        f=w.flush(),
    )


def committed(**options: Any) -> Scenario:
    """One device waits for SQL, another does not; a flusher works beside them."""
    w = LikesWorld(**{"items": {1: (1, 2)}, **options})
    return w.scenario(c=w.commits(1, 2, LIKE), s=w.sets((1, 2, UNLIKE)), f=w.flush())


def committed_twice(**options: Any) -> Scenario:
    """Two devices of one user want the same and wait for SQL."""
    w = LikesWorld(**options)
    return w.scenario(c=w.commits(1, 2, LIKE), d=w.commits(1, 2, LIKE), f=w.flush())


def committed_and_emptied(**options: Any) -> Scenario:
    """FLUSHALL while one waits for SQL."""
    w = LikesWorld(**options)
    return w.scenario({"x": flush_all()}, c=w.commits(1, 2, LIKE), f=w.flush())


def committed_and_journal_lost(**options: Any) -> Scenario:
    """A journal alone is lost while one waits for SQL."""
    w = LikesWorld(**options)
    journal = {"x": delete(w.keys.journal("1"))}
    scenario = w.scenario(journal, c=w.commits(1, 2, LIKE), f=w.flush())
    scenario.observe = {**scenario.observe, "delete": w.on_journal_lost}
    return scenario


def committed_and_failed_over(**options: Any) -> Scenario:
    """A failover to an older copy, after a like was said to be in SQL."""
    w = LikesWorld(**{"items": {1: (1, 2)}, **options})
    return w.scenario({"x": failover()}, s=w.sets((1, 2, UNLIKE)), c=w.commits(1, 2, LIKE))


def committed_refused_and_failed_over(**options: Any) -> Scenario:
    """Two wait for SQL, which refuses the row of one of them; a failover to an older copy."""
    w = LikesWorld(**{"model": Objecting, **options})
    return w.scenario({"x": failover()}, c=w.commits(1, 2, LIKE), d=w.commits(1, 3, LIKE))


def committed_beside_a_refused_row(**options: Any) -> Scenario:
    """The same without a failover: another flusher may meet the row first, and keys expire."""
    w = LikesWorld(**{"model": Objecting, **options})
    scenario = w.scenario(
        {"x": expiry()}, c=w.commits(1, 2, LIKE), d=w.commits(1, 3, LIKE), f=w.flush()
    )
    scenario.final = w.forgot_what_was_refused
    return scenario


SCENARIOS: dict[str, Callable[..., Scenario]] = {
    one.__name__: one
    for one in (
        same_user,
        two_users,
        last_unlike,
        back_and_forth,
        two_loads,
        pair_beside_flush,
        two_flushers,
        flushers_part_by_part,
        flusher_dies,
        lost_replies,
        lost_reply_and_reader,
        lost_reply_of_forget,
        lost_reply_of_invalidate,
        lost_reply_of_evict,
        lost_reply_of_inspect,
        lost_reply_of_due,
        invalidated_and_forgotten,
        several_items,
        comes_back_empty,
        emptied,
        emptied_twice,
        slow_opener,
        late_opener,
        born,
        opening_lost,
        header_lost,
        fails_over,
        fails_over_unseen,
        deleted,
        forgotten,
        evicted,
        written_outside,
        opener_dies,
        parts_of_several_items,
        grows_old,
        committed,
        committed_twice,
        committed_and_emptied,
        committed_and_journal_lost,
        committed_and_failed_over,
        committed_refused_and_failed_over,
        committed_beside_a_refused_row,
    )
}
