"""Shares under the hand: what a semaphore and a read/write lock must hold, for the explorer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fencepost.lock.scripts import SHARES, Scripts
from fencepost.lock.shares import SharePlace, permits_of, reading, writing
from fencepost.testing import View
from support.lock import Actor, LockWorld, altered


def without(verb: str, old: str, new: str = "") -> Scripts:
    """The scripts of shares with one line of one of them taken out."""
    return altered(verb, old, new, SHARES)


class ShareWorld(LockWorld):
    """One semaphore or read/write lock, and actors on it.

    Args:
        scripts: Those of its shares.
        permits: Of the semaphore; None is a read/write lock.
        alone: Nothing ends a lease but its holder.
    """

    def __init__(
        self, scripts: Scripts = SHARES, *, permits: int | None = None, alone: bool = True
    ) -> None:
        super().__init__(scripts, alone=alone)
        made = writing("t", "x") if permits is None else permits_of("t", "x", permits)
        self.place: SharePlace = replace(made, scripts=scripts)
        self.keys = self.place.keys
        self.places: dict[str, SharePlace] = {}

    def actors(self, **asked: Any) -> dict[str, Actor]:
        """Holders by name: each asks for a weight, for ``(weight, permits)``, or to read or write."""
        return {name: self.taking(name, share) for name, share in asked.items()}

    def taking(self, name: str, share: Any, **ask: Any) -> Actor:
        """One of them."""
        if share in ("read", "write"):
            place = reading("t", "x") if share == "read" else writing("t", "x")
            place = replace(place, scripts=self.place.scripts)
        elif isinstance(share, tuple):
            place = replace(self.place, share=share[0], permits=share[1])
        else:
            place = replace(self.place, share=share)
        self.places[name] = place
        return self.holds(place=place, **ask)

    def beside(self, inside: tuple[str, ...], name: str) -> bool:
        together = [self.places[one] for one in (*inside, name)]
        return sum(one.share for one in together) > min(one.permits for one in together)

    # -- what must hold on the server

    def invariant(self, view: View) -> str | None:
        return super().invariant(view) or self.books(view)

    def books(self, view: View) -> str | None:
        """What is counted is what stands, and no more is out than anybody who is in counts on."""
        kept = dict(view.value(self.keys.lock, {}))
        ends = dict(view.value(self.keys.ends, {}))
        used, bounds = kept.pop("#used", "0"), kept.pop("#bounds", "")
        shares = {attempt: share.split(" ")[:2] for attempt, share in kept.items()}
        out = sum(int(weight) for weight, _ in shares.values())
        if out != int(used):
            return f"{used} are counted, {out} are out: {kept}"
        if set(ends) != set(shares):
            return f"these end: {sorted(ends)}, these are in: {sorted(shares)}"
        told = dict(word.split("=") for word in bounds.split())
        asked = [permits for _, permits in shares.values()]
        if told != {one: str(asked.count(one)) for one in asked}:
            return f"bounds are {bounds!r}, asked for were {asked}"
        if asked and out > min(map(int, asked)):
            return f"{out} are out beside who counts on {min(map(int, asked))}"
        return None
