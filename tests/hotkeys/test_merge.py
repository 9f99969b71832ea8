"""Merges of several processes on a real server, their clocks scripted."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost.errors import Refused
from fencepost.hotkeys import HotKeysOptions
from fencepost.hotkeys.meter import Meter, Report, Row
from fencepost.hotkeys.protocol import Place, changed, place_of, tick
from fencepost.hotkeys.scripts import MERGE, Merged

from .test_sketch import zipf

# The server's clock is the real one: nobody is forgotten while a test is slow.
OPTIONS = HotKeysOptions(every=1, counters=512, rows=32, interval=60.0, enter=100.0, leave=50.0)


class Clock:
    """A port whose clock is set by hand."""

    def __init__(self, client: Client) -> None:
        self.port = client.port
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    async def run(self, call: Any) -> Any:
        return await self.port.run(call)


def agreed(heard: Merged, seen: Merged) -> Merged:
    """What a look shows; who merged heard the same of all that is hot."""
    assert [one for one in heard.keys if one.hot] == [one for one in seen.keys if one.hot]
    return seen


class Process:
    """One process: counts, and merges when it is told to."""

    def __init__(self, name: str, clock: Clock, place: Place) -> None:
        # Calls a second: a harvest each second, though the interval is long for the server's sake.
        self.name, self.clock, self.place = name, clock, place
        self.meter = Meter(OPTIONS, clock.time)
        self.meter.options = replace(OPTIONS, interval=1.0)
        self.tap = self.meter.tap("cache:products")

    def calls(self, key: str, times: int, *, write: bool = False) -> None:
        for _ in range(times):
            self.tap.see(key, write)

    def merge(self) -> Merged:
        report = self.meter.harvest(self.clock.time)
        heard = run_sync(self.place.merge(self.clock, self.name, report, OPTIONS, 128))  # type: ignore[arg-type]
        return agreed(heard, run_sync(self.place.look(self.clock, 128)))  # type: ignore[arg-type]


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def place(client: Client) -> Place:
    return place_of(client.namespace)


@pytest.fixture
def clock(client: Client) -> Clock:
    return Clock(client)


@pytest.fixture
def two(clock: Clock, place: Place) -> list[Process]:
    return [Process("a", clock, place), Process("b", clock, place)]


def shown(merged: Merged) -> dict[str, tuple[int, int]]:
    return {
        one.name.removeprefix("cache:products:"): (one.reads, one.writes) for one in merged.keys
    }


def said(*rows: tuple[str, int, int], floor: int = 0) -> Report:
    return Report(floor, tuple(Row(*row) for row in rows))


def tell(client: Client, place: Place, process: str, report: Report, **more: Any) -> Merged:
    options = replace(OPTIONS, **more)
    heard = run_sync(place.merge(client.port, process, report, options, 128))
    return agreed(heard, run_sync(place.look(client.port, 128)))


def test_what_two_processes_saw_is_added_reads_and_writes_apart(
    two: list[Process], clock: Clock
) -> None:
    a, b = two
    a.calls("x", 30)
    a.calls("x", 10, write=True)
    b.calls("x", 5)
    b.calls("y", 7)
    clock.time += 1.0
    a.merge()
    merged = b.merge()
    assert shown(merged) == {"x": (35, 10), "y": (7, 0)}
    assert merged.processes == 2
    # A second later nothing of it is so any more.
    clock.time += 1.0
    a.merge()
    assert shown(b.merge()) == {}


def test_the_fleet_finds_the_top_20_of_a_zipf_stream_that_is_split_by_chance(
    two: list[Process], clock: Clock
) -> None:
    calls = zipf(40_000, 5_000, 1.0, 7)
    for n, key in enumerate(calls):
        two[n % 2].calls(key, 1)
    clock.time += 1.0
    two[0].merge()
    merged = two[1].merge()
    true = Counter(calls)
    least = sorted(true.values(), reverse=True)[19]
    names = [one.name.removeprefix("cache:products:") for one in merged.keys[:20]]
    assert sum(true[name] >= least for name in names) >= 19
    for one in merged.keys:  # and the bounds hold over both
        times = true[one.name.removeprefix("cache:products:")]
        assert one.estimate <= times <= one.estimate + one.error


def test_a_report_that_is_sent_twice_counts_once(client: Client, place: Place) -> None:
    report = said(("x", 9, 4), ("y", 1, 0), floor=3)
    first = tell(client, place, "a", report)
    assert shown(tell(client, place, "a", report)) == shown(first) == {"x": (5, 4), "y": (1, 0)}
    assert first.keys[0].error == 3
    assert MERGE.contract.resend


def test_a_report_that_is_sent_twice_counts_twice_unless_the_old_one_is_taken_away(
    client: Client, place: Place
) -> None:
    """The control."""
    guard = "redis.call('HGET', reports, process) or '[0]'"
    assert guard in MERGE.plain
    without = replace(place, script=MERGE.with_text(MERGE.plain.replace(guard, "'[0]'")))
    tell(client, without, "a", said(("x", 9, 4)))
    assert shown(tell(client, without, "a", said(("x", 9, 4)))) == {"x": (10, 8)}


def test_who_is_silent_is_forgotten_by_the_others(client: Client, place: Place) -> None:
    tell(client, place, "dead", said(("x", 9, 4), floor=5))
    client.command("ZADD", place.keys[3], 1, "dead")  # it said so in 1970
    merged = tell(client, place, "a", said(("y", 1, 0)))
    assert (shown(merged), merged.processes, merged.keys[0].error) == ({"y": (1, 0)}, 1, 0)
    # What was taken away as silent may come back, and counts once.
    assert shown(tell(client, place, "dead", said(("x", 2, 1)))) == {"x": (1, 1), "y": (1, 0)}


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_a_key_that_is_evicted_leaves_no_wrong_sum(client: Client, place: Place, gone: int) -> None:
    for _ in range(2):
        tell(client, place, "a", said(("x", 9, 4)))
        tell(client, place, "b", said(("x", 1, 1), ("y", 6, 0)))
    client.command("DEL", place.keys[gone])
    tell(client, place, "a", said(("x", 9, 4)))
    assert shown(tell(client, place, "b", said(("x", 1, 1), ("y", 6, 0)))) == {
        "x": (5, 5),
        "y": (6, 0),
    }


def test_all_keys_end_and_a_look_changes_nothing(client: Client, place: Place) -> None:
    assert run_sync(place.look(client.port, 5)).keys == ()
    assert client.command("EXISTS", *place.keys) == 0
    tell(client, place, "a", said(("x", 900, 4)))
    assert [client.command("PTTL", key) > 0 for key in place.keys] == [True] * 5
    assert run_sync(place.look(client.port, 5)).keys[0].hot
    assert len(client.command("SCAN", 0, "MATCH", f"*{client.namespace}*", "COUNT", 10**6)[1]) == 5


def test_a_burst_is_hot_by_the_second_merge_of_all(two: list[Process], clock: Clock) -> None:
    """It begins at the worst moment: half a second after a merge, at just the threshold."""
    for _ in range(2):
        clock.time += 1.0
        for process in two:
            process.calls("quiet", 10)
            assert not any(one.hot for one in process.merge().keys)
    seen = []
    for part in (0.5, 1.0):  # of a second, that the burst has lasted when they merge
        clock.time += 1.0
        for process in two:
            process.calls("burst", int(50 * part))
            merged = process.merge()
        seen.append([one.name for one in merged.keys if one.hot])
    assert seen == [[], ["cache:products:burst"]]


def hot_after(client: Client, place: Place, rates: list[int], **options: Any) -> list[bool]:
    return [
        any(one.hot for one in tell(client, place, "a", said(("x", rate, 0)), **options).keys)
        for rate in rates
    ]


RATES = [60, 101, 99, 101, 99, 60, 51, 49, 99, 100]


def test_a_key_at_the_threshold_does_not_come_and_go(client: Client, place: Place) -> None:
    hot = hot_after(client, place, RATES)
    assert hot == [False, *[True] * 6, False, False, True]


def test_without_hysteresis_it_comes_and_goes(client: Client, place: Place) -> None:
    """The control: one threshold. Options refuse it, the script does what it is told."""
    with pytest.raises(Refused, match="come and go"):
        replace(OPTIONS, leave=100.0)
    asked: Any = type("Options", (), {"enter": 100, "leave": 100, "keep_ms": 60_000})()
    hot = [
        any(
            one.hot
            for one in run_sync(place.merge(client.port, "a", said(("x", rate, 0)), asked, 9)).keys
        )
        for rate in RATES
    ]
    assert sum(a != b for a, b in itertools.pairwise(hot)) == 5


def test_since_stands_while_a_key_is_hot(client: Client, place: Place) -> None:
    first = tell(client, place, "a", said(("x", 100, 0)))
    again = tell(client, place, "b", said(("x", 100, 0)))
    assert first.keys[0].since == again.keys[0].since
    assert first.keys[0].since is not None
    assert 0 <= first.at - first.keys[0].since < 60
    held, came, went = changed({}, first)
    assert [one.name for one in came] == ["x"]
    assert changed(held, again)[1:] == ([], [])
    assert went == []
    gone = changed(held, Merged(0.0, 1, ()))
    assert ([one.name for one in gone[2]], gone[0]) == (["x"], {})


def test_numbers_and_names_arrive_as_they_were(client: Client, place: Place) -> None:
    names = ["ü", 'a"b\\', "a\nb", "x" * 256, "{}", "~", "\0"]
    merged = tell(client, place, "a", said(*[(name, 123_456_789_012, 1) for name in names]))
    assert {one.name: (one.reads, one.writes) for one in merged.keys} == dict.fromkeys(
        names, (123_456_789_011, 1)
    )


@pytest.mark.parametrize(
    ("options", "shows"),
    [
        ({}, r"cache:p:user:ann@example\.org"),
        ({"names": "prefix", "prefix": 5}, r"cache:p:user:~[0-9a-f]{16}"),
        ({"names": "hashed"}, r"cache:p:~[0-9a-f]{16}"),
    ],
)
def test_names_leave_the_process_as_the_policy_says(options: Any, shows: str) -> None:
    one = HotKeysOptions(**options)
    name = one.shown("cache:p", "user:ann@example.org")
    assert re.fullmatch(shows, name)
    other = replace(one, secret="s").shown("cache:p", "user:ann@example.org")
    assert (other == name) == (not options)
    assert one.shown("cache:p", "user:bob@example.org") != name


@pytest.mark.parametrize("key", ["x" * 4096, "\ud800", "a\ud800b"])
def test_long_names_and_what_is_no_text_are_hashed(key: str) -> None:
    name = HotKeysOptions().shown("cache:p", key)
    assert len(name.encode()) < 300
    assert "~" in name


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0}, {"every": True}, {"counters": 4}, {"rows": 300}, {"rows": 64, "counters": 16},
        {"interval": 0.0}, {"enter": float("nan")}, {"leave": 1_000.0}, {"names": "none"},
        {"prefix": -1}, {"secret": b""}, {"enter": "9"},
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        HotKeysOptions(**options)


def test_a_sample_is_scaled_up_and_close_to_the_truth(clock: Clock, place: Place) -> None:
    meter = Meter(HotKeysOptions(every=16, interval=1.0), clock.time)
    tap = meter.tap("likes:x")
    for _ in range(40_000):
        tap.see("k")
    clock.time += 2.0
    report, merged = run_sync(tick(clock, place, "a", meter, 8))  # type: ignore[arg-type]
    (row,) = report.rows
    assert row.name == "likes:x:k"
    assert abs(row.calls - 20_000) < 20_000 * 0.12  # six deviations: 16 · √2500 / 2 is 400
    assert merged.keys[0].estimate == row.calls
