"""Ports: one protocol, two worlds, the same verbs."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

from fencepost import Refused
from fencepost._core.aio import AsyncPort, clock, token
from fencepost._core.backoff import Backoff
from fencepost._core.port import Cancelled, Port, run_sync
from fencepost._core.sync import SyncPort


def public(cls: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(member).parameters)
        for name, member in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("port", [AsyncPort, SyncPort])
def test_port_has_every_verb_and_no_other(port: type) -> None:
    assert public(port) == public(Port)


async def protocol(io: Any, log: list[str]) -> str:
    """Uses each verb once."""
    log.append(await io.run("one"))
    log.extend(await io.all(["two", "three"]))
    log.append(await io.call(lambda text: text, "four"))
    await io.sleep(0)

    async def beside() -> str:
        await io.sleep(0)
        return "five"

    log.append(await io.wait(io.spawn(beside())))
    assert io.token() != io.token()
    assert 0 <= io.chance() < 1
    before = io.now()
    assert io.now() >= before
    assert io.server_ms() == 1.0
    return "done"


WORDS = ["one", "two", "three", "four", "five"]


def sync_port() -> SyncPort:
    return SyncPort(lambda call: call, list, lambda: 1.0)


def test_one_protocol_runs_in_both_worlds() -> None:
    async def run(call: Any) -> Any:
        return call

    async def run_all(calls: Any) -> Any:
        return list(calls)

    in_sync: list[str] = []
    assert run_sync(protocol(sync_port(), in_sync)) == "done"
    in_loop: list[str] = []
    assert asyncio.run(protocol(AsyncPort(run, run_all, lambda: 1.0), in_loop)) == "done"
    assert in_sync == in_loop == WORDS


def test_protocol_that_suspends_is_refused() -> None:
    async def suspends() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="something else than its port"):
        run_sync(suspends())


def test_error_of_a_protocol_passes_through_the_driver() -> None:
    async def fails() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_sync(fails())


def test_sync_port_refuses_a_coroutine_function() -> None:
    async def load() -> None: ...

    with pytest.raises(Refused, match="async client"):
        run_sync(sync_port().call(load))


async def test_async_port_runs_a_plain_function_in_a_thread_and_awaits_another() -> None:
    port = AsyncPort(None, None, lambda: 0.0)  # type: ignore[arg-type]
    here = threading.get_ident()

    async def mine() -> int:
        return threading.get_ident()

    assert await port.call(threading.get_ident) != here
    assert await port.call(mine) == here


def test_spawned_thread_is_stopped_in_its_sleep_and_at_its_next_step() -> None:
    port, asleep = sync_port(), threading.Event()

    async def sleeper() -> None:
        asleep.set()
        await port.sleep(3600)

    async def runner() -> None:
        while True:
            await port.run("step")

    for work in (sleeper(), runner()):
        task = port.spawn(work)
        task.cancel()
        with pytest.raises(Cancelled):
            run_sync(port.wait(task))
    assert run_sync(port.run("the caller goes on")) == "the caller goes on"


def test_spawned_error_is_raised_where_it_is_waited_for() -> None:
    port = sync_port()

    async def fails() -> None:
        raise LookupError("beside")

    with pytest.raises(LookupError, match="beside"):
        run_sync(port.wait(port.spawn(fails())))


def test_token_is_long_and_new_each_time() -> None:
    tokens = {token() for _ in range(10_000)}
    assert len(tokens) == 10_000
    assert {len(one) for one in tokens} == {22}
    assert clock() <= clock()


def test_backoff_grows_to_its_cap_and_is_spread() -> None:
    backoff = Backoff(0.1, 2.0)
    ceilings = [backoff.delay(tries, 1.0) for tries in range(8)]
    assert ceilings == sorted(ceilings)
    assert ceilings[0] == pytest.approx(0.1)
    assert ceilings[-1] == 2.0
    assert backoff.delay(3, 0.0) == backoff.delay(3, 1.0) / 2
    assert backoff.delay(10**9, 0.5) <= 2.0
