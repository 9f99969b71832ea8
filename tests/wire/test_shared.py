"""Threads that share an exchange: each gets its own reply, and nobody waits for who is gone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import hiredis
import pytest

from fencepost import Client, OutcomeUnknown, Unavailable
from fencepost._core import commands
from fencepost._core.script import Script, read_contract
from fencepost.wire import shared
from fencepost.wire.shared import BATCH, Carrier
from support.faces import every_face
from support.servers import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SOON = 60.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        # time itself: a thread comes to where it waits when the machine lets it
        time.sleep(0.001)


class Exchange:
    """Answers each call with itself, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.go = threading.Semaphore(0)
        self.error: BaseException | None = None

    def __call__(self, calls: Sequence[Any], deadline: float) -> list[Any]:
        self.batches.append(list(calls))
        assert self.go.acquire(timeout=SOON)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return list(calls)


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


@pytest.fixture
def carrier(exchange: Exchange) -> Carrier:
    return Carrier(exchange)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(400) as pool:
        yield pool


def ask(carrier: Carrier, call: Any, within: float = SOON) -> Any:
    return carrier.run(call, time.monotonic() + within, within)


def test_who_comes_while_another_drives_is_carried_by_the_next(
    carrier: Carrier, exchange: Exchange, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(ask, carrier, 0)
    until(lambda: len(exchange.batches) == 1)
    more = [pool.submit(ask, carrier, number) for number in range(1, 301)]
    until(lambda: len(carrier._waiting) == 300)
    for _ in range(3):
        exchange.go.release()
    assert first.result(SOON) == 0
    assert [one.result(SOON) for one in more] == list(range(1, 301))
    assert [len(batch) for batch in exchange.batches] == [1, BATCH, 300 - BATCH]
    assert not carrier._driven


def test_a_driver_that_is_interrupted_leaves_nobody_waiting(
    carrier: Carrier, exchange: Exchange, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(ask, carrier, 0)
    until(lambda: len(exchange.batches) == 1)
    second = pool.submit(ask, carrier, 1)
    until(lambda: len(carrier._waiting) == 1)
    third = pool.submit(ask, carrier, 2)
    until(lambda: len(carrier._waiting) == 2)
    exchange.go.release()
    until(lambda: len(exchange.batches) == 2)
    fourth = pool.submit(ask, carrier, 3)
    until(lambda: len(carrier._waiting) == 1)
    exchange.error = KeyboardInterrupt()
    exchange.go.release()  # the second drives, with the third, and is interrupted
    exchange.go.release()
    assert first.result(SOON) == 0
    with pytest.raises(KeyboardInterrupt):
        second.result(SOON)
    assert isinstance(third.result(SOON), OutcomeUnknown)
    assert fourth.result(SOON) == 3
    assert not carrier._driven


def test_who_has_waited_enough_leaves_and_is_told_what_became_of_it(
    carrier: Carrier, exchange: Exchange, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(ask, carrier, 0)
    until(lambda: len(exchange.batches) == 1)
    assert isinstance(ask(carrier, 1, within=0), Unavailable)  # nothing was sent for it
    assert len(carrier._waiting) == 0
    second = pool.submit(ask, carrier, 2)
    until(lambda: len(carrier._waiting) == 1)
    third = pool.submit(ask, carrier, 3, 0.2)
    until(lambda: len(carrier._waiting) == 2 or third.done())
    exchange.go.release()
    until(lambda: len(exchange.batches) == 2)
    gone = third.result(SOON)  # it was on its way, or had no turn: by the machine's mood
    assert isinstance(gone, OutcomeUnknown | Unavailable)
    assert isinstance(gone, OutcomeUnknown) == (3 in exchange.batches[1])
    exchange.go.release()
    assert (first.result(SOON), second.result(SOON)) == (0, 2)
    assert not carrier._driven


def test_who_is_told_to_drive_as_it_leaves_passes_it_on(
    carrier: Carrier, exchange: Exchange, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(ask, carrier, 0)
    until(lambda: len(exchange.batches) == 1)
    leaving, staying = shared._Seat(1), pool.submit(ask, carrier, 2)
    until(lambda: len(carrier._waiting) == 1)
    carrier._waiting.appendleft(leaving)
    exchange.go.release()
    assert first.result(SOON) == 0
    until(lambda: leaving.drives)
    carrier._leave(leaving)  # its time was over in the same moment
    exchange.go.release()
    assert staying.result(SOON) == 2
    assert isinstance(leaving.outcome, Unavailable)


# -- on a server


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace, max_connections=2) as client:
        yield client


def test_each_of_many_threads_gets_its_own_reply_though_connections_are_cut(
    client: Client, namespace: str
) -> None:
    """Far more threads than connections, which somebody kills all the time."""
    for number in range(40):
        client.command("SET", f"{namespace}:{number}", f"{number}")
    cutting = threading.Event()
    cutting.set()

    def read(number: int) -> None:
        got = client._server.run_shared(commands.get(f"{namespace}:{number}"))
        assert got == f"{number}".encode()

    def reads(number: int) -> int:
        right = 0
        while cutting.is_set() or right == 0:
            try:
                read(number)
            except (Unavailable, OutcomeUnknown):
                continue  # cut at each try
            right += 1
        return right

    with ThreadPoolExecutor(40) as pool:
        reading = [pool.submit(reads, number) for number in range(40)]
        for _ in range(25):
            client.command("CLIENT", "KILL", "TYPE", "normal")
        cutting.clear()
        assert all(one.result(SOON) for one in reading)
    assert not client._server._carrier._driven


def test_a_frozen_server_costs_each_thread_its_budget_and_is_found_again(namespace: str) -> None:
    with (
        ServerProcess("valkey") as server,
        Client.from_url(server.url, namespace=namespace, budget=1.0) as client,
        ThreadPoolExecutor(30) as pool,
    ):
        client.command("SET", "k", "v")
        get = commands.get("k")
        assert list(pool.map(lambda _: client._server.run_shared(get), range(60))) == [b"v"] * 60
        server.pause()
        try:
            asked = [pool.submit(client._server.run_shared, get) for _ in range(30)]
            for one in asked:
                assert isinstance(one.exception(SOON), OutcomeUnknown | Unavailable)
        finally:
            server.resume()
        assert list(pool.map(lambda _: client._server.run_shared(get), range(60))) == [b"v"] * 60
        assert not client._server._carrier._driven


def test_a_large_entry_is_read_on_a_connection_of_its_own(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = client.cache("big")
    cache.get("small", lambda: "s")
    cache.get("large", lambda: "l" * 100_000)
    shared_keys: list[str] = []
    run_shared = client._server.run_shared
    monkeypatch.setattr(
        client._server,
        "run_shared",
        lambda call: shared_keys.append(call.args[1]) or run_shared(call),
    )
    for _ in range(3):
        assert cache.get("small", lambda: "?") == "s"
        assert cache.get("large", lambda: "?") == "l" * 100_000
    small, large = (cache._region.entry(key) for key in ("small", "large"))
    assert shared_keys.count(small) == 3
    # known to be large from its first read on
    assert shared_keys.count(large) <= 1


@every_face
async def test_a_command_that_is_kept_is_packed_once_and_a_script_each_time(
    open_face: Callable[..., Any], server_url: str, namespace: str
) -> None:
    """A script's words depend on the server that it goes to; a command's do not."""
    face = open_face(server_url)
    await face.command("SET", namespace, "v")
    get = commands.get(namespace)
    for _ in range(3):
        assert await face.run(get) == b"v"
        assert get.packed == hiredis.pack_command(("GET", namespace))
    script = Script(
        read_contract("-- say: itself\n-- KEYS k\n-- ARGV what\nreturn ARGV[1]\n"),
        "-- say: itself\n-- KEYS k\n-- ARGV what\nreturn ARGV[1]\n",
        lambda reply: reply,
    )
    call = script((namespace,), ("x",))
    for _ in range(2):
        assert await face.run(call) == b"x"
        assert call.packed == b""
