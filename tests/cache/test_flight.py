"""One load for all: in a process and over processes; cancels, errors, waiting, admission. Loads and
commands are counted, no time is measured."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from fencepost.cache import Missing, protocol, this_load
from fencepost.cache.flight import AsyncGate, SyncGate
from fencepost.errors import Overloaded, Unavailable, WaitTimeout
from fencepost.testing.proxy import Proxy
from support.cache import altered
from support.cachefaces import CacheFace, Loader, joined
from support.faces import every_face
from support.loops import ASYNCIO
from support.process import Told
from support.until import until, until_sync

Make = Callable[..., CacheFace]
only_async = pytest.mark.parametrize(("anyio_backend", "kind"), [(ASYNCIO, "async")])
only_threads = pytest.mark.parametrize(("anyio_backend", "kind"), [(ASYNCIO, "threads")])


def task(work: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)


# -- in a process


@every_face
async def test_callers_of_a_process_share_a_load(make: Make, kind: str) -> None:
    face, loader = make(), Loader(kind, held=True)
    callers = [task(face.get("k", loader.load)) for _ in range(30)]
    await joined(face, "k", 29)
    loader.go.set()
    assert await asyncio.gather(*callers) == ["v"] * 30
    assert loader.calls == 1


@every_face
async def test_an_error_is_shared_once(make: Make, kind: str) -> None:
    face, loader = make(), Loader(kind, KeyError("k"), held=True)
    callers = [task(face.get("k", loader.load)) for _ in range(20)]
    await joined(face, "k", 19)
    loader.go.set()
    errors = await asyncio.gather(*callers, return_exceptions=True)
    assert {type(error) for error in errors} == {KeyError}
    assert loader.calls == 1


@only_async
async def test_cancelling_any_caller_harms_nobody_else(make: Make, kind: str) -> None:
    for victim in range(5):
        face, loader = make(f"c{victim}"), Loader(kind, held=True)
        callers = [task(face.get("k", loader.load)) for _ in range(5)]
        await joined(face, "k", 4)
        callers[victim].cancel()
        with pytest.raises(asyncio.CancelledError):
            await callers[victim]
        loader.go.set()
        rest = [one for n, one in enumerate(callers) if n != victim]
        assert await asyncio.gather(*rest) == ["v"] * 4
        assert (loader.calls, loader.cancelled) == (1, 0)


@only_async
async def test_the_load_dies_with_its_last_caller_and_gives_its_lease_back(
    make: Make, kind: str
) -> None:
    face, loader = make(), Loader(kind, held=True)
    callers = [task(face.get("k", loader.load)) for _ in range(3)]
    await joined(face, "k", 2)
    await loader.wait_began()
    assert await face.command("EXISTS", face.key("k").lease) == 1
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await until(lambda: loader.cancelled == 1)
    while await face.command("EXISTS", face.key("k").lease):
        pass
    assert await face.get("k", Loader(kind, "next").load) == "next"


@only_async
async def test_many_loads_die_with_their_caller_and_give_their_leases_back(
    make: Make, kind: str
) -> None:
    face, loader = make(), Loader(kind, held=True)
    caller = task(face.get_many(["a", "b"], loader.load))
    await loader.wait_began()
    assert await face.command("EXISTS", face.key("a").lease) == 1
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    while any([await face.command("EXISTS", face.key(key).lease) for key in "ab"]):
        pass
    assert loader.cancelled == 1


@only_async
async def test_a_cancel_is_never_swallowed(make: Make, kind: str) -> None:
    """Whatever it falls on: each step of a read, one after the other."""
    for steps in range(500):
        face, loader = make(f"c{steps}"), Loader(kind)
        await face.command("PING")
        caller = task(face.get("k", loader.load))
        for _ in range(steps):
            await asyncio.sleep(0)
        if caller.done():
            break
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await face.get("k", Loader(kind, "next").load) in ("next", "v")
    else:
        pytest.fail("a read never ended")
    assert steps > 5


@only_async
async def test_a_loader_that_cancels_itself_does_not_cancel_its_callers(
    make: Make, kind: str
) -> None:
    async def load() -> str:
        raise asyncio.CancelledError

    with pytest.raises(Unavailable, match="was cancelled"):
        await make().get("k", load)


@only_async
async def test_closing_the_client_ends_what_is_under_way(make: Make, kind: str) -> None:
    face, loader = make(stale=600), Loader(kind, held=True)
    caller = task(face.get("k", loader.load))
    await loader.wait_began()
    await face.close()
    assert loader.cancelled == 1
    with pytest.raises(Unavailable):
        await caller
    other = make()
    assert await other.get("k", Loader(kind, "next").load) == "next"  # its lease was given back


@only_threads
async def test_a_thread_that_is_interrupted_is_followed_by_another(make: Make, kind: str) -> None:
    face, loader = make(), Loader(kind, held=True)

    class Interrupted(BaseException):
        """As Ctrl-C is."""

    loader.value = Interrupted()
    first = task(face.entry("k", loader.load))
    await loader.wait_began()
    heir = Loader(kind, "heir")
    others = [task(face.get("k", heir.load)) for _ in range(5)]
    await joined(face, "k", 5)
    loader.go.set()
    with pytest.raises(Interrupted):
        await first
    assert await asyncio.gather(*others) == ["heir"] * 5
    assert heir.calls == 1


@every_face
async def test_an_invalidate_detaches_the_flight(make: Make, kind: str) -> None:
    """Who comes after it does not join the old load; who was in it gets what is true by then."""
    face, old = make(), Loader(kind, "old", held=True)
    before = task(face.get("k", old.load))
    await old.wait_began()
    await face.invalidate("k")
    new = Loader(kind, "new")
    assert await face.get("k", new.load) == "new"
    old.go.set()
    assert await before == "new"  # its own was refused, and this is what is there
    assert (old.calls, new.calls) == (1, 1)
    assert await face.get("k", old.load) == "new"


@every_face
async def test_a_read_after_an_invalidate_elsewhere_does_not_take_the_old_load(
    make: Make, kind: str
) -> None:
    """The flight is not detached here, since another process invalidated: its load is refused, and
    what it read is nobody's answer who came after."""
    face, other = make(), make()
    loader = Loader(kind, "old", held=True)
    before = task(face.get("k", loader.load))
    await loader.wait_began()
    await other.invalidate("k")
    loader.value = "new"
    after = task(face.get("k", loader.load))
    await joined(face, "k", 1)
    loader.go.set()
    assert await after == "new"
    assert await before == "new"


@every_face
async def test_nobody_shares_where_coalesce_is_none(make: Make, kind: str) -> None:
    face, loader = make(coalesce="none"), Loader(kind, held=True)
    callers = [task(face.get("k", loader.load)) for _ in range(5)]
    await until(lambda: loader.calls == 5)
    loader.go.set()
    assert await asyncio.gather(*callers) == ["v"] * 5


# -- over processes


@every_face
@pytest.mark.parametrize(("coalesce", "loads"), [("fleet", 1), ("process", 2)])
async def test_two_processes(make: Make, kind: str, coalesce: str, loads: int) -> None:
    faces = [make(coalesce=coalesce), make(coalesce=coalesce)]
    loader = Loader(kind, held=True)
    callers = [task(face.get("k", loader.load)) for face in faces for _ in range(20)]
    for face in faces:
        await joined(face, "k", 19)
    await until(lambda: loader.calls == loads)
    loader.go.set()
    assert await asyncio.gather(*callers) == ["v"] * 40
    assert loader.calls == loads


@pytest.mark.parametrize(("coalesce", "loads"), [("fleet", 1), ("process", 2)])
def test_ten_thousand_callers_in_two_processes(
    server_url: str, namespace: str, coalesce: str, loads: int
) -> None:
    with ExitStack() as stack:
        crowds = []
        for _ in range(2):
            crowd = Told("cache_crowd", server_url, namespace, coalesce, "5000")
            stack.callback(crowd.close)
            crowds.append(crowd)
        for step in ("ready", "joined"):
            for crowd in crowds:
                assert crowd.says() == step
            for crowd in crowds:
                crowd.go()
        told = [json.loads(crowd.says()) for crowd in crowds]
    assert sum(one["loads"] for one in told) == loads
    for one in told:
        assert one["values"] == ["v"]
        assert one["left"] == 0  # no flight and no task is left
        # A waiting caller is a task and a place in one flight: some KB, and no load, reply or timer.
        assert one["grown_kb"] / 5_000 < 30, one


@every_face
async def test_a_miss_reads_its_entry_once(make: Make, kind: str, server_url: str) -> None:
    """That there is nothing is known from the read that every call begins with."""
    with Proxy(server_url) as proxy:
        face = CacheFace(kind, proxy.url, make().client.namespace)
        try:
            assert await face.get("k", lambda: "v") == "v"
            assert proxy.count("GET") == 1
            assert await face.get("k", lambda: "?") == "v"
            assert proxy.count("GET") == 2
        finally:
            await face.close()


@every_face
async def test_a_waiter_does_not_poll_busily(make: Make, kind: str) -> None:
    """Commands are counted: a waiter asks a few times, then listens, until its wait is over."""
    owner, loader = make(), Loader(kind, held=True)
    owning = task(owner.get("k", loader.load))
    await loader.wait_began()
    waiter = make(wait=1.0)
    before = await calls_of_scripts(owner)
    with pytest.raises(WaitTimeout, match="somebody else"):
        await waiter.get("k", loader.load)
    asked = await calls_of_scripts(owner) - before
    # Two short looks, one after it listens, one a second, the last; a tenth of a second between looks
    # until the server has confirmed that it listens.
    assert 3 <= asked <= 20
    loader.go.set()
    assert await owning == "v"
    assert loader.calls == 1


@pytest.fixture
def deaf_without_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter that hears nothing would wait for an hour."""
    monkeypatch.setattr(protocol, "RECHECK", 3600.0)


async def listening(face: CacheFace, key: str) -> None:
    """Return when somebody listens to the lease of a key, on a connection of its own."""
    channel = face.key(key).lease
    while (await face.command("PUBSUB", "NUMSUB", channel))[1] != 1:
        pass


@pytest.mark.usefixtures("deaf_without_hints")
@every_face
@pytest.mark.parametrize("how", ["publish", "fail", "invalidate", "set", "write"])
async def test_a_waiter_hears_of_the_end_of_a_lease(make: Make, kind: str, how: str) -> None:
    patient = {"lease": 600, "load_limit": 600, "remember": 600, "wait": 600}
    owner, waiter = make(**patient), make(**patient)
    value = KeyError("k") if how == "fail" else "theirs"
    loader, mine = Loader(kind, value, held=True), Loader(kind, "mine")
    owning = task(owner.entry("k", loader.load))
    await loader.wait_began()
    waiting = task(waiter.entry("k", mine.load))
    await listening(owner, "k")
    asked = await calls_of_scripts(owner)
    if how in ("publish", "fail"):
        loader.go.set()
    elif how == "invalidate":
        await make(**patient).invalidate("k")
    elif how == "set":
        await make(**patient).set("k", "set")
    else:
        await make(**patient).write_through("k", "set", Loader(kind).load)
    entry = await waiting
    values = {"publish": {"theirs"}, "set": {"set"}, "write": {"set", "mine"}}  # it may load beside
    assert entry.value in values.get(how, {"mine"})
    assert await calls_of_scripts(owner) - asked <= 20
    loader.go.set()
    await asyncio.gather(owning, return_exceptions=True)
    assert how == "write" or mine.calls == (how in ("fail", "invalidate"))
    while (await owner.command("PUBSUB", "NUMSUB", owner.key("k").lease))[1]:
        pass  # nobody listens any more


@pytest.mark.usefixtures("deaf_without_hints")
@every_face
async def test_many_hear_of_the_end_of_a_lease(make: Make, kind: str) -> None:
    patient = {"lease": 600, "load_limit": 600, "remember": 600, "wait": 600}
    owner, waiter = make(**patient), make(**patient)
    loader, many = Loader(kind, "theirs", held=True), Loader(kind, {"m": "mine"})
    owning = task(owner.get("k", loader.load))
    await loader.wait_began()
    waiting = task(waiter.get_many(["k", "m"], many.load))
    await listening(owner, "k")
    loader.go.set()
    assert await waiting == {"k": "theirs", "m": "mine"}
    assert await owning == "theirs"


@every_face
async def test_a_hint_that_is_lost_costs_a_look(
    make: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says anything: a waiter looks by itself."""
    monkeypatch.setattr(protocol, "RECHECK", 0.01)
    owner, waiter = make(wait=60), make(wait=60)
    dumb = "redis.pcall('PUBLISH', lease, '*')"
    scripts = altered("publish", dumb, "local _ = lease")
    object.__setattr__(owner.cache._region, "scripts", scripts)
    loader = Loader(kind, held=True)
    owning = task(owner.get("k", loader.load))
    await loader.wait_began()
    waiting = task(waiter.get("k", loader.load))
    await listening(owner, "k")
    loader.go.set()
    assert await asyncio.gather(owning, waiting) == ["v", "v"]
    assert loader.calls == 1


async def calls_of_scripts(face: CacheFace) -> int:
    """How many scripts the server ran (those of renewals are few: a lease is 5 s)."""
    text = (await face.command("INFO", "commandstats")).decode()
    rows = [line for line in text.splitlines() if line.startswith("cmdstat_evalsha:")]
    return sum(int(row.partition("calls=")[2].partition(",")[0]) for row in rows)


@every_face
async def test_a_waiter_wakes_when_the_owner_fails(make: Make, kind: str) -> None:
    owner, loader = make(), Loader(kind, KeyError("k"), held=True)
    owning = task(owner.get("k", loader.load))
    await loader.wait_began()
    waiter, mine = make(), Loader(kind, "mine")
    waiting = task(waiter.entry("k", mine.load))
    while not await waiter.command("EXISTS", waiter.key("k").lease):
        pass
    loader.go.set()
    with pytest.raises(KeyError):
        await owning
    assert (await waiting).value == "mine"


@every_face
async def test_what_a_waiter_does_when_its_wait_is_over(make: Make, kind: str) -> None:
    owner, loader = make(), Loader(kind, held=True)
    owning = task(owner.get("k", loader.load))
    await loader.wait_began()
    own = Loader(kind, "mine")
    entry = await make(wait=0, on_timeout="load").entry("k", own.load)
    assert (entry.value, entry.status, entry.published) == ("mine", "loaded", False)
    with pytest.raises(WaitTimeout):
        await make(wait=0, on_timeout="stale").get("k", own.load)
    with pytest.raises(TimeoutError):  # it is one
        await make(wait=0).get("k", own.load)
    loader.go.set()
    assert await owning == "v"
    assert own.calls == 1


@every_face
async def test_a_caller_of_the_same_process_waits_no_longer(make: Make, kind: str) -> None:
    face, loader = make(wait=0.001), Loader(kind, held=True)
    first = task(face.get("k", loader.load))
    await loader.wait_began()
    with pytest.raises(WaitTimeout, match="this process"):
        await face.get("k", loader.load)
    loader.go.set()
    assert await first == "v"


@every_face
async def test_a_lease_is_renewed_while_its_load_runs(make: Make, kind: str) -> None:
    """A slow load is not a lost one: its lease is set to its length again and again, and it publishes."""
    face, loader = make(lease=1.5), Loader(kind, held=True)
    loading = task(face.entry("k", loader.load))
    await loader.wait_began()
    for _ in range(2):
        await face.command("PEXPIRE", face.key("k").lease, 100_000)
        while await face.command("PTTL", face.key("k").lease) > 1_500:
            pass
    loader.go.set()
    assert (await loading).published
    assert loader.calls == 1


@every_face
async def test_a_load_that_is_over_is_not_renewed(make: Make, kind: str) -> None:
    face = make(lease=0.15)
    await face.get("k", Loader(kind).load)
    assert await face.command("EXISTS", face.key("k").lease) == 0
    await face.get("m", Loader(kind, Missing()).load)
    assert await face.command("EXISTS", face.key("m").lease) == 0


@pytest.fixture
def give_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[CacheFace, str], Any]:
    """Ends the time of the load of a key: no test waits for it, and no slow machine is too slow."""
    scopes: list[asyncio.Timeout] = []
    real = asyncio.timeout

    def timeout(limit: float) -> asyncio.Timeout:
        scopes.append(real(limit))
        return scopes[-1]

    monkeypatch.setattr(asyncio, "timeout", timeout)

    def now(face: CacheFace, key: str) -> None:
        if kind == "threads":
            face.cache._flights._by_key[key].held.load.until = 0.001
        else:
            scopes[-1].reschedule(0)

    return now


@only_async
async def test_a_load_that_takes_too_long_is_given_up(
    make: Make, kind: str, give_up: Callable[[CacheFace, str], None]
) -> None:
    face, loader = make(), Loader(kind, held=True)
    reading = task(face.get("k", loader.load))
    await loader.wait_began()
    give_up(face, "k")
    with pytest.raises(WaitTimeout, match="took longer"):
        await reading
    assert loader.cancelled == 1
    assert await face.command("EXISTS", face.key("k").lease) == 0

    async def impatient() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await face.get("k", impatient)


# -- a lease that is lost while its load runs


@only_async
async def test_a_lost_lease_stops_its_load(make: Make, kind: str) -> None:
    face, other, loader = make(lease=1.5), make(), Loader(kind, "old", held=True)
    reading = task(face.entry("k", loader.load))
    await loader.wait_began()
    await other.invalidate("k")
    await until(lambda: loader.cancelled == 1)
    loader.value = "new"
    loader.go.set()
    entry = await reading
    assert (entry.value, entry.published) == ("new", True)
    rejected = [one for one in (await face.explain("k")).refreshes if one.verdict == "rejected"]
    assert [one.reason for one in rejected] == ["invalidated"]


@every_face
async def test_a_load_learns_that_its_lease_is_lost(make: Make, kind: str) -> None:
    """A thread can't be stopped: it is told when it asks. A plain function of the async face likewise."""
    face, other, calls = make(lease=1.5), make(), []

    def load() -> str:
        under_way = this_load()
        assert under_way is not None
        assert 25 < under_way.left() <= 30
        under_way.check()
        calls.append(1)
        if len(calls) > 1:
            return "new"
        began.set()
        until_sync(lambda: under_way.lost != "")
        under_way.check()
        raise AssertionError("the check did not object")

    began = threading.Event()
    reading = task(face.get("k", load))
    await until(began.is_set)
    await other.invalidate("k")
    assert await reading == "new"
    assert this_load() is None


@every_face
async def test_the_last_round_is_its_callers_and_not_stopped(make: Make, kind: str) -> None:
    face, other = make(lease=1.5, rounds=1), make()

    def load() -> str:
        under_way = this_load()
        assert under_way is not None
        began.set()
        until_sync(lambda: under_way.lost != "")
        under_way.check()
        return "mine"

    began = threading.Event()
    reading = task(face.entry("k", load))
    await until(began.is_set)
    await other.invalidate("k")
    entry = await reading
    assert (entry.value, entry.published, entry.reason) == ("mine", False, "invalidated")


# -- loads in threads that take too long


@every_face
async def test_a_thread_that_takes_too_long_keeps_its_place_and_is_left_to_itself(
    make: Make, kind: str, give_up: Callable[[CacheFace, str], None]
) -> None:
    """It can't be stopped. What it brings is dropped, others load without it, and the source is not
    asked more than ``max_loads`` times at once: its place at the gate is free when it returns."""
    face = make(max_loads=2)
    stuck = [Loader("threads", "late", held=True) for _ in range(2)]
    first = task(face.get("k", stuck[0].load))
    await stuck[0].wait_began()
    give_up(face, "k")
    if kind == "async":
        with pytest.raises(WaitTimeout, match="took longer"):
            await first
    await face.command("DEL", face.key("k").lease)  # it ends by itself, after ``lease``
    assert await face.get("k", lambda: "new") == "new"  # the other place
    second = task(face.get("m", stuck[1].load))
    await stuck[1].wait_began()
    give_up(face, "m")
    face.cache._region.gate._within = 0.001
    with pytest.raises(Overloaded, match="max_loads"):  # both are taken by threads
        await face.get("n", lambda: "no room")
    face.cache._region.gate._within = 60
    for one in stuck:
        one.go.set()
    for late in (first, second):
        with pytest.raises(WaitTimeout, match="took longer"):
            await late
    assert await face.get("n", lambda: "room") == "room"
    assert await face.get("k", lambda: "not asked") == "new"
    await until(lambda: stuck[0].running == stuck[1].running == 0)


async def test_a_gate_of_a_loop_is_bounded_in_time() -> None:
    gate = AsyncGate(1, 10, 0.001)
    await gate.enter()
    with pytest.raises(Overloaded):
        await gate.enter()
    gate.keep()
    gate.leave()  # kept
    with pytest.raises(Overloaded):
        await gate.enter()
    gate.leave()
    await gate.enter()


# -- admission


@every_face
async def test_loads_are_admitted_a_few_at_a_time(make: Make, kind: str) -> None:
    face, loader = make(max_loads=3), Loader(kind, held=True)
    callers = [task(face.get(f"k{n}", loader.load)) for n in range(12)]
    await until(lambda: loader.calls == 3)
    seen = [await face.command("EXISTS", face.key(f"k{n}").lease) for n in range(12)]
    assert sum(seen) >= 3
    assert loader.calls == 3
    loader.go.set()
    assert await asyncio.gather(*callers) == ["v"] * 12
    assert loader.calls == 12


@every_face
async def test_who_waits_for_admission_is_bounded(make: Make, kind: str) -> None:
    face, loader = make(max_loads=1, max_queue=1), Loader(kind, held=True)
    callers = [task(face.get(f"k{n}", loader.load)) for n in range(3)]
    done, _ = await asyncio.wait(callers, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(Overloaded, match="max_loads"):
        await done.pop()
    loader.go.set()
    assert sorted(map(str, await asyncio.gather(*callers, return_exceptions=True)))[1:] == [
        "v",
        "v",
    ]


async def test_a_gate_gives_places_in_order_and_loses_none_to_a_cancel() -> None:
    gate = AsyncGate(1, 10, 60)
    await gate.enter()
    order: list[int] = []

    async def load(number: int) -> None:
        await gate.enter()
        order.append(number)
        gate.leave()

    tasks = [task(load(n)) for n in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    gate.leave()  # its place is given to the next in the same tick
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [2, 3]
    await gate.enter()
    gate.leave()


def test_a_gate_of_threads_is_bounded_in_time() -> None:
    gate = SyncGate(1, 10, 0.001)
    gate.enter()
    with pytest.raises(Overloaded):
        gate.enter()
    gate.leave()
    gate.enter()
    gate.leave()
    assert threading.active_count() >= 1
