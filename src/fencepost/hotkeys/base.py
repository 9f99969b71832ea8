"""What the two faces of hot keys share: what is counted, and what was heard of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fencepost._core.observe import KeyCooled, KeyHot
from fencepost._core.port import Port
from fencepost.errors import FencepostError, Refused
from fencepost.hotkeys.meter import Meter
from fencepost.hotkeys.options import HotKeysOptions
from fencepost.hotkeys.protocol import changed, place_of, tick
from fencepost.hotkeys.scripts import HotKey, Merged

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client

MOST: Final = 128
"""Keys that a merge answers; a key beyond them is not told as hot."""


class HotKeysBase:
    """Hot keys of a client, without the public face.

    Args:
        client: Whose caches and likes are counted.
    """

    def __init__(self, client: AsyncClient | Client) -> None:
        self._io: Port = client.port
        self._taps, self._hook = client.taps, client.hook
        self._namespace = client.namespace
        self._place = place_of(client.namespace)
        self._process = ""
        self._meter: Meter | None = None
        self._hot: dict[str, HotKey] = {}
        self._known: dict[str, tuple[str, str]] = {}  # of what is hot: what this process calls it
        self._counts = {"merges": 0, "failures": 0, "processes": 0}

    def _begin(self, options: HotKeysOptions | None) -> HotKeysOptions:
        if self._meter is not None:
            raise Refused("hot keys are counted already; stop first, to count otherwise")
        options = options or HotKeysOptions()
        self._process = self._io.token()
        self._meter = Meter(options, self._io.now())
        self._taps.open(self._meter.tap)
        return options

    def _end(self) -> None:
        """Nothing is counted any more, and nothing that was hot is taken for hot here."""
        self._meter = None
        self._taps.close()
        self._heard(Merged(0.0, 0, ()))

    async def _tick(self) -> None:
        """One merge. What can't be said now is said anew with the next one."""
        meter = self._meter
        if meter is None:
            return
        try:
            _, merged = await tick(self._io, self._place, self._process, meter, MOST)
        except FencepostError:
            self._counts["failures"] += 1
            return
        if meter is not self._meter:
            return  # it was stopped meanwhile
        self._counts["merges"] += 1
        self._counts["processes"] = merged.processes
        self._heard(merged)

    def _heard(self, merged: Merged) -> None:
        self._hot, came, went = changed(self._hot, merged)
        self._tell_parts()
        if self._hook.listener is None:
            return
        for one in came:
            self._hook.listener(
                KeyHot(one.name, one.reads, one.writes, one.error, one.since or merged.at)
            )
        for one in went:
            lasted = merged.at - (one.since or merged.at) if merged.at else 0.0
            self._hook.listener(KeyCooled(one.name, max(lasted, 0.0)))

    def _tell_parts(self) -> None:
        """Of what is hot, each cache is told of the keys that this process itself asked for."""
        meter, known = self._meter, {}
        for name in self._hot:
            own = self._known.get(name) or (meter.own(name) if meter is not None else None)
            if own is not None:
                known[name] = own
        if known or self._known:
            hot: dict[str, dict[str, tuple[int, int]]] = {}
            for name, (label, key) in known.items():
                one = self._hot[name]
                hot.setdefault(label, {})[key] = (one.reads, one.writes)
            self._taps.heat(hot)
        self._known = known

    async def _top(self, n: int) -> list[HotKey]:
        if type(n) is not int or not 1 <= n <= 1000:
            raise Refused(f"n is a whole number from 1 to 1,000, got {n!r}")
        return list((await self._place.look(self._io, n)).keys)

    def hot(self) -> list[HotKey]:
        """What was hot at this process's last merge; no I/O. Empty while it does not count."""
        return list(self._hot.values())

    def stats(self) -> dict[str, Any]:
        """Merges of this process and those that failed, processes that counted at the last one, hot keys."""
        return {**self._counts, "counting": self._meter is not None, "hot": len(self._hot)}
