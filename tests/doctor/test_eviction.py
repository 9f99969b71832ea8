"""What eviction endangers is told, and what its settings mean for the keys that are there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from fencepost import Client
from fencepost._core import keys
from fencepost._core.port import run_sync
from fencepost.cli.main import main
from fencepost.doctor.eviction import Finding, hits_to, judge
from fencepost.doctor.server import Facts, Seen, group_of, look
from support.servers import ServerProcess

MEGA = 1 << 20


def facts(policy: str, *sample: Seen, **more: Any) -> Facts:
    given: dict[str, Any] = {
        "settings": {}, "used": 10 * MEGA, "limit": 100 * MEGA, "policy": policy, "keys": 100,
        "expiring": 50, "evicted": 0, "uptime": 3600.0, "sample": sample, **more,
    }  # fmt: skip
    return Facts(**given)


def levels(found: list[Finding], word: str) -> list[str]:
    return [one.level for one in found if word in one.text]


ENTRY = Seen("cache", 60.0, 100, idle=5.0)
JOURNAL = Seen("journal", None, 100, idle=5.0)
LEASE = Seen("lease", 10.0, 100, idle=5.0)


def test_keys_are_told_apart_as_they_are_built() -> None:
    shard = keys.like_shard("my app", "acts", 3)
    cache = keys.cache_prefix("my app", "products")
    lock = keys.lock_keys("my app", "l:v")
    for key, group in (
        (shard.opening, "journal"),
        (shard.due, "journal"),
        (shard.journal("7"), "journal"),
        (shard.header("7"), "cache"),
        (keys.like_hint("my app", "acts", "ann"), "cache"),
        (keys.cache_entry(cache, "k:j"), "cache"),
        (keys.cache_entry(cache, "k", 16), "cache"),
        (keys.cache_keys(cache, "k").lease, "cache"),
        (keys.cache_keys(cache, "k", 16).journal, "journal"),
        (keys.cache_shard(cache, 3).aside, "journal"),
        (keys.cache_stamp(cache, "shop"), "cache"),
        (keys.cache_epoch(cache), "cache"),
        (lock.lock, "lease"),
        (lock.fences, "fence"),
        (keys.lock_keys("my app", "s", "semaphore").lock, "lease"),
        (keys.job_keys("my app", "mail").ready, "jobs"),
        ("session:42", "other"),
        (keys.lock_keys("another", "l").lock, "other"),
    ):
        assert group_of(key, "my app") == group, key


@pytest.mark.parametrize("group", ["journal", "fence", "lease", "jobs"])
def test_a_policy_that_may_evict_anything_endangers(group: str) -> None:
    found = judge(facts("allkeys-lru", ENTRY, Seen(group, None, 100, idle=1.0)))
    assert found[0].level == "danger"
    assert "Set noeviction" in found[0].text


def test_a_server_that_only_caches_may_evict_anything() -> None:
    found = judge(facts("allkeys-lfu", replace(ENTRY, idle=None, freq=9)))
    assert "danger" not in [one.level for one in found]


def test_leases_have_a_ttl_so_volatile_policies_endanger_them() -> None:
    assert judge(facts("volatile-ttl", ENTRY, LEASE))[0].level == "danger"
    assert levels(judge(facts("volatile-lru", ENTRY, LEASE)), "second holder") == ["warning"]
    pressed = facts("volatile-lru", ENTRY, LEASE, evicted=7)
    assert levels(judge(pressed), "second holder") == ["danger"]
    # Journals have none: they stay.
    assert not levels(judge(facts("volatile-lru", ENTRY, JOURNAL)), "danger")
    assert levels(judge(facts("volatile-lru", ENTRY, JOURNAL)), "they stay") == ["ok"]


def test_noeviction_endangers_nothing_and_refuses_writes_when_it_is_full() -> None:
    found = judge(facts("noeviction", JOURNAL, LEASE, used=95 * MEGA))
    assert "danger" not in [one.level for one in found]
    assert levels(found, "writes are refused") == ["warning"]
    assert levels(judge(facts("noeviction", JOURNAL, limit=0)), "maxmemory is 0") == ["warning"]


def test_a_volatile_policy_without_ttls_refuses_writes_too() -> None:
    found = judge(facts("volatile-lru", *[JOURNAL] * 20, ENTRY, used=95 * MEGA))
    assert levels(found, "finds little to evict") == ["warning"]
    assert levels(found, "at 100 % writes are refused") == ["warning"]
    found = judge(facts("volatile-lru", *[ENTRY] * 20, used=95 * MEGA))
    assert levels(found, "at 100 % keys are evicted") == ["warning"]


def test_what_goes_first_is_told() -> None:
    cold = [Seen("other", 60.0, 1000, idle=90_000.0)] * 3
    warm = [Seen("cache", 60.0, 1000, idle=30.0)] * 17
    (text,) = [
        one.text for one in judge(facts("volatile-lru", *cold, *warm)) if "tenth" in one.text
    ]
    assert "unused for 25 h or more (100% other)" in text
    assert "half of all keys were unused for 30 s" in text


def test_hits_that_fill_a_counter() -> None:
    """The server's own documentation: 100 hits bring 10, a million fill it, at a factor of 10."""
    assert hits_to(10, 10) == 105
    assert 90_000 < hits_to(142, 10) < 100_000
    assert hits_to(255, 10) < 10**6
    assert hits_to(255, 0) == 250


def test_lfu_settings_are_explained_on_this_key_space() -> None:
    def frequent(*freqs: int, **settings: str) -> list[Finding]:
        sample = [Seen("cache", 60.0, 100, freq=freq) for freq in freqs]
        return judge(facts("allkeys-lfu", *sample, settings=settings))

    plain = frequent(*range(10, 200))
    assert "warning" not in [one.level for one in plain]
    assert any("outlives a new one (5) by 4 h" in one.text for one in plain)
    assert levels(frequent(*[255] * 3, *range(10, 20)), "raise lfu-log-factor") == ["warning"]
    assert levels(frequent(*[4] * 19, 80), "lower lfu-log-factor") == ["warning"]
    never = frequent(10, 20, **{"lfu-decay-time": "0"})
    assert levels(never, "yesterday's favourites") == ["warning"]


def test_few_samples_are_told() -> None:
    found = judge(facts("allkeys-lru", ENTRY, settings={"maxmemory-samples": "2"}))
    assert levels(found, "maxmemory-samples is 2") == ["warning"]


# -- a real server -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own() -> Iterator[ServerProcess]:
    """A server whose settings may be changed."""
    with ServerProcess() as server:
        yield server


def test_a_real_server_is_looked_at_and_left_as_it_was(own: ServerProcess) -> None:
    runner = CliRunner()
    with Client.from_url(own.url, namespace="shop") as client:
        client.command("FLUSHALL")
        words = ["doctor", "eviction", "--url", own.url, "--namespace", "shop", "--json"]
        assert json.loads(runner.invoke(main, words).output)["sampled"] == 0  # it is empty
        client.command("CONFIG", "SET", "maxmemory", "200mb")
        client.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        cache = client.cache("products", ttl=60)
        for number in range(20):
            cache.get(str(number), lambda: "x")
        done = runner.invoke(main, words)
        assert done.exit_code == 0, done.output
        with client.lock("invoice"):
            done = runner.invoke(main, [*words, "--sample", "400"])
            assert done.exit_code == 1, done.output
            found = json.loads(done.output)
            assert found["policy"] == "allkeys-lru"
            assert found["findings"][0]["level"] == "danger"
            assert found["settings"]["maxmemory-samples"]
            client.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
            told = runner.invoke(main, words[:-1])
            assert "lfu-decay-time" in told.output
            client.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            assert runner.invoke(main, words).exit_code == 0
    assert runner.invoke(main, [*words[:3], "redis://127.0.0.1:1"]).exit_code == 1


def test_looking_is_no_use_of_a_key(own: ServerProcess) -> None:
    """The sample must not make what is cold look warm."""
    with Client.from_url(own.url) as client:
        client.command("FLUSHALL")
        client.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
        for number in range(20):
            client.command("SET", f"k{number}", "x")

        def counters() -> list[int]:
            return [int(client.command("OBJECT", "FREQ", f"k{number}")) for number in range(20)]

        before = counters()
        found = run_sync(look(client.port, "fp", 500))
        assert len(found.sample) == 500
        assert all(after <= was for after, was in zip(counters(), before, strict=True))
        for _ in range(300):
            client.command("GET", "k0")
        assert counters()[0] > before[0]  # the control: a use is seen


def test_a_user_that_may_not_read_settings_is_told_what_info_knows(own: ServerProcess) -> None:
    with Client.from_url(own.url) as client:
        client.command("ACL", "SETUSER", "watcher", "on", ">pw", "~*", "+@all", "-config")
        client.command("SET", "k", "v")
    url = own.url.replace("://", "://watcher:pw@")
    with Client.from_url(url) as client:
        found = run_sync(look(client.port, "fp", 10))
    assert found.settings == {}
    assert found.policy
    assert judge(found)
