"""Gates: a holder that was paused is refused at the resource, whatever it believes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import create_async_engine

from fencepost._core.keys import gate_of
from fencepost.errors import FenceRefused, Refused, ServerError
from fencepost.lock.gates import FENCED_SET, Gated
from fencepost.sql.guards import (
    create_tables,
    create_tables_async,
    fence_guard,
    fence_values,
    forget_done,
    keep_result,
    once,
    pass_gate,
)
from fencepost.sql.transactions import transact
from support.faces import every_face
from support.lockfaces import LockFace, renewed
from support.require import require
from support.servers import ServerProcess, find_binary

OpenFace = Callable[..., LockFace]


@dataclass(frozen=True)
class Actor:
    """Who acts: a fence, and who drew it."""

    fence: int
    token: str = "me"


@pytest.fixture
def doc(namespace: str) -> str:
    return f"{namespace}:doc"


# -- on the server


@every_face
async def test_paused_holder_is_refused_at_the_resource(
    face: LockFace, rival: LockFace, doc: str
) -> None:
    """The lease that no check can save: it was checked, then its process was paused."""
    paused = await face.call(face.lock(ttl=600).acquire)
    paused.check()
    await rival.lock().force_release()  # its time is over, and it does not know
    async with rival.lock() as newer:
        await rival.client.fenced_set(doc, "new", newer)
        assert not paused.lost
        with pytest.raises(FenceRefused, match="a newer holder") as caught:
            await face.call(face.client.fenced_set, doc, "old", paused)
        assert caught.value.fence == newer.fence
        assert await rival.command("GET", doc) == b"new"
        await rival.client.fenced_set(doc, "newer", newer)  # as often as it likes
    assert await rival.command("GET", doc) == b"newer"


async def test_without_a_gate_it_writes(rival: LockFace, doc: str) -> None:
    """The control: the same two holders, and a plain SET."""
    paused = await rival.lock(ttl=600).acquire()
    paused.check()
    await rival.lock().force_release()
    async with rival.lock():
        await rival.command("SET", doc, "new")
        await rival.command("SET", doc, "old")
    assert await rival.command("GET", doc) == b"old"


@every_face
async def test_values_live_as_long_as_they_are_told_and_gates_no_shorter(
    face: LockFace, doc: str
) -> None:
    async def put(**more: Any) -> None:
        await face.call(face.client.fenced_set, doc, "v", Actor(7), **more)

    await put()
    gate = gate_of(doc)
    assert [await face.command("PTTL", key) for key in (doc, gate)] == [-1, -1]
    await put(ttl=60)
    assert 50_000 < await face.command("PTTL", doc) <= 60_000
    assert await face.command("PTTL", gate) == -1
    await put(ttl=60, remember=600)
    assert 500_000 < await face.command("PTTL", gate) <= 600_000
    await put()
    assert [await face.command("PTTL", key) for key in (doc, gate)] == [-1, -1]
    for bad in ({"ttl": 0}, {"ttl": -1}, {"remember": 0.0004}, {"ttl": 60, "remember": 6}):
        with pytest.raises(Refused):
            await put(**bad)


@every_face
async def test_equal_fences_of_two_holders(face: LockFace, doc: str) -> None:
    """T6: a server that came back empty with its clock behind has drawn one twice."""
    await face.call(face.client.fenced_set, doc, "first", Actor(7, "a"))
    with pytest.raises(FenceRefused) as caught:
        await face.call(face.client.fenced_set, doc, "second", Actor(7, "b"))
    assert await face.command("GET", doc) == b"first"
    lease = await face.call(face.lock().acquire, floor=caught.value.fence + 1)
    await face.call(face.client.fenced_set, doc, "third", lease)
    assert await face.command("GET", doc) == b"third"
    await face.call(lease.release)


async def test_equal_fences_need_the_token(rival: LockFace, doc: str) -> None:
    text = FENCED_SET.plain
    guard = " or (last == mine and seen[2] ~= token)"
    assert text.count(guard) == 1
    script = FENCED_SET.with_text(text.replace(guard, ""))
    for token in ("a", "b"):
        await rival.client.port.run(script((gate_of(doc), doc), (7, token, 0, token, 0)))
    assert await rival.command("GET", doc) == b"b"  # which the guard would have refused


@every_face
async def test_any_script_behind_a_gate(face: LockFace, doc: str) -> None:
    add = face.client.fenced_script(
        "local n = redis.call('INCRBY', KEYS[1], ARGV[1])\nreturn {n, #KEYS, #ARGV}"
    )

    async def run(actor: Actor, by: Any) -> Any:
        return await face.call(add.run, actor, [doc], [by])

    assert await run(Actor(7), 2) == [2, 1, 1]
    assert await run(Actor(8, "b"), 3) == [5, 1, 1]
    with pytest.raises(FenceRefused, match="a newer holder") as caught:
        await run(Actor(7), 2)
    assert caught.value.fence == 8
    assert await face.command("GET", doc) == b"5"
    with pytest.raises(ServerError, match="not an integer"):
        await run(Actor(9, "c"), "x")
    with pytest.raises(FenceRefused):  # the gate was raised before the script failed
        await run(Actor(8, "b"), 1)
    other = await face.call(add.run, Actor(1), [doc], [1], gate=f"{{{doc}}}:mine")
    assert other == [6, 1, 1]


@pytest.mark.parametrize("text", ["", "  \n", "#!lua name=x\nreturn 1"])
def test_what_is_no_script_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        Gated(text)


def test_a_script_without_keys_names_its_gate() -> None:
    with pytest.raises(Refused, match="or a gate that is named"):
        Gated("return 1").call(Actor(1), [], [], None, None)


@pytest.mark.parametrize(
    ("key", "gate"),
    [
        ("doc", "{doc}:fence"),
        ("a:b", "{a:b}:fence"),
        ("{user}:doc", "{user}:doc:fence"),
        ("x{user}y", "x{user}y:fence"),
        ("a{b", "{a{b}:fence"),
        ("ä", "{ä}:fence"),
    ],
)
async def test_a_gate_is_in_its_keys_slot(key: str, gate: str) -> None:
    assert gate_of(key) == gate
    assert _slot(key) == _slot(gate)


def _slot(key: str) -> str:
    """What a cluster hashes of a key."""
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else key


@pytest.mark.parametrize("key", ["", "a}b", "{}", "{}a"])
def test_a_key_that_no_gate_can_stand_beside(key: str) -> None:
    with pytest.raises(Refused):
        gate_of(key)


async def test_second_holder_after_an_empty_restart(namespace: str, open_face: OpenFace) -> None:
    """Two holders for a moment: the older one learns at its renewal, and the gate refuses it before."""
    require("valkey", find_binary("valkey") is not None)
    engine = create_engine("sqlite://")
    create_tables(engine)
    with ServerProcess("valkey") as server:
        face = open_face("async", server.url)
        first = await face.lock(ttl=600).acquire()
        server.restart(empty=True)
        second = await face.lock(wait=60).acquire()
        assert not first.lost
        assert not second.lost  # both believe it
        with engine.begin() as connection:
            pass_gate(connection, "x", second)
        with engine.begin() as connection, pytest.raises(FenceRefused):
            pass_gate(connection, "x", first)
        await renewed(first)
        assert first.lost
        await second.release()
        await face.close()
    engine.dispose()


# -- in SQL

tables = MetaData()
invoices = Table(
    "invoices",
    tables,
    Column("id", Integer, primary_key=True),
    Column("state", String(20), nullable=False),
    Column("fence", BigInteger),
    Column("token", String(64)),
)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    url = (
        f"sqlite:///{tmp_path / 'db'}"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    engine = create_engine(url)
    tables.create_all(engine)
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(insert(invoices).values(id=42, state="new"))
    yield engine
    engine.dispose()


def state_of(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(select(invoices.c.state)).scalar_one()


@pytest.mark.parametrize("with_token", [False, True], ids=["fence", "fence and token"])
def test_a_guarded_row_takes_no_older_holders_write(engine: Engine, with_token: bool) -> None:
    token = invoices.c.token if with_token else None

    def write(actor: Actor, state: str) -> int:
        with engine.begin() as connection:
            return connection.execute(
                update(invoices)
                .where(invoices.c.id == 42, fence_guard(invoices.c.fence, actor, token))
                .values({invoices.c.state: state, **fence_values(invoices.c.fence, actor, token)})
            ).rowcount

    assert write(Actor(7, "a"), "a") == 1  # nobody was there
    assert write(Actor(9, "b"), "b") == 1
    assert write(Actor(7, "a"), "a again") == 0
    assert write(Actor(9, "b"), "b again") == 1
    assert state_of(engine) == "b again"
    assert write(Actor(9, "c"), "c") == (0 if with_token else 1)


def test_a_gate_lets_nobody_older_pass(engine: Engine) -> None:
    def act(actor: Actor, state: str) -> None:
        with engine.begin() as connection:
            pass_gate(connection, "invoices", actor)
            connection.execute(update(invoices).values(state=state))

    act(Actor(7, "a"), "a")
    act(Actor(7, "a"), "a again")
    act(Actor(9, "b"), "b")
    for late in (Actor(7, "a"), Actor(9, "c")):
        with pytest.raises(FenceRefused) as caught:
            act(late, "late")
        assert caught.value.fence == 9
    assert state_of(engine) == "b"
    with engine.begin() as connection:
        pass_gate(connection, "another scope", Actor(1))
        for bad in ("", "x" * 256, None):
            with pytest.raises(Refused):
                pass_gate(connection, bad, Actor(1))  # type: ignore[arg-type]


def test_who_passed_and_rolled_back_has_not_passed(engine: Engine) -> None:
    def fails() -> None:
        with engine.begin() as connection:
            pass_gate(connection, "x", Actor(9))
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fails()
    with engine.begin() as connection:
        pass_gate(connection, "x", Actor(7, "a"))


def test_done_once_with_its_result(engine: Engine) -> None:
    def charge() -> Any:
        with engine.begin() as connection:
            claimed = once(connection, "charge:42")
            if not claimed.first:
                return claimed.result
            connection.execute(update(invoices).values(state=invoices.c.state + "+"))
            keep_result(connection, "charge:42", "receipt 1")
            return "charged"

    assert [charge() for _ in range(3)] == ["charged", "receipt 1", "receipt 1"]
    assert state_of(engine) == "new+"
    with engine.begin() as connection:
        assert forget_done(connection, datetime.now(UTC) - timedelta(days=1)) == 0
        assert forget_done(connection, datetime.now(UTC) + timedelta(days=1)) == 1
    assert charge() == "charged"
    with engine.begin() as connection, pytest.raises(Refused):
        once(connection, "")


def test_what_was_rolled_back_is_not_done(engine: Engine) -> None:
    def fails() -> None:
        with engine.begin() as connection:
            assert once(connection, "k").first
            raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError):
            fails()


def test_many_at_once_do_it_once(engine: Engine) -> None:
    """Each transaction claims, then acts; one of them finds nobody before it."""
    firsts: list[bool] = []
    gate = threading.Barrier(6)

    def one() -> None:
        gate.wait(30)

        def work(connection: Any) -> bool:
            first = once(connection, "k").first
            if first:
                connection.execute(update(invoices).values(state=invoices.c.state + "+"))
            return first

        firsts.append(transact(engine, work, write=True))

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(firsts) == [False] * 5 + [True]
    assert state_of(engine) == "new+"


def test_many_holders_at_a_gate_act_in_the_order_of_their_fences(engine: Engine) -> None:
    """Whoever passes later has the greater fence: the last write is the newest holder's."""
    passed: list[int] = []
    gate = threading.Barrier(6)

    def one(fence: int) -> None:
        gate.wait(30)

        def work(connection: Any) -> None:
            pass_gate(connection, "x", Actor(fence, f"t{fence}"))
            passed.append(fence)
            connection.execute(update(invoices).values(state=str(fence)))

        try:
            transact(engine, work, write=True)
        except FenceRefused:
            return

    threads = [threading.Thread(target=one, args=(fence,)) for fence in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passed == sorted(passed)
    assert passed[-1] == 6
    assert state_of(engine) == "6"


async def test_tables_on_an_async_engine(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'db'}")
    await create_tables_async(engine)
    async with engine.begin() as connection:
        await connection.run_sync(pass_gate, "x", Actor(7))
        assert (await connection.run_sync(once, "k")).first
    await engine.dispose()
