"""The lock's scripts, one call at a time on a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost.errors import Overloaded, ServerError
from fencepost.lock.protocol import OVERTAKES, Ask, Place
from fencepost.lock.scripts import (
    SCRIPTS,
    Ended,
    Held,
    Holder,
    Lost,
    Nobody,
    Released,
    Renewed,
    Scripts,
    Taken,
    Undone,
)
from fencepost.testing import Sandbox, ScratchServer, ServerState
from support.lock import altered, make_place
from support.require import require
from support.servers import ServerProcess, find_binary


class Bench:
    """One lock and a client."""

    def __init__(self, client: Client, scripts: Scripts = SCRIPTS) -> None:
        self.client = client
        self.place: Place = make_place(client.namespace, "x", scripts)
        self.keys = self.place.keys

    def run(self, call: Any) -> Any:
        return run_sync(self.client.port.run(call))

    def acquire(self, attempt: str, *, stay_ms: int | None = None, **ask: Any) -> Any:
        settings: dict[str, Any] = {"ttl": 10.0, "wait": 0.0, **ask}
        call = self.place.take(Ask(attempt, f"owner of {attempt}", **settings))
        if stay_ms is not None:
            call.args = (*call.args[:5], stay_ms, *call.args[6:])
        return self.run(call)

    def waits(self, attempt: str, **ask: Any) -> Any:
        """Queues, for longer than any test takes."""
        return self.acquire(attempt, stay_ms=60_000, wait=5.0, **ask)

    def release(self, attempt: str) -> Any:
        keys = self.keys
        return self.run(
            self.place.scripts.release((keys.lock, keys.queue, keys.alive), (attempt, keys.channel))
        )

    def renew(self, attempt: str, ttl_ms: Any = 10_000) -> Any:
        return self.run(self.place.scripts.renew((self.keys.lock,), (attempt, ttl_ms)))

    def undo(self, attempt: str) -> Any:
        return self.run(self.place.end(attempt))

    def ttl(self, key: str) -> int:
        return int(self.client.command("PTTL", key))


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def bench(client: Client) -> Bench:
    return Bench(client)


def test_taken_held_and_given_back(bench: Bench) -> None:
    taken = bench.acquire("a")
    assert isinstance(taken, Taken)
    held = bench.acquire("b")
    assert held == Held(held.left_ms, "owner of a", taken.fence, 0)
    assert 9_000 < held.left_ms <= 10_000
    assert bench.release("b") == Lost()
    assert bench.release("a") == Released()
    assert bench.release("a") == Lost()
    again = bench.acquire("b")
    assert again.fence > taken.fence


def test_all_keys_share_a_slot_and_end_some_day(bench: Bench) -> None:
    bench.acquire("a")
    bench.waits("b")
    bench.undo("c")
    keys = bench.client.command("KEYS", f"*{bench.client.namespace}*")
    assert len(keys) == 5
    tags = {key.partition(b"{")[2].partition(b"}")[0] for key in keys}
    assert len(tags) == 1
    assert all(bench.ttl(key.decode()) > 0 for key in keys)


def test_a_fence_is_the_servers_clock_or_more(bench: Bench) -> None:
    seconds, micros = map(int, bench.client.command("TIME"))
    fence = bench.acquire("a").fence
    assert 0 <= fence - (seconds * 1_000_000 + micros) + 1000 < 60_000_000
    bench.release("a")
    far = fence + 10**15
    assert bench.acquire("b", floor=far).fence == far
    bench.release("b")
    assert bench.acquire("c").fence == far + 1  # every digit counts


@pytest.mark.parametrize("ttl_ms", ["0", "-1", "1.5", "x", "", "1e9", "0005", "9" * 16])
def test_a_ttl_that_is_none_is_refused_before_any_change(bench: Bench, ttl_ms: str) -> None:
    call = bench.place.take(Ask("a", "me", 10.0, 5.0))
    call.args = (*call.args[:2], ttl_ms, *call.args[3:])
    with pytest.raises(ServerError, match="positive whole number"):
        bench.run(call)
    assert bench.client.command("KEYS", f"*{bench.client.namespace}*") == []
    bench.acquire("a")
    with pytest.raises(ServerError, match="positive whole number"):
        bench.renew("a", ttl_ms)
    assert bench.ttl(bench.keys.lock) > 9_000


def test_the_same_attempt_gets_the_same_fence_and_a_whole_ttl(bench: Bench) -> None:
    fence = bench.acquire("a", ttl=1.0).fence
    assert bench.acquire("a", ttl=20.0) == Taken(fence)
    assert bench.ttl(bench.keys.lock) > 19_000


def test_renewed_only_if_it_is_ours(bench: Bench) -> None:
    assert bench.renew("a") == Lost()
    bench.acquire("a", ttl=1.0)
    assert bench.renew("b") == Lost()
    assert bench.renew("a", 20_000) == Renewed()
    assert bench.ttl(bench.keys.lock) > 19_000
    assert bench.renew("a", 100) == Renewed()  # never to an earlier end than it has
    assert bench.ttl(bench.keys.lock) > 19_000
    bench.client.command("DEL", bench.keys.lock)
    assert bench.renew("a") == Lost()
    assert bench.client.command("EXISTS", bench.keys.lock) == 0  # never made anew


def test_an_attempt_that_was_undone_holds_nothing_for_ever(bench: Bench) -> None:
    bench.acquire("a")
    assert bench.undo("a") == Undone()
    assert bench.acquire("a") == Ended()
    assert bench.undo("never heard of") == Undone()
    assert bench.acquire("never heard of") == Ended()
    bench.acquire("b")
    assert bench.undo("a") == Undone()
    assert bench.renew("b") == Renewed()  # of b nothing was undone


def test_force_release_and_look(bench: Bench) -> None:
    keys, scripts = bench.keys, bench.place.scripts
    look = scripts.look((keys.lock, keys.queue))
    force = scripts.force_release((keys.lock, keys.queue, keys.alive), (keys.channel,))
    assert bench.run(look) == Nobody(0)
    assert bench.run(force) == Nobody(0)
    fence = bench.acquire("a").fence
    bench.waits("b")
    seen = bench.run(look)
    assert seen == Holder("owner of a", fence, seen.since, seen.remaining, 1)
    assert isinstance(bench.run(force), Holder)
    assert bench.run(look) == Nobody(1)


UNDOES_ANY = altered("undo", "if ours then", "if true then")
SHORTENS = altered("renew", "if redis.call('PTTL', lock) < tonumber(ttl_ms) then", "if true then")
NO_FLOOR = altered("acquire", "now_ms * 1000, tonumber(floor))", "now_ms * 1000)")


def test_undoing_needs_the_look_at_the_holder(client: Client) -> None:
    bench = Bench(client, UNDOES_ANY)
    bench.acquire("b")
    bench.undo("a")
    assert bench.renew("b") == Lost()


def test_renewing_needs_the_look_at_what_is_left(client: Client) -> None:
    bench = Bench(client, SHORTENS)
    bench.acquire("a", ttl=20.0)
    bench.renew("a", 1_000)
    assert bench.ttl(bench.keys.lock) <= 1_000


def test_a_floor_needs_its_place_in_the_fence(client: Client) -> None:
    bench = Bench(client, NO_FLOOR)
    assert bench.acquire("a", floor=2**52).fence < 2**52


# -- the queue


def test_who_waits_longest_is_next(bench: Bench) -> None:
    bench.acquire("a")
    for name in ("b", "c", "d"):
        bench.waits(name, overtakes=0)
    assert [bench.waits(name, overtakes=0).ahead for name in ("b", "c", "d")] == [0, 1, 2]
    bench.release("a")
    for name in ("d", "c"):
        free = bench.waits(name, overtakes=0)
        assert (free.owner, free.fence) == ("", 0)
        assert 0 < free.left_ms <= 60_000
    assert bench.acquire("newcomer", overtakes=0).owner == ""
    order = []
    for name in ("b", "c", "d"):
        order.append(bench.waits(name, overtakes=0).fence)
        bench.release(name)
    assert order == sorted(order)
    assert bench.client.command("ZCARD", bench.keys.queue) == 0


def test_a_newcomer_may_be_quicker_but_not_for_ever(bench: Bench) -> None:
    """Bounded barging: who was woken is not beaten by newcomers without end."""
    bench.acquire("a")
    bench.waits("b")
    bench.release("a")
    for number in range(OVERTAKES):
        assert isinstance(bench.acquire(f"n{number}"), Taken)
        assert isinstance(bench.waits("b"), Held)
        bench.release(f"n{number}")
    assert bench.acquire("one more") == Held(pytest.approx(30_000, abs=30_000), "", 0, 1)
    assert isinstance(bench.waits("b"), Taken)
    bench.release("b")
    assert isinstance(bench.acquire("one more"), Taken)  # and it is counted anew


FOR_EVER = altered("acquire", "overtaken <= overtakes", "true")


def test_newcomers_without_a_bound_starve_who_waits(client: Client) -> None:
    bench = Bench(client, FOR_EVER)
    bench.acquire("a")
    bench.waits("b")
    bench.release("a")
    for number in range(OVERTAKES * 3):
        assert isinstance(bench.acquire(f"n{number}"), Taken)
        bench.release(f"n{number}")


KEEPS_THE_DEAD = altered(
    "acquire", "if until_ms > now_ms then return", "if until_ms >= 0 then return"
)


@pytest.mark.parametrize("guarded", [True, False], ids=["dropped", "kept"])
def test_a_dead_waiter_costs_those_behind_it_its_silence_and_no_more(
    client: Client, guarded: bool
) -> None:
    bench = Bench(client, SCRIPTS if guarded else KEEPS_THE_DEAD)
    bench.acquire("a")
    bench.waits("dead", overtakes=0)
    bench.waits("c", overtakes=0)
    bench.release("a")
    assert isinstance(bench.waits("c", overtakes=0), Held)
    bench.client.command("ZADD", bench.keys.alive, 1000, "dead")  # it was to speak up long ago
    assert isinstance(bench.waits("c", overtakes=0), Taken if guarded else Held)


def test_a_waiter_without_a_sign_of_life_is_no_waiter(bench: Bench) -> None:
    """One of the two keys was evicted alone."""
    bench.acquire("a")
    bench.waits("b", overtakes=0)
    bench.client.command("DEL", bench.keys.alive)
    bench.waits("c", overtakes=0)
    bench.release("a")
    assert isinstance(bench.waits("c", overtakes=0), Taken)


def test_who_gives_up_hands_the_call_on(bench: Bench) -> None:
    with Calls(bench) as calls:
        bench.acquire("a")
        for name in ("b", "c"):
            bench.waits(name)
        bench.undo("d")  # somebody holds it: nobody is called
        bench.release("a")
        calls.wait("b")
        bench.undo("b")  # it was called, and gives up
        calls.wait("c")
        bench.acquire("e")
        bench.run(
            bench.place.scripts.force_release(
                (bench.keys.lock, bench.keys.queue, bench.keys.alive), (bench.keys.channel,)
            )
        )
        calls.wait("c", 2)
        assert calls.heard["b"] == 1


class Calls:
    """Hears who is called."""

    def __init__(self, bench: Bench) -> None:
        self.heard: dict[str, int] = {}
        self._bench = bench
        self._changed = threading.Condition()

    def _ring(self, name: str) -> None:
        with self._changed:
            self.heard[name] = self.heard.get(name, 0) + 1
            self._changed.notify_all()

    def __enter__(self) -> Calls:
        listener = self._bench.client._lock_hub().listener
        for name in ("b", "c", "d"):
            ready = threading.Event()
            listener.add(self._bench.keys.channel, name, partial(self._ring, name), ready.set)
            assert ready.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        for name in ("b", "c", "d"):
            self._bench.client._lock_hub().listener.remove(self._bench.keys.channel, name)

    def wait(self, name: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.heard.get(name, 0) >= times, 30), self.heard


BY_THE_CLOCK = altered(
    "acquire",
    "math.max(tonumber(last or '0') + 1, now_ms * 1000 + behind), attempt",
    "now_ms, attempt",
)


@pytest.mark.parametrize("guarded", [True, False], ids=["behind the last one", "by the clock"])
def test_a_clock_that_steps_back_lets_nobody_jump_the_queue(guarded: bool) -> None:
    require("valkey", find_binary("valkey") is not None)
    place = make_place(scripts=SCRIPTS if guarded else BY_THE_CLOCK)

    def ask(attempt: str) -> Any:
        return place.take(Ask(attempt, "me", 10.0, 5.0, 0))

    keys = place.keys
    release = place.scripts.release((keys.lock, keys.queue, keys.alive), ("a", keys.channel))
    with ScratchServer(None) as scratch:
        sandbox, state = Sandbox(scratch.port), ServerState()
        for attempt, clock_ms in (("a", 1_000_000), ("b", 1_000_000), ("c", 999_900)):
            _, state = sandbox.run(state._replace(clock_ms=clock_ms), ask(attempt))
        _, state = sandbox.run(state, release)
        first, second = ("b", "c") if guarded else ("c", "b")
        reply, _ = sandbox.run(state, ask(second))
        assert reply[0] == b"HELD"
        reply, _ = sandbox.run(state, ask(first))
        assert reply[0] == b"TAKEN"


# -- what is not ours, and a server without memory


def test_a_foreign_key_is_an_error_for_who_takes_and_a_loss_for_who_holds(bench: Bench) -> None:
    bench.client.command("SET", bench.keys.lock, "foreign")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        bench.acquire("a")
    assert bench.renew("a") == Lost()
    assert bench.release("a") == Lost()
    assert bench.undo("a") == Undone()
    assert bench.client.command("GET", bench.keys.lock) == b"foreign"


def test_without_memory_nothing_is_taken_and_all_is_given_back(namespace: str) -> None:
    require("valkey", find_binary("valkey") is not None)
    with (
        ServerProcess("valkey", "--maxmemory-policy", "noeviction") as server,
        Client.from_url(server.url, namespace=namespace) as client,
    ):
        bench = Bench(client)
        for name in ("a", "b"):
            bench.acquire(name)
            bench.release(name)
        bench.acquire("a")
        client.command("CONFIG", "SET", "maxmemory", "1")
        before = client.command("KEYS", "*")
        with pytest.raises(Overloaded):
            bench.acquire("b", wait=5.0)
        assert sorted(client.command("KEYS", "*")) == sorted(before)
        assert bench.renew("a") == Renewed()
        assert bench.release("a") == Released()
        with pytest.raises(Overloaded):
            bench.acquire("b")
        assert bench.run(bench.place.scripts.look((bench.keys.lock, bench.keys.queue))) == Nobody(0)
        assert bench.undo("c") == Undone()
