"""A small shop on Starlette: products from SQL through the cache. ``uvicorn examples.shop:app`` serves it.

Reads go through the cache, a price is written through it, a new name around it, and a sale forgets all
prices by their tag. With FastAPI the same functions are dependencies or path functions as they are.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fencepost import AsyncClient

HOME = Path(os.environ.get("SHOP_DATA", ".data/shop"))


@dataclass(frozen=True)
class Product:
    id: int
    name: str
    price: int
    shelf: str


# -- the source: plain SQL; functions that block run in threads of their own accord


def _connect() -> sqlite3.Connection:
    HOME.mkdir(parents=True, exist_ok=True)
    return sqlite3.connect(HOME / "shop.sqlite3")


def prepare() -> None:
    with closing(_connect()) as sql, sql:
        sql.execute(
            "CREATE TABLE IF NOT EXISTS products (id INTEGER PRIMARY KEY, name TEXT, price INT, shelf TEXT)"
        )
        sql.executemany(
            "INSERT OR IGNORE INTO products (id, name, price, shelf) VALUES (?, ?, ?, ?)",
            [(1, "Lamp", 4900, "light"), (2, "Bulb", 300, "light"), (3, "Chair", 8900, "wood")],
        )


def read(number: int) -> Product | None:
    """None is a value as well: "there is none" is remembered, for a shorter time."""
    with closing(_connect()) as sql:
        row = sql.execute(
            "SELECT id, name, price, shelf FROM products WHERE id = ?", (number,)
        ).fetchone()
    return Product(*row) if row else None


def read_many(keys: list[str]) -> dict[str, Product]:
    with closing(_connect()) as sql:
        found = sql.execute(
            "SELECT id, name, price, shelf FROM products WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps([int(key) for key in keys]),),
        )
        return {str(row[0]): Product(*row) for row in found}


def write(statement: str, *values: object) -> None:
    with closing(_connect()) as sql, sql:
        sql.execute(statement, values)


# -- the cache: lazy, so it may stand at module level

client = AsyncClient.embedded(HOME / "server")  # or .from_url("redis://…"), or .from_env()
products = client.cache(
    "products",
    type=Product,
    ttl=60,
    stale=300,  # a product may be shown for five minutes more while it is refreshed, or while SQL is away
    negative_ttl=5,
    max_loads=8,  # so many SELECTs at once, however many ask
)
PRICES = (
    "prices",
)  # what all entries depend on; a read compares the tag's stamp, in the same write


async def product(number: int) -> Product | None:
    """From the cache, or loaded once for everybody who asks at the same time, in every process."""
    return await products.get(str(number), lambda: read(number), tags=PRICES)


async def show(request: Request) -> Response:
    found = await product(request.path_params["id"])
    return JSONResponse(asdict(found)) if found else Response(status_code=404)


async def show_many(request: Request) -> Response:
    """One round trip for all that are known, one SELECT for all that are not."""
    keys = request.query_params.getlist("id")
    found = await products.get_many(keys, read_many, tags=PRICES)
    return JSONResponse([asdict(one) for one in found.values()])


async def reprice(request: Request) -> Response:
    """The writer knows the whole value, and it is read soon: through."""
    found = await product(request.path_params["id"])
    if found is None:
        return Response(status_code=404)
    new = Product(found.id, found.name, int(request.query_params["price"]), found.shelf)

    def save(value: Product) -> None:
        write("UPDATE products SET price = ? WHERE id = ?", value.price, value.id)

    written = await products.write_through(str(new.id), new, save, tags=PRICES)
    return JSONResponse(asdict(new) | {"cached": written.published})


async def rename(request: Request) -> Response:
    """The writer knows a part of it: around. Whoever reads next loads it."""
    number, name = request.path_params["id"], request.query_params["name"]

    def save() -> None:
        write("UPDATE products SET name = ? WHERE id = ?", name, number)

    await products.write_around(str(number), save)
    return Response(status_code=204)


async def sale(request: Request) -> Response:
    """A change to many: their tag. Loads that are under way carry the tag's old stamp, and miss."""
    percent = int(request.query_params["percent"])
    await run_in_threadpool(write, "UPDATE products SET price = price * (100 - ?) / 100", percent)
    await products.invalidate_tags(*PRICES)
    return Response(status_code=204)


async def why(request: Request) -> Response:
    """What the cache holds of a product, and how its last refreshes ended."""
    return Response(str(await products.explain(str(request.path_params["id"]))))


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    await run_in_threadpool(prepare)
    async with client.lifespan(app):
        yield


app = Starlette(
    routes=[
        Route("/products", show_many),
        Route("/products/{id:int}", show),
        Route("/products/{id:int}/price", reprice, methods=["POST"]),
        Route("/products/{id:int}/name", rename, methods=["POST"]),
        Route("/products/{id:int}/why", why),
        Route("/sale", sale, methods=["POST"]),
    ],
    lifespan=lifespan,
)
