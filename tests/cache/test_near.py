"""A near cache on a real server: what is heard, what is not, and what happens when nothing is."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from fencepost import AsyncClient, Client
from fencepost.cache import Cache, Loaded, NearOptions
from fencepost.cache.near import NOTHING, NOW, Near
from fencepost.errors import Refused
from fencepost.wire.address import parse_url
from fencepost.wire.options import WireOptions
from fencepost.wire.tracker import Tracker
from support.proxy import Proxy
from support.servers import ServerProcess
from support.until import until, until_sync

LONG = NearOptions(ttl=3600.0, values="shared")


@pytest.fixture
def open_client(namespace: str) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:
        yield lambda url, **more: stack.enter_context(
            Client.from_url(url, namespace=namespace, **more)
        )


def near_of(cache: Any) -> Near:
    near = cache._near
    assert near is not None
    return near


def hold(cache: Cache[Any], key: str) -> Any:
    """Read until it is held."""
    found = None

    def held() -> bool:
        nonlocal found
        found = cache.get(key, lambda: 1)
        return key in near_of(cache).held

    until_sync(held)
    return found


def test_what_is_held_needs_no_server_and_a_change_elsewhere_is_heard_of(
    server_url: str, open_client: Callable[..., Client]
) -> None:
    mine = open_client(server_url).cache("products", near=LONG)
    other = open_client(server_url).cache("products")
    assert hold(mine, "k") == 1
    before = mine.stats()["hits"]
    for _ in range(10):
        assert mine.get("k", lambda: 2) == 1
    assert mine.stats()["hits"] == before  # the server was not asked
    for value in (5, 6, 7):
        other.set("k", value)
        until_sync(lambda value=value: mine.get("k", lambda: 0) == value)
        hold(mine, "k")
    other.invalidate("k")
    until_sync(lambda: mine.get("k", lambda: 8) == 8)
    assert mine.stats()["near"]["drops"] >= 4


async def test_the_async_face_holds_and_hears_too(
    server_url: str, namespace: str, open_client: Callable[..., Client]
) -> None:
    other = open_client(server_url).cache("products")
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        mine = client.cache("products", near=LONG)
        near = near_of(mine)
        values = []
        while "k" not in near.held:
            values.append(await mine.get("k", lambda: 1))
        other.set("k", 2)
        await until(lambda: "k" not in near.held)
        assert await mine.get("k", lambda: 1) == 2
        assert set(values) == {1}
        await mine.set("k", 3)
        assert await mine.get("k", lambda: 1) == 3
        near.held.set("k", "wrong")
        assert await mine.get("k", lambda: 1) == "wrong"  # it is asked first …
        assert await mine.get("k", lambda: 1, consistency="server") == 3  # … unless it may not be
    assert not near.listening
    assert len(near.held) == 0


def test_own_changes_are_seen_at_once(server_url: str, open_client: Callable[..., Client]) -> None:
    cache = open_client(server_url).cache("products", near=LONG)
    source = {"k": 0}
    hold(cache, "k")
    for number in range(1, 60):
        source["k"] = number
        match number % 5:
            case 0:
                cache.set("k", number)
            case 1:
                cache.invalidate("k")
            case 2:
                cache.refresh("k", lambda: source["k"])
            case 3:
                cache.write_through("k", number, lambda value: None)
            case 4:
                cache.write_around("k", lambda: None)
        assert cache.get("k", lambda: source["k"]) == number
        cache.get("k", lambda: source["k"])


def test_redisson_6065_a_read_may_be_forced(
    server_url: str, open_client: Callable[..., Client]
) -> None:
    """redisson#6065: "some invalidations are missed, how do I force a read?"."""
    cache = open_client(server_url).cache("products", near=LONG)
    hold(cache, "k")
    near_of(cache).held.set("k", "missed")
    assert cache.get("k", lambda: 0) == "missed"
    assert cache.get("k", lambda: 0, consistency="server") == 1


def test_redisson_4653_a_lost_link_empties_it_and_it_hears_again(
    server: ServerProcess, open_client: Callable[..., Client]
) -> None:
    """redisson#4653, #5208: what was subscribed was lost with the connection, and what was held stayed."""
    with Proxy(server) as proxy:
        mine = open_client(proxy.url).cache("products", near=LONG)
        other = open_client(server.url).cache("products")
        near = near_of(mine)
        for round_ in range(1, 4):
            for number in range(20):
                hold(mine, str(number))
            proxy.cut()
            until_sync(lambda round_=round_: near.losses == round_)
            until_sync(lambda: near.listening)
            assert len(near.held) == 0
            other.set("3", round_ * 100)
            hold(mine, "3")
            until_sync(lambda round_=round_: mine.get("3", lambda: 0) == round_ * 100)


def test_redis_py_3600_an_invalidation_on_another_connection_holds_nobody_up(
    server_url: str, open_client: Callable[..., Client]
) -> None:
    """redis-py#3600: a read hung when its invalidation came on another connection. Ours always does."""
    mine = open_client(server_url).cache("products", near=LONG)
    other = open_client(server_url).cache("products")
    hold(mine, "0")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            other.set(str(number % 5), number)

    def read(seed: int) -> int:
        dice = random.Random(seed)
        return sum(mine.get(str(dice.randrange(5)), lambda: 0) is not None for _ in range(400))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(read, range(4))) == [400] * 4
    finally:
        stop.set()
        writer.join()


class Usual:
    """The usual client: what was read is held."""

    def __init__(self, near: Near) -> None:
        self._near = near

    def keep(self, key: str, mark: object, value: Any, asked: float, fresh: float) -> bool:
        self._near.held.set(key, value)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._near, name)


@pytest.mark.parametrize("usual", [False, True], ids=["ours", "usual"])
def test_an_answer_that_was_overtaken_on_its_way(
    server: ServerProcess, open_client: Callable[..., Client], usual: bool
) -> None:
    """The answer is kept back until its invalidation was heard; the usual client then holds it for good."""
    with Proxy(server) as proxy:
        client = open_client(proxy.url)
        client._lock_hub()._locate = lambda: parse_url(
            server.url
        )  # its tracker comes round the proxy
        mine = client.cache("products", near=LONG)
        other = open_client(server.url).cache("products")
        near = near_of(mine)
        hold(mine, "k")
        if usual:
            mine._near = Usual(near)  # type: ignore[assignment]
        near.held.delete("k")
        drops = near.drops
        proxy.hold("reply", "GET")
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(mine.get, "k", lambda: 0)
            proxy.wait(lambda: proxy.waiting > 0)
            other.set("k", 2)
            until_sync(lambda: near.drops > drops)
            proxy.release("reply")
            assert reading.result() == 1  # it began before
        assert near.get("k", NOTHING) == (1 if usual else NOTHING)
        assert mine.get("k", lambda: 0, consistency="server") == 2


def test_a_silent_connection_is_given_up(server: ServerProcess) -> None:
    """Nothing ends it, and nothing comes: it is asked, and does not answer."""
    near = Near(LONG, lambda key: key)
    with Proxy(server) as proxy:
        tracker = Tracker(lambda: parse_url(proxy.url), WireOptions(), "p:", near, beat=0.2)
        tracker.start()
        try:
            until_sync(lambda: near.listening)
            proxy.hold("reply", "PING")
            until_sync(lambda: near.losses == 1)
            proxy.release("reply")
            until_sync(lambda: near.listening)
        finally:
            tracker.close()
    assert not near.listening


# -- servers that know RESP2 only --------------------------------------------------------------------


@pytest.fixture(scope="module")
def own() -> Iterator[ServerProcess]:
    """A server whose users may be changed, and whose data may be dropped."""
    with ServerProcess() as server:
        with Client.from_url(server.url) as client:
            client.command("ACL", "SETUSER", "old", "on", ">pw", "~*", "&*", "+@all", "-hello")
            words = ("on", ">pw", "~*", "&*", "+@all", "-client|tracking")
            client.command("ACL", "SETUSER", "deaf", *words)
        yield server


def as_user(server: ServerProcess, user: str) -> str:
    return server.url.replace("://", f"://{user}:pw@")


def trackers(client: Client) -> list[str]:
    """The ids of connections that track, or are told in their name."""
    lines = client.command("CLIENT", "LIST").decode().splitlines()
    rows = [dict(one.partition("=")[::2] for one in line.split()) for line in lines]
    return [row["id"] for row in rows if "t" in row["flags"]]


def test_without_resp3_changes_come_as_messages(
    own: ServerProcess, open_client: Callable[..., Client]
) -> None:
    mine = open_client(as_user(own, "old")).cache("products", near=LONG)
    other_client = open_client(own.url)
    other = other_client.cache("products")
    near = near_of(mine)
    assert hold(mine, "k") == 1
    other.set("k", 2)
    until_sync(lambda: mine.get("k", lambda: 0) == 2)
    hold(mine, "k")
    # The second connection, in whose name they are told, ends: nobody says so on the first.
    (tracking,) = trackers(other_client)
    other_client.command("CLIENT", "KILL", "ID", tracking)
    until_sync(lambda: near.losses == 1)
    until_sync(lambda: near.listening)
    other.set("k", 3)
    until_sync(lambda: mine.get("k", lambda: 0) == 3)


def test_a_server_that_will_not_track_is_told_once_and_asked_each_time(
    own: ServerProcess, open_client: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    mine = open_client(as_user(own, "deaf")).cache("products", near=LONG)
    near = near_of(mine)
    mine.get("k", lambda: 1)
    until_sync(lambda: "can't tell of changes" in caplog.text)
    for _ in range(3):
        mine.get("k", lambda: 1)
    assert not near.listening
    assert len(near.held) == 0


def test_flushed_data_is_heard_of(own: ServerProcess, open_client: Callable[..., Client]) -> None:
    client = open_client(own.url)
    mine = client.cache("products", near=LONG)
    hold(mine, "k")
    client.command("FLUSHALL")
    until_sync(lambda: len(near_of(mine).held) == 0)
    assert mine.get("k", lambda: 9) == 9


# -- what is held, and how ---------------------------------------------------------------------------


def test_only_what_needs_no_judging_is_held(
    server_url: str, open_client: Callable[..., Client]
) -> None:
    cache = open_client(server_url).cache("products", near=LONG)
    hold(cache, "plain")
    for _ in range(3):
        cache.get("none", lambda: None)
        cache.get("tagged", lambda: 1, tags=["t"])
        cache.get("tagged by its loader", lambda: Loaded(1, tags=("t",)))
    assert set(near_of(cache).held._table) == {"plain"}
    with pytest.raises(Refused):
        cache.get("", lambda: 1)


def test_values_are_copied_unless_they_may_be_shared(
    server_url: str, open_client: Callable[..., Client]
) -> None:
    client = open_client(server_url)
    for values in ("copied", "shared"):
        near = NearOptions(ttl=3600.0, values=values)  # type: ignore[arg-type]
        cache: Any = client.cache(values, near=near)
        until_sync(lambda cache=cache: (cache.get("k", lambda: [1]), "k" in near_of(cache).held)[1])
        first, second = cache.get("k", lambda: [1]), cache.get("k", lambda: [1])
        assert first == second == [1]
        assert (first is second) == (values == "shared")


def test_nothing_is_given_that_was_not_current_within_its_ttl() -> None:
    """Counted from before the server was asked, whatever is heard."""
    now = 100.0
    near = Near(NearOptions(ttl=5.0), lambda key: key, now=lambda: now)
    near.found()
    mark = near.mark("k")
    asked = now
    now += 3  # a slow answer
    assert mark is not None
    assert near.keep("k", mark, "v", asked, fresh=60.0)
    now += 1.9
    assert near.get("k") == "v"
    now += 0.2
    assert near.get("k", NOTHING) is NOTHING
    late = near.mark("k")
    assert late is not None
    now += 6
    assert not near.keep("k", late, "v", now - 6, fresh=60.0)
    ended = near.mark("k")
    assert ended is not None
    assert near.keep("k", ended, "v", now, fresh=1.0)  # the entry's own end comes first
    now += 1.1
    assert near.get("k", NOTHING) is NOTHING


def test_many_who_ask_first_begin_one_tracker() -> None:
    for _ in range(50):
        started: list[int] = []
        near = Near(LONG, lambda key: key, lambda started=started: started.append(1))
        barrier = threading.Barrier(4)

        def ask(near: Near = near, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            near.mark("k")

        with ThreadPoolExecutor(4) as pool:
            for one in [pool.submit(ask) for _ in range(4)]:
                one.result()
        assert started == [1]


def test_a_forked_child_holds_nothing_until_it_listens_itself() -> None:
    started: list[int] = []
    near = Near(LONG, lambda key: key, lambda: started.append(1))
    near.mark("k")
    near.found()
    near.forget()  # what a fork does
    assert not near.listening
    assert near.mark("k") is None
    assert len(started) == 2


@pytest.mark.parametrize(
    "options",
    [{"maxsize": 0}, {"maxsize": 1.5}, {"ttl": 0}, {"ttl": True}, {"ttl": 1e9}, {"policy": "arc"},
     {"values": "mine"}],
)  # fmt: skip
def test_what_cannot_work_is_refused(options: Any, open_client: Callable[..., Client]) -> None:
    with pytest.raises(Refused, match="near"):
        NearOptions(**options)
    with pytest.raises(Refused, match="NearOptions"):
        open_client("redis://127.0.0.1:1").cache("products", near={"ttl": 5})


# -- staleness under writes and cuts -----------------------------------------------------------------


def stale_reads(
    server: ServerProcess, open_client: Callable[..., Client], writes: int, ttl: float
) -> tuple[int, int, dict[str, Any]]:
    """Writes, reads and cuts at random; gives reads, those staler than ``ttl``, and the near cache's counts.

    A read that begins at t must not give what a write replaced that had ended before t - ttl.
    """
    keys = [f"k{number}" for number in range(20)]
    source = dict.fromkeys(keys, 0)
    done: dict[str, list[tuple[float, int]]] = {key: [] for key in keys}
    wrong = reads = 0
    stop = threading.Event()
    with Proxy(server) as proxy:
        client = open_client(server.url)
        client._lock_hub()._locate = lambda: parse_url(proxy.url)  # only its tracker is cut off
        mine = client.cache("products", near=NearOptions(ttl=ttl, values="shared"))
        other = open_client(server.url).cache("products")

        def write() -> None:
            dice = random.Random(1)
            for number in range(1, writes + 1):
                key = dice.choice(keys)
                source[key] = number
                other.set(key, number)
                done[key].append((NOW(), number))
                if dice.random() < 20 / writes:
                    proxy.cut()
            stop.set()

        def read(seed: int) -> tuple[int, int]:
            dice, seen, stale = random.Random(seed), 0, 0
            while not stop.is_set():
                key = dice.choice(keys)
                began = NOW()
                value: Any = mine.get(key, lambda key=key: source[key])
                seen += 1
                for ended, number in reversed(done[key]):
                    if ended < began - ttl:
                        stale += value < number
                        break
            return seen, stale

        with ThreadPoolExecutor(3) as pool:
            writing = pool.submit(write)
            for seen, stale in [one.result() for one in [pool.submit(read, n) for n in (1, 2)]]:
                reads += seen
                wrong += stale
            writing.result()
        near = near_of(mine)
        until_sync(lambda: near.listening)
        until_sync(lambda: all(mine.get(key, lambda: -1) == source[key] for key in keys))
        return reads, wrong, near.stats()


def test_no_read_is_staler_than_its_bound(
    server: ServerProcess, open_client: Callable[..., Client]
) -> None:
    reads, wrong, counts = stale_reads(server, open_client, 3_000, ttl=0.3)
    assert reads > 0
    assert wrong == 0
    assert counts["drops"] > 0
    assert counts["losses"] > 0


@pytest.mark.robustness
def test_no_read_is_staler_than_its_bound_over_100_000_writes(
    server: ServerProcess, open_client: Callable[..., Client]
) -> None:
    reads, wrong, counts = stale_reads(server, open_client, 100_000, ttl=0.3)
    assert reads > 10_000
    assert wrong == 0
    assert counts["losses"] > 5
