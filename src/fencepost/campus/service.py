"""The running service: what every request works with, opened and closed in one place."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.concurrency import run_in_threadpool

from fencepost import AsyncClient
from fencepost.campus.activities import Activities, Activity, NewActivity
from fencepost.campus.catalogue import MISSING_TTL, Catalogue
from fencepost.campus.desk import Desk
from fencepost.campus.duties import Duties
from fencepost.campus.metrics import Metrics
from fencepost.campus.problems import log, not_durable, unchanged
from fencepost.campus.samples import samples
from fencepost.campus.security import Sessions, load_secret
from fencepost.campus.tables import activities, activities_likes, create_tables, open_engine
from fencepost.errors import FencepostError, OutcomeUnknown, Overloaded, Refused, UnknownItem
from fencepost.jobs import outbox
from fencepost.likes import LikeOptions, SqlLikes
from fencepost.server import start

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from sqlalchemy import Engine

    from fencepost.campus.settings import Settings
    from fencepost.likes import AsyncLikes, Durability, LikeResult, LikeStatus
    from fencepost.likes import Page as Likers
    from fencepost.likes.store import Id

HEALTH_LIMIT = 1.0
DISK_WAIT = 4.0


@dataclass(frozen=True)
class Card:
    """An activity and how it is liked; ``status`` is None where that is not known now."""

    activity: Activity
    status: LikeStatus | None


@dataclass(frozen=True)
class Page:
    """Some cards, where the list goes on, and what kept the likes from being known."""

    cards: list[Card]
    next: int | str | None
    outage: FencepostError | None = None


@dataclass(kw_only=True)
class Campus:
    """Everything a request needs."""

    settings: Settings
    activities: Catalogue
    client: AsyncClient
    likes: AsyncLikes
    sessions: Sessions
    desk: Desk
    metrics: Metrics = field(default_factory=Metrics)
    duties: Duties = field(init=False)
    left: int | None = None
    """Once closed: of how many activities likes were still in the journal; None if unknown."""

    def __post_init__(self) -> None:
        self.duties = Duties(
            self.settings, self.activities.table.engine, self.client, self.likes, self.metrics
        )

    async def page(self, user: str | None, after: int | None, limit: int) -> Page:
        """A page of cards; activities come even when the like server does not answer."""
        found, more = await self.activities.page(after, limit)
        outage = None
        try:
            known = await self.statuses((activity.id for activity in found), user)
        except FencepostError as error:
            known, outage = {}, error
        return Page([Card(each, known.get(each.id)) for each in found], more, outage)

    async def create(self, new: NewActivity) -> Activity:
        """Make an activity, which can be liked at once, also by who asked for its id before."""
        activity = await self.activities.add(new)
        try:
            await self.activities.announce(activity.id)
            await self.likes.invalidate(activity.id)
        except FencepostError as error:
            # it is made all the same; what was known before is forgotten after seconds
            log.warning("activity %d could not be made known: %s", activity.id, error)
        return activity

    async def change(self, activity_id: int, changes: Mapping[str, Any]) -> Activity:
        """Change some fields of an activity; whoever asks from then on sees it, in every process.

        Raises:
            UnknownItem: There is none.
            Problem: The change could not be announced, so nothing was changed (503).
        """
        try:
            return await self.activities.change(activity_id, changes)
        except (UnknownItem, Overloaded):
            raise
        except FencepostError as error:
            raise unchanged(error) from error

    async def delete(self, activity_id: int) -> None:
        """Delete an activity with its likes, those too that wait in the journal.

        Raises:
            UnknownItem: There is none.
            FencepostError: It may be half done; calling again is harmless.
        """
        table, removed = self.activities.table, False

        def remove_row() -> None:
            nonlocal removed
            removed = table.remove(activity_id)

        async def remove() -> None:
            if await run_in_threadpool(table.get, activity_id) is not None:
                await self.likes.forget_item(activity_id, remove_row)
            else:
                # whatever a deletion that was cut off has left; ids are never used again
                await self.likes.invalidate(activity_id)

        await self.activities.remove(activity_id, remove)
        if not removed:
            raise UnknownItem(f"there is no activity {activity_id}")

    async def statuses(self, ids: Iterable[int], user: str | None) -> dict[int, LikeStatus]:
        """How these are liked; what is not known is absent.

        Raises:
            FencepostError: The like server can't say.
        """
        wanted = list(ids)
        try:
            known = await self.likes.status_many(wanted, user) if wanted else {}
        except FencepostError:
            self.metrics.link.set(0)
            raise
        self.metrics.link.set(1)
        return known

    async def like(
        self, activity_id: int, user: str, *, liked: bool, durability: Durability = "behind"
    ) -> LikeResult:
        """Set one user's like, and count it.

        Raises:
            FencepostError: As ``AsyncLikes.set``.
            Problem: It can't be as durable as was asked (422), or is not known to be (503).
        """
        try:
            result = await self.likes.set(activity_id, user, liked=liked, durability=durability)
        except (OutcomeUnknown, Refused) as error:
            if durability == "behind":
                raise
            raise not_durable(durability, error) from error
        action, changed = "like" if liked else "unlike", "yes" if result.changed else "no"
        self.metrics.likes.labels(action, changed).inc()
        return result

    async def likers(self, activity_id: int, after: str | None, limit: int) -> Likers[Id]:
        """Who likes an activity, the newest first.

        Raises:
            FencepostError: As ``AsyncLikes.likers``.
        """
        if await self.activities.get(activity_id) is None:
            raise UnknownItem(f"there is no activity {activity_id}")
        return await self.likes.likers(activity_id, limit, after)

    async def liked(self, user: str, after: str | None, limit: int) -> Page:
        """What a user likes, the newest first; each card's heart is full.

        Raises:
            FencepostError: As ``AsyncLikes.liked_by``.
        """
        found = await self.likes.liked_by(user, limit, after)
        ids = [int(each) for each in found.items]
        known = await self.statuses(ids, user)
        there = await self.activities.some(ids) if ids else {}
        cards = [Card(there[each], known[each]) for each in ids if each in there and each in known]
        # what was taken back since it was found is left out
        return Page([card for card in cards if card.status and card.status.liked], found.after)

    async def measure(self) -> bytes:
        """All figures, those of the journal too if the like server answers."""
        try:
            async with asyncio.timeout(HEALTH_LIMIT):
                backlog = await self.likes.backlog()
                self.metrics.show_queue(await self.desk.queue.count())
        except (FencepostError, TimeoutError):
            self.metrics.link.set(0)
        else:
            self.metrics.link.set(1)
            self.metrics.backlog_items.set(backlog.items)
            self.metrics.backlog_changes.set(backlog.changes)
            self.metrics.backlog_seconds.set(backlog.oldest)
        return self.metrics.text()

    async def health(self) -> dict[str, str]:
        """``ok``, or what is wrong, for the database and the like server."""
        sql, likes = await asyncio.gather(self._sql_health(), self._like_health())
        self.metrics.link.set(likes == "ok")
        return {"database": sql, "likes": likes}

    async def _sql_health(self) -> str:
        try:
            async with asyncio.timeout(HEALTH_LIMIT):
                # a thread that hangs is left behind, so that the answer is not
                await anyio.to_thread.run_sync(self.activities.table.ping, abandon_on_cancel=True)
        except TimeoutError:
            return f"no answer within {HEALTH_LIMIT:g} s"
        except Exception as error:
            log.warning("the database is not healthy: %s", error)
            return "does not answer"
        return "ok"

    async def _like_health(self) -> str:
        try:
            async with asyncio.timeout(HEALTH_LIMIT):
                await self.client.command("PING")
        except TimeoutError:
            return f"no answer within {HEALTH_LIMIT:g} s"
        except FencepostError as error:
            log.warning("the like server is not healthy: %s", error)
            return "does not answer"
        return "ok"


def open_client(settings: Settings) -> AsyncClient:
    """The client of the like server; lazy."""
    options = {"namespace": settings.namespace, "budget": settings.budget}
    if settings.url is None:
        return AsyncClient.embedded(settings.server_dir, **options)
    return AsyncClient.from_url(settings.url, **options)


def open_store(engine: Engine) -> SqlLikes:
    """Likes of activities, in SQL."""
    return SqlLikes(
        engine, item=activities.c.id, count=activities.c.like_count, likes=activities_likes
    )


def open_likes(client: AsyncClient, store: SqlLikes, *, embedded: bool = False) -> AsyncLikes:
    """The like cache of activities; every process must open it alike."""
    options = LikeOptions(missing_ttl=MISSING_TTL, hints=True)
    if embedded:
        # it has no replicas: there, replicated is on its disk, which it syncs every second
        options = replace(options, replicas=0, replicated="aof", replicated_wait=DISK_WAIT)
    return client.likes("activities", store=store, options=options)


def make_data_dir(settings: Settings) -> None:
    """Make the data directory, for its owner alone."""
    try:
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{settings.data} can't be the data directory: {error.strerror}") from error


@asynccontextmanager
async def open_campus(settings: Settings) -> AsyncIterator[Campus]:
    """Open everything in order, and close it in the other order, the flusher first.

    Raises:
        FencepostError: The like server does not answer, or a setting does not fit.
        SQLAlchemyError: The database does not answer.
    """
    make_data_dir(settings)
    secret = settings.secret or load_secret(settings.data / "secret")
    async with AsyncExitStack() as stack:
        engine = open_engine(settings)
        stack.callback(engine.dispose)
        store = open_store(engine)
        more = (store.create_tables, partial(outbox.create_tables, engine))
        await run_in_threadpool(create_tables, engine, *more)
        table = Activities(engine)
        if settings.samples:
            await run_in_threadpool(table.add_once, "samples", samples(datetime.now(UTC)))
        if settings.url is None:
            # held from here on: its data may take longer to load than a call may take
            stack.callback((await run_in_threadpool(start, settings.server_dir)).close)
        client = open_client(settings)
        stack.push_async_callback(client.aclose)
        await client.command("PING")  # an address that does not answer is told now
        desk = Desk(client, engine, settings.hold)
        table.changed, table.removed = desk.changed, desk.removed
        campus = Campus(
            desk=desk,
            settings=settings,
            activities=Catalogue(table, client),
            client=client,
            likes=open_likes(client, store, embedded=settings.url is None),
            sessions=Sessions(secret, settings.token),
        )
        await campus.likes.check()
        campus.metrics.watch(campus.likes.stats)
        for cache in (campus.activities.details, campus.activities.board):
            campus.metrics.watch_cache(cache.name, cache.stats)
        campus.metrics.watch_jobs(lambda: desk.worker.counts)
        campus.metrics.link.set(1)
        await stack.enter_async_context(_flushing(campus))
        if settings.duties:
            await stack.enter_async_context(campus.duties.on_duty())
        if settings.desk:
            await stack.enter_async_context(desk.open())
        yield campus


@asynccontextmanager
async def _flushing(campus: Campus) -> AsyncIterator[None]:
    """Flush while the block runs, drain at its end, and note what is left."""
    drain = campus.settings.drain
    try:
        if campus.settings.flusher:
            async with campus.likes.flusher(drain=drain):
                yield
        else:
            yield
        async with asyncio.timeout(HEALTH_LIMIT):
            campus.left = (await campus.likes.backlog()).items
    except (FencepostError, TimeoutError) as error:
        # nothing is lost: what was acknowledged is in the journal
        log.warning("the like server did not answer at the end: %s", error)
