"""Servers that are not what they were, or not what we would like: never a wrong answer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from fencepost import Denied, Overloaded, ServerError, Unavailable
from fencepost._core.observe import Connected, Event
from fencepost._core.script import SERVER
from support.faces import every_face
from support.scripted import HANG_UP, HELLO, ScriptedServer, bulk, info
from support.until import until

from .test_scripts import FLAGGED, WHO

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.faces import Face
    from support.servers import ServerProcess

pytestmark = every_face


# -- replica


async def test_demoted_server_is_left_and_taken_back_when_it_is_promoted(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    face, direct = open_face(own.url, budget=0.6), open_face(own.unix_url)
    assert await face.command("SET", "k", "v") == b"OK"
    await direct.command("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(Unavailable, match="replica"):
        await face.command("SET", "k", "w")
    with pytest.raises(Unavailable, match="replica"):  # not read from a replica either
        await face.command("GET", "k")
    await direct.command("REPLICAOF", "NO", "ONE")
    assert await face.command("GET", "k") == b"v"
    assert await face.command("SET", "k", "w") == b"OK"


async def test_demotion_under_load_loses_no_acknowledged_write(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    face, direct = open_face(own.url, budget=0.6), open_face(own.unix_url)
    acked = 0

    async def write() -> None:
        nonlocal acked
        while True:
            try:
                await face.command("INCR", "n")
            except Unavailable:  # never OutcomeUnknown: every answer of a replica is a refusal
                return
            acked += 1

    writers = [asyncio.create_task(write()) for _ in range(8)]
    await until(lambda: acked >= 50)
    await direct.command("REPLICAOF", "127.0.0.1", 1)
    await asyncio.gather(*writers)
    await direct.command("REPLICAOF", "NO", "ONE")
    assert await face.command("GET", "n") == b"%d" % acked


# -- loading


async def test_loading_server_is_waited_for(open_face: Callable[..., Face]) -> None:
    loading = "-LOADING Redis is loading the dataset in memory"
    with ScriptedServer(GET=[loading, loading, bulk("v"), loading]) as scripted:
        face = open_face(scripted.url, budget=20)
        assert await face.command("GET", "k") == b"v"
        assert scripted.count("GET") == 3
        assert scripted.connections == 1


async def test_server_that_never_loads_is_unavailable(open_face: Callable[..., Face]) -> None:
    with ScriptedServer(GET="-LOADING Redis is loading the dataset in memory") as scripted:
        face = open_face(scripted.url, budget=0.6)
        with pytest.raises(Unavailable, match="LOADING"):
            await face.command("GET", "k")


# -- memory


async def test_full_server_is_overloaded_and_reads_go_on(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    face = open_face(own.url)
    await face.command("SET", "k", "v")
    await face.command("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(Overloaded, match="out of memory"):
        await face.command("SET", "k", "w")
    assert await face.command("GET", "k") == b"v"
    assert await face.run(FLAGGED([])) == 1


# -- what it says of itself


async def test_server_without_hello_is_spoken_to_in_resp2(
    open_face: Callable[..., Face], own: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    own.stop()
    own.args = ("--rename-command", "HELLO", "")  # an ACL can't take it away
    own.start()
    face = open_face(own.url, observe=seen.append)
    with caplog.at_level(logging.WARNING):
        await face.command("HSET", "h", "f", "v")
        assert await face.command("HGETALL", "h") == [b"f", b"v"]
    assert [event.protocol for event in seen if isinstance(event, Connected)] == [2]
    assert "RESP2" in caplog.text
    stamped, answered = await face.run(WHO([], [SERVER]))
    assert stamped.startswith(answered + b":")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:secret@", [b"AUTH", b"secret"]),
        ("redis://ann:secret@", [b"AUTH", b"ann", b"secret"]),
        ("redis://", None),
    ],
)
async def test_old_server_is_given_credentials_the_old_way(
    open_face: Callable[..., Face], url: str, words: list[bytes] | None
) -> None:
    with ScriptedServer(
        tcp=True, HELLO="-ERR unknown command `HELLO`", AUTH="+OK", PING="+PONG"
    ) as scripted:
        face = open_face(f"{url}127.0.0.1:{scripted.port}")
        assert await face.command("PING") == b"PONG"
        auths = [list(request) for request in scripted.requests if request[0] == b"AUTH"]
        assert auths == ([words] if words else [])


async def test_server_that_hides_who_it_is_is_used_with_a_warning(
    open_face: Callable[..., Face], own: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    direct = open_face(own.unix_url)
    await direct.command("ACL", "SETUSER", "shy", "on", ">pw", "~*", "+@all", "-info")
    face = open_face(f"redis://shy:pw@127.0.0.1:{own.port}")
    says = WHO.with_text("return {ARGV[1]}")
    with caplog.at_level(logging.WARNING):
        assert await face.run(says([], [SERVER])) == [b"?"]
    assert "forbids INFO" in caplog.text
    assert await face.run(FLAGGED([])) == 1  # HELLO told its version
    await direct.command("REPLICAOF", "127.0.0.1", 1)
    await direct.command("CLIENT", "KILL", "TYPE", "normal", "USER", "shy")
    other = open_face(f"redis://shy:pw@127.0.0.1:{own.port}", budget=0.6)
    with pytest.raises(Unavailable, match="replica"):
        await other.command("GET", "k")


# -- who we are


async def test_password_and_user_are_given_and_wrong_ones_say_so(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    direct = open_face(own.unix_url)
    await direct.command("ACL", "SETUSER", "ann", "on", ">p@ss/word", "~*", "+@all")
    await direct.command("ACL", "SETUSER", "bob", "on", "nopass", "~*", "+@all")
    await direct.command("CONFIG", "SET", "requirepass", "top secret")
    at = f"127.0.0.1:{own.port}"
    good = {
        f"redis://:top%20secret@{at}": b"default",
        f"redis://ann:p%40ss%2Fword@{at}": b"ann",
        f"redis://bob@{at}": b"bob",
    }
    for url, user in good.items():
        face = open_face(url)
        assert await face.command("ACL", "WHOAMI") == user
        assert "secret" not in repr(face.client)
        assert "word" not in repr(face.client)
    for url in (f"redis://{at}", f"redis://:wrong@{at}", f"redis://nobody:x@{at}"):
        with pytest.raises(Denied, match="refused the credentials") as caught:
            await open_face(url).command("PING")
        assert "wrong@" not in str(caught.value)


async def test_database_is_selected_and_a_wrong_one_is_refused(
    open_face: Callable[..., Face], own: ServerProcess
) -> None:
    at = f"127.0.0.1:{own.port}"
    zero, three = open_face(f"redis://{at}"), open_face(f"redis://{at}/3")
    await three.command("SET", "k", "three")
    assert await zero.command("GET", "k") is None
    assert await three.command("GET", "k") == b"three"
    unix = open_face(f"{own.unix_url}?db=3")
    assert await unix.command("GET", "k") == b"three"
    with pytest.raises(Denied, match="no database 99"):
        await open_face(f"redis://{at}/99").command("PING")


async def test_who_is_denied_is_told_at_once_and_tried_again_by_the_next_call(
    open_face: Callable[..., Face],
) -> None:
    with ScriptedServer(HELLO="-WRONGPASS invalid username-password pair") as scripted:
        face = open_face(scripted.url, budget=60)
        with pytest.raises(Denied, match="WRONGPASS"):
            await face.command("PING")
        assert scripted.count("HELLO") == 1
        scripted.say("HELLO", HELLO)  # the password was given to the server meanwhile
        scripted.say("PING", "+PONG")
        assert await face.command("PING") == b"PONG"
        assert scripted.count("HELLO") == 2


async def test_server_that_hangs_up_on_the_greeting_is_unavailable(
    open_face: Callable[..., Face],
) -> None:
    with ScriptedServer(HELLO=HANG_UP) as scripted:
        with pytest.raises(Unavailable, match="handshake"):
            await open_face(scripted.url, budget=0.6).command("PING")
        scripted.say("HELLO", "-ERR max number of clients reached")
        with pytest.raises(Unavailable, match="max number of clients"):
            await open_face(scripted.url, budget=0.6).command("PING")
        scripted.say("HELLO", "+OK")
        scripted.say("INFO", info(role="slave"))
        with pytest.raises(Unavailable, match="replica"):
            await open_face(scripted.url, budget=0.6).command("PING")


async def test_server_errors_keep_their_code(
    open_face: Callable[..., Face], server_url: str, namespace: str
) -> None:
    face = open_face(server_url)
    await face.command("SET", namespace, "v")
    with pytest.raises(ServerError) as caught:
        await face.command("HGET", namespace, "f")
    assert caught.value.code == "WRONGTYPE"
