"""A like cache under the hand: the real server, a real SQLite file, actors that are stepped.

with Lab(server_url, namespace, tmp_path) as lab:
    item = lab.item("u1", "u2")
    lab.run("a.set b.hmget", a=lab.set(item, "u1", False), b=lab.status(item, "u2"))
    lab.holds(item, {"u2"})
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

from sqlalchemy import (
    Column,
    DateTime,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
)

from fencepost import Client
from fencepost._core.keys import field_of, like_shard
from fencepost._core.port import run_sync
from fencepost._core.script import Script
from fencepost.journal import protocol as journal
from fencepost.likes import LikeOptions, SqlLikes, protocol
from fencepost.likes.protocol import Known, LikeStatus, Shard
from fencepost.likes.scripts import SCRIPTS, Scripts
from fencepost.likes.store import LikeStore, Place
from fencepost.testing import Play, PlayError, SimPort

Actor = Callable[[SimPort], Coroutine[Any, Any, Any]]
Keys = set[str]
NEVER = 3600.0  # longer than any test: what must not happen by itself does not

metadata = MetaData()
activities = Table(
    "activities",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("like_count", Integer, nullable=False, server_default="0"),
)
likes_table = Table(
    "activities_likes",
    metadata,
    Column("activity_id", Integer, primary_key=True),
    Column("user_id", String(64), primary_key=True),
    Column("liked_at", DateTime(timezone=True)),
)
TABLES: dict[str, Any] = {
    "item": activities.c.id,
    "count": activities.c.like_count,
    "likes": likes_table,
}


def open_database(path: Path, busy: float = 10.0) -> Engine:
    """A SQLite file with the application's tables and fencepost's.

    Args:
        path: The file.
        busy: Seconds that a transaction waits for another one.
    """
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": busy})

    @event.listens_for(engine, "connect")
    def _quick(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # the machine does not lose power in a test

    metadata.create_all(engine)
    SqlLikes(engine, **TABLES).create_tables()
    return engine


def add_item(engine: Engine, item: int, *users: str) -> int:
    """An item that these users like already."""
    with engine.begin() as connection:
        connection.execute(insert(activities).values(id=item, like_count=len(users)))
        if users:
            rows = [{"activity_id": item, "user_id": user} for user in users]
            connection.execute(insert(likes_table), rows)
    return item


def delete_item(engine: Engine, item: int) -> None:
    """An item and its likes, deleted past fencepost."""
    with engine.begin() as connection:
        connection.execute(likes_table.delete().where(likes_table.c.activity_id == item))
        connection.execute(activities.delete().where(activities.c.id == item))


def rows_of(engine: Engine, item: int) -> set[str]:
    """Who likes an item, says SQL."""
    with engine.connect() as connection:
        found = connection.execute(
            select(likes_table.c.user_id).where(likes_table.c.activity_id == item)
        )
        return set(found.scalars())


def count_of(engine: Engine, item: int) -> int:
    """How many do, says the counter in SQL."""
    with engine.connect() as connection:
        read = select(activities.c.like_count).where(activities.c.id == item)
        return int(connection.execute(read).scalar_one())


def drifted(engine: Engine) -> list[Any]:
    """Items whose counter is not the number of their rows."""
    counted = (
        select(func.count())
        .where(likes_table.c.activity_id == activities.c.id)
        .correlate(activities)
        .scalar_subquery()
    )
    with engine.connect() as connection:
        read = select(activities.c.id, activities.c.like_count, counted)
        return list(connection.execute(read.where(activities.c.like_count != counted)))


def altered(script: Script[Any], old: str, new: str = "") -> Script[Any]:
    """A script with one piece of its text replaced: how a guard is taken out.

    Raises:
        PlayError: The piece does not stand in it exactly once.
    """
    if script.plain.count(old) != 1:
        raise PlayError(f"{script.contract.verb}: {old!r} does not stand there once")
    return script.with_text(script.plain.replace(old, new))


def without(verb: str, old: str, new: str = "") -> Scripts:
    """All scripts, one of them ``altered``."""
    return dataclasses.replace(SCRIPTS, **{verb: altered(getattr(SCRIPTS, verb), old, new)})


@contextlib.contextmanager
def goes_wrong() -> Iterator[None]:
    """The block must end in a wrong outcome; a schedule that does not fit proves nothing."""
    try:
        yield
    except PlayError:
        raise
    except AssertionError:
        return
    raise AssertionError("it came out right: the guard that is missing here guards nothing")


class Lab:
    """One shard of one like cache, opened, with as many items as a test asks for.

    Args:
        url: The server.
        namespace: The first part of every key.
        home: Where the database file lives.
        store: Makes the store; by default ``SqlLikes``.
        scripts: What runs on the server.
        engine: A database with the tables; by default a SQLite file.
        **options: For ``LikeOptions``; times that matter to nobody are long.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        home: Path,
        *,
        store: Callable[[Engine], LikeStore] | None = None,
        scripts: Scripts = SCRIPTS,
        engine: Engine | None = None,
        **options: Any,
    ) -> None:
        self.client_url = url
        self.client = Client.from_url(url, namespace=namespace)
        self.engine = engine or open_database(home / f"{namespace}.db")
        self.store = store(self.engine) if store else SqlLikes(self.engine, **TABLES)
        self.options = LikeOptions(**({"shards": 1, "claim_time": NEVER} | options))
        self.shard = Shard(
            "likes",
            like_shard(namespace, "likes", 0),
            Place("likes:likes", 0, 1),
            self.store,
            self.options,
            scripts=scripts,
        )
        self.keys = self.shard.keys
        self.port = self.client.port
        self._numbers = itertools.count(1)
        self._plays: list[Play] = []
        try:
            self.known: Known = self.open()
        except BaseException:
            self.client.close()
            self.engine.dispose()
            raise

    # -- the stage

    def item(self, *users: str) -> int:
        """A new item that these users like already, says SQL; the cache has not heard of it."""
        return add_item(self.engine, next(self._numbers), *users)

    def open(self) -> Known:
        """Make sure that the shard is open; what is known then."""
        for _ in range(3):
            known = run_sync(protocol.open_shard(self.port, self.shard))
            if known is not None:
                self.known = known
                return known
        raise AssertionError("the shard does not open")

    def play(self, **actors: Actor) -> Play:
        """Actors that are stepped by hand."""
        play = Play(self.port, **actors)
        self._plays.append(play)
        return play

    def run(self, schedule: str, **actors: Actor) -> Play:
        """Play a schedule; the play, to ask for results or to go on."""
        play = self.play(**actors)
        play.run(schedule)
        return play

    # -- the actors, all of which know the shard as it was opened last

    def set(self, item: int, user: str, liked: bool) -> Actor:
        return lambda io: self._result(
            protocol.set_like(io, self.shard, self.known, str(item), user, liked)
        )

    def status(self, item: int, user: str | None) -> Actor:
        return lambda io: self._result(protocol.status(io, self.shard, self.known, str(item), user))

    def flush(self, *items: int) -> Actor:
        return lambda io: self._result(
            protocol.flush_items(io, self.shard, self.known, [str(item) for item in items])
        )

    def opener(self) -> Actor:
        return lambda io: protocol.open_shard(io, self.shard)

    async def _result(self, work: Coroutine[Any, Any, tuple[Any, Any]]) -> Any:
        result, _ = await work
        return result

    # -- the same, at once

    def do(self, actor: Actor) -> Any:
        """Run an actor to its end, for real."""
        return run_sync(actor(self.port))  # type: ignore[arg-type]

    def like(self, item: int, user: str) -> Any:
        return self.do(self.set(item, user, True))

    def unlike(self, item: int, user: str) -> Any:
        return self.do(self.set(item, user, False))

    def seen(self, item: int, user: str | None = None) -> LikeStatus:
        found: LikeStatus = self.do(self.status(item, user))
        return found

    def flushed(self, item: int) -> Any:
        return self.do(self.flush(item))

    def draining(self, until: float) -> Actor:
        """Flushes all that waits in the shard; what is left."""

        async def work(io: Any) -> int:
            known: Known | None = self.known

            async def flush(number: int, items: Any) -> Any:
                nonlocal known
                report, known = await protocol.flush_items(io, self.shard, known, items)
                return report

            left = await journal.drain(io, self.shard, flush, until)
            self.known = known or self.open()
            return left

        return work

    def drain(self) -> int:
        left: int = self.do(self.draining(self.port.now() + 20))
        return left

    # -- what the server holds

    def command(self, *words: str | bytes | int | float) -> Any:
        return self.client.command(*words)

    def delete(self, *keys: str) -> int:
        """Keys lost: by expiry, eviction or a hand; how many there were."""
        return int(self.command("DEL", *keys))

    def lose_header(self, item: int) -> None:
        """What an expiry or an eviction does to a header.

        Raises:
            PlayError: It was not there.
        """
        if self.delete(self.keys.header(str(item))) != 1:
            raise PlayError(f"item {item} has no header to lose")

    def header(self, item: int) -> dict[str, str]:
        return self.hash(self.keys.header(str(item)))

    def journal(self, item: int) -> dict[str, str]:
        return self.hash(self.keys.journal(str(item)))

    def tokens(self, item: int) -> dict[str, str]:
        return self.hash(self.keys.tokens(str(item)))

    def opening(self) -> dict[str, str]:
        return self.hash(self.keys.opening)

    def hash(self, key: str) -> dict[str, str]:
        reply = self.command("HGETALL", key)
        pairs = (
            reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        )
        return {field.decode(): value.decode() for field, value in pairs}

    def life(self, key: str) -> int:
        """Milliseconds that a key has left; -1: for ever, -2: it is not there."""
        return int(self.command("PTTL", key))

    def all_keys(self) -> Keys:
        """Every key of this lab, without its hash tag."""
        prefix = self.keys.tag + ":"
        found = {key.decode() for key in self.command("KEYS", f"{{{self.client.namespace}:*")}
        assert all(key.startswith(prefix) for key in found), found
        return {key.removeprefix(prefix) for key in found}

    def flushall(self) -> None:
        """All keys are gone and the server is the same: what FLUSHALL does, on a shared server."""
        if keys := self.all_keys():
            self.delete(*(f"{self.keys.tag}:{key}" for key in keys))

    def dump(self) -> dict[str, tuple[bytes, bool]]:
        """All that the server holds of this lab, and whether it will expire."""
        full = {key: f"{self.keys.tag}:{key}" for key in self.all_keys()}
        return {
            key: (self.command("DUMP", name), self.life(name) >= 0) for key, name in full.items()
        }

    # -- what must hold

    def rows(self, item: int) -> Keys:
        return rows_of(self.engine, item)

    def shows(self, item: int, likers: Collection[str], others: Collection[str] = ()) -> None:
        """Readers see exactly these likers, and their number."""
        for user in sorted({*likers, *others}):
            want = LikeStatus(user in likers, len(likers))
            assert self.seen(item, user) == want, f"{user}: {self.seen(item, user)} is not {want}"

    def holds(self, item: int, likers: Collection[str], others: Collection[str] = ()) -> None:
        """Readers see these likers; and when all is flushed SQL, its counter and the cache do."""
        self.shows(item, likers, others)
        assert self.drain() == 0
        assert self.rows(item) == set(likers)
        assert count_of(self.engine, item) == len(likers)
        self.shows(item, likers, others)
        self.lose_header(item)
        self.shows(item, likers, others)
        self.is_clean(item)

    def is_clean(self, item: int) -> None:
        """Nothing waits, and what is cached will expire."""
        assert self.journal(item) == {}
        for waiting in (self.keys.due, self.keys.since):
            assert self.command("ZSCORE", waiting, str(item)) is None
        assert self.life(self.keys.header(str(item))) != -1, "a clean header that never expires"

    # -- the end

    def close(self) -> None:
        for play in self._plays:
            play.close()
        self.flushall()
        self.client.close()
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


LabMaker = Callable[..., Lab]


@contextlib.contextmanager
def lab_maker(url: str, namespace: str, home: Path) -> Iterator[LabMaker]:
    """Makes labs that share nothing, and closes them."""
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            Lab(url, f"{namespace}-{next(numbers)}", home, **options)
        )


def field(user: str) -> str:
    """A user's field in a header or a journal."""
    return field_of(user)
