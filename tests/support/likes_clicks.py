"""A process that clicks: ``python -m support.likes_clicks URL NAMESPACE DATABASE WHO COUNT ITEM…``.

Its users are its own, so what it was told last of each is the truth; it prints that as JSON.
"""

from __future__ import annotations

import json
import random
import sys

from sqlalchemy import create_engine

from fencepost import Client
from fencepost.likes import SqlLikes
from support.likes import TABLES
from support.likes_worker import NAME, OPTIONS


def main(url: str, namespace: str, database: str, who: str, count: int, items: list[int]) -> None:
    dice = random.Random(who)
    engine = create_engine(database)
    truth: dict[str, bool] = {}
    with Client.from_url(url, namespace=namespace, budget=20.0) as client:
        likes = client.likes(NAME, store=SqlLikes(engine, **TABLES), options=OPTIONS)
        for _ in range(count):
            item, user, liked = dice.choice(items), f"{who}{dice.randrange(5)}", dice.random() < 0.6
            result = likes.set(item, user, liked=liked)
            assert result.liked is liked
            assert result.changed is (truth.get(f"{item} {user}", False) is not liked)
            truth[f"{item} {user}"] = liked
    engine.dispose()
    print(json.dumps(truth))


if __name__ == "__main__":
    url, namespace, database, who, count, *items = sys.argv[1:]
    main(url, namespace, database, who, int(count), [int(item) for item in items])
