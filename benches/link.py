"""The async link against redis-py asyncio, and in a full run against clients in their own venvs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Callable
from functools import partial

from redis.asyncio import Redis

from benches import peers
from benches.runner import Case, Load, Looped, Row, Scale, duel, free_port, server
from fencepost import AsyncClient

PEER = "redis-py asyncio"
GET_AIM = 12.0  # times less CPU a call at 64 coroutines

_TCP_ONLY = ("valkey-glide",)

Factory = Callable[[], asyncio.AbstractEventLoop]


@contextlib.asynccontextmanager
async def _ours(url: str, op: str, size: int) -> AsyncIterator[Load]:
    async with AsyncClient.from_url(url) as client:
        value = b"x" * size
        await client.command("SET", f"b:{size}", value)
        if op == "get":
            key = f"b:{size}"

            async def work(worker: int, calls: int) -> None:
                for _ in range(calls):
                    await client.command("GET", key)
        else:

            async def work(worker: int, calls: int) -> None:
                key = f"b:w:{worker}"
                for _ in range(calls):
                    await client.command("SET", key, value)

        yield Load(work)


@contextlib.asynccontextmanager
async def _redis_py(path: str, op: str, size: int, width: int) -> AsyncIterator[Load]:
    # Its pool raises above 100 connections unless told otherwise.
    async with Redis(unix_socket_path=path, max_connections=max(width, 100)) as client:
        value = b"x" * size
        await client.set(f"b:{size}", value)
        if op == "get":
            key = f"b:{size}"

            async def work(worker: int, calls: int) -> None:
                for _ in range(calls):
                    await client.get(key)
        else:

            async def work(worker: int, calls: int) -> None:
                key = f"b:w:{worker}"
                for _ in range(calls):
                    await client.set(key, value)

        yield Load(work)


def _uvloop() -> Factory:
    import uvloop

    factory: Factory = uvloop.new_event_loop
    return factory


def _name(op: str, size: int, width: int, uvloop: bool = False) -> str:
    big = f"{size // 1024} KB" if size >= 1024 else f"{size} B"
    many = f"{width} coroutine{'s' if width > 1 else ''}"
    return f"{op.upper()} {big}, {many}{' on uvloop' if uvloop else ''}"


def _against_redis_py(op: str, size: int, width: int, uvloop: bool, scale: Scale) -> list[Row]:
    factory = _uvloop() if uvloop else None
    what = _name(op, size, width, uvloop)
    with (
        server() as path,
        Looped(partial(_ours, f"unix://{path}", op, size), width, factory) as ours,
        Looped(partial(_redis_py, path, op, size, width), width, factory) as peer,
    ):
        result = duel(ours, peer, scale)
    aim = GET_AIM if (op, size, width, uvloop) == ("get", 100, 64, False) else None
    return [result.cpu(what, PEER, aim), result.rate(what, PEER)]


def _against_peer(group: str, op: str, size: int, width: int, scale: Scale) -> list[Row]:
    port = free_port() if group in _TCP_ONLY else 0
    what = _name(op, size, width) + (", TCP" if port else "")
    with (
        server(port) as path,
        Looped(
            partial(_ours, f"redis://127.0.0.1:{port}" if port else f"unix://{path}", op, size),
            width,
        ) as ours,
        peers.Piped(group, str(port) if port else path, op, size, width) as peer,
    ):
        result = duel(ours, peer, scale)
    return [result.cpu(what, group), result.rate(what, group)]


def cases() -> list[Case]:
    loads = [
        ("get", 100, 1),
        ("get", 100, 64),
        ("get", 100, 512),
        ("set", 100, 64),
        ("get", 4096, 64),
    ]
    found = [
        Case(f"link {_name(*load)} redis-py", partial(_against_redis_py, *load, False))
        for load in loads
    ]
    if importlib.util.find_spec("uvloop"):
        found += [
            Case(f"link {_name(*load, True)} redis-py", partial(_against_redis_py, *load, True))
            for load in loads[1:3]
        ]
    found += [
        Case(f"link {_name(*load)} {group}", partial(_against_peer, group, *load), full=True)
        for group in peers.groups("link")
        for load in loads[:4]
    ]
    return found
