"""Activities as campus shows them: read through a cache, and changed through it.

What is cached is what people wrote (title, place, time, capacity) and which activities a page of
the board holds; likes are asked of the likes, each time. A change is announced to the cache before
it goes to SQL, so no process, however slow, shows what was there before once it is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool

from fencepost.cache import Loaded
from fencepost.campus.activities import Activity
from fencepost.campus.problems import log
from fencepost.errors import FencepostError, UnknownItem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from fencepost import AsyncClient
    from fencepost.cache import AsyncCache
    from fencepost.campus.activities import Activities, NewActivity

TTL: Final = 60.0
BOARD_TTL: Final = 10.0
"""For so long a page of the board may miss what somebody wrote to SQL past campus, and what was
made while the server of the cache was away."""
MISSING_TTL: Final = 0.5
_BOARD: Final = "board"
_LIMITS: Final[dict[str, Any]] = {
    "negative_ttl": MISSING_TTL,
    "jitter": 0.1,
    "lease": 2.0,  # so long a process that was stopped in the middle of a load holds up the others
    "load_limit": 10.0,
    "wait": 5.0,
    "max_loads": 8,  # the connections that the engine keeps
}


@dataclass(frozen=True)
class Listed:
    """Which activities a page of the board holds, and where the list goes on."""

    ids: list[int]
    next: int | None


class Catalogue:
    """The activities of a campus.

    Args:
        table: Where they are.
        client: Of the server that caches them.
    """

    def __init__(self, table: Activities, client: AsyncClient) -> None:
        self.table = table
        self.details: AsyncCache[Activity] = client.cache(
            "activities", type=Activity, ttl=TTL, **_LIMITS
        )
        self.board: AsyncCache[Listed] = client.cache(
            "board", type=Listed, ttl=BOARD_TTL, **_LIMITS
        )

    async def get(self, activity_id: int) -> Activity | None:
        """One activity, or None."""
        return await self.details.get(str(activity_id), lambda: self.table.get(activity_id))

    async def some(self, ids: Iterable[int]) -> dict[int, Activity]:
        """Those of these activities that exist."""

        def load(keys: list[str]) -> dict[str, Activity]:
            found = self.table.some(map(int, keys))
            return {str(number): activity for number, activity in found.items()}

        found = await self.details.get_many(map(str, ids), load)
        return {int(key): activity for key, activity in found.items()}

    async def page(self, after: int | None, limit: int) -> tuple[list[Activity], int | None]:
        """Newest first: up to ``limit`` activities below id ``after``, and where to go on."""

        def load() -> Listed:
            rows, more = self.table.page(after, limit)
            return Listed([row.id for row in rows], more)

        listed = await self.board.get(f"{after or ''}.{limit}", load, tags=(_BOARD,))
        if listed is None:
            return [], None
        there = await self.some(listed.ids)
        return [there[each] for each in listed.ids if each in there], listed.next

    async def add(self, new: NewActivity) -> Activity:
        """Insert one; ``announce`` it then."""
        return await run_in_threadpool(self.table.add, new)

    async def announce(self, activity_id: int) -> None:
        """Make it known that an activity exists now.

        Raises:
            FencepostError: The server can't be told; it is known after ``BOARD_TTL`` all the same.
        """
        await self.details.invalidate(str(activity_id))
        await self.board.invalidate_tags(_BOARD)

    async def change(self, activity_id: int, changes: Mapping[str, Any]) -> Activity:
        """Change some fields of an activity.

        Raises:
            UnknownItem: There is none.
            FencepostError: The change could not be announced; nothing was changed.
        """
        saved: list[Activity] = []

        def save(_: object) -> Loaded[Activity]:
            changed = self.table.change(activity_id, changes)
            if changed is None:
                raise UnknownItem(f"there is no activity {activity_id}")
            saved.append(changed)
            return Loaded(changed)

        try:
            await self.details.write_through(str(activity_id), None, save)
        except FencepostError as error:
            if not saved:
                raise
            # what was there before ends with the announcement, after seconds
            log.warning("activity %d was changed, not told: %s", activity_id, error)
        return saved[0]

    async def remove(self, activity_id: int, remove: Callable[[], Awaitable[None]]) -> None:
        """Have an activity removed, and forget it.

        Raises:
            FencepostError: It may be half done; calling again is harmless.
        """

        async def save() -> None:
            await remove()

        await self.details.write_around(str(activity_id), save)
        await self.board.invalidate_tags(_BOARD)
