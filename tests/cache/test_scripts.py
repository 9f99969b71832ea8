"""Each script of the cache by itself, on the real server: reply, stored value, life, and the lease left.

The first half is the five checks of a fenced refresh, with the design that writes unconditionally
beside the ones that it gets wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost import Client
from fencepost._core.port import run_sync
from fencepost._core.script import Call
from fencepost.cache import scripts as s
from fencepost.cache.region import Region
from fencepost.cache.scripts import SCRIPTS, Scripts
from fencepost.errors import ServerError
from support.cache import altered, make_region, packed, unpacked
from support.require import require
from support.servers import ServerProcess, find_binary

OLD, CURRENT, OTHER = "OLD".ljust(22, "_"), "CURRENT".ljust(22, "_"), "OTHER".ljust(22, "_")
NONE = "-" * 19
REMEMBER = 60_000


def rev(number: int) -> str:
    return f"{number:019d}"


class Key:
    """One key of one cache, and its scripts, called one at a time."""

    def __init__(self, client: Client, region: Region) -> None:
        self.client = client
        self.scripts = region.scripts
        self.keys = region.keys("k")

    def run(self, call: Call[Any]) -> Any:
        return run_sync(self.client.port.run(call))

    def claim(self, token: str, seen: str = "", lease_ms: Any = 5_000) -> Any:
        keys = (self.keys.entry, self.keys.lease, self.keys.intents)
        return self.run(self.scripts.claim((*keys, self.keys.journal), (token, seen, lease_ms)))

    def publish(
        self,
        token: str,
        value: Any = "v",
        ttl_ms: Any = 60_000,
        revision: int | None = None,
        seen: str = "",
    ) -> Any:
        entry = packed(value, key="k", token=token, revision=revision)
        words = (token, NONE if revision is None else rev(revision), entry, ttl_ms, REMEMBER, seen)
        return self.run(self.scripts.publish(self.keys.all[:3], words))

    def set(self, value: Any, revision: int | None = None, ttl_ms: Any = 60_000) -> Any:
        entry = packed(value, key="k", token=OTHER, revision=revision)
        words = (OTHER, NONE if revision is None else rev(revision), entry, ttl_ms, REMEMBER)
        return self.run(self.scripts.set(self.keys.all, words))

    def invalidate(self, revision: int | None = None, soft: bool = False) -> Any:
        words = (NONE if revision is None else rev(revision), REMEMBER, int(soft), OTHER)
        return self.run(self.scripts.invalidate((*self.keys.all, self.keys.journal), words))

    def renew(self, token: str, lease_ms: Any = 5_000, seen: str = "") -> Any:
        keys = (self.keys.entry, self.keys.lease, self.keys.marks)
        return self.run(self.scripts.renew(keys, (token, lease_ms, seen)))

    def release(self, token: str) -> Any:
        return self.run(self.scripts.release((self.keys.lease,), (token,)))

    def begin(self, token: str, intent_ms: Any = 5_000) -> Any:
        return self.run(self.scripts.write_begin(self.keys.all, (token, intent_ms, REMEMBER)))

    def end(
        self, token: str, value: Any = "w", revision: int | None = None, ttl_ms: Any = 60_000
    ) -> Any:
        entry = b"" if value is None else packed(value, key="k", token=token, revision=revision)
        words = (token, NONE if revision is None else rev(revision), entry, ttl_ms, REMEMBER)
        return self.run(self.scripts.write_end(self.keys.all, words))

    # -- what is there

    def command(self, *words: Any) -> Any:
        return self.client.command(*words)

    @property
    def value(self) -> Any:
        stored = unpacked(self.command("GET", self.keys.entry), "k")
        return None if stored is None else stored.value

    @property
    def life(self) -> int:
        return int(self.command("PTTL", self.keys.entry))

    @property
    def lease(self) -> str | None:
        raw = self.command("GET", self.keys.lease)
        return None if raw is None else raw.decode()

    def everything(self) -> tuple[Any, ...]:
        return (
            self.command("GET", self.keys.entry),
            self.command("GET", self.keys.lease),
            self.command("HGETALL", self.keys.marks),
            self.command("HGETALL", self.keys.intents),
        )

    def expire_lease(self) -> None:
        self.command("DEL", self.keys.lease)


@pytest.fixture(scope="module", params=["valkey", "redis"])
def client(request: pytest.FixtureRequest, server_url: str) -> Iterator[Client]:
    """Both servers: their Lua is not the same."""
    if request.param == "valkey":
        with Client.from_url(server_url) as client:
            yield client
        return
    require("redis", find_binary("redis") is not None)
    with ServerProcess("redis") as server, Client.from_url(server.url) as client:
        yield client


@pytest.fixture
def key(client: Client, namespace: str) -> Key:
    return Key(client, make_region(namespace))


def with_scripts(client: Client, namespace: str, scripts: Scripts) -> Key:
    return Key(client, make_region(namespace, scripts=scripts))


# -- 1: normal publication


def test_owner_publishes(key: Key) -> None:
    assert key.claim(CURRENT) == s.Won()
    assert key.lease == CURRENT
    assert key.publish(CURRENT, "new", 60_000) == s.Published()
    assert key.value == "new"
    assert 50_000 < key.life <= 60_000
    assert key.lease is None  # the next one need not wait for its end


def test_a_repeated_publication_is_one(key: Key) -> None:
    key.claim(CURRENT)
    key.publish(CURRENT, "new", 60_000)
    assert key.publish(CURRENT, "new", 60_000) == s.Published()
    assert key.claim(OTHER, seen=CURRENT) == s.Won()
    assert key.publish(CURRENT, "new") == s.Published()
    assert key.lease == OTHER  # somebody else's is left alone


# -- 2: expired, and nobody came after


def test_expired_alone_is_refused(key: Key) -> None:
    key.claim(OLD)
    key.expire_lease()
    assert key.publish(OLD, "old") == s.Rejected("expired")
    assert key.value is None
    assert key.lease is None


def test_expired_alone_leaves_what_was_there(key: Key) -> None:
    key.set("before", ttl_ms=90_000)
    key.claim(OLD, seen=OTHER)
    key.expire_lease()
    assert key.publish(OLD, "old", 1_000, seen=OTHER) == s.Rejected("expired")
    assert key.value == "before"
    assert key.life > 60_000  # no failed refresh moves a deadline


# -- 3: the wrong token under a live lease


def test_wrong_token_under_a_live_lease(key: Key) -> None:
    key.claim(CURRENT)
    assert key.publish(OTHER, "other") == s.Rejected("successor")
    assert key.value is None
    assert key.lease == CURRENT
    assert key.publish(CURRENT, "new") == s.Published()
    assert key.value == "new"


def test_a_token_that_begins_like_the_owners_is_another(key: Key) -> None:
    key.claim(CURRENT)
    for stranger in (CURRENT[:-1] + "x", CURRENT[:21]):
        assert key.renew(stranger if len(stranger) == 22 else stranger + "y") == s.Lost("successor")
    assert key.lease == CURRENT


# -- 4: OLD is paused, CURRENT takes over

UNCONDITIONAL = altered("publish", "writing or older or owner ~= token", "false")


def paused(key: Key) -> tuple[Any, Any]:
    """OLD claims and loads, pauses; its lease ends; CURRENT claims, loads and publishes; OLD resumes."""
    key.claim(OLD)
    key.expire_lease()
    assert key.claim(CURRENT) == s.Won()
    return key.publish(CURRENT, "new", 60_000), key.publish(OLD, "old", 1_000)


def test_old_resumes_after_current_has_published(key: Key) -> None:
    assert paused(key) == (s.Published(), s.Rejected("successor"))
    assert key.renew(OLD) == s.Lost("successor")
    assert key.value == "new"
    assert key.life > 50_000
    assert key.lease is None


def test_old_resumes_while_current_loads(key: Key) -> None:
    key.claim(OLD)
    key.expire_lease()
    key.claim(CURRENT)
    assert key.publish(OLD, "old") == s.Rejected("successor")
    assert key.value is None
    assert key.lease == CURRENT
    assert key.publish(CURRENT, "new") == s.Published()
    assert key.value == "new"


def test_an_unconditional_write_brings_the_old_value_back(client: Client, namespace: str) -> None:
    """The control: what libraries do that lock a refresh and then SET."""
    key = with_scripts(client, namespace, UNCONDITIONAL)
    assert paused(key) == (s.Published(), s.Published())
    assert key.value == "old"


# -- 5: a TTL that is none, before any change

BAD_TTLS = [0, -1, "1.5", "nan", "inf", "", "x", 2**63, "1e3", "01", " 1", "+1", 10**15]


@pytest.mark.parametrize("ttl_ms", BAD_TTLS)
@pytest.mark.parametrize("verb", ["publish", "set", "end", "claim", "renew", "begin"])
def test_an_invalid_ttl_changes_nothing(key: Key, verb: str, ttl_ms: Any) -> None:
    key.set("before")
    key.claim(CURRENT, seen=OTHER)
    before = key.everything()
    calls = {
        "publish": lambda: key.publish(CURRENT, "new", ttl_ms),
        "set": lambda: key.set("new", ttl_ms=ttl_ms),
        "end": lambda: key.end(CURRENT, "new", ttl_ms=ttl_ms),
        "claim": lambda: key.claim(OLD, lease_ms=ttl_ms),
        "renew": lambda: key.renew(CURRENT, ttl_ms),
        "begin": lambda: key.begin(OLD, ttl_ms),
    }
    with pytest.raises(ServerError, match="positive whole number"):
        calls[verb]()
    assert key.everything() == before
    assert key.value == "before"
    assert key.life > 50_000
    assert key.lease == CURRENT


# -- claim


def test_claim_shows_what_was_published_meanwhile(key: Key) -> None:
    key.set("new")
    answer = key.claim(CURRENT, seen="")
    assert isinstance(answer, s.Value)
    assert unpacked(answer.entry, "k").value == "new"  # type: ignore[union-attr]
    assert key.lease is None


def test_claim_waits_for_the_owner(key: Key) -> None:
    key.claim(OLD, lease_ms=5_000)
    answer = key.claim(CURRENT)
    assert isinstance(answer, s.Wait)
    assert 0 < answer.left_ms <= 5_000
    assert answer.owner == OLD
    assert key.lease == OLD


def test_a_repeated_claim_is_won(key: Key) -> None:
    assert key.claim(CURRENT) == s.Won()
    assert key.claim(CURRENT) == s.Won()


def test_a_claim_beside_a_writer_never_publishes(key: Key) -> None:
    key.begin(OTHER)
    assert key.claim(CURRENT) == s.Won()
    assert key.renew(CURRENT) == s.Renewed()
    assert key.publish(CURRENT, "read before the save") == s.Rejected("writing")
    assert key.value is None
    assert key.lease is None


# -- renew and release


def test_renew_never_makes_a_lease_anew(key: Key) -> None:
    assert key.renew(CURRENT) == s.Lost("expired")
    assert key.lease is None
    key.claim(CURRENT, lease_ms=1_000)
    assert key.renew(CURRENT, 9_000) == s.Renewed()
    assert key.command("PTTL", key.keys.lease) > 5_000
    assert key.renew(OTHER) == s.Lost("successor")
    key.invalidate()
    assert key.renew(CURRENT) == s.Lost("invalidated")


def test_release_gives_back_only_its_own(key: Key) -> None:
    key.claim(CURRENT)
    assert key.release(OTHER) == s.Lost()
    assert key.lease == CURRENT
    assert key.release(CURRENT) == s.Released()
    assert key.release(CURRENT) == s.Lost()
    assert key.claim(OTHER) == s.Won()


# -- invalidate and set


@pytest.mark.parametrize("soft", [False, True])
def test_invalidate_stops_the_load_that_is_under_way(key: Key, soft: bool) -> None:
    key.set("before")
    key.claim(OLD, seen=OTHER)
    assert key.invalidate(soft=soft) == s.Invalidated()
    assert key.lease is None
    assert key.publish(OLD, "old") == s.Rejected("invalidated")
    assert key.value == ("before" if soft else None)


def test_set_stops_the_load_that_is_under_way(key: Key) -> None:
    key.claim(OLD)
    assert key.set("new") == s.Published()
    assert key.publish(OLD, "old") == s.Rejected("invalidated")
    assert key.value == "new"


def test_each_of_several_stopped_loads_learns_why(key: Key) -> None:
    tokens = [f"load{n}".ljust(22, "_") for n in range(4)]
    for token in tokens:
        assert key.claim(token) == s.Won()
        key.invalidate()
    assert [key.publish(token) for token in tokens] == [s.Rejected("invalidated")] * 4


def test_a_soft_invalidation_keeps_an_entry_that_is_not_fresh(key: Key) -> None:
    key.set("before")
    key.invalidate(soft=True)
    stored = unpacked(key.command("GET", key.keys.entry), "k")
    assert stored is not None
    assert (stored.value, stored.fresh_until) == ("before", 0)
    assert key.life > 50_000  # its end stays


# -- revisions


def test_an_older_revision_never_replaces_a_newer(key: Key) -> None:
    key.set("new", revision=7)
    key.claim(CURRENT, seen=OTHER)
    assert key.publish(CURRENT, "old", revision=6) == s.Older(rev(7))
    assert key.value == "new"
    assert key.lease is None
    assert key.set("old", revision=6) == s.Older(rev(7))
    key.claim(CURRENT, seen=OTHER)
    assert key.publish(CURRENT, "same", revision=7) == s.Published()


def test_a_revision_is_compared_whoever_owns_the_lease(key: Key) -> None:
    key.set("new", revision=7)
    assert key.publish(OLD, "old", revision=6) == s.Older(rev(7))


@pytest.mark.parametrize(
    "how", ["invalidate", "around", "died writing", "set", "negative", "short"]
)
def test_a_revision_is_remembered_beyond_its_entry(key: Key, how: str) -> None:
    """Each of these once forgot it, and a replica that lags brought an older value back."""
    key.set("new", revision=7)
    match how:
        case "invalidate":
            key.invalidate()
        case "around":
            key.begin(OLD)
            key.end(OLD, None, ttl_ms=1)
        case "died writing":
            key.begin(OLD)
            key.command("DEL", key.keys.entry, key.keys.intents)  # both ran out
        case "set":
            key.set("plain")
            key.command("DEL", key.keys.entry)
        case "negative":
            key.claim(OLD, seen=OTHER)
            key.publish(OLD, None)
            key.command("DEL", key.keys.entry)
        case "short":
            key.claim(OLD, seen=OTHER)
            key.publish(OLD, "newer", 1_000, revision=8)
            key.command("DEL", key.keys.entry)
    key.claim(CURRENT)
    assert isinstance(key.publish(CURRENT, "old", revision=6), s.Older)
    assert key.command("PTTL", key.keys.marks) > 50_000


@pytest.mark.parametrize("foreign", [b"z" * 200, b"F1", b"9" * 100])
def test_foreign_bytes_are_no_revision(key: Key, foreign: bytes) -> None:
    key.command("SET", key.keys.entry, foreign, "PX", 60_000)
    key.invalidate()
    key.claim(CURRENT)
    assert key.publish(CURRENT, "v", revision=1) == s.Published()


def test_another_type_is_no_entry(key: Key) -> None:
    key.command("RPUSH", key.keys.entry, "x")
    assert key.invalidate() == s.Invalidated()
    assert key.command("EXISTS", key.keys.entry) == 0
    key.command("RPUSH", key.keys.entry, "x")
    assert key.set("v") == s.Published()


# -- discard, touch, stamp


def test_discard_drops_only_what_was_found(key: Key) -> None:
    def discard(head: bytes, size: int) -> Any:
        return key.run(SCRIPTS.discard((key.keys.entry,), (head, size)))

    assert discard(b"x", 1) == s.Changed()
    key.command("SET", key.keys.entry, b"garbage")
    assert discard(b"other!!", 7) == s.Changed()
    assert discard(b"garbage", 8) == s.Changed()
    assert discard(b"", -1) == s.Changed()
    assert discard(b"garbage", 7) == s.Discarded()
    key.command("RPUSH", key.keys.entry, "x")
    assert discard(b"garbage", 7) == s.Changed()
    assert discard(b"", -1) == s.Discarded()


def test_touch_compares_what_was_seen(key: Key) -> None:
    def touch(seen: str) -> Any:
        return key.run(SCRIPTS.touch((key.keys.entry,), (seen, "1234567890123", 90_000)))

    assert touch(OTHER) == s.Changed()
    key.set("v")
    assert touch(OLD) == s.Changed()
    assert key.life <= 60_000
    assert touch(OTHER) == s.Touched()
    assert key.life > 60_000
    assert unpacked(key.command("GET", key.keys.entry), "k").fresh_until == 1234567890123  # type: ignore[union-attr]


def test_a_stamp_is_made_once(key: Key) -> None:
    name = key.keys.entry + "stamp"

    def stamp(fresh: str, ttl_ms: int) -> str:
        return str(key.run(SCRIPTS.stamp((name,), (fresh, ttl_ms))))

    assert stamp("first", 1_000) == "first"
    assert stamp("second", 90_000) == "first"
    assert key.command("PTTL", name) > 60_000
    stamp("third", 10)
    assert key.command("PTTL", name) > 60_000  # never shortened


# -- write intents


def test_a_writer_alone_publishes(key: Key) -> None:
    assert key.begin(OLD) == s.Begun("alone")
    assert key.begin(OLD) == s.Begun("alone")  # a repeated request
    assert key.end(OLD, "saved") == s.Published()
    assert key.value == "saved"
    assert key.life > 50_000
    assert key.end(OLD, "saved") == s.Published()
    assert key.command("EXISTS", key.keys.intents) == 0


def test_writers_that_overlap_forget(key: Key) -> None:
    key.set("before")
    assert key.begin(OLD) == s.Begun("alone")
    assert key.begin(CURRENT) == s.Begun("shared")
    assert key.end(CURRENT, "current") == s.Forgotten()
    assert key.value is None
    assert key.end(OLD, "old") == s.Forgotten()
    assert key.value is None


def test_an_announcement_shortens_the_life_of_what_it_makes_stale(key: Key) -> None:
    key.set("before", ttl_ms=600_000)
    key.begin(OLD, 5_000)
    assert key.life <= 5_000
    key.set("short", ttl_ms=100)
    key.begin(CURRENT, 5_000)
    assert key.life <= 100  # never prolonged


def test_a_write_whose_revision_is_older_than_was_seen_forgets(key: Key) -> None:
    key.set("new", revision=7)
    key.begin(OLD)
    assert key.end(OLD, "old", revision=6) == s.Forgotten()
    assert key.value is None


def test_an_invalidation_makes_a_writer_forget(key: Key) -> None:
    key.begin(OLD)
    key.invalidate()
    assert key.end(OLD, "old") == s.Forgotten()
    assert key.value is None


def test_every_script_is_here() -> None:
    assert {one.name for one in dataclasses.fields(SCRIPTS)} == {
        *("claim", "renew", "release", "publish", "invalidate", "set"),
        *("touch", "discard", "stamp", "write_begin", "write_end"),
    }
