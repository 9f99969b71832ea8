"""Clients over their lives: closed, forked, in several loops and threads, with nothing left over."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import uvloop

from fencepost import AsyncClient, Client, ClientClosed, OutcomeUnknown, Refused
from fencepost._core import commands
from support.faces import every_face
from support.loops import has_uvloop, on_both_loops
from support.require import require
from support.until import until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from support.faces import Face
    from support.proxy import Proxy


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """No descriptor more, and no warning of something unclosed."""
    gc.collect()
    process = psutil.Process()
    before = process.num_fds()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert process.num_fds() == before


# -- closed


@every_face
async def test_closed_client_refuses_and_closing_again_is_harmless(
    open_face: Callable[..., Face], server_url: str
) -> None:
    unused, used = open_face(server_url), open_face(server_url)
    await used.command("PING")
    for face in (unused, used):
        await face.close()
        await face.close()
        with pytest.raises(ClientClosed):
            await face.command("PING")
        with pytest.raises(ClientClosed):
            await face.all([commands.get("k")] * 2)


@every_face
async def test_close_ends_a_call_that_waits_for_its_reply(
    open_face: Callable[..., Face], proxy: Proxy
) -> None:
    face = open_face(proxy.url, budget=60)
    await face.command("PING")
    proxy.hold("reply")
    call = asyncio.create_task(face.command("INCR", "n"))
    await proxy.seen(lambda: proxy.waiting == 1)
    await face.close()
    with pytest.raises(OutcomeUnknown, match="closed"):
        await call


@every_face
async def test_close_while_connecting_is_a_close_and_no_cancel(
    open_face: Callable[..., Face], proxy: Proxy
) -> None:
    face = open_face(proxy.url, budget=60)
    proxy.hold("reply", "HELLO")
    calls = [asyncio.create_task(face.command("PING")) for _ in range(3)]
    await proxy.seen(lambda: proxy.waiting >= 1)
    closing = asyncio.create_task(face.close())
    if face.kind == "threads":  # a thread hears of it when its greeting is answered
        await until(lambda: face.client._server._closed)
        proxy.release("reply")
    await closing
    for call in calls:
        with pytest.raises(ClientClosed):
            await call


@every_face
async def test_close_refuses_who_waits_for_room(
    open_face: Callable[..., Face], proxy: Proxy
) -> None:
    face = open_face(proxy.url, budget=60, max_requests=1, max_connections=1)
    await face.command("PING")
    proxy.hold("reply")
    first = asyncio.create_task(face.command("INCR", "n"))
    await proxy.seen(lambda: proxy.waiting == 1)
    others = [asyncio.create_task(face.command("PING")) for _ in range(3)]
    server = face.client._server
    if face.kind == "async":
        await until(lambda: server()._main.turns == 3)
    else:
        await until(lambda: len(server._queue) == 3)
    await face.close()
    with pytest.raises(OutcomeUnknown):
        await first
    for other in others:
        with pytest.raises(ClientClosed):
            await other


@on_both_loops
async def test_async_close_leaves_no_task_and_no_timer(proxy: Proxy) -> None:
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks()
    client = AsyncClient.from_url(proxy.url)
    await client.command("PING")
    await client.command("SET", "k", b"x" * 200_000)  # the other lane
    proxy.hold("reply")
    call = asyncio.create_task(client.command("PING"))
    await proxy.seen(lambda: proxy.waiting == 1)
    await client.aclose()
    with pytest.raises(OutcomeUnknown):
        await call
    assert asyncio.all_tasks() - {call} == tasks
    timers = [timer for timer in getattr(loop, "_scheduled", []) if not timer.cancelled()]
    assert [timer for timer in timers if "fencepost" in repr(timer)] == []
    await proxy.seen(lambda: proxy.open == 0)


def run_on_both(work: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    results = [asyncio.run(work())]
    if has_uvloop():
        results.append(uvloop.run(work()))
    return results


def test_nothing_is_left_after_close(server_url: str) -> None:
    async def use() -> None:
        async with AsyncClient.from_url(server_url) as client:
            await client.command("PING")
            await client.command("SET", "k", b"x" * 200_000)

    def use_threads() -> None:
        with Client.from_url(server_url) as client:
            threads = [threading.Thread(target=client.command, args=("PING",)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    run_on_both(use)
    use_threads()
    with nothing_left():
        run_on_both(use)
        use_threads()


def test_leftovers_are_seen(server_url: str) -> None:
    """The negative control: a client that is not closed is seen by the check."""
    client = Client.from_url(server_url)

    def leak() -> None:
        with nothing_left():
            client.command("PING")

    with pytest.raises(AssertionError):
        leak()
    client.close()


@every_face
async def test_lifespan_closes_at_the_end(kind: str, server_url: str) -> None:
    if kind == "async":
        client = AsyncClient.from_url(server_url)
        async with client.lifespan(object()):
            assert await client.command("PING") == b"PONG"
        with pytest.raises(ClientClosed):
            await client.command("PING")
    else:
        sync = Client.from_url(server_url)
        with sync.lifespan():
            assert sync.command("PING") == b"PONG"
        with pytest.raises(ClientClosed):
            sync.command("PING")


# -- at the door


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_environment_without_a_url_is_refused(
    client: Any, monkeypatch: pytest.MonkeyPatch, server_url: str
) -> None:
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("FENCEPOST_URL", raising=False)
        else:
            monkeypatch.setenv("FENCEPOST_URL", value)
        with pytest.raises(Refused, match="FENCEPOST_URL is not set"):
            client.from_env()
    monkeypatch.setenv("FENCEPOST_URL", "http://h")
    with pytest.raises(Refused, match="begins with"):
        client.from_env()
    monkeypatch.setenv("FENCEPOST_URL", server_url)
    assert server_url in repr(client.from_env())


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 0},
        {"budget": -1},
        {"health": 0},
        {"budget": float("nan")},
        {"max_requests": 0},
        {"max_bytes": 0},
        {"max_connections": 0},
        {"namespace": ""},
    ],
)
def test_option_that_can_not_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        Client.from_url("redis://h", **options)


REFUSED = [
    ("BLPOP", "k", 0),
    ("blpop", "k", 0),
    (b"BRPOP", "k", 0),
    ("BLMOVE", "a", "b", "LEFT", "LEFT", 0),
    ("BZPOPMIN", "k", 0),
    ("WAIT", 1, 0),
    ("WAITAOF", 1, 0, 0),
    ("XREAD", "BLOCK", 0, "STREAMS", "s", "$"),
    ("XREADGROUP", "GROUP", "g", "c", "block", 0, "STREAMS", "s", ">"),
    ("MULTI",),
    ("EXEC",),
    ("WATCH", "k"),
    ("SUBSCRIBE", "c"),
    ("PSUBSCRIBE", "c"),
    ("SSUBSCRIBE", "c"),
    ("MONITOR",),
    ("SELECT", 1),
    ("AUTH", "x"),
    ("HELLO", 2),
    ("RESET",),
    ("QUIT",),
    ("CLIENT", "REPLY", "OFF"),
    ("client", "tracking", "on"),
    ("SCRIPT", "DEBUG", "YES"),
    ("REPLCONF", "listening-port", 1),
    ("CLIENT", "SETNAME", "x"),
    ("READONLY",),
    ("ASKING",),
    (),
    ("",),
]


@every_face
@pytest.mark.parametrize("words", REFUSED, ids=lambda words: " ".join(map(str, words)) or "nothing")
async def test_command_that_would_change_the_shared_connection_is_refused(
    open_face: Callable[..., Face], server_url: str, words: tuple[Any, ...]
) -> None:
    with pytest.raises(Refused):
        await open_face(server_url).command(*words)


@every_face
async def test_argument_that_is_no_word_is_the_callers_error_and_harms_nobody(
    open_face: Callable[..., Face], server_url: str
) -> None:
    face = open_face(server_url)
    for _ in range(2):
        with pytest.raises(TypeError):
            await face.command("SET", "k", None)
        with pytest.raises(TypeError):
            await face.command("SET", "k", ["a"])
        assert await face.command("ECHO", "x") == b"x"


# -- forks


def in_child(work: Callable[[], bytes]) -> bytes:
    """Run in a forked child; what it returns, or how it failed."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: this process has threads
        pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            said = work()
        except BaseException:
            said = traceback.format_exc().encode()
        with contextlib.suppress(OSError):
            os.write(writing, said)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_forked_child_gets_its_own_socket_and_the_parents_goes_on(server_url: str) -> None:
    with Client.from_url(server_url) as client:
        mine = client.command("CLIENT", "ID")

        def child() -> bytes:
            said = b"%d" % client.command("CLIENT", "ID")
            client.close()
            return said

        theirs = int(in_child(child))
        assert theirs != mine
        assert client.command("ECHO", "still") == b"still"
        assert client.command("CLIENT", "ID") == mine


def test_forked_child_that_keeps_the_parents_socket_mixes_replies(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the same connection is used from both processes."""
    with Client.from_url(server_url) as client:
        mine = client.command("CLIENT", "ID")
        monkeypatch.setattr(Client, "_forget", lambda _: None)
        assert int(in_child(lambda: b"%d" % client.command("CLIENT", "ID"))) == mine


@on_both_loops
async def test_fork_under_a_running_loop_leaves_the_parents_link_alone(server_url: str) -> None:
    async with AsyncClient.from_url(server_url) as client:
        mine = await client.command("CLIENT", "ID")

        def child() -> bytes:
            async def work() -> bytes:
                said = b"%d" % await client.command("CLIENT", "ID")
                await client.aclose()
                return said

            gc.collect()  # what the parent left must survive being collected here
            return asyncio.run(work())

        said = in_child(child)
        assert said.isdigit(), said.decode()
        assert int(said) != mine
        assert await asyncio.gather(*(client.command("ECHO", n) for n in range(100))) == [
            b"%d" % n for n in range(100)
        ]
        assert await client.command("CLIENT", "ID") == mine


# -- loops and threads


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_one_client_serves_two_loops_one_after_the_other(runner: Any, server_url: str) -> None:
    require("uvloop", has_uvloop())

    async def use(client: AsyncClient) -> int:
        number: int = await client.command("CLIENT", "ID")
        return number

    async def last(client: AsyncClient) -> int:
        number = await use(client)
        await client.aclose()
        return number

    client = AsyncClient.from_url(server_url)
    with warnings.catch_warnings():
        if runner is uvloop.run:  # it warns of what it closes; as an error that would hang it
            warnings.simplefilter("ignore", ResourceWarning)
        first = runner(use(client))  # its loop is closed with the link open
        second = runner(use(client))
    third = runner(last(client))
    assert len({first, second, third}) == 3
    with pytest.raises(ClientClosed):
        runner(use(client))


@on_both_loops
async def test_loop_in_another_thread_has_its_own_link(server_url: str) -> None:
    client = AsyncClient.from_url(server_url)

    async def work() -> set[int]:
        return {await client.command("CLIENT", "ID") for _ in range(200)}

    others = [asyncio.to_thread(asyncio.run, work()) for _ in range(3)]
    found = await asyncio.gather(work(), *others)
    assert all(len(ids) == 1 for ids in found)
    assert len(set.union(*found)) == 4
    await client.aclose()


@on_both_loops
async def test_close_reaches_the_link_of_another_loop(proxy: Proxy) -> None:
    client = AsyncClient.from_url(proxy.url, budget=60)
    proxy.hold("reply", "ECHO")

    async def work() -> str:
        try:
            return str(await client.command("ECHO", "never"))
        except OutcomeUnknown:
            return "unknown"

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, work()))
    await proxy.seen(lambda: proxy.waiting == 1)
    await client.aclose()
    assert await other == "unknown"


def test_many_threads_share_a_bounded_pool_and_never_mix_replies(
    server_url: str, namespace: str
) -> None:
    wrong: list[Any] = []
    with Client.from_url(server_url, max_connections=4, budget=60) as client:

        def work(mine: int) -> None:
            for number in range(100):
                text = b"%d:%d" % (mine, number)
                if client.command("ECHO", text) != text:
                    wrong.append(text)
                client.command("INCR", namespace)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert client.command("GET", namespace) == b"3200"
        assert len(client._server._all) <= 4
