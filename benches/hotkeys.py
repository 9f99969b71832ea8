"""Hot keys: what a call costs more while it is sampled, and how soon a burst is seen."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

from benches.runner import Case, Row, Scale, Threaded, duel, server
from fencepost import Client
from fencepost._core.port import run_sync
from fencepost._core.taps import Tap
from fencepost.cache import NearOptions
from fencepost.hotkeys import HotKeysOptions
from fencepost.hotkeys.meter import Meter, Report
from fencepost.hotkeys.meter import Row as Row_
from fencepost.hotkeys.protocol import place_of

COST_AIM = 0.1  # µs a call
SEEN_AIM = 2.0  # s


@contextlib.contextmanager
def _two(path: str) -> Iterator[tuple[Any, Any]]:
    """A near cache that is counted, and one that is not."""
    near = NearOptions(ttl=3600.0, values="shared")
    with Client.from_url(f"unix://{path}") as a, Client.from_url(f"unix://{path}") as b:
        found = a.cache("p", ttl=3600.0, near=near), b.cache("p", ttl=3600.0, near=near)
        for cache in found:
            while not cache.stats()["near"]["entries"]:
                cache.get("x", lambda: 1)
        a.hotkeys.start(HotKeysOptions())
        yield found


def _hit(scale: Scale) -> list[Row]:
    """A near hit, the cheapest call there is, counted and not."""
    with server() as path, _two(path) as (counted, plain):

        def calls_of(cache: Any) -> Any:
            def work(_worker: int, calls: int) -> None:
                for _ in range(calls):
                    cache.get("x", bytes)

            return work

        with Threaded(calls_of(counted), 1) as a, Threaded(calls_of(plain), 1) as b:
            result = duel(a, b, scale)
    return [result.cpu("near hit, counted", "not counted")]


def _tapped(scale: Scale) -> list[Row]:
    """What is inlined in a call, without the call: of 200 keys, one in 32 taken."""
    meter = Meter(HotKeysOptions(), 0.0)
    keys = [f"key:{n}" for n in range(200)]
    calls = 1000 if scale.name == "quick" else 5000

    def best(tap: Tap | None) -> float:
        took = []
        for _ in range(7):
            began = time.perf_counter()
            for _ in range(calls):
                for key in keys:
                    if tap is not None:
                        tap.left = left = tap.left - 1
                        if left < 0:
                            tap.take(key)
            took.append(time.perf_counter() - began)
        return min(took) / (calls * len(keys)) * 1e6

    cost = max(best(meter.tap("cache:p")) - best(None), 1e-4)
    return [Row("counting, a call", "µs", cost, "aim", COST_AIM, COST_AIM / cost, 1.0)]


def _burst(scale: Scale) -> list[Row]:
    """Seconds from a burst's first call until the fleet's figures say so, and until another process knows."""
    options = HotKeysOptions(every=8, enter=500.0, leave=100.0)
    seen, known = [], []
    with (
        server() as path,
        Client.from_url(f"unix://{path}") as busy,
        Client.from_url(f"unix://{path}") as other,
    ):
        for client in (busy, other):
            client.hotkeys.start(options)
        cache = busy.cache("p", ttl=3600.0)
        for n in range(2 if scale.name == "quick" else 6):
            name, began, told = f"cache:p:{n}", time.perf_counter(), 0.0
            while not any(one.name == name for one in other.hotkeys.hot()):
                for _ in range(200):
                    cache.get(str(n), lambda: 1)
                if not told and any(one.name == name and one.hot for one in other.hotkeys.top(3)):
                    told = time.perf_counter() - began
            known.append(time.perf_counter() - began)
            seen.append(told or known[-1])
    worst = max(seen)
    return [
        Row("a burst is seen, at worst", "s", worst, "aim", SEEN_AIM, SEEN_AIM / worst, 1.0),
        Row("a burst is known to another process, at worst", "s", max(known)),
    ]


def _merge(scale: Scale) -> list[Row]:
    """What a merge of 32 rows, all of them other than before, costs the server, in SETs."""
    options, fleet = HotKeysOptions(), 20
    with server() as path, Client.from_url(f"unix://{path}") as client:
        place = place_of(client.namespace)
        for n in range(200 if scale.name == "quick" else 1000):
            rows = tuple(Row_(f"cache:products:{k}", 40 + (n + k) % 7, k % 3) for k in range(32))
            report = Report(n % 5, rows)
            run_sync(place.merge(client.port, f"process {n % fleet}", report, options, 128))
            for k in range(32):
                client.command("SET", f"k{k}", n)
        stats = client.command("INFO", "commandstats").decode()
    took = dict(re.findall(r"cmdstat_(evalsha|set):.*?usec_per_call=([0-9.]+)", stats))
    merge, one = float(took["evalsha"]), float(took["set"])
    return [Row("a merge of 32 rows, on the server", "µs", merge, "a SET", one, one / merge)]


def cases() -> list[Case]:
    return [
        Case("hotkeys hit", _hit),
        Case("hotkeys cost", _tapped),
        Case("hotkeys merge", _merge),
        Case("hotkeys burst", _burst),
    ]
