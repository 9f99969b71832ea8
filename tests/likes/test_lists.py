"""Who likes what, newest first, and users who leave: through the public face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, insert, select

from fencepost import Client
from fencepost.errors import Refused
from fencepost.likes import LikeOptions, Likes, SqlLikes
from support.likes import NEVER, TABLES, activities, likes_table, open_database

ITEMS = range(1, 13)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(tmp_path / "lists.db")
    with engine.begin() as connection:
        connection.execute(insert(activities), [{"id": n, "like_count": 0} for n in ITEMS])
    yield engine
    engine.dispose()


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def likes(client: Client, engine: Engine) -> Likes:
    store = SqlLikes(engine, **TABLES)
    store.create_tables()
    options = LikeOptions(shards=4, hints=True, flush_delay=NEVER)
    return client.likes("lists", store=store, options=options)


def test_likers_newest_first_with_what_is_owed_in_front(likes: Likes) -> None:
    for user in ("a", "b", "c"):
        likes.like(1, user)
    likes.drain()
    likes.like(1, "d")
    likes.unlike(1, "b")
    assert likes.likers(1).items == ["d", "c", "a"]
    likes.drain()
    assert likes.likers(1).items == ["d", "c", "a"]


def test_pages_of_likers_stay_where_they_are(likes: Likes) -> None:
    for number in range(7):
        likes.like(1, f"u{number}")
    likes.drain()
    first = likes.likers(1, limit=3)
    likes.like(1, "late")
    likes.drain()
    second = likes.likers(1, limit=3, after=first.after)
    third = likes.likers(1, limit=3, after=second.after)
    assert [*first.items, *second.items, *third.items] == [f"u{n}" for n in range(6, -1, -1)]
    assert third.after is None


def test_liked_by_shows_what_is_not_in_sql_yet(likes: Likes) -> None:
    for item in (1, 2, 3):
        likes.like(item, "ann")
    likes.drain()
    likes.like(4, "ann")
    likes.unlike(2, "ann")
    assert likes.liked_by("ann").items == [4, 3, 1]


def test_liked_by_asks_sql_twice_however_many_hints_there_are(likes: Likes, engine: Engine) -> None:
    """The page, and in one question which of the hinted likes below it SQL has already."""
    for item in (1, 2, 3, 4):
        likes.like(item, "ann")
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *seen: asked.append(seen[2]))
    assert likes.liked_by("ann").items == [4, 3, 2, 1]
    selects = [one for one in asked if one.startswith("SELECT")]
    assert len(selects) == 2, selects


def test_liked_by_without_hints_shows_it_after_its_flush(client: Client, likes: Likes) -> None:
    """The control: it is the hint that tells."""
    plain = client.likes(
        "lists", store=likes._store, options=LikeOptions(shards=4, flush_delay=NEVER)
    )
    plain.like(4, "ann")
    assert plain.liked_by("ann").items == []
    plain.drain()
    assert plain.liked_by("ann").items == [4]


def test_a_like_that_was_renewed_stands_once(likes: Likes) -> None:
    """Its row is still there, on a later page: it does not lead the first one too."""
    for item in ITEMS:
        likes.like(item, "ann")
    likes.drain()
    likes.unlike(1, "ann")
    likes.like(1, "ann")
    pages, after = [], None
    while True:
        page = likes.liked_by("ann", limit=5, after=after)
        pages += page.items
        after = page.after
        if after is None:
            break
    assert sorted(pages) == list(ITEMS), "each once"


def test_a_heart_that_was_taken_back_is_never_shown(likes: Likes, engine: Engine) -> None:
    likes.like(1, "ann")
    likes.drain()
    likes.unlike(1, "ann")
    with engine.connect() as connection:
        assert connection.execute(select(likes_table)).first() is not None, "the row is still there"
    assert likes.liked_by("ann").items == []


@pytest.mark.parametrize("limit", [0, -1, 1001, "x"])
def test_wrong_limits_are_refused(likes: Likes, limit: int) -> None:
    with pytest.raises(Refused, match="limit"):
        likes.likers(1, limit=limit)


@pytest.mark.parametrize("cursor", ["", "x", "WzFd", "bnVsbA", "é"])
def test_foreign_cursors_are_refused(likes: Likes, cursor: str) -> None:
    with pytest.raises(Refused, match="cursor"):
        likes.liked_by("ann", after=cursor)


def test_a_user_who_leaves_takes_all_likes_along(likes: Likes, engine: Engine) -> None:
    for item in (1, 2, 3):
        likes.like(item, "ann")
        likes.like(item, "bob")
    likes.drain()
    likes.like(4, "ann")  # still owed
    assert likes.forget_user("ann") == 4
    assert likes.liked_by("ann").items == []
    assert [likes.status(item, "ann").liked for item in ITEMS] == [False] * len(ITEMS)
    assert [likes.status(item).count for item in (1, 2, 3, 4)] == [1, 1, 1, 0]
    with engine.connect() as connection:
        assert {row.user_id for row in connection.execute(select(likes_table))} == {"bob"}


def test_a_deleted_item_has_no_likers_and_no_owed_changes(likes: Likes, engine: Engine) -> None:
    likes.like(1, "ann")
    likes.drain()
    likes.like(1, "bob")
    likes.forget_item(1)
    assert likes.likers(1).items == []
    assert likes.backlog().items == 0
    with engine.connect() as connection:
        assert connection.execute(select(likes_table)).first() is None
