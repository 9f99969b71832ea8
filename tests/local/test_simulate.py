"""Traces are read, played by the code that runs, held against the optimum, and judged."""

from __future__ import annotations

import io
import itertools
import json
import lzma
import random
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fencepost import Client
from fencepost.cli.main import main
from fencepost.errors import Refused
from fencepost.local import LocalCache
from fencepost.local.record import Recorder
from fencepost.local.simulate import belady, play, read_trace, simulate
from support.traces import ALL, ratio, shifting, zipf


def by_hand(trace: list[int], size: int) -> float:
    """The optimum, looked up by searching."""
    held: set[int] = set()
    hits = 0
    for at, key in enumerate(trace):
        hits += key in held
        if key not in held and len(held) == size:
            rest = trace[at + 1 :]
            held.remove(
                max(held, key=lambda one: rest.index(one) if one in rest else len(trace) + one)
            )
        held.add(key)
    return hits / len(trace)


def test_the_optimum_is_the_optimum() -> None:
    dice = random.Random(1)
    for _ in range(30):
        trace = [dice.randrange(12) for _ in range(150)]
        for size in (1, 3, 7):
            assert belady(trace, size) == pytest.approx(by_hand(trace, size))


@pytest.mark.parametrize("policy", ALL)
def test_what_is_played_is_what_runs(policy: Any) -> None:
    trace = list(shifting(500, 8000, 3000, seed=2))
    played = play(policy, trace, 60)
    # A cache that runs brings the order of hits up to date before it next decides: the same thing.
    assert played == pytest.approx(ratio(LocalCache(60, policy=policy), trace), abs=0.01)
    assert played <= belady(trace, 60)


def test_a_sample_of_the_keys_tells_of_the_whole(tmp_path: Path) -> None:
    """A fifth of the keys, all their requests, and sizes in entries of the whole."""
    draw = zipf(5000, seed=9, exponent=0.8)
    trace = [draw() for _ in range(80_000)]
    recorder = Recorder(tmp_path / "trace.u32le", rate=0.2)
    recorder.see_all(f"key:{key}" for key in trace)
    recorder.close()
    sample = read_trace(tmp_path / "trace.u32le")
    assert 0.1 < len(set(sample)) / 5000 < 0.3
    whole = simulate(trace, ["s3fifo"], [500]).ratios[500]["s3fifo"]
    guessed = simulate(sample, ["s3fifo"], [500], sampled=0.2).ratios[500]["s3fifo"]
    assert guessed == pytest.approx(whole, abs=0.12)
    assert (tmp_path / "trace.u32le").stat().st_mode & 0o077 == 0


def test_two_recordings_of_one_key_have_nothing_in_common(tmp_path: Path) -> None:
    for name in ("one", "two"):
        recorder = Recorder(tmp_path / name)
        recorder.see_all([b"user:42"] * 3)
        recorder.close()
        recorder.see("late")
    one, two = ((tmp_path / name).read_bytes() for name in ("one", "two"))
    assert len(one) == len(two) == 12
    assert one != two


def test_a_recording_is_bounded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "trace", limit=10_000)
    recorder.see_all(str(number) for number in range(30_000))
    recorder.close()
    assert recorder.written == (tmp_path / "trace").stat().st_size // 4 == 10_000
    for options in ({"rate": 0}, {"rate": 1.1}, {"limit": 0}):
        with pytest.raises(Refused):
            Recorder(tmp_path / "other", **options)


@pytest.mark.parametrize("keys", [10, 20_000])
def test_a_full_disk_ends_the_recording_and_nothing_else(keys: int) -> None:
    """Also where so few are left that they wait in the file's own buffer."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    recorder = Recorder("/dev/full")
    recorder.see_all(str(number) for number in range(keys))
    recorder.close()
    assert recorder.written == 0


# -- formats -----------------------------------------------------------------------------------------


def test_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["a", "b", "a", "c c", "a"]
    (tmp_path / "t.txt").write_text("\n".join(keys) + "\n\n")
    (tmp_path / "t.csv").write_text(
        "at,key\n" + "".join(f"{n},{key}\n" for n, key in enumerate(keys))
    )
    (tmp_path / "bare.csv").write_text("".join(f"{n},{key}\n" for n, key in enumerate(keys)))
    numbers = array("I", [7, 9, 7, 1, 7])
    (tmp_path / "t.u32le").write_bytes(numbers.tobytes())
    (tmp_path / "t.u32le.xz").write_bytes(lzma.compress(numbers.tobytes()))
    for found in (
        read_trace(tmp_path / "t.txt"),
        read_trace(tmp_path / "t.csv"),
        read_trace(tmp_path / "t.csv", column="key"),
        read_trace(tmp_path / "bare.csv", column="1"),
    ):
        assert list(found) == [0, 1, 0, 2, 0]
    assert list(read_trace(tmp_path / "t.u32le")) == list(numbers)
    assert list(read_trace(tmp_path / "t.u32le.xz")) == list(numbers)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\ny\nx\n")))
    assert list(read_trace("-")) == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "data", "options", "words"),
    [
        ("t", b"", {}, "no keys"),
        ("t.u32le", b"123", {}, "multiple of 4"),
        ("t.csv", b"at,name\n1,a\n", {"column": "key"}, "there are at, name"),
        ("t.csv", b"1,a\n", {"column": "7"}, "no column 7"),
    ],
)
def test_what_is_no_trace_is_told(
    tmp_path: Path, name: str, data: bytes, options: Any, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Refused, match=words):
        read_trace(tmp_path / name, **options)


# -- what is recommended -----------------------------------------------------------------------------


def test_a_loop_wants_another_policy_than_favourites() -> None:
    loop = list(range(100)) * 50
    policy, size, reason = simulate(loop, ["lru", "wtinylfu"], [90]).recommend()
    assert (policy, size) == ("wtinylfu", 90)
    assert "first ones" in reason
    draw = zipf(2000, seed=4)
    found = simulate([draw() for _ in range(20_000)], sizes=[50, 200, 1500, 2000])
    policy, size, reason = found.recommend()
    assert policy == "s3fifo"
    assert size == 1500 or size == 200
    assert "2,000 would hit" in reason


def test_sizes_that_are_not_given_are_chosen() -> None:
    trace = list(itertools.chain.from_iterable([range(1000)] * 3))
    assert len(simulate(trace, ["lru"]).ratios) >= 5
    assert simulate(trace, ["lru"], [1000]).ceiling == pytest.approx(2 / 3)
    with pytest.raises(Refused, match="no policy 'arc'"):
        simulate(trace, ["arc"])
    with pytest.raises(Refused, match="too small"):
        simulate(trace, ["lru"], [3], sampled=0.1)
    with pytest.raises(Refused, match="sampled share"):
        simulate(trace, sampled=0)


# -- commands ----------------------------------------------------------------------------------------


def test_simulate_prints_and_recommends(tmp_path: Path) -> None:
    trace = tmp_path / "t.txt"
    trace.write_text("\n".join(str(key) for key in shifting(100, 3000, 1000, seed=1)))
    runner = CliRunner()
    done = runner.invoke(main, ["simulate", str(trace), "--size", "10", "--size", "20%"])
    assert done.exit_code == 0, done.output
    assert "belady" in done.output
    assert "█" in done.output
    assert "Take LocalCache(" in done.output
    words = ["simulate", str(trace), "--policy", "lru", "--size", "10", "--json"]
    found = json.loads(runner.invoke(main, words).output)
    assert set(found["ratios"]["10"]) == {"lru", "belady"}
    assert found["recommended"]["policy"] == "lru"
    for bad in (["--size", "0"], ["--size", "x"], ["--policy", "arc"], ["--column", "7"]):
        assert runner.invoke(main, ["simulate", str(trace), *bad]).exit_code != 0


PROGRAM = """
import sys
from fencepost import Client
with Client.from_url(sys.argv[1], namespace=sys.argv[2]) as client:
    products = client.cache("products", ttl=60)
    for number in [1, 2, 1, 3, 1]:
        products.get(str(number), lambda: number)
    client.command("GET", "other")
sys.exit(3)
"""


def test_record_runs_a_program_and_writes_what_its_clients_read(
    tmp_path: Path, server_url: str, namespace: str
) -> None:
    script, out = tmp_path / "app.py", tmp_path / "trace.u32le"
    script.write_text(PROGRAM)
    words = ["record", "--out", str(out), "--rate", "1", "--match", "*products*", str(script)]
    done = CliRunner().invoke(main, [*words, server_url, namespace])
    assert done.exit_code == 3, done.output  # the program's own
    trace = list(read_trace(out))
    first, second, third = trace[0], trace[1], trace[3]
    assert trace == [first, second, first, third, first]
    assert len({first, second, third}) == 3
    assert "simulate" in done.output
    assert CliRunner().invoke(main, ["record", str(tmp_path / "no.py")]).exit_code == 1
    assert CliRunner().invoke(main, ["record", "-m"]).exit_code == 2


async def test_a_running_service_can_be_recorded(
    tmp_path: Path, server_url: str, namespace: str
) -> None:
    from fencepost import AsyncClient
    from fencepost.wire.recording import recording

    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        cache = client.cache("products", ttl=60)
        await cache.get("before", lambda: 1)
        with recording(tmp_path / "trace.u32le", 1.0) as recorder:
            with pytest.raises(Refused, match="under way"), recording(tmp_path / "x"):
                pass
            for _ in range(3):
                await cache.get("k", lambda: 1)
            await client.command("GET", "raw")
        await cache.get("after", lambda: 1)
    trace = list(read_trace(tmp_path / "trace.u32le"))
    assert recorder.written == len(trace)
    assert trace[0] == trace[-2] != trace[-1]
    with Client.from_url(server_url) as again:
        assert again.command("PING")
