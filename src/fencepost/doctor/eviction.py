"""What the server's eviction does to what is kept on it: findings from ``Facts``, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from fencepost.doctor.server import Facts, Seen

Level = Literal["danger", "warning", "ok", "note"]
NEW: Final = 5
"""The counter with which a key is born under LFU."""
TOP: Final = 255
_LOST: Final = {
    "journal": "changes that are answered and not in SQL yet, or the records that tell of such a loss",
    "fence": "fences: the next holder of a lock may get a number that was used before",
    "lease": "leases of locks: a second holder gets in while the first one holds it",
    "jobs": "jobs that wait or run",
}
_FULL: Final = 0.85  # of maxmemory: evictions, or refusals, are near
_ORDER: Final[tuple[Level, ...]] = ("danger", "warning", "ok", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence or three: what is so, what follows, what to do."""

    level: Level
    text: str


def judge(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    found = [*_kept(facts), *_memory(facts), *_ranks(facts)]
    return sorted(found, key=lambda one: _ORDER.index(one.level))


def hits_to(counter: int, factor: int) -> int:
    """About how many hits bring a new key's LFU counter there, if it never decays.

    The counter goes up with probability 1 / ((counter - 5) * factor + 1).
    """
    steps = max(counter - NEW, 0)
    return steps + factor * steps * (steps - 1) // 2


def _kept(facts: Facts) -> Iterator[Finding]:
    """Whether something goes that must not."""
    groups = Counter(one.group for one in facts.sample)
    precious = [group for group in _LOST if groups[group]]
    policy = facts.policy
    if policy == "noeviction":
        yield Finding("ok", "maxmemory-policy is noeviction: nothing is evicted")
        return
    if policy.startswith("allkeys-"):
        if not precious:
            yield Finding(
                "ok" if facts.sample else "note",
                f"maxmemory-policy is {policy}, and the sample holds entries of caches and keys of others "
                "only: right for a server that caches, and wrong for likes, write-behind, locks and jobs",
            )
            return
        for group in precious:
            yield Finding(
                "danger",
                f"maxmemory-policy is {policy}: it may evict {_LOST[group]} ({_share(facts, group)}). "
                "Set noeviction, or keep the caches on a server of their own",
            )
        return
    for group in precious:
        mortal = [one for one in facts.sample if one.group == group and one.ttl is not None]
        if mortal and group == "lease":
            first = policy == "volatile-ttl"
            yield Finding(
                "danger" if first or _pressed(facts) else "warning",
                f"maxmemory-policy is {policy}: it may evict {_LOST[group]}, since they have a TTL"
                + (", and the shortest goes first" if first else "")
                + " (what their fences guard stays right). Set noeviction, or keep the caches on a server of their own",
            )
    if not any(group in precious for group in ("lease",)):
        yield Finding(
            "ok",
            f"maxmemory-policy is {policy}: journals, fences and jobs have no TTL, so they stay",
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    """Whether there is room, and what happens when there is not."""
    if not facts.limit:
        yield Finding(
            "warning",
            "maxmemory is 0: the server takes what the machine has, until the kernel kills it. "
            "Set it to what the machine can spare",
        )
        return
    share = facts.used / facts.limit
    volatile = facts.policy.startswith("volatile-")
    size = sum(one.size for one in facts.sample)
    mortal = sum(one.size for one in facts.sample if one.ttl is not None)
    refuses = facts.policy == "noeviction" or (volatile and size > 0 and mortal < 0.1 * size)
    if refuses and volatile:
        yield Finding(
            "warning",
            f"only {mortal / size:.0%} of the memory has a TTL: {facts.policy} finds little to evict, "
            "and then writes are refused as with noeviction",
        )
    if share >= _FULL:
        what = "writes are refused" if refuses else "keys are evicted"
        yield Finding(
            "warning", f"{share:.0%} of maxmemory is in use: at 100 % {what}. Raise maxmemory"
        )
    else:
        yield Finding("ok", f"{share:.0%} of maxmemory is in use")
    if facts.evicted:
        rate = facts.evicted / max(facts.uptime, 1)
        yield Finding(
            "note",
            f"{facts.evicted:,} keys were evicted since the server began, {rate:.3g} a second",
        )


def _ranks(facts: Facts) -> Iterator[Finding]:
    """What LRU and LFU make of this key space."""
    ranked = [one for one in facts.sample if not facts.policy.startswith("volatile-") or one.ttl]
    if "lru" in facts.policy or facts.policy == "noeviction":
        yield from _idle(facts, [one for one in ranked if one.idle is not None])
    elif "lfu" in facts.policy:
        yield from _frequent(facts, [one for one in ranked if one.freq is not None])


def _idle(facts: Facts, ranked: list[Seen]) -> Iterator[Finding]:
    if not ranked:
        return
    oldest = sorted(ranked, key=lambda one: -(one.idle or 0))
    tenth = _first_tenth(oldest)
    would = "would go first under an LRU policy" if facts.policy == "noeviction" else "goes first"
    yield Finding(
        "note",
        f"the tenth of the memory that was unused longest {would}: keys unused for "
        f"{_time(tenth[-1].idle or 0)} or more ({_groups(tenth)}); half of all keys were unused for "
        f"{_time(oldest[len(oldest) // 2].idle or 0)}",
    )
    samples = facts.number("maxmemory-samples", 5)
    if samples < 5:
        yield Finding(
            "warning",
            f"maxmemory-samples is {samples}: the least used of so few is often not one of the least used of all. "
            "5 is the default; 10 is close to exact and takes a little more time",
        )


def _frequent(facts: Facts, ranked: list[Seen]) -> Iterator[Finding]:
    factor, decay = facts.number("lfu-log-factor", 10), facts.number("lfu-decay-time", 1)
    yield Finding(
        "note",
        f"lfu-log-factor {factor}: a key's counter is full after about {hits_to(TOP, factor):,} hits, and at 10 "
        f"after {hits_to(10, factor):,}; a factor of 1 would tell keys apart up to {hits_to(TOP, 1):,} hits, "
        f"one of 100 up to {hits_to(TOP, 100):,}",
    )
    if decay == 0:
        yield Finding(
            "warning",
            "lfu-decay-time is 0: counters never fall, so yesterday's favourites are never evicted "
            "and today's push each other out. Set it to 1 (minute) or so",
        )
    else:
        yield Finding(
            "note",
            f"lfu-decay-time {decay}: a counter falls by one each {decay} min without a use, so a key that was as "
            f"hot as can be ({TOP}) outlives a new one ({NEW}) by {_time((TOP - NEW) * decay * 60)}",
        )
    if not ranked:
        return
    number = len(ranked)
    full = sum((one.freq or 0) >= TOP - 5 for one in ranked) / number
    new = sum((one.freq or 0) <= NEW for one in ranked) / number
    coldest = sorted(ranked, key=lambda one: one.freq or 0)
    tenth = _first_tenth(coldest)
    yield Finding(
        "note",
        f"the tenth of the memory that goes first has counters up to {tenth[-1].freq} ({_groups(tenth)}); "
        f"the middle key has {coldest[number // 2].freq}",
    )
    if full > 0.1:
        yield Finding(
            "warning",
            f"{full:.0%} of the keys have a full counter, so LFU can't tell them apart: raise lfu-log-factor "
            f"(to {max(factor, 1) * 10}: full after {hits_to(TOP, max(factor, 1) * 10):,} hits)",
        )
    if new > 0.9:
        yield Finding(
            "warning",
            f"{new:.0%} of the keys stand at {NEW} or below, so LFU evicts by chance among them: lower lfu-log-factor "
            f"(at 1, {hits_to(10, 1)} hits make a 10), or raise lfu-decay-time (now {decay} min)",
        )


def _first_tenth(ordered: list[Seen]) -> list[Seen]:
    """Those that go until a tenth of the memory is free; at least one."""
    wanted = sum(one.size for one in ordered) / 10
    taken, size = 0, 0.0
    while size < wanted or not taken:
        size += ordered[taken].size
        taken += 1
    return ordered[:taken]


def _groups(some: list[Seen]) -> str:
    counted = Counter(one.group for one in some)
    return ", ".join(f"{number / len(some):.0%} {group}" for group, number in counted.most_common())


def _share(facts: Facts, group: str) -> str:
    number = sum(one.group == group for one in facts.sample)
    return f"{number} of {len(facts.sample)} keys of the sample"


def _pressed(facts: Facts) -> bool:
    return bool(facts.evicted) or (bool(facts.limit) and facts.used >= _FULL * facts.limit)


def _time(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
