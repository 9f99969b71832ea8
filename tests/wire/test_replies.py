"""Every caller gets its own reply, in order and within bounds."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from fencepost import AsyncClient, OutcomeUnknown, Overloaded
from fencepost._core import commands
from fencepost.wire import single
from fencepost.wire.lane import Lane
from fencepost.wire.link import _EARLY, Link
from support.loops import on_both_loops
from support.scripted import ScriptedServer, bulk
from support.until import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.proxy import Proxy

pytestmark = on_both_loops


async def cancel_at_random(client: AsyncClient, calls: int, seed: int) -> tuple[int, int]:
    """Echo numbers and cancel half of the callers; how many got theirs, and how many another's."""
    dice = random.Random(seed)
    right = wrong = 0

    async def echo(number: int) -> None:
        nonlocal right, wrong
        reply = await client.command("ECHO", number)
        right += reply == b"%d" % number
        wrong += reply != b"%d" % number

    for start in range(0, calls, 200):
        tasks = [asyncio.create_task(echo(n)) for n in range(start, start + 200)]
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)
        for task in dice.sample(tasks, 100):
            task.cancel()
            if dice.random() < 0.05:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
    return right, wrong


async def test_ten_thousand_random_cancels_never_mix_replies(server_url: str) -> None:
    async with AsyncClient.from_url(server_url) as client:
        right, wrong = await cancel_at_random(client, 20_000, seed=1)
        assert wrong == 0
        assert right >= 10_000
        identity = await client.command("CLIENT", "ID")
        assert await client.command("CLIENT", "ID") == identity  # the connection lived through it


async def test_link_that_forgets_cancelled_callers_mixes_replies(proxy: Proxy) -> None:
    """The negative control: a cancelled caller must keep its place in the line."""
    async with AsyncClient.from_url(proxy.url) as client:
        await client.command("PING")
        proxy.hold("reply")
        cancelled = asyncio.create_task(client.command("ECHO", 1))
        await proxy.seen(lambda: proxy.waiting == 1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        link = client._server()._main.link
        assert link is not None
        link.waiting.popleft()
        other = asyncio.create_task(client.command("ECHO", 2))
        await proxy.seen(lambda: proxy.count("ECHO") == 2)
        proxy.release("reply")
        assert await other == b"1"


async def test_five_thousand_calls_in_one_tick_are_answered_in_order(
    server_url: str, namespace: str
) -> None:
    async with AsyncClient.from_url(server_url) as client:
        await client.command("PING")
        replies = await asyncio.gather(*(client.command("INCR", namespace) for _ in range(5000)))
        assert replies == list(range(1, 5001))


async def test_batch_goes_out_in_one_write(proxy: Proxy, namespace: str) -> None:
    async with AsyncClient.from_url(proxy.url) as client:
        await client.command("PING")
        calls = [commands.raw("INCR", namespace) for _ in range(1000)]
        assert await client.port.all(calls) == list(range(1, 1001))
        assert await client.port.all([]) == []


async def cancel_a_batch(proxy: Proxy, namespace: str) -> list[str]:
    """Cancel a batch, lose its connection, and return what asyncio reports as never seen."""
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    async with AsyncClient.from_url(proxy.url) as client:
        await client.command("PING")
        proxy.hold("reply")
        calls = [commands.raw("INCR", namespace) for _ in range(10)]
        batch = asyncio.create_task(client.port.all(calls))
        await proxy.seen(lambda: proxy.count("INCR") == 10)
        batch.cancel()
        await asyncio.wait([batch])
        assert batch.cancelled()
        await asyncio.to_thread(proxy.cut)
        proxy.release("reply")
        assert await client.command("GET", namespace) == b"10"
    gc.collect()
    return reported


async def test_cancelled_batch_leaves_nothing_behind(proxy: Proxy, namespace: str) -> None:
    assert await cancel_a_batch(proxy, namespace) == []


async def test_cancelled_batch_that_keeps_its_requests_is_reported(
    proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: their errors are set, and nobody looks at them."""
    send = Link.send

    def kept(self: Link, packed: bytes) -> Any:
        future = send(self, packed)
        if b"INCR" not in packed:
            return future
        mine = asyncio.get_running_loop().create_future()  # what is cancelled is another one
        future.add_done_callback(lambda done: mine.done() or mine.set_result(done))
        return mine

    monkeypatch.setattr(Link, "send", kept)
    assert any("never retrieved" in one for one in await cancel_a_batch(proxy, namespace))


async def test_read_behind_a_refusal_is_not_answered_by_the_replica() -> None:
    """SET, then GET on one connection: the SET shows a demoted server, so the GET asks again."""
    with ScriptedServer(
        SET=["-READONLY You can't write against a read only replica.", "+OK"],
        GET=lambda _: bulk("old" if scripted.connections == 1 else "new"),
        PING="+PONG",
    ) as scripted:
        async with AsyncClient.from_url(scripted.url, budget=20) as client:
            await client.command("PING")
            port = client.port
            _, got = await asyncio.gather(
                port.run(commands.raw("SET", "k", "v")), port.run(commands.get("k"))
            )
            assert got == b"new"


# -- bounds


async def test_callers_over_the_bound_are_let_in_in_order(proxy: Proxy) -> None:
    order = await completion_order(proxy)
    assert order == sorted(order)
    assert len(order) == 60


async def test_newcomers_that_do_not_queue_overtake(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a lane that hides its queue from newcomers."""
    monkeypatch.setattr(Lane, "turns", property(lambda _: 0, lambda *_: None), raising=False)
    order = await completion_order(proxy)
    assert order != sorted(order)


async def completion_order(proxy: Proxy) -> list[int]:
    """Calls over a bound of 4, by tickets drawn as they are made; who has a reply calls again."""
    order: list[int] = []
    tickets = itertools.count()
    async with AsyncClient.from_url(proxy.url, max_requests=4, budget=20) as client:
        await client.command("PING")
        proxy.hold("reply")

        async def caller() -> None:
            for _ in range(3):
                mine = next(tickets)
                await client.command("ECHO", mine)
                order.append(mine)

        callers = [asyncio.create_task(caller()) for _ in range(20)]
        await proxy.seen(lambda: proxy.count("ECHO") == 4)
        assert not order
        proxy.release("reply")
        await asyncio.gather(*callers)
    return order


async def test_nothing_moves_so_who_waits_for_room_is_told_to_come_back(proxy: Proxy) -> None:
    async with AsyncClient.from_url(proxy.url, max_requests=4, budget=0.6) as client:
        await client.command("PING")
        proxy.hold("reply")
        outcomes = await asyncio.gather(
            *(client.command("ECHO", n) for n in range(10)), return_exceptions=True
        )
        assert [type(one) for one in outcomes] == [OutcomeUnknown] * 4 + [Overloaded] * 6
        assert proxy.count("ECHO") == 4
        proxy.release("reply")
        assert await client.command("ECHO", "again") == b"again"


async def test_server_that_stops_under_an_idle_link_is_noticed_within_the_budget(
    proxy: Proxy,
) -> None:
    """A link that rests watches no deadline; the first request after that must."""
    async with AsyncClient.from_url(proxy.url, budget=0.6, health=3600) as client:
        await client.command("PING")
        link = client._server()._main.link
        assert link is not None
        await until(lambda: link._resting)
        proxy.hold("reply")
        with pytest.raises(OutcomeUnknown, match=r"0\.6 s"):
            await client.command("ECHO", 1)
        proxy.release("reply")


async def test_loop_that_was_held_up_reads_before_it_judges(proxy: Proxy) -> None:
    """A deadline that is past is looked at twice: the reply may lie in the socket."""
    async with AsyncClient.from_url(proxy.url, budget=60) as client:
        await client.command("PING")
        link = client._server()._main.link
        assert link is not None
        for looks in (1, 2):
            proxy.hold("reply")
            call = asyncio.create_task(client.command("ECHO", "in time"))
            await proxy.seen(lambda: proxy.waiting == 1)
            number, _, size = link._batches[0]
            link._batches[0] = (number, monotonic() - 1, size)  # as if this loop had stood still
            for _ in range(looks):
                link._check()
            proxy.release("reply")
            if looks == 1:
                assert await call == b"in time"
            else:
                with pytest.raises(OutcomeUnknown):
                    await call


async def test_waiter_that_is_let_in_and_sends_nothing_gives_its_turn_on(proxy: Proxy) -> None:
    async with AsyncClient.from_url(proxy.url, max_requests=1, budget=20) as client:
        await client.command("PING")
        proxy.hold("reply")
        words: list[Any] = ["first", None, "last"]
        tasks = [asyncio.create_task(client.command("ECHO", word)) for word in words]
        await until(lambda: client._server()._main.turns == 2)
        await proxy.seen(lambda: proxy.waiting == 1)
        proxy.release("reply")
        assert await tasks[0] == b"first"
        with pytest.raises(TypeError):
            await tasks[1]
        assert await tasks[2] == b"last"


async def test_bytes_are_bounded_too(proxy: Proxy, namespace: str) -> None:
    big = "x" * 40_000
    async with AsyncClient.from_url(proxy.url, max_bytes=100_000, budget=20) as client:
        await client.command("PING")
        proxy.hold("reply")
        sets = [asyncio.create_task(client.command("SET", namespace, big)) for _ in range(300)]
        await proxy.seen(lambda: proxy.count("SET") >= 3)
        for _ in range(20):
            await asyncio.sleep(0)
        # The bound is looked at once a write, and a write holds at most so many requests.
        assert proxy.count("SET") <= 3 + _EARLY
        proxy.release("reply")
        assert await asyncio.gather(*sets) == [b"OK"] * 300


@pytest.mark.parametrize("when", ["before", "during"])
async def test_waiter_cancelled_as_it_is_let_in_gives_its_turn_on(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async with AsyncClient.from_url(proxy.url, max_requests=1, budget=20) as client:
        await client.command("PING")
        proxy.hold("reply")
        tasks = [asyncio.create_task(client.command("ECHO", n)) for n in range(3)]
        await proxy.seen(lambda: proxy.count("ECHO") == 1)
        lane = client._server()._main
        await until(lambda: lane.turns == 2)
        let_in = lane._let_in

        def let_in_and_cancel() -> None:
            if when == "before":
                tasks[1].cancel()
            let_in()
            tasks[1].cancel()

        monkeypatch.setattr(lane, "_let_in", let_in_and_cancel)
        link = lane.link
        assert link is not None
        link.room = let_in_and_cancel
        proxy.release("reply")
        assert await tasks[0] == b"0"
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert await tasks[2] == b"2"
        assert lane.turns == 0
        assert lane._let == 0


# -- big values beside small ones


async def test_small_calls_are_answered_while_a_big_value_is_on_its_way(
    proxy: Proxy, namespace: str
) -> None:
    big = b"x" * (4 << 20)
    async with AsyncClient.from_url(proxy.url, budget=20) as client:
        await client.command("SET", namespace, big)
        proxy.hold("reply", "GET")
        reading = asyncio.create_task(client.command("GET", namespace))
        await proxy.seen(lambda: proxy.waiting == 1)
        key = namespace + "n"
        counts = await asyncio.gather(*(client.command("INCR", key) for _ in range(100)))
        assert counts == list(range(1, 101))
        assert not reading.done()
        proxy.release("reply")
        assert await reading == big
        assert proxy.connections == 2
        # What became small comes home.
        await client.command("SET", namespace, "small")
        assert await client.command("GET", namespace) == b"small"
        assert not client._server()._big


async def test_one_connection_for_all_holds_small_calls_up(
    proxy: Proxy, server_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: without the second connection."""
    monkeypatch.setattr(single, "BULK_BYTES", 1 << 30)
    async with (
        AsyncClient.from_url(proxy.url, budget=20) as client,
        AsyncClient.from_url(server_url) as direct,
    ):
        await client.command("SET", namespace, b"x" * (4 << 20))
        proxy.hold("reply", "GET")
        reading = asyncio.create_task(client.command("GET", namespace))
        await proxy.seen(lambda: proxy.waiting == 1)
        small = asyncio.create_task(client.command("INCR", namespace + "n"))
        while await direct.command("GET", namespace + "n") is None:
            pass
        assert not small.done()  # the server has answered long since
        proxy.release("reply")
        assert len(await reading) == 4 << 20
        assert await small == 1


async def test_big_reply_learned_once_goes_the_other_way_next_time(
    server_url: str, namespace: str, proxy: Proxy
) -> None:
    async with (
        AsyncClient.from_url(server_url) as other,
        AsyncClient.from_url(proxy.url) as client,
    ):
        await other.command("SET", namespace, b"x" * 200_000)
        for _ in range(2):
            assert len(await client.command("GET", namespace)) == 200_000
        assert proxy.connections == 2
        small: Callable[[int], Any] = lambda n: client.command("ECHO", n)  # noqa: E731
        assert await asyncio.gather(*map(small, range(50))) == [b"%d" % n for n in range(50)]
        assert proxy.connections == 2
