"""Where a column is played: a namespace of its own on the lab's server, and a database in memory."""

from __future__ import annotations

import contextlib
import itertools
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import redis
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.pool import StaticPool

from fencepost.client import Client
from fencepost.likes import SqlLikes
from fencepost.testing.proxy import Proxy

_metadata = MetaData()
activities = Table(
    "activities",
    _metadata,
    Column("id", Integer, primary_key=True),
    Column("like_count", Integer, nullable=False, server_default="0"),
)
likes = Table(
    "activities_likes",
    _metadata,
    Column("activity_id", Integer, primary_key=True),
    Column("user_id", String(64), primary_key=True),
)
_numbers = itertools.count(1)


class Stage:
    """One column's world.

    Args:
        url: The lab's server, which is nobody else's.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.namespace = f"lab{next(_numbers)}"
        self._stack = contextlib.ExitStack()
        self.client = self._stack.enter_context(Client.from_url(url, namespace=self.namespace))
        self.port = self.client.port
        self.engine: Engine = create_engine("sqlite://", poolclass=StaticPool)
        self._stack.callback(self.engine.dispose)
        _metadata.create_all(self.engine)
        self.store = SqlLikes(
            self.engine,
            item=activities.c.id,
            count=activities.c.like_count,
            likes=likes,
            liked_at=None,
        )
        self.store.create_tables()

    @cached_property
    def redis(self) -> Any:
        """redis-py as it comes, but for text instead of bytes."""
        client = redis.Redis.from_url(self.url, decode_responses=True)
        self._stack.callback(client.close)
        return client

    @cached_property
    def proxy(self) -> Proxy:
        """A proxy before the server."""
        return self._stack.enter_context(Proxy(self.url))

    def keep(self, resource: Any) -> Any:
        """Close something with the stage."""
        self._stack.callback(resource.close)
        return resource

    # -- the database, as an application uses it

    def item(self, *users: str) -> int:
        """A new item that these users like, says SQL."""
        with self.engine.begin() as connection:
            added = connection.execute(insert(activities).values(like_count=len(users)))
            assert added.inserted_primary_key is not None
            number = int(added.inserted_primary_key[0])
            for user in users:
                connection.execute(insert(likes).values(activity_id=number, user_id=user))
        return number

    def rows(self, item: int) -> set[str]:
        """Who likes it, says SQL."""
        with self.engine.connect() as connection:
            return set(
                connection.execute(
                    select(likes.c.user_id).where(likes.c.activity_id == item)
                ).scalars()
            )

    def count(self, item: int) -> int:
        """How many do, says SQL's counter."""
        with self.engine.connect() as connection:
            return int(
                connection.execute(
                    select(activities.c.like_count).where(activities.c.id == item)
                ).scalar_one()
            )

    def write(self, item: int, user: str, liked: bool) -> None:
        """Row and counter in one transaction; the counter moves by the rows that changed."""
        of_user = (likes.c.activity_id == item) & (likes.c.user_id == user)
        with self.engine.begin() as connection:
            there = connection.execute(select(likes).where(of_user)).first() is not None
            if there == liked:
                return
            if liked:
                connection.execute(insert(likes).values(activity_id=item, user_id=user))
            else:
                connection.execute(delete(likes).where(of_user))
            moved = activities.c.like_count + (1 if liked else -1)
            connection.execute(
                update(activities).where(activities.c.id == item).values(like_count=moved)
            )

    def in_sql(self, item: int) -> dict[str, str]:
        """The database's part of a picture."""
        return {"SQL rows": told(self.rows(item)), "SQL like_count": str(self.count(item))}

    def close(self) -> None:
        """End what was opened."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def told(members: Any) -> str:
    """Some members, for a picture."""
    return "{" + ", ".join(sorted(members)) + "}" if members else "∅"
