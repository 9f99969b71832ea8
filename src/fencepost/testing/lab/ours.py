"""The same item in fencepost's like cache: the protocols that applications run, step by step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from fencepost._core import commands
from fencepost._core.keys import field_of, like_shard, user_of
from fencepost._core.port import run_sync
from fencepost.journal.protocol import Place
from fencepost.likes import LikeOptions, protocol
from fencepost.likes.protocol import Known, Shard
from fencepost.testing.lab.stage import Stage
from fencepost.testing.lab.story import Scene, Verdict

if TYPE_CHECKING:
    from fencepost.testing.play import Play
    from fencepost.testing.scenario import Actor
    from fencepost.testing.simulated import SimPort

NOTES = {
    "epoch": "SELECT the shard's epoch: SQL is asked before the server",
    "snapshot": "SELECT rows, like_count and epoch in one snapshot",
    "commit": "raise the fence in SQL (an older one is refused), write rows, move like_count by them, COMMIT",
    "hmget": "HMGET header: epoch, count and this user's state; no script, no lock",
}
"""Steps that are no scripts."""


class Ours:
    """One item.

    Args:
        stage: Where.
        users: Who likes it at first, says SQL.
        warm: Whether its header is in the cache at first.
        opened: Whether its shard was opened before.
    """

    def __init__(self, stage: Stage, *users: str, warm: bool = True, opened: bool = True) -> None:
        self.stage = stage
        self.item = stage.item(*users)
        options = LikeOptions(shards=1, claim_time=3600.0)
        self.keys = like_shard(stage.namespace, "likes", 0)
        self.shard = Shard("likes", self.keys, Place("likes:likes", 0, 1), stage.store, options)
        self.known: Known | None = None
        while opened and self.known is None:
            self.known = run_sync(protocol.open_shard(stage.port, self.shard))
        if opened and warm:
            run_sync(protocol.status(stage.port, self.shard, self.known, str(self.item), None))

    def click(self, user: str, liked: bool) -> Actor:
        """A user likes or unlikes it."""
        return lambda io: protocol.set_like(io, self.shard, self.known, str(self.item), user, liked)

    def page(self, user: str) -> Actor:
        """A user's page."""

        async def work(io: SimPort) -> tuple[bool, int]:
            status, _ = await protocol.status(io, self.shard, self.known, str(self.item), user)
            return status.liked, status.count

        return work

    def flusher(self) -> Actor:
        """Brings the item's journal into SQL."""

        def start(io: SimPort) -> Coroutine[Any, Any, Any]:
            return protocol.flush_items(io, self.shard, self.known, [str(self.item)])

        return start

    def world(self, *steps: str) -> Actor:
        """What happens to the server."""

        async def work(io: SimPort) -> None:
            for step in steps:
                await io.call(getattr(self, step))

        return work

    def expire(self) -> None:
        """the header is lost, though one with unflushed changes never expires"""
        run_sync(self.stage.port.run(commands.delete(self.keys.header(str(self.item)))))

    def scene(self, verdict: Callable[[Play], Verdict], **actors: Actor) -> Scene:
        """Itself, with actors and a judge."""
        return Scene(actors=actors, picture=self.picture, verdict=verdict, notes=NOTES)

    def picture(self) -> dict[str, str]:
        """Server and database."""
        header = self._hash(self.keys.header(str(self.item)))
        journal = self._hash(self.keys.journal(str(self.item)))
        states = {who: state for who, state in header.items() if not who.startswith("#")}
        return {
            "header": f"n={header['#n']} {_hearts(states)}" if "#n" in header else "no key",
            "journal": _hearts({who: state[0] for who, state in journal.items()})
            if journal
            else "∅",
            **self.stage.in_sql(self.item),
        }

    def _hash(self, key: str) -> dict[str, str]:
        found: dict[str, str] = run_sync(self.stage.port.run(commands.hgetall(key)))
        return found

    def owes(self, user: str) -> bool:
        """Whether the journal holds a change of a user that is not in SQL."""
        return field_of(user) in self._hash(self.keys.journal(str(self.item)))


def _hearts(states: dict[str, str]) -> str:
    return " ".join(f"{user_of(who)}:{state}" for who, state in sorted(states.items())) or "nobody"
