"""The sync client against redis-py, shared by threads."""

from __future__ import annotations

from functools import partial

from redis import Redis

from benches.runner import Case, Row, Scale, Threaded, duel, server
from fencepost import Client

PEER = "redis-py"
AIM = 2.0  # times the calls/s at 8 threads


def _gets(width: int, scale: Scale) -> list[Row]:
    what = f"GET 100 B, {width} thread{'s' if width > 1 else ''}"
    with (
        server() as path,
        Client.from_url(f"unix://{path}") as client,
        Redis(unix_socket_path=path) as redis,
    ):
        client.command("SET", "b", b"x" * 100)

        def ours(_worker: int, calls: int) -> None:
            for _ in range(calls):
                client.command("GET", "b")

        def peer(_worker: int, calls: int) -> None:
            for _ in range(calls):
                redis.get("b")

        with Threaded(ours, width) as a, Threaded(peer, width) as b:
            result = duel(a, b, scale)
    return [result.cpu(what, PEER), result.rate(what, PEER, AIM if width == 8 else None)]


def cases() -> list[Case]:
    return [Case(f"threads GET 100 B, {width}", partial(_gets, width)) for width in (1, 8, 64)]
