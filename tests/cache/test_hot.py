"""``hot=``: what the fleet asks for most is held in the process while it does, and kept right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fencepost import Client
from fencepost._core.observe import HotHeld
from fencepost._core.port import run_sync
from fencepost.cache import HotOptions, NearOptions
from fencepost.cache.hot import HotNear
from fencepost.errors import Refused
from fencepost.hotkeys import HotKeysOptions
from support.until import until_sync

LONG = HotOptions(near=NearOptions(ttl=3600.0, values="shared"))
# An interval that nobody waits for: the test merges.
COUNT = HotKeysOptions(every=1, interval=60.0, enter=1.0, leave=0.1)


@pytest.fixture
def open_client(namespace: str, server_url: str) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(
            Client.from_url(server_url, namespace=namespace, **more)
        )


def merge(client: Client) -> None:
    run_sync(client.hotkeys._tick())


def held(cache: Any) -> set[str]:
    return {key for key in ("hot", "cold") if key in cache._near.held}


def test_a_key_is_held_while_it_is_hot_and_that_is_told(open_client: Callable[..., Client]) -> None:
    events: list[Any] = []
    client = open_client(observe=events.append)
    cache = client.cache("p", hot=LONG)
    client.hotkeys.start(COUNT)
    for _ in range(100):
        cache.get("hot", lambda: 1)
    assert held(cache) == set()
    cache.get("cold", lambda: 1)
    merge(client)

    def is_held() -> bool:
        cache.get("hot", lambda: 1)
        cache.get("cold", lambda: 1)
        return "hot" in held(cache)

    until_sync(is_held)
    assert held(cache) == {"hot"}
    assert [event for event in events if isinstance(event, HotHeld)] == [HotHeld("p", "hot", True)]
    client.hotkeys.stop()
    assert held(cache) == set()
    assert [event.held for event in events if isinstance(event, HotHeld)] == [True, False]
    cache.get("hot", lambda: 1)
    assert held(cache) == set()


def test_a_change_elsewhere_of_a_held_hot_key_is_heard_of(
    open_client: Callable[..., Client],
) -> None:
    mine = open_client()
    cache, other = mine.cache("p", hot=LONG), open_client().cache("p")
    mine.hotkeys.start(COUNT)
    for _ in range(100):
        cache.get("hot", lambda: 1)
    merge(mine)

    def is_held() -> bool:
        cache.get("hot", lambda: 1)
        return "hot" in held(cache)

    until_sync(is_held)
    other.set("hot", 2)
    until_sync(lambda: cache.get("hot", lambda: 1) == 2)


def test_what_is_written_all_the_time_is_not_held(open_client: Callable[..., Client]) -> None:
    client = open_client()
    cache = client.cache("p", hot=LONG)
    client.hotkeys.start(COUNT)
    for _ in range(60):
        cache.get("hot", lambda: 1)
        cache.set("hot", 1)
    merge(client)
    assert [one.name for one in client.hotkeys.hot()] == ["cache:p:hot"]
    assert cache._near is not None
    assert cache._near.mark("hot") is None


def test_an_answer_that_was_under_way_when_its_key_cooled_is_not_held() -> None:
    near = HotNear(LONG, lambda key: key)
    near.found()
    near.heat({"k": (9, 0)})
    near.mark("k")
    near.found()
    mark = near.mark("k")
    assert mark is not None
    assert near.heat({}) == (set(), {"k"})
    assert not near.keep("k", mark, 1, near._now(), 10.0)
    # The control: hot still, it is held.
    near.heat({"k": (9, 0)})
    mark = near.mark("k")
    assert mark is not None
    assert near.keep("k", mark, 1, near._now(), 10.0)
    near.forget()
    assert near.mark("k") is None


@pytest.mark.parametrize(
    "options",
    [{"near": 1}, {"read_share": 2}, {"read_share": True}, {"read_share": float("nan")}],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        HotOptions(**options)


def test_near_and_hot_are_refused_together(open_client: Callable[..., Client]) -> None:
    with pytest.raises(Refused, match="one of them"):
        open_client().cache("p", hot=LONG, near=NearOptions())
    with pytest.raises(Refused):
        open_client().cache("p", hot=True)
