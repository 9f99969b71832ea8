"""Both faces of the cache on a real server: what a caller gets, and what is stored of it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.cache import CacheOptions, Codec, EntryDiscarded, Loaded, Missing, NotModified
from fencepost.errors import FencepostError, RefreshRejected, Refused
from support.cache import packed
from support.cachefaces import CacheFace, Loader
from support.faces import every_face
from support.until import until

Make = Callable[..., CacheFace]


async def put(face: CacheFace, key: str, value: Any, age: float = 0.0, **more: Any) -> None:
    """Store an entry that stopped being fresh so many seconds ago (or will, if below 0)."""
    now = int((await face.command("TIME"))[0]) * 1000
    options = {"stale_ms": 600_000, **more}
    raw = packed(value, key=key, fresh_until=int(now - age * 1000), **options)
    await face.command("SET", face.key(key).entry, raw, "PX", 600_000)


# -- values


@every_face
@pytest.mark.parametrize("value", [{"a": 1}, [], 0, "", False, b"\x00", 1.5, [[], None]])
async def test_a_value_is_loaded_once(make: Make, kind: str, value: Any) -> None:
    face, loader = make(), Loader(kind, value)
    assert await face.get("k", loader.load) == value
    assert await face.get("k", loader.load) == value
    assert loader.calls == 1
    other = make()  # another process, say
    assert await other.get("k", loader.load) == value
    assert loader.calls == 1
    assert (await other.entry("k", loader.load)).status == "hit"


@every_face
@pytest.mark.parametrize("none", [None, Missing("no such thing"), Loaded(None)])
async def test_there_is_none_is_remembered(make: Make, kind: str, none: Any) -> None:
    face, loader = make(negative_ttl=5), Loader(kind, none)
    entry = await face.entry("k", loader.load)
    assert (entry.value, entry.status, entry.published) == (None, "negative", True)
    assert await face.get("k", loader.load) is None
    assert loader.calls == 1
    assert 0 < await face.command("PTTL", face.key("k").entry) <= 5_000
    peeked = await face.peek("k")
    assert peeked is not None
    assert peeked.value is None
    assert await face.peek("other") is None


@every_face
async def test_there_is_none_need_not_be_cached(make: Make, kind: str) -> None:
    face, loader = make(negative_ttl=None), Loader(kind, None)
    await face.set("k", "before")
    assert (await face.refresh("k", loader.load)).value is None
    assert await face.get("k", loader.load) is None  # what was before is not there any more
    assert loader.calls == 2


@every_face
async def test_what_a_loader_says_of_its_value(make: Make, kind: str) -> None:
    face = make(ttl=60)
    loader = Loader(kind, Loaded("v", revision=3, ttl=5, stale=7, tags=["g"]))
    entry = await face.entry("k", loader.load)
    assert (entry.value, entry.revision, entry.tags, entry.published) == ("v", 3, ("g",), True)
    assert entry.fresh_until - entry.read_began == pytest.approx(5, abs=0.01)
    assert 5_000 < await face.command("PTTL", face.key("k").entry) <= 12_000
    again = await face.entry("k", loader.load)
    assert dataclasses.replace(again, status="loaded") == dataclasses.replace(
        entry, read_began=again.read_began, fresh_until=again.fresh_until
    )


@every_face
@pytest.mark.parametrize(
    "bad",
    [
        Loaded("v", revision=-1),
        Loaded("v", revision=True),
        Loaded("v", revision=10**19),
        *(Loaded("v", ttl=ttl) for ttl in (0, -1, float("nan"), float("inf"), 10**12, True, "1")),  # type: ignore[arg-type]
        Loaded("v", stale=-1),
        Loaded("v", tags="abc"),
        Loaded("v", tags=[""]),
        {1: object()},
    ],
)
async def test_what_can_not_be_is_refused_before_anything_is_written(
    make: Make, kind: str, bad: Any
) -> None:
    face = make()
    await face.set("k", "before")
    with pytest.raises(Refused):
        await face.refresh("k", Loader(kind, bad).load)
    peeked = await face.peek("k")
    assert peeked is not None
    assert peeked.value == "before"
    assert await face.command("EXISTS", face.key("k").lease) == 0


@every_face
async def test_errors_of_a_loader_are_the_callers(make: Make, kind: str) -> None:
    face, loader = make(), Loader(kind, KeyError("k"))
    for calls in (1, 2):
        with pytest.raises(KeyError):
            await face.get("k", loader.load)
        assert loader.calls == calls
        assert await face.command("EXISTS", face.key("k").lease) == 0  # the next one need not wait
    loader.value = "v"
    assert await face.get("k", loader.load) == "v"


@every_face
async def test_an_error_may_be_shared_for_a_while(make: Make, kind: str) -> None:
    face, loader = make(error_ttl=600), Loader(kind, KeyError("k"))
    for _ in range(3):
        with pytest.raises(KeyError):
            await face.get("k", loader.load)
    assert loader.calls == 1
    loader.value = "v"
    await face.invalidate("k")
    assert await face.get("k", loader.load) == "v"


@every_face
async def test_keys_are_texts(make: Make, kind: str) -> None:
    face = make()
    for key in (1, None, b"k", "", "x" * 5_000):
        with pytest.raises(Refused):
            await face.get(key, Loader(kind).load)
    for key in ("{}", "a b", "ü", "x" * 4_000, ":v", "tag:g"):
        assert await face.get(key, Loader(kind, key).load) == key


# -- freshness


@every_face
async def test_a_stale_value_is_served_while_it_is_refreshed(make: Make, kind: str) -> None:
    face, loader = make(stale=600), Loader(kind, "new", held=True)
    await put(face, "k", "old", age=5)
    for _ in range(3):
        entry = await face.entry("k", loader.load)
        assert (entry.value, entry.status) == ("old", "stale")
    loader.go.set()
    while await face.get("k", loader.load) == "old":
        pass
    assert loader.calls == 1
    assert (await face.entry("k", loader.load)).status == "hit"


@every_face
async def test_a_read_may_tighten_what_is_stale(make: Make, kind: str) -> None:
    face, loader = make(stale=600), Loader(kind, "new")
    await put(face, "k", "old", age=5)
    entry = await face.entry("k", loader.load, stale=2)
    assert (entry.value, entry.status) == ("new", "loaded")


@every_face
async def test_nothing_is_stale_unless_it_is_asked_for(make: Make, kind: str) -> None:
    face, loader = make(), Loader(kind, "new")
    await put(face, "k", "old", age=1, stale_ms=0)
    assert await face.get("k", loader.load) == "new"


@every_face
async def test_a_failed_refresh_never_moves_the_end(make: Make, kind: str) -> None:
    seen: list[Any] = []
    face, loader = make(stale=600, observe=seen.append), Loader(kind, OSError("down"))
    await put(face, "k", "old", age=5)
    await face.command("PEXPIRE", face.key("k").entry, 50_000)
    assert await face.get("k", loader.load) == "old"
    await until(lambda: any(getattr(one, "verdict", "") == "failed" for one in seen))
    assert await face.get("k", loader.load) == "old"
    assert loader.calls == 1  # and no storm: not again within the second
    assert 0 < await face.command("PTTL", face.key("k").entry) <= 50_000


@every_face
async def test_a_soft_limit_waits_a_moment_for_a_fresh_value(make: Make, kind: str) -> None:
    face, loader = make(stale=600, soft_limit=20), Loader(kind, "new")
    await put(face, "k", "old", age=5)
    assert await face.get("k", loader.load) == "new"
    face, loader = make(stale=600, soft_limit=0.01), Loader(kind, "new", held=True)
    await put(face, "k2", "old", age=5)
    assert await face.get("k2", loader.load) == "old"
    loader.go.set()


@every_face
async def test_an_early_refresh_is_drawn_by_chance(
    make: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XFetch: with a load of 10 s and 20 s left, -ln(1 - chance) must be above 2."""
    face, loader = make(beta=1.0), Loader(kind, "new")
    await put(face, "k", "old", age=-20, cost_ms=10_000)
    monkeypatch.setattr(type(face.client.port), "chance", lambda self: 0.85)
    assert await face.get("k", loader.load) == "old"
    assert loader.calls == 0
    monkeypatch.setattr(type(face.client.port), "chance", lambda self: 0.88)
    assert await face.get("k", loader.load) == "old"  # nobody waits for it
    await until(lambda: loader.calls == 1)
    monkeypatch.setattr(type(face.client.port), "chance", lambda self: 0.0)
    while await face.get("k", loader.load) == "old":
        pass
    assert loader.calls == 1


@every_face
async def test_lives_differ_by_jitter(
    make: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = make(ttl=100, jitter=0.5)
    lives = []
    for chance in (0.0, 0.999):
        monkeypatch.setattr(type(face.client.port), "chance", lambda self, c=chance: c)
        entry = await face.refresh("k", Loader(kind).load)
        lives.append(entry.fresh_until - entry.read_began)
    assert lives == [pytest.approx(100, abs=0.1), pytest.approx(50, abs=0.2)]


@every_face
async def test_freshness_is_judged_on_the_servers_clock(make: Make, kind: str) -> None:
    face = make()
    await face.command("PING")
    seconds, micros = await face.command("TIME")
    theirs = int(seconds) * 1000 + int(micros) / 1000
    assert face.client.port.server_ms() == pytest.approx(theirs, abs=1_000)


# -- invalidation


@every_face
async def test_invalidated_is_gone(make: Make, kind: str) -> None:
    face, loader = make(stale=600), Loader(kind, "new")
    await put(face, "k", "old", age=5)
    await face.invalidate("k")
    entry = await face.entry("k", loader.load)
    assert (entry.value, entry.status) == ("new", "loaded")


@every_face
async def test_a_soft_invalidation_keeps_a_value_for_who_takes_stale_ones(
    make: Make, kind: str
) -> None:
    face, loader = make(stale=600), Loader(kind, "new", held=True)
    await face.set("k", "old")
    await face.invalidate("k", hard=False)
    assert (await face.entry("k", loader.load)).status == "stale"
    loader.go.set()
    while await face.get("k", loader.load) == "old":
        pass
    strict, loader = make("strict"), Loader(kind, "new")
    await strict.set("k", "old")
    await strict.invalidate("k", hard=False)
    assert await strict.get("k", loader.load) == "new"  # stale is 0 there


@every_face
async def test_many_are_invalidated_at_once(make: Make, kind: str) -> None:
    face = make()
    for key in "abc":
        await face.set(key, key)
    await face.invalidate("a", "b")
    await face.invalidate()
    assert [await face.peek(key) is None for key in "abc"] == [True, True, False]


@every_face
async def test_invalidated_tags(make: Make, kind: str) -> None:
    face, loader = make(stale=600), Loader(kind, "v")
    await face.get("a", loader.load, tags=["team:7", "x"])
    await face.get("b", loader.load, tags=["team:8"])
    await face.get("c", loader.load)
    assert await face.get("a", loader.load, tags=["team:7", "x"]) == "v"
    assert await make().get("a", loader.load) == "v"  # a caller who does not name them
    assert loader.calls == 3
    await face.invalidate_tags("team:7")
    assert await face.peek("a") is None
    assert [await face.peek(key) is None for key in "bc"] == [False, False]
    assert await make().get("a", loader.load) == "v"  # not even stale
    assert loader.calls == 4


@every_face
async def test_an_entry_without_a_tag_that_it_should_have_is_a_miss(make: Make, kind: str) -> None:
    face, loader = make(), Loader(kind, "v")
    await face.get("k", loader.load)
    await face.get("k", loader.load, tags=["g"])
    assert loader.calls == 2
    await face.get("k", loader.load, tags=["g"])
    assert loader.calls == 2


@every_face
async def test_tags_that_only_the_load_knows(make: Make, kind: str) -> None:
    face, loader = make(), Loader(kind, Loaded("v", tags=["team:7"]))
    await face.get("a", loader.load)
    assert loader.calls == 2  # the first time that this process hears of such tags
    await face.get("b", loader.load)
    assert loader.calls == 3
    await face.invalidate_tags("team:7")
    assert await face.peek("a") is None
    assert await face.peek("b") is None


# -- set, touch, conditional


@every_face
async def test_set_and_touch(make: Make, kind: str) -> None:
    face = make(ttl=10)
    entry = await face.set("k", Loaded("v", revision=5), ttl=20, tags=["g"])
    assert (entry.revision, entry.tags) == (5, ("g",))
    with pytest.raises(RefreshRejected, match="revision 5") as caught:
        await face.set("k", Loaded("older", revision=4))
    assert caught.value.reason == "older"
    assert await face.touch("k", ttl=500)
    assert await face.command("PTTL", face.key("k").entry) > 400_000
    assert not await face.touch("other")
    await face.set("k", None)
    peeked = await face.peek("k")
    assert peeked is not None
    assert peeked.status == "negative"


@every_face
async def test_a_conditional_loader_may_keep_what_it_was_shown(make: Make, kind: str) -> None:
    face, loader = make(stale=600), Loader(kind, NotModified)
    loader.value = NotModified()
    await put(face, "k", "kept", age=5, revision=4)
    await face.get("k", loader.load, conditional=True)
    while (entry := await face.entry("k", loader.load, conditional=True)).status == "stale":
        pass
    assert (entry.value, entry.revision, loader.calls) == ("kept", 4, 1)
    shown = loader.arguments[0][0]
    assert (shown.value, shown.revision) == ("kept", 4)
    with pytest.raises(Refused, match="nothing to keep"):
        await face.get("other", loader.load, conditional=True)
    assert loader.arguments[-1] == (None,)


# -- the branch after a rejection


@every_face
@pytest.mark.parametrize("policy", ["reread", "stale", "raise"])
async def test_after_a_rejection(make: Make, kind: str, policy: str) -> None:
    """OLD pauses in its load, its lease ends, CURRENT publishes, OLD resumes."""
    old = make(on_rejected=policy, stale=600, soft_limit=30)
    loader = Loader(kind, "old", held=True)
    await put(old, "k", "before", age=5)
    reading = asyncio.ensure_future(old.entry("k", loader.load))
    await loader.wait_began()
    await old.command("DEL", old.key("k").lease)
    current = make()
    assert (await current.refresh("k", Loader(kind, "new").load)).published
    loader.go.set()
    entry = await reading
    if policy == "reread":
        assert (entry.value, entry.status) == ("new", "reread")
    else:  # with a stale value at hand a refused refresh is nobody's error
        assert (entry.value, entry.status) == ("before", "stale")
    assert await current.get("k", loader.load) == "new"
    assert old.count["rejected_successor"] == 1


@every_face
@pytest.mark.parametrize("policy", ["stale", "raise"])
async def test_after_a_rejection_without_a_stale_value(make: Make, kind: str, policy: str) -> None:
    old, loader = make(on_rejected=policy), Loader(kind, "old", held=True)
    reading = asyncio.ensure_future(old.get("k", loader.load))
    await loader.wait_began()
    await make().invalidate("k")
    loader.go.set()
    with pytest.raises(RefreshRejected) as caught:
        await reading
    assert caught.value.reason == "invalidated"
    assert old.count["rejected_invalidated"] == 1
    told = await old.explain("k")
    assert any("invalidated" in line for line in told.advice)


@every_face
async def test_refused_each_time_a_caller_gets_its_own_read_and_nobody_else_does(
    make: Make, kind: str
) -> None:
    face, other = make(rounds=2), make()
    loader = Loader(kind, "mine")

    async def load() -> str:
        await other.invalidate("k")
        return await loader.load()  # type: ignore[no-any-return]

    def load_sync() -> str:
        other.cache.invalidate("k")
        return str(loader.load())

    entry = await face.entry("k", load if kind == "async" else load_sync)
    assert (entry.value, entry.published, entry.reason) == ("mine", False, "invalidated")
    assert loader.calls == 2
    assert await face.peek("k") is None


@every_face
async def test_an_older_revision_is_nobodys_answer(make: Make, kind: str) -> None:
    face, loader = make(rounds=2), Loader(kind, Loaded("old", revision=6))
    await face.invalidate("k", revision=7)
    with pytest.raises(RefreshRejected) as caught:
        await face.get("k", loader.load)
    assert (caught.value.reason, loader.calls) == ("older", 2)
    assert (await face.explain("k")).revision_floor == 7


# -- many


@every_face
async def test_many_are_loaded_in_one_call(make: Make, kind: str) -> None:
    face = make()
    asked: list[list[str]] = []

    def load(keys: list[str]) -> dict[str, Any]:
        asked.append(keys)
        return {key: f"v{key}" for key in keys if key != "none"}

    await face.set("a", "va")
    await face.set("n", None)
    assert await face.get_many(["a", "b", "none", "c", "a", "n"], load) == {
        "a": "va",
        "b": "vb",
        "c": "vc",
    }
    assert asked == [["b", "none", "c"]]
    assert list(await face.get_many("cba", load)) == ["c", "b", "a"]
    assert (await face.peek("none")).status == "negative"
    assert len(asked) == 1
    assert await face.get_many([], load) == {}
    await face.command("RPUSH", face.key("list").entry, "x")
    assert await face.get_many(["a", "list"], load) == {"a": "va", "list": "vlist"}
    many = [str(n) for n in range(1_000)]
    assert len(await face.get_many(many, load)) == 1_000
    assert len(asked) == 3


@every_face
async def test_many_that_are_known_here_are_served_only_while_they_are_the_same(
    make: Make, kind: str
) -> None:
    """What a process knows of entries spares it the work, never the read."""
    face, other = make(), make()
    asked: list[list[str]] = []

    def load(keys: list[str]) -> dict[str, Any]:
        asked.append(keys)
        return dict.fromkeys(keys, "loaded")

    keys = ["same", "set", "gone", "none", "odd", "torn"]
    for key in keys:
        await other.set(key, "first")
    for _ in range(3):
        assert await face.get_many(keys, load) == dict.fromkeys(keys, "first")
    await other.set("set", "second")
    await other.set("none", None)
    await other.invalidate("gone")
    await face.command("DEL", face.key("odd").entry)
    await face.command("RPUSH", face.key("odd").entry, "x")
    torn = await face.command("GET", face.key("torn").entry)
    await face.command("SET", face.key("torn").entry, torn[:-3] + b"\xc1\xc1\xc1")
    for _ in range(2):
        answer = await face.get_many(keys, load)
        assert answer == {
            "same": "first",
            "set": "second",
            "gone": "loaded",
            "odd": "loaded",
            "torn": "loaded",
        }
        assert list(answer) == [key for key in keys if key != "none"]
        assert [sorted(each) for each in asked] == [["gone", "odd", "torn"]]


@every_face
async def test_many_with_tags_and_stale_ones(make: Make, kind: str) -> None:
    face = make(stale=600)
    loads: list[list[str]] = []

    def load(keys: list[str]) -> dict[str, Any]:
        loads.append(sorted(keys))
        return dict.fromkeys(keys, "new")

    await put(face, "old", "old", age=5)
    assert await face.get_many(["old", "gone"], load) == {"old": "old", "gone": "new"}
    await until(lambda: len(loads) == 2)
    assert sorted(loads) == [["gone"], ["old"]]
    assert await face.get_many(["x", "y"], load, tags=["g"]) == {"x": "new", "y": "new"}
    await face.invalidate_tags("g")
    await face.get_many(["x", "y"], load, tags=["g"])
    assert loads.count(["x", "y"]) == 2


@every_face
async def test_many_wait_for_who_loads_one_of_them(make: Make, kind: str) -> None:
    one, other, loader = make(), make(), Loader(kind, "one", held=True)
    single = asyncio.ensure_future(one.get("a", loader.load))
    await loader.wait_began()
    asked: list[list[str]] = []

    def load(keys: list[str]) -> dict[str, Any]:
        asked.append(keys)
        loader.go.set()
        return dict.fromkeys(keys, "many")

    assert await other.get_many(["a", "b"], load) == {"a": "one", "b": "many"}
    assert asked == [["b"]]
    assert await single == "one"


# -- what can't be read


@every_face
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"garbage", "foreign"),
        (b"", "foreign"),
        (b"F1", "corrupt"),
        (packed("v")[:70], "corrupt"),
        (packed("v", key="other"), "foreign"),
        (packed("v")[:-1], "corrupt"),
        (packed("v") + b"x", "corrupt"),
        (b"\x80\x04\x95cposix\nsystem\n", "foreign"),
        (packed("v").replace(b"F1", b"F2", 1), "foreign"),
    ],
)
async def test_what_can_not_be_read_is_a_miss(
    make: Make, kind: str, raw: bytes, reason: str
) -> None:
    seen: list[Any] = []
    face, loader = make(observe=seen.append), Loader(kind, "v")
    await face.command("SET", face.key("k").entry, raw)
    assert await face.get("k", loader.load) == "v"
    assert EntryDiscarded("products", "k", reason) in seen
    assert await face.get("k", loader.load) == "v"
    assert loader.calls == 1


@every_face
async def test_another_type_of_key_is_a_miss(make: Make, kind: str) -> None:
    face, loader = make(), Loader(kind, "v")
    await face.command("RPUSH", face.key("k").entry, "x")
    assert await face.get("k", loader.load) == "v"
    assert await face.get("k", loader.load) == "v"
    assert loader.calls == 1


@every_face
async def test_a_value_of_another_type_is_a_miss(make: Make, kind: str) -> None:
    @dataclasses.dataclass
    class Product:
        name: str
        price: int

    face, loader = make(type=Product), Loader(kind, Product("tea", 3))
    await make().set("k", {"name": "tea", "price": "three"})
    assert await face.get("k", loader.load) == Product("tea", 3)
    assert await face.get("k", loader.load) == Product("tea", 3)
    assert loader.calls == 1


@every_face
async def test_what_is_too_large_is_a_miss(make: Make, kind: str) -> None:
    face, loader = make(codec=Codec(max_bytes=1_000)), Loader(kind, "v")
    await make().set("k", "x" * 200_000)
    assert await face.get("k", loader.load) == "v"
    with pytest.raises(Refused, match="larger than"):
        await face.set("k", "x" * 2_000)


@every_face
async def test_json_and_msgpack_read_each_other(make: Make, kind: str) -> None:
    await make(codec=Codec(format="json")).set("k", {"a": [1]})
    assert (await make().peek("k")).value == {"a": [1]}
    raw = await make().command("GET", make().key("k").entry)
    assert raw.endswith(b'{"a":[1]}')


# -- explain, options


@every_face
async def test_explain(make: Make, kind: str) -> None:
    face = make(ttl=60, stale=100)
    told = await face.explain("k")
    assert (told.state, told.ends_in, told.refreshes, told.lease) == ("gone", None, (), "")
    await face.get("k", Loader(kind, Loaded("v", revision=3)).load, tags=["g"])
    told = await face.explain("k")
    assert (told.state, told.revision, told.tags) == ("fresh", 3, {"g": True})
    assert told.fresh_for == pytest.approx(60, abs=5)
    assert told.ends_in == pytest.approx(160, abs=5)
    (refresh,) = told.refreshes
    assert (refresh.verdict, refresh.revision, refresh.key) == ("published", 3, "k")
    assert refresh.read_began <= refresh.read_ended
    await face.invalidate_tags("g")
    told = await face.explain("k")
    assert (told.state, told.tags) == ("gone", {"g": False})
    for n in range(20):
        await face.refresh("k", Loader(kind, n).load)
    assert len((await face.explain("k")).refreshes) == 16


@pytest.mark.parametrize(
    "bad",
    [
        *({"ttl": ttl} for ttl in (0, -1, float("nan"), float("inf"), "60", True, None)),
        {"stale": -1},
        {"jitter": 1.5},
        {"beta": -1},
        {"max_loads": 0},
        {"on_timeout": "wait"},
        {"on_rejected": "load"},
        {"coalesce": True},
        {"lease": 60, "load_limit": 30},
        {"load_limit": 90},
        {"soft_limit": -1},
        {"on_down": "ignore"},
    ],
)
def test_options_are_checked_at_birth(bad: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        CacheOptions(**bad)


def test_a_type_that_can_not_be_stored_is_refused_at_birth() -> None:
    with pytest.raises(FencepostError):
        Codec(list[int] | set[int])
