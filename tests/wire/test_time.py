"""The estimate of the server's clock: from the handshake, from the health probe, every few minutes."""

from __future__ import annotations

import time

import pytest

from fencepost.wire import link, pool
from fencepost.wire.hello import read_time
from support.faces import Face, every_face
from support.scripted import ScriptedServer, bulk
from support.until import until


def says(ahead: float) -> bytes:
    """A reply to TIME of a server whose clock is so many seconds ahead of this machine's."""
    now = time.time() + ahead
    return b"*2\r\n" + bulk(str(int(now))) + bulk(str(int(now % 1 * 1e6)))


def ahead(face: Face) -> float:
    return face.client.port.server_ms() / 1000 - time.time()


@every_face
async def test_a_handshake_asks_for_the_time(kind: str) -> None:
    with ScriptedServer(TIME=lambda words: says(500), PING="+PONG") as server:
        face = Face(kind, server.url)
        await face.command("PING")
        assert ahead(face) == pytest.approx(500, abs=200)
        await face.close()


@every_face
async def test_a_server_that_does_not_tell_the_time_is_believed_to_have_ours(kind: str) -> None:
    with ScriptedServer(TIME="-NOPERM no TIME for you", PING="+PONG") as server:
        face = Face(kind, server.url)
        await face.command("PING")
        assert ahead(face) == pytest.approx(0, abs=200)
        await face.close()


@pytest.mark.parametrize("kind", ["async"])
async def test_a_health_probe_asks_again(kind: str) -> None:
    """A server whose clock was set: an idle link finds out."""
    replies = [says(500), lambda words: says(-500)]
    with ScriptedServer(TIME=replies, PING="+PONG") as server:
        face = Face(kind, server.url, health=0.05, budget=0.6)
        await face.command("PING")
        await until(lambda: ahead(face) < 0)
        assert ahead(face) == pytest.approx(-500, abs=200)
        await face.close()


@every_face
async def test_an_old_estimate_is_made_anew(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_TIME_EVERY", 0.0)
    monkeypatch.setattr(pool, "_TIME_EVERY", 0.0)
    replies = [says(500), lambda words: says(-500)]
    with ScriptedServer(TIME=replies, PING="+PONG") as server:
        face = Face(kind, server.url, budget=0.6)
        await face.command("PING")
        await until(lambda: ahead(face) < 0)
        await face.close()


def test_what_is_no_time_is_no_estimate() -> None:
    assert read_time([b"100", b"500000"], 10.0, 20.0) == 100_500 - 15_000
    for reply in (None, b"OK", [], [b"1"], RuntimeError("x")):
        assert read_time(reply, 0.0, 0.0) is None
