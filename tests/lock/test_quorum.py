"""A quorum of real servers: one dies, one comes back, one is frozen; both faces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost import AsyncClient, AsyncQuorum, Client, Quorum
from fencepost._core.keys import birth_record
from fencepost.errors import (
    ClientClosed,
    ConfigMismatch,
    FenceRefused,
    LeaseLost,
    LockTimeout,
    Refused,
    Unavailable,
)
from fencepost.lock.taker import Taker
from support.lockfaces import LockFace, QuorumFace, hurry, renewed
from support.require import require
from support.servers import ServerProcess, find_binary
from support.until import until

every_face = pytest.mark.parametrize("kind", ["async", "threads"])
Open = Callable[..., QuorumFace]


@contextlib.contextmanager
def some_servers(
    count: int = 3, binary: str = "valkey", **options: Any
) -> Iterator[list[ServerProcess]]:
    require(binary, find_binary(binary) is not None)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ServerProcess(binary, **options)) for _ in range(count)]


@pytest.fixture(scope="module")
def three() -> Iterator[list[ServerProcess]]:
    """Three servers that no test harms."""
    with some_servers() as servers:
        yield servers


@pytest.fixture
def mortal() -> Iterator[list[ServerProcess]]:
    """Three servers that a test may kill."""
    with some_servers() as servers:
        yield servers


@pytest.fixture
async def open_quorum(namespace: str) -> AsyncIterator[Open]:
    made: list[QuorumFace] = []

    def one(servers: list[ServerProcess], kind: str = "async", **options: Any) -> QuorumFace:
        urls = [server.url for server in servers]
        made.append(QuorumFace(kind, urls, namespace, **options))
        return made[-1]

    yield one
    for face in made:
        await face.close()


def birth(server: ServerProcess, namespace: str) -> dict[str, str]:
    with Client.from_url(server.url) as client:
        found = client.command("HGETALL", birth_record(namespace))
    return {key.decode(): value.decode() for key, value in found.items()}


def waited(server: ServerProcess, namespace: str) -> None:
    """A newborn's wait is over."""
    with Client.from_url(server.url) as client:
        client.command("HSET", birth_record(namespace), "since", 0)


# -- at the door


@pytest.mark.parametrize("maker", [AsyncQuorum, Quorum])
def test_what_is_no_quorum_is_refused_at_the_door(maker: Any) -> None:
    urls = [f"redis://h{n}:6379" for n in range(3)]
    with pytest.raises(Refused, match="3 servers or more"):
        maker.from_urls(urls[:2])
    with pytest.raises(Refused, match="several servers"):
        maker.from_urls(urls[0])
    with pytest.raises(Refused, match="URLs 1 and 3 lead to one server"):
        maker.from_urls([urls[0], urls[1], "redis://H0:6379/1"])
    for wrong in (0, -1, float("nan"), "1", True):
        with pytest.raises(Refused, match="max_ttl"):
            maker.from_urls(urls, max_ttl=wrong)
    quorum = maker.from_urls(urls, max_ttl=5)
    with pytest.raises(Refused, match="longer than the quorum's max_ttl"):
        quorum.lock("x", ttl=6)
    with pytest.raises(Refused, match="needs one queue"):
        quorum.lock("x", ttl=1, fair=True)


@every_face
async def test_one_server_by_two_addresses_is_refused_at_first_contact(
    open_quorum: Open, kind: str
) -> None:
    with some_servers(2, port=0) as servers:
        urls = [servers[0].url, servers[0].unix_url, servers[1].url]
        face = QuorumFace(kind, urls, "twins")
        try:
            twins = "addresses 1 and 2 of the quorum lead to one"
            for ask in (face.client.init, face.client.standing):
                with pytest.raises(Refused, match=twins):
                    await face.call(ask)
            for server in servers:  # each by itself may vote
                async with AsyncQuorum([server.url], namespace="twins") as one:
                    await one.init()
            with pytest.raises(Refused, match=twins):  # noqa: PT012  # two may be quicker once
                for _ in range(3):
                    lease = await face.call(face.lock().acquire)
                    await face.call(lease.release)
            await face.settled()
            await until_nothing_is_left(face)
        finally:
            await face.close()


async def test_who_hides_its_name_gives_no_vote(three: list[ServerProcess], namespace: str) -> None:
    """It could come back empty, and nobody would know."""
    for server in three:
        with Client.from_url(server.url) as client:
            client.command("ACL", "SETUSER", "shy", "on", ">p", "~*", "&*", "+@all", "-info")
    urls = [server.url.replace("unix://", "unix://shy:p@") for server in three]
    async with AsyncQuorum.from_urls(urls, namespace=namespace) as quorum:
        with pytest.raises(Refused, match="forbids INFO"):
            await quorum.lock("x").try_acquire()


# -- a fresh quorum (T4)


@every_face
async def test_a_fresh_quorum_waits_unless_an_operator_says_otherwise(
    three: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    face = open_quorum(three, kind)
    with pytest.raises(Unavailable, match="servers came back"):
        await face.call(face.lock().acquire, wait=0)
    assert [one.votes for one in await face.call(face.client.standing)] == [False] * 3
    assert [one.votes for one in await face.init()] == [True] * 3
    lease = await face.call(face.lock().acquire, wait=0)
    assert await face.call(lease.release)


@every_face
async def test_a_fresh_quorum_votes_by_itself_after_its_longest_lease(
    three: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    face = open_quorum(three, kind, max_ttl=0.3)
    lease = await face.call(face.lock(ttl=0.3, wait=60).acquire)
    assert lease.fence > 10**15
    await face.call(lease.release)
    assert all(one.votes for one in await face.call(face.client.standing))


async def test_the_longest_lease_is_one_for_all(
    three: list[ServerProcess], open_quorum: Open
) -> None:
    """A newborn that was born by a client of short leases would vote too early for the others."""
    await open_quorum(three, max_ttl=30).init()
    other = open_quorum(three, max_ttl=60)
    with pytest.raises(ConfigMismatch, match="born with max_ttl 30 s"):
        await other.lock(ttl=5).acquire(wait=0)
    assert {one.trouble for one in await other.init()} == {"was born with max_ttl 30 s"}
    assert all(one.votes for one in await other.init(anew=True))
    assert await (await other.lock(ttl=60).acquire()).release()


# -- the surface of a lock


@every_face
async def test_a_quorum_is_used_like_a_server(
    three: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    face, rival = open_quorum(three, kind), open_quorum(three)
    await face.init()
    lock = face.lock(owner="me")
    lease = await face.call(lock.acquire)
    assert 0 < lease.remaining() <= 10
    assert lease.check(at_least=1) > 1
    holder = await rival.client.lock("x").locked_by()
    assert (holder.owner, holder.fence, holder.waiters) == ("me", lease.fence, 0)
    with pytest.raises(LockTimeout, match="held by 'me'") as told:
        await rival.lock().acquire(wait=0.05)
    assert (told.value.owner, told.value.fence) == ("me", lease.fence)
    assert await rival.lock().try_acquire() is None
    await renewed(lease, 2)
    assert await face.call(lease.release)
    assert await face.call(lease.release)  # a second time is harmless
    assert await face.call(lock.locked_by) is None
    fences = [await face.within(lock, lambda one: one.fence) for _ in range(3)]
    assert fences == sorted(fences)
    assert fences[0] > lease.fence
    several = await face.call(face.client.lock_all(["b", "a"]).acquire)
    assert several.fences.keys() == {"a", "b"}
    await face.call(several.release)
    for one in (face, rival):
        await one.settled()
    await until_nothing_is_left(face)


async def until_nothing_is_left(face: QuorumFace) -> None:
    """Whatever was late has come, and votes are with nobody."""
    while await face.left():  # noqa: ASYNC110  # what is asked is on the servers
        await asyncio.sleep(0)


@every_face
async def test_a_waiter_is_woken_by_a_majority(
    three: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    face, holder = open_quorum(three, kind), open_quorum(three)
    await face.init()
    lease = await holder.lock().acquire()
    waiting = asyncio.create_task(face.call(face.lock(wait=60).acquire))
    with Client.from_url(three[0].url) as client:
        queue = face.lock()._place.keys.queue
        while not client.command("ZCARD", queue):  # noqa: ASYNC110
            await asyncio.sleep(0)
    await lease.release()
    taken = await waiting
    assert taken.fence > lease.fence
    await face.call(taken.release)


async def test_many_contend_and_each_gets_it_alone(
    three: list[ServerProcess], open_quorum: Open
) -> None:
    faces = [open_quorum(three, kind) for kind in ("async", "threads", "async")]
    await faces[0].init()
    inside, fences = [0], []

    async def work(face: QuorumFace) -> None:
        for _ in range(3):
            lease = await face.call(face.lock(wait=120).acquire)
            inside[0] += 1
            assert inside[0] == 1
            fences.append(lease.fence)
            await asyncio.sleep(0)
            inside[0] -= 1
            await face.call(lease.release)

    await asyncio.gather(*(work(face) for face in faces for _ in range(2)))
    assert len(fences) == 18
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("undone", [True, False], ids=["undone", "not undone"])
async def test_random_cancels_leave_nothing_behind_at_any_server(
    three: list[ServerProcess],
    open_quorum: Open,
    monkeypatch: pytest.MonkeyPatch,
    undone: bool,
) -> None:
    face, dice = open_quorum(three), random.Random(7)
    await face.init()
    if not undone:
        monkeypatch.setattr(Taker, "_give_up", lambda *_: None)

    async def once(name: str) -> None:
        async with face.lock(name, ttl=20):
            await asyncio.sleep(0)

    for number in range(150):
        task = asyncio.create_task(once(f"n{number}"))
        for _ in range(dice.randrange(14)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await face.settled()
    if undone:
        await until_nothing_is_left(face)
    else:
        assert "l" in await face.left()


async def test_an_operator_takes_it_away(three: list[ServerProcess], open_quorum: Open) -> None:
    face, operator = open_quorum(three), open_quorum(three)
    await face.init()
    lease = await face.lock(owner="me").acquire()
    assert (await operator.lock().force_release()).owner == "me"
    assert await operator.lock().force_release() is None
    hurry(lease)
    assert await lease.wait_lost(30)
    assert "0 of 3 servers still know it" in lease.why
    await face.settled()


async def test_a_closed_quorum_says_so(three: list[ServerProcess], open_quorum: Open) -> None:
    quorum = AsyncQuorum.from_urls([server.url for server in three])
    lock = quorum.lock("x")
    await quorum.aclose()
    with pytest.raises(ClientClosed):
        await lock.acquire()


# -- servers that fail


@every_face
async def test_one_of_three_dies_and_nobody_notices(
    mortal: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    face = open_quorum(mortal, kind)
    await face.init()
    held = await face.call(face.lock("held").acquire)
    mortal[0].kill()
    await renewed(held, 2)
    lease = await face.call(face.lock().acquire)
    assert await face.call(lease.release)
    assert await face.call(held.release)


@every_face
async def test_one_of_three_is_frozen_and_nobody_notices(
    mortal: list[ServerProcess], open_quorum: Open, kind: str
) -> None:
    """What it is asked comes when it wakes up: late, and for nobody."""
    face = open_quorum(mortal, kind)
    await face.init()
    held = await face.call(face.lock("held").acquire)
    mortal[1].pause()
    try:
        lease = await face.call(face.lock().acquire)
        await renewed(held)
        await face.call(lease.release)
        await face.call(held.release)
    finally:
        mortal[1].resume()
    await face.settled()
    await until_nothing_is_left(face)


async def test_two_of_three_die_and_the_holder_is_told_in_time(
    mortal: list[ServerProcess], open_quorum: Open
) -> None:
    face = open_quorum(mortal)
    await face.init()
    with pytest.raises(LeaseLost):  # noqa: PT012
        async with face.lock(ttl=1) as lease:
            for server in mortal[:2]:
                server.kill()
            await asyncio.Event().wait()
    assert lease.lost
    with pytest.raises(Unavailable, match="of 3 servers answered, 2 are needed"):
        await face.lock("other").acquire(wait=0)


async def test_t3_one_comes_back_empty_with_two_holders(
    mortal: list[ServerProcess], open_quorum: Open, namespace: str
) -> None:
    """It gives no vote; when it may, the first holder has learned; its fence is refused at the gate."""
    first, second = open_quorum(mortal), open_quorum(mortal)
    await first.init()
    mortal[2].kill()
    lease = await first.lock().acquire()  # by 0 and 1
    mortal[2].start()
    mortal[0].restart(empty=True)
    with pytest.raises((Unavailable, LockTimeout)):
        await second.lock().acquire(wait=0)
    assert [one.votes for one in await second.client.standing()] == [False, True, False]
    waited(mortal[0], namespace)
    waited(mortal[2], namespace)
    hurry(lease)
    assert await lease.wait_lost(60)
    taken = await second.lock().acquire(wait=60)
    assert taken.fence > lease.fence
    async with AsyncClient.from_url(mortal[1].url) as resource:
        await resource.fenced_set("{r}", "new", taken)
        with pytest.raises(FenceRefused):
            await resource.fenced_set("{r}", "old", lease)
    await taken.release()


async def test_t3_the_last_second_of_a_journal_is_lost(
    open_quorum: Open, namespace: str, tmp_path: Path
) -> None:
    """A power cut under everysec: the birth record is there, the vote is not."""
    with some_servers(3, aof="everysec") as servers:
        face, rival = open_quorum(servers), open_quorum(servers)
        await face.init()
        journal = servers[0].home / "appendonlydir"
        shutil.copytree(journal, tmp_path / "before")
        servers[2].kill()
        lease = await face.lock().acquire()  # by 0 and 1
        servers[2].start()
        waited(servers[2], namespace)
        servers[0].kill()
        shutil.rmtree(journal)
        shutil.copytree(tmp_path / "before", journal)
        servers[0].start()
        assert birth(servers[0], namespace)["open"] == "1"  # as if nothing had happened
        with pytest.raises((Unavailable, LockTimeout)):
            await rival.lock().acquire(wait=0)
        assert birth(servers[0], namespace)["open"] == "0"
        assert lease.remaining() > 0
        await lease.release()


async def test_t3_a_server_that_writes_everything_down_first_votes_at_once(
    open_quorum: Open, namespace: str
) -> None:
    """appendfsync always, and never a replica: what it promised is there."""
    with some_servers(3, aof="always") as servers:
        face = open_quorum(servers)
        await face.init()
        lease = await face.lock().acquire()
        for server in servers:
            server.restart()
        await renewed(lease)
        assert await face.lock().try_acquire() is None
        assert await lease.release()
        # A replica that was promoted had an unknown part of it.
        with Client.from_url(servers[0].url) as client:
            client.command("HSET", birth_record(namespace), "id", "1:2", "durable", "1")
        assert (await face.client.standing())[0].votes
        with Client.from_url(servers[0].url) as client:
            client.command("HSET", birth_record(namespace), "id", "1:2", "durable", "0")
        assert not (await face.client.standing())[0].votes


async def test_t3_a_birth_record_that_is_gone_is_a_birth(
    three: list[ServerProcess], open_quorum: Open, namespace: str
) -> None:
    face = open_quorum(three)
    await face.init()
    for server in three[:2]:
        with Client.from_url(server.url) as client:
            client.command("DEL", birth_record(namespace))
    with pytest.raises(Unavailable, match="2 of 3 servers came back"):
        await face.lock().acquire(wait=0)


async def test_t3_holds_on_another_kind_of_server(open_quorum: Open, namespace: str) -> None:
    with some_servers(3, "redis") as servers:
        face, rival = open_quorum(servers), open_quorum(servers)
        await face.init()
        servers[2].kill()
        lease = await face.lock().acquire()
        servers[2].start()
        servers[0].restart(empty=True)
        with pytest.raises((Unavailable, LockTimeout)):
            await rival.lock().acquire(wait=0)
        assert [one.votes for one in await rival.client.standing()] == [False, True, False]
        await lease.release()


async def test_t5_a_newborn_is_told_the_fence_before_it_votes(
    mortal: list[ServerProcess], open_quorum: Open, namespace: str
) -> None:
    face = open_quorum(mortal)
    await face.init()
    ahead = 2**52  # a fence that no clock has reached
    lease = await face.lock().acquire(floor=ahead)
    await lease.release()
    await face.settled()
    mortal[0].restart(empty=True)
    assert not (await face.client.standing())[0].votes  # it is met, and its wait begins
    waited(mortal[0], namespace)
    for _ in range(20):  # it may answer too late to count, and is heard the next time
        await (await face.lock("other").acquire(wait=60)).release()
        if (await face.client.standing())[0].votes:
            break
    assert int(birth(mortal[0], namespace)["high"]) >= ahead


# -- one server that waits


@every_face
async def test_one_server_can_wait_after_it_came_back_too(namespace: str, kind: str) -> None:
    with some_servers(1) as [server]:
        helper = LockFace(kind, server.url, namespace)
        client = helper.client
        lock = client.lock("x", ttl=5, after_restart="wait", fair=True)
        with pytest.raises(Unavailable, match="1 of 1 servers came back"):
            await helper.call(lock.acquire, wait=0)
        waited(server, namespace)
        lease = await helper.call(lock.acquire, wait=0)
        await renewed(lease)
        with pytest.raises(LockTimeout, match="held by"):
            await helper.call(lock.acquire, wait=0)
        server.restart(empty=True)
        with pytest.raises(Unavailable, match="1 of 1 servers came back"):
            await helper.call(lock.acquire, wait=0)
        plain = await helper.call(client.lock("x").acquire, wait=0)  # the usual lock lets it in
        assert plain.fence > lease.fence
        hurry(lease)
        await until(lambda: lease.lost)
        await helper.close()


def test_what_can_not_work_is_refused() -> None:
    client = Client.from_url("redis://h")
    with pytest.raises(Refused, match="longer than max_ttl"):
        client.lock("x", ttl=40, after_restart="wait")
    with pytest.raises(Refused, match="after_restart is"):
        client.lock("x", after_restart="perhaps")  # type: ignore[arg-type]


# -- processes

GIVES_UP_AND_ENDS = """
import sys
from fencepost import Quorum
quorum = Quorum.from_urls(sys.argv[2:], namespace=sys.argv[1])
leases = [quorum.lock(name, ttl=20).acquire() for name in "xyz"]
for lease in leases:
    lease._abandon()
"""
FORKS = """
import os, sys
from fencepost import Quorum
quorum = Quorum.from_urls(sys.argv[2:], namespace=sys.argv[1])
with quorum.lock("x") as lease:
    with quorum.lock("y"):
        pass  # its threads are there
    child = os.fork()
    if not child:
        try:
            assert lease.lost and not lease.release()
            assert quorum.lock("x").try_acquire() is None
            with quorum.lock("z"):
                pass
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lease.check()
    assert quorum.lock("x").locked_by().fence == lease.fence
"""


async def run_apart(text: str, servers: list[ServerProcess], namespace: str) -> None:
    words = [sys.executable, "-c", text, namespace, *(server.url for server in servers)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        *words, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, told.decode()


async def test_a_process_that_ends_ends_first_what_it_gave_up_at_every_server(
    three: list[ServerProcess], open_quorum: Open, namespace: str
) -> None:
    """No threads can be started any more by then."""
    face = open_quorum(three)
    await face.init()
    await run_apart(GIVES_UP_AND_ENDS, three, namespace)
    assert await face.left() == set()


async def test_a_fork_gives_back_nothing_and_can_use_the_quorum(
    three: list[ServerProcess], open_quorum: Open, namespace: str
) -> None:
    await open_quorum(three).init()
    await run_apart(FORKS, three, namespace)
