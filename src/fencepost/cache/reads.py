"""Reading through: one text for loops and threads, over the port and the flights of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import MsgspecError

from fencepost.cache import loading, many, protocol
from fencepost.cache.base import CacheBase, must_be_key
from fencepost.cache.entry import Entry, Stored
from fencepost.cache.flight import LATE, Crowded
from fencepost.cache.judge import EARLY, FRESH, GONE, STALE
from fencepost.cache.loading import UNREACHABLE, Held
from fencepost.cache.protocol import NOTHING, Look
from fencepost.cache.region import PLAIN, Ask, Load
from fencepost.cache.under_way import UnderWay
from fencepost.errors import Overloaded, ServerError, Unavailable, WaitTimeout

if TYPE_CHECKING:
    pass

T = TypeVar("T")
DOWN: Final = (*UNREACHABLE, Overloaded, ServerError)
"""The server does not do what it should: it is away, full, out of memory, misconfigured."""
_FAILED_KEYS: Final = 1024
_KNOWN: Final = 8192


class Reads(CacheBase[T]):
    """A cache, as far as it is read."""

    # -- one entry

    async def _entry(
        self,
        key: str,
        load: Load,
        ask: Ask,
        raw: bytes | None = None,
        down: Exception | None = None,
        asked: float | None = None,
        missed: bool = False,
    ) -> Entry[T]:
        """Read through. ``raw`` is what was read already (``missed``: that there is nothing), ``down``
        why the server can't be asked, ``asked`` when the call began."""
        must_be_key(key)
        io, options = self._io, self.options
        asked = io.now() if asked is None else asked
        for _ in range(options.rounds):
            found = NOTHING
            if down is None and not missed:
                found, down = await self._look(key, ask, raw)
            raw, missed = None, False
            if found.state in (FRESH, EARLY, STALE) and found.stored is not None:
                served = await self._serve(key, load, ask, found, found.stored)
                if served is not None:
                    return served
            self._told.counts["misses"] += 1
            self._raise_recent_failure(key)
            place = key if options.coalesce != "none" else f"{key} {io.token()}"
            entry = await self._flights.share(
                place, self._work(key, load, ask, found, down), options.wait
            )
            if entry is LATE:
                return await self._late(key, load, ask)
            if entry is not None and entry.as_of >= asked and self._takes(ask, entry):
                return _checked(entry)
            down = None
            # It was read before this call began: somebody else's answer.
        place = f"{key} {io.token()}"
        entry = await self._flights.share(place, self._work(key, load, ask, NOTHING, None), None)
        return _checked(entry)

    async def _look(self, key: str, ask: Ask, raw: bytes | None) -> tuple[Look, Exception | None]:
        io = self._io
        if not self._breaker.admits(io.now()):
            return NOTHING, Unavailable(
                f"the server did not answer {self._breaker.failures} times; it is probed now and then"
            )
        try:
            if raw is not None:
                found = await protocol.judged(io, self._region, key, ask, raw, {})
            else:
                found = await protocol.look(io, self._region, key, ask)
        except DOWN as error:
            self._note_failure(error)
            return NOTHING, error
        self._note_answer()
        return found, None

    async def _serve(
        self, key: str, load: Load, ask: Ask, found: Look, stored: Stored[T]
    ) -> Entry[T] | None:
        """An entry that may be served at once; whoever finds it early or stale has it refreshed."""
        io, options, state = self._io, self.options, found.state
        if state is FRESH:
            self._hits += 1
            known = self._known.get(key)
            if known is not None:
                known.learn(stored, self._region.codec, self._early)
            return stored.shown("hit", io.now())
        if self._recently_failed(key, 1.0) is None:
            quiet = Ask(ask.tags, ask.ttl, None, ask.conditional, background=True)
            self._flights.start(key, self._work(key, load, quiet, found, None))
        if state is EARLY:
            self._hits += 1
            self._told.counts["early"] += 1
            return stored.shown("hit", io.now())
        if options.soft_limit:
            entry = await self._soon(key)
            if entry is not None:
                return entry
        self._told.counts["stale"] += 1
        return stored.shown("stale", io.now())

    async def _soon(self, key: str) -> Entry[T] | None:
        """What the refresh that was just begun brings within ``soft_limit``. If that is left to another
        process, nobody waits for it: a stale value is at hand."""
        try:
            entry = await self._flights.share(key, None, self.options.soft_limit)
        except Exception:
            return None  # told as an event; the stale value is at hand
        return None if entry is LATE else entry

    def _work(
        self, key: str, load: Load, ask: Ask, found: Look, down: Exception | None
    ) -> Callable[[Held], Any]:
        def work(held: Held) -> Any:
            held.lease = self._region.keys(key).lease
            return self._refresh(key, load, ask, found, down, held)

        return work

    async def _refresh(
        self,
        key: str,
        load: Load,
        ask: Ask,
        found: Look,
        down: Exception | None,
        held: Held,
    ) -> Entry[T] | None:
        """Refresh, or load without the server where it can't be reached."""
        under_way = held.load = UnderWay()
        limited = self._limited(load, under_way)
        try:
            if down is None:
                try:
                    entry = await protocol.refresh(
                        self._io, self._region, key, limited, ask, found, held
                    )
                except DOWN as error:
                    if error is under_way.error or isinstance(error, Crowded):
                        raise
                    self._note_failure(error)
                    if ask.background:
                        return None
                    down = error
                else:
                    if entry is not None and entry.reason == "unreachable":
                        self._note_failure(Unavailable("the server did not answer a publication"))
                    return entry
            if self.options.on_down == "raise":
                raise down
            return await loading.load_only(
                self._io, self._region, key, limited, ask, found.stored, "unreachable"
            )
        except Exception as error:
            if error is under_way.error:
                self._remember_failure(key, error)
            raise

    async def _late(self, key: str, load: Load, ask: Ask) -> Entry[T]:
        """A flight of this process took longer than its caller waits."""
        self._told.counts["wait_timeouts"] += 1
        if self.options.on_timeout != "load":
            raise WaitTimeout(
                f"{key!r} was being loaded by this process for {self.options.wait:g} s; "
                "raise wait, or choose on_timeout='load'"
            )
        limited = self._limited(load, UnderWay())
        return await loading.load_only(
            self._io, self._region, key, limited, ask, None, "unpublished"
        )

    async def _force(self, key: str, load: Load, ask: Ask) -> Entry[T]:
        """Load now, whatever is there; somebody's load that began after this call will do."""
        must_be_key(key)
        self._reads(key)
        io = self._io
        found, down = await self._look(key, ask, None)
        newer = Ask(ask.tags, ask.ttl, ask.stale, ask.conditional, newer_than=io.server_ms())
        self._flights.detach(key)
        entry = await self._flights.share(
            f"{key} {io.token()}", self._work(key, load, newer, found, down), None
        )
        return _checked(entry)

    async def _peek(self, key: str, stale: float | None, tags: Iterable[str]) -> Entry[T] | None:
        must_be_key(key)
        self._reads(key)
        found = await protocol.look(self._io, self._region, key, self._ask(tags, None, stale))
        if found.stored is None or found.state is GONE:
            return None
        return found.stored.shown("stale" if found.state is STALE else "hit", self._io.now())

    # -- many entries

    async def _get_many(self, wanted: Iterable[str], load_many: Load, ask: Ask) -> dict[str, Any]:
        names = list(dict.fromkeys(wanted))
        for name in names:
            must_be_key(name)
            self._reads(name)
        if not names:
            return {}
        io, region, under_way = self._io, self._region, UnderWay()
        limited = self._limited(load_many, under_way)
        if not self._breaker.admits(io.now()):
            return await self._many_without(names, limited, None)
        seen: dict[str, Any] = {}
        found: dict[str, Entry[Any]] = {}
        try:
            raws = await self._glance(names, seen) if ask is PLAIN else None
            left = [name for name in names if name not in seen] if seen else names
            looks = await many.look_many(io, region, left, ask, raws) if left else {}
            self._note_answer()
            old: many.Seen = {}
            pending: many.Seen = {}
            for name, look in looks.items():
                if look.stored is None or look.state is GONE:
                    pending[name] = look
                    continue
                found[name] = look.stored.shown("stale" if look.state is STALE else "hit")
                if look.state is not FRESH:
                    old[name] = look
                elif ask is PLAIN:
                    (self._known.get(name) or self._know(name)).learn(
                        look.stored, region.codec, self._early
                    )
            self._hits += len(seen) + len(found) - len(old)
            self._told.counts["misses"] += len(pending)
            if old:
                self._refresh_old(old, load_many, ask)
            if pending:

                def work(held: Held) -> Any:
                    held.load = under_way
                    return many.refresh_many(io, region, pending, limited, ask, held)

                # A flight of its own: if its caller is cancelled, its leases are given back.
                found.update(await self._flights.share(f"many {io.token()}", work, None))
        except DOWN as error:
            if error is under_way.error or isinstance(error, Crowded):
                raise
            self._note_failure(error)
            missing = [name for name in names if name not in found and name not in seen]
            rest = await self._many_without(missing, limited, error)
            return seen | many.values(found, names) | rest
        if not seen:
            return many.values(found, names)
        both = seen | many.values(found, names)
        return {name: both[name] for name in names if name in both}

    async def _glance(
        self, names: Sequence[str], seen: dict[str, Any]
    ) -> dict[str, bytes | None] | None:
        """Read many as ``get`` reads one: what is still the entry that this process knows goes into
        ``seen`` at once; all that was read is returned, None if it has to be read with more care."""
        known = [self._known.get(name) or self._know(name) for name in names]
        try:
            raws = await self._io.all([one.call for one in known])
        except ServerError as error:
            if error.code != "WRONGTYPE":
                raise
            return None
        now_ms = self._io.server_ms()
        for name, one, raw in zip(names, known, raws, strict=True):
            head, end, until_ms = one.seen
            if raw is not None and raw.startswith(head) and now_ms < until_ms:
                with contextlib.suppress(ValueError, MsgspecError):
                    seen[name] = self._decode(raw[end:])
        return dict(zip(names, raws, strict=True))

    async def _many_without(
        self, names: Sequence[str], load_many: Load, error: Exception | None
    ) -> dict[str, Any]:
        if self.options.on_down == "raise":
            raise error or Unavailable("the server does not answer; it is probed now and then")
        entries = await many.load_many_only(self._io, self._region, names, load_many, "unreachable")
        return many.values(entries, names)

    def _refresh_old(self, old: many.Seen, load_many: Load, ask: Ask) -> None:
        quiet, under_way = Ask(ask.tags, ask.ttl, background=True), UnderWay()
        limited = self._limited(load_many, under_way)

        def work(held: Held) -> Any:
            held.load = under_way
            return many.refresh_many(self._io, self._region, old, limited, quiet, held)

        self._flights.start(f"many {self._io.token()}", work)

    def _takes(self, ask: Ask, entry: Entry[Any]) -> bool:
        """Whether a stale answer of a shared flight is fresh enough for this caller."""
        if entry.status != "stale" or ask.stale is None:
            return True
        return self._io.server_ms() / 1000 - entry.fresh_until < ask.stale


def _checked(entry: Any) -> Entry[Any]:
    if entry is None:
        raise Unavailable("the load ended without an answer")
    known: Entry[Any] = entry
    return known
