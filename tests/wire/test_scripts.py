"""Scripts on a server that forgets them, restarts or is another one than was greeted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fencepost import ServerError
from fencepost._core import commands
from fencepost._core.port import OtherServer
from fencepost._core.script import SERVER, Script, read_contract
from fencepost.errors import ScriptMissing
from support.faces import every_face
from support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.faces import Face
    from support.servers import ServerProcess

pytestmark = every_face


def script(text: str) -> Script[Any]:
    return Script(read_contract(text), text, lambda reply: reply)


ADD = script("""-- add: count.
-- KEYS   counter
-- ARGV   by
-- ->     the count
return redis.call('INCRBY', KEYS[1], ARGV[1])
""")

WHO = script("""-- who: who the caller greeted, and who answers.
-- ARGV   server
-- ->     both
return {ARGV[1], redis.call('INFO', 'server'):match('run_id:(%x+)')}
""")

FLAGGED = script("""-- flagged: works when memory is full.
-- flags: allow-oom
-- ->     1
return 1
""")

BROKEN = script("""-- broken: an error of its own.
-- ->     nothing
return redis.error_reply('OWN it is broken')
""")


async def test_script_is_sent_whole_once_and_by_digest_after(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    with Proxy(own) as proxy:
        face = open_face(proxy.url)
        assert [await face.run(ADD(["n"], [2])) for _ in range(3)] == [2, 4, 6]
        assert (proxy.count("EVALSHA"), proxy.count("EVAL")) == (3, 1)


async def test_scripts_are_flushed_under_load_and_every_call_succeeds(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    with Proxy(own) as proxy:
        face, direct = open_face(proxy.url, budget=20), open_face(own.url)

        async def load() -> None:
            for _ in range(25):
                await face.run(ADD(["n"], [1]))

        async def flush() -> None:
            for _ in range(10):
                await direct.command("SCRIPT", "FLUSH")

        await asyncio.gather(flush(), *(load() for _ in range(8)))
        await direct.command("SCRIPT", "FLUSH")
        await asyncio.gather(flush(), *(load() for _ in range(8)))
        assert await direct.command("GET", "n") == b"400"
        whole = proxy.count("EVAL")
        assert 2 <= whole <= 400
        assert proxy.count("EVALSHA") == 400
        # The negative control: the digest alone is refused.
        await direct.command("SCRIPT", "FLUSH")
        with pytest.raises(ScriptMissing):
            await face.command("EVALSHA", ADD.plain_sha, 1, "n", 1)


async def test_missing_script_in_a_batch_repeats_only_what_failed(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    face = open_face(own.url)
    calls = [commands.raw("INCR", "m"), ADD(["n"], [1]), commands.raw("INCR", "m"), ADD(["n"], [1])]
    assert sorted(await face.all(calls)) == [1, 1, 2, 2]
    await face.command("SCRIPT", "FLUSH")
    assert sorted(await face.all(calls)) == [3, 3, 4, 4]


async def test_call_is_stamped_with_the_server_that_it_is_sent_to(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    face = open_face(own.url, budget=20)
    call = WHO([], [SERVER])
    stamped, answered = await face.run(call)
    assert stamped.startswith(answered + b":")
    old = stamped.decode()
    frozen = WHO([], [old])  # the negative control: an identity that was read too early
    own.restart()
    await face.run(commands.get("k"))  # harmless: finds the new server
    stamped, answered = await face.run(call)
    assert stamped.startswith(answered + b":")
    assert stamped.decode() != old
    stamped, answered = await face.run(frozen)
    assert not stamped.startswith(answered + b":")


async def test_call_in_flight_over_a_restart_is_stamped_anew(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    repeatable = script(WHO.plain.replace("-- ->", "-- resend: harmless, it only reads\n-- ->"))
    with Proxy(own) as proxy:
        face = open_face(proxy.url, budget=20)
        old = (await face.run(repeatable([], [SERVER])))[0]
        proxy.hold("request", "EVALSHA")
        calls = [asyncio.create_task(face.run(repeatable([], [SERVER]))) for _ in range(5)]
        await proxy.seen(lambda: proxy.waiting >= 1)
        own.restart()
        await asyncio.to_thread(proxy.cut)
        proxy.release("request")
        for call in calls:
            stamped, answered = await call
            assert stamped.startswith(answered + b":")
            assert stamped != old


async def test_call_for_one_server_only_is_never_sent_to_another(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    with Proxy(own) as proxy:
        face = open_face(proxy.url, budget=20)
        identity = (await face.run(WHO([], [SERVER])))[0].decode()
        assert await face.run(ADD(["n"], [1], identity)) == 1
        assert await face.run(commands.hmget("h", "f", only=identity)) == [None]
        own.restart()
        await face.run(commands.get("k"))
        before = len(proxy.requests)
        for call in (ADD(["n"], [1], identity), commands.hmget("h", "f", only=identity)):
            with pytest.raises(OtherServer):
                await face.run(call)
            with pytest.raises(OtherServer):
                await face.all([call, call])
        assert len(proxy.requests) == before


async def test_flags_reach_a_server_that_knows_them(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    with Proxy(own) as proxy:
        face = open_face(proxy.url)
        assert await face.run(FLAGGED([])) == 1
        [text] = [words[1] for words in proxy.requests if words[0] == b"EVAL"]
        assert text.startswith(b"#!lua flags=allow-oom\n")


async def test_error_of_a_script_is_the_callers(
    open_face: Callable[..., Face], server_url: str
) -> None:
    face = open_face(server_url)
    with pytest.raises(ServerError, match="it is broken") as caught:
        await face.run(BROKEN([]))
    assert caught.value.code == "OWN"
