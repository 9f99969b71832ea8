"""The examples do what they say."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from fencepost import AsyncClient, Client
from fencepost.cache import AsyncCache, AsyncCached, Cache, CacheOptions, Loaded
from fencepost.cache.options import BehindOptions
from fencepost.cache.saving import AsyncBehind
from support.require import require
from support.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The module; ``shop.http`` is a client of its application."""
    require("valkey", find_binary("valkey") is not None)
    monkeypatch.setenv("SHOP_DATA", str(tmp_path))
    spec = importlib.util.spec_from_file_location("shop", EXAMPLES / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shop", module)
    spec.loader.exec_module(module)
    async with (
        module.app.router.lifespan_context(module.app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(module.app), base_url="http://shop"
        ) as http,
    ):
        module.http = http
        yield module


async def test_the_shop_reads_and_writes_through_around_and_by_tag(shop: Any) -> None:
    http = shop.http
    reads = 0
    read = shop.read

    def counted(number: int) -> Any:
        nonlocal reads
        reads += 1
        return read(number)

    shop.read = counted
    for _ in range(3):
        assert (await http.get("/products/1")).json()["price"] == 4900
    assert reads == 1
    answer = (await http.post("/products/1/price?price=4500")).json()
    assert (answer["price"], answer["cached"]) == (4500, True)
    assert (await http.get("/products/1")).json()["price"] == 4500
    assert reads == 1  # it was written through
    assert (await http.post("/products/1/name?name=Lantern")).status_code == 204
    assert (await http.get("/products/1")).json() == {
        "id": 1,
        "name": "Lantern",
        "price": 4500,
        "shelf": "light",
    }
    assert reads == 2
    assert (await http.post("/sale?percent=50")).status_code == 204
    for _ in range(2):
        assert (await http.get("/products/1")).json()["price"] == 2250
        assert (await http.get("/products/99")).status_code == 404
    assert reads == 4
    assert [one["id"] for one in (await http.get("/products?id=3&id=2&id=99")).json()] == [3, 2]
    assert "published" in (await http.get("/products/1/why")).text


async def test_a_crowd_at_the_shop_costs_one_read(shop: Any) -> None:
    reads, began, go, read = 0, threading.Event(), threading.Event(), shop.read

    def slow(number: int) -> Any:
        nonlocal reads
        reads += 1
        began.set()
        assert go.wait(60)
        return read(number)

    shop.read = slow
    crowd = [asyncio.ensure_future(shop.http.get("/products/2")) for _ in range(50)]
    assert await asyncio.to_thread(began.wait, 60)
    go.set()
    assert {answer.json()["name"] for answer in await asyncio.gather(*crowd)} == {"Bulb"}
    assert reads == 1


# -- pages that map somebody else's calls to ours

PAGES = {"cache-moving.md": 1, "cache-writes.md": 1}
"""The column of its tables that holds our words."""


def our_words() -> set[str]:
    """Everything that a page may tell somebody to call, or to give."""
    faces = (AsyncCache, Cache, AsyncCached, AsyncBehind, AsyncClient, Client)
    words = {name for face in faces for name in dir(face) if not name.startswith("_")}
    for face in faces:
        for name in dir(face):
            method = getattr(face, name)
            if not name.startswith("_") and callable(method):
                words |= set(inspect.signature(method).parameters)
    options = (CacheOptions, BehindOptions, Loaded)
    return words | {field.name for each in options for field in fields(each)} | {"Loaded"}


def told_words(page: str, column: int) -> set[str]:
    """What stands in code in a column of its tables, as a call or as an argument."""
    found = set()
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        cells = line.split("|")[1:-1]
        if len(cells) > column and not line.startswith("|-"):
            for code in re.findall(r"`([^`]+)`", cells[column]):
                code = re.sub(r'"[^"]*"|lambda [^:]*:.*', "", code)
                found |= set(re.findall(r"\b([A-Za-z_]+)(?=\(|=(?!=))", code))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_tells_to_call_is_there(page: str) -> None:
    told = told_words(page, PAGES[page])
    assert len(told) > 3
    assert told - our_words() == set()


def test_the_check_of_pages_objects() -> None:
    assert "get_or_create" not in our_words()
    assert "expiration_time" not in our_words()
    assert "get_or_create" in told_words("cache-moving.md", 0)
