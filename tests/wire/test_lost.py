"""What a lost connection may and may not do to a call."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fencepost import OutcomeUnknown, Unavailable
from fencepost._core import commands
from fencepost._core.backoff import Backoff
from fencepost._core.observe import Connected, Disconnected, Event
from fencepost._core.script import Call
from fencepost.wire import lane, pool, verdict
from support.faces import every_face
from support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.faces import Face
    from support.servers import ServerProcess

pytestmark = every_face

OpenFace = "Callable[..., Face]"


def harmless(*words: Any) -> Call[Any]:
    """A command that says of itself that it may be sent twice."""
    return Call(str(words[0]).lower(), words, lambda reply: reply, resend=True)


async def test_lost_reply_is_unknown_and_applied_once(
    open_face: Callable[..., Face], proxy: Proxy, server_url: str, namespace: str
) -> None:
    face, direct = open_face(proxy.url), open_face(server_url)
    await face.command("PING")
    proxy.fault("reply", "INCR", "cut")
    with pytest.raises(OutcomeUnknown, match="once or not at all"):
        await face.command("INCR", namespace)
    assert await direct.command("GET", namespace) == b"1"
    assert proxy.count("INCR") == 1
    assert await face.command("INCR", namespace) == 2  # on a new connection


async def test_lost_reply_makes_redis_py_apply_it_twice(
    kind: str, proxy: Proxy, namespace: str
) -> None:
    """The negative control: its default retries repeat what was applied."""
    proxy.fault("reply", "INCR", "cut")
    path = proxy.url.removeprefix("unix://")
    if kind == "async":
        async with redis.asyncio.Redis(unix_socket_path=path) as client:
            assert await client.execute_command("INCR", namespace) == 2
    else:

        def blocking() -> Any:
            with redis.Redis(unix_socket_path=path) as client:
                return client.execute_command("INCR", namespace)

        assert await asyncio.to_thread(blocking) == 2
    assert proxy.count("INCR") == 2


async def test_request_cut_before_the_server_is_unknown_too_and_not_applied(
    open_face: Callable[..., Face], proxy: Proxy, server_url: str, namespace: str
) -> None:
    face, direct = open_face(proxy.url), open_face(server_url)
    await face.command("PING")
    proxy.fault("request", "INCR", "cut")
    with pytest.raises(OutcomeUnknown):
        await face.command("INCR", namespace)
    assert await direct.command("GET", namespace) is None


@pytest.mark.parametrize("direction", ["request", "reply"])
async def test_half_a_message_before_a_cut_is_unknown_and_the_next_call_is_right(
    open_face: Callable[..., Face], proxy: Proxy, namespace: str, direction: Any
) -> None:
    face = open_face(proxy.url)
    await face.command("SET", namespace, "x" * 1000)
    proxy.fault(direction, "GET", "half")
    with pytest.raises(OutcomeUnknown):
        await face.command("GET", namespace)
    assert await face.command("GET", namespace) == b"x" * 1000


async def test_lost_reply_of_a_harmless_call_is_sent_again_and_others_are_not(
    open_face: Callable[..., Face], proxy: Proxy, namespace: str
) -> None:
    face = open_face(proxy.url)
    await face.command("SET", namespace, "v")
    for direction in ("request", "reply"):
        proxy.fault(direction, "GET", "cut")
        assert await face.run(commands.get(namespace)) == b"v"
    assert proxy.count("GET") == 4
    proxy.fault("reply", "GET", "cut")
    with pytest.raises(OutcomeUnknown):
        await face.run(commands.raw("GET", namespace))
    assert proxy.count("GET") == 5


async def test_lost_reply_then_no_server_is_still_unknown(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    """A repeat that could not be sent must not claim that the first was not applied."""
    with Proxy(own) as proxy:
        face = open_face(proxy.url, budget=0.6)
        await face.command("PING")
        proxy.hold("reply", "SET")
        writing = asyncio.create_task(face.run(harmless("SET", "k", "v")))
        await proxy.seen(lambda: proxy.waiting == 1)
        own.kill()
        proxy.cut()
        with pytest.raises(OutcomeUnknown):
            await writing
        # The control: a call that was never sent says so.
        with pytest.raises(Unavailable):
            await face.run(harmless("SET", "k", "v"))


async def test_one_lost_reply_in_a_batch_fails_the_batch_after_every_reply(
    open_face: Callable[..., Face], proxy: Proxy, server_url: str, namespace: str
) -> None:
    face, direct = open_face(proxy.url), open_face(server_url)
    await face.command("PING")
    proxy.fault("reply", "INCR", "cut")
    calls = [harmless("HSET", namespace + "h", str(n), n) for n in range(5)]
    calls.insert(2, commands.raw("INCR", namespace))
    with pytest.raises(OutcomeUnknown):
        await face.all(calls)
    assert await direct.command("GET", namespace) == b"1"
    assert await direct.command("HLEN", namespace + "h") == 5  # what may be repeated was
    assert proxy.count("INCR") == 1


async def test_stopped_server_fails_calls_within_the_budget_and_recovers(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    seen: list[Event] = []
    face = open_face(own.url, budget=0.6, observe=seen.append)
    await face.command("SET", "k", "v")
    own.pause()
    with pytest.raises(OutcomeUnknown, match=r"0\.6 s"):
        await face.command("GET", "k")
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await face.command("GET", "k")
    own.resume()
    assert await face.command("GET", "k") == b"v"
    lost = [event for event in seen if isinstance(event, Disconnected)]
    assert [event.reason for event in lost] == ["no answer within 0.6 s"]
    assert [event.reconnect for event in seen if isinstance(event, Connected)] == [False, True]


async def test_killed_server_is_found_again_and_tried_with_pauses(
    open_face: Callable[..., Face],
    own: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def attempts(proxy: Proxy) -> int:
        return proxy.connections

    with Proxy(own) as proxy:
        face = open_face(proxy.url, budget=0.6)
        await face.command("PING")
        own.kill()
        before = attempts(proxy)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await face.command("GET", "k")
        with pytest.raises(Unavailable):
            await face.command("GET", "k")
        patient = attempts(proxy) - before
        own.start()
        assert await face.command("GET", "k") is None

        # The negative control: without pauses it would hammer.
        own.kill()
        for module in (lane, pool, verdict):
            monkeypatch.setattr(module, "RECONNECT", Backoff(0, 0))
        before = attempts(proxy)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await face.command("GET", "k")
        with pytest.raises(Unavailable):
            await face.command("GET", "k")
        assert 1 < patient < 30
        assert attempts(proxy) - before > 2 * patient


async def test_restart_between_calls_is_not_noticed_by_callers(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    gone = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, Disconnected):
            gone.set()

    face = open_face(own.url, observe=listen)
    await face.command("PING")
    own.restart()
    if face.kind == "async":  # a loop hears of the end; a thread looks before it sends
        await asyncio.to_thread(gone.wait, 30)
    assert await face.command("INCR", "n") == 1
    assert gone.is_set()


async def test_connection_that_died_in_silence_is_found_by_the_probe(
    open_face: Callable[..., Face], proxy: Proxy, namespace: str
) -> None:
    """An idle NAT cut: nothing comes back any more, and nobody says so."""
    gone = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, Disconnected):
            gone.set()

    face = open_face(proxy.url, budget=0.6, health=0.02, observe=listen)
    await face.command("SET", namespace, "v")
    proxy.fault("request", "PING", "drop")
    if face.kind == "async":
        await asyncio.to_thread(gone.wait, 30)
    else:  # a socket that was idle for longer than `health` is probed before it is used
        [connection] = face.client._server._idle
        connection.used -= 1.0
    # A raw command would have been lost on the dead connection: it is not even sent there.
    assert await face.command("GET", namespace) == b"v"
    assert gone.is_set()
    assert proxy.count("PING") >= 1


async def test_server_that_breaks_the_protocol_is_left(
    open_face: Callable[..., Face],
) -> None:
    from support.scripted import ScriptedServer

    for nonsense in (b"?what\r\n", b"$-9\r\n", b"*1\r\n@\r\n", b"+one\r\n+two\r\n"):
        with ScriptedServer(GET=nonsense, PING="+PONG") as scripted:
            face = open_face(scripted.url)
            try:
                answer = await face.command("GET", "k")
            except OutcomeUnknown:
                pass
            else:  # the first reply was whole; the one that nobody asked for ends the connection
                assert answer == b"one"
            assert await face.command("PING") == b"PONG"
            assert scripted.connections == 2, nonsense
