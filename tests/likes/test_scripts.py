"""Each script of the like cache by itself, on the real server: its replies, its writes, its limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencepost._core.port import run_sync
from fencepost._core.script import Call, Script
from fencepost.errors import Overloaded, ServerError, UnknownItem
from fencepost.journal.scripts import Journal
from fencepost.likes import scripts as s
from fencepost.likes.scripts import SCRIPTS
from fencepost.wire import resp
from support.likes import Lab, LabMaker, altered, delete_item, field, lab_maker
from support.require import require
from support.servers import ServerProcess, find_binary

if TYPE_CHECKING:
    from pathlib import Path

Words = tuple[str | int, ...]
ELSEWHERE = "0" * 40 + ":" + "0" * 40  # an identity that no server has


class Calls:
    """Calls of single scripts on one item of a lab, with what is usual where nothing else is said."""

    def __init__(self, lab: Lab, item: int) -> None:
        self.lab = lab
        self.item = str(item)
        self.epoch, self.server = lab.known.epoch, lab.known.server
        keys = lab.keys
        self.header, self.journal = keys.header(self.item), keys.journal(self.item)
        self.tokens, self.opening = keys.tokens(self.item), keys.opening
        self.due_list, self.since = keys.due, keys.since
        self.all = (
            self.opening,
            self.header,
            self.journal,
            self.due_list,
            self.since,
            self.tokens,
        )

    def set(self, user: str = "u1", want: str = "1") -> Call[Any]:
        args = (self.epoch, self.server, self.item, field(user), want, 250)
        return SCRIPTS.set(self.all[:5], args)

    def begin(self, user: str = "u1", token: str = "t1") -> Call[Any]:
        keys = (self.opening, self.header, self.journal, self.due_list, self.tokens)
        args = (self.epoch, self.server, self.item, field(user), token, 250, 20_000)
        return SCRIPTS.begin(keys, args)

    def fill(
        self,
        *states: str,
        token: str = "t1",
        of: str = "#",
        count: str = "0",
        full: str = "1",
        epoch: str | None = None,
    ) -> Call[Any]:
        keys = (self.opening, self.header, self.journal, self.tokens)
        at = epoch or self.epoch
        args: Words = (at, self.server, token, of, count, full, 60_000, 5_000, *states)
        return SCRIPTS.fill(keys, args)

    def look(self, server: str | None = None) -> Call[Any]:
        return SCRIPTS.look((self.opening,), (server or self.server,))

    def open(self, seen: str, epoch: int) -> Call[Any]:
        return SCRIPTS.open((self.opening,), (seen, epoch, self.server))

    def due(self, limit: int = 10) -> Call[Any]:
        return SCRIPTS.due((self.due_list,), (limit, 60_000))

    def claim(self, limit: int = 500) -> Call[Any]:
        args = (self.epoch, self.server, 2_000, limit, self.item)
        return SCRIPTS.claim((self.opening, self.due_list, self.journal), args)

    def ack(self, *entries: str, gone: str = "0") -> Call[Any]:
        args: Words = (
            self.epoch,
            self.server,
            self.item,
            gone,
            1,
            250,
            60_000,
            600_000,
            5_000,
            *entries,
        )
        return SCRIPTS.ack(self.all, args)

    def inspect(self) -> Call[Any]:
        keys = (self.opening, self.header, self.journal)
        return SCRIPTS.inspect(keys, (self.epoch, self.server))

    def forget(self) -> Call[Any]:
        return SCRIPTS.forget(self.all, (self.epoch, self.server, self.item, 60_000))

    def invalidate(self) -> Call[Any]:
        return SCRIPTS.invalidate((self.header, self.tokens))

    def evict(self, *users: str) -> Call[Any]:
        return SCRIPTS.evict((self.header, self.journal), tuple(map(field, users)))

    def close_shard(self) -> Calls:
        self.epoch = "99"
        return self

    def ask(self, call: Call[Any]) -> Any:
        return run_sync(self.lab.port.run(call))


# -- every reply of every contract


def cold(lab: Lab) -> Calls:
    return Calls(lab, lab.item("u1"))


def warm(lab: Lab) -> Calls:
    item = lab.item("u1")
    lab.seen(item)
    return Calls(lab, item)


def dirty(lab: Lab) -> Calls:
    calls = warm(lab)
    lab.like(int(calls.item), "u2")
    return calls


def headless(lab: Lab) -> Calls:
    calls = dirty(lab)
    lab.lose_header(int(calls.item))
    return calls


def buried(lab: Lab) -> Calls:
    calls = cold(lab)
    delete_item(lab.engine, int(calls.item))
    with pytest.raises(UnknownItem):
        lab.seen(int(calls.item))
    return calls


def begun(lab: Lab) -> Calls:
    calls = cold(lab)
    assert calls.ask(calls.begin()) == s.Token("t1", "#")
    return calls


def begun_and_headless(lab: Lab) -> Calls:
    calls = begun(lab)
    lab.like(int(calls.item), "u2")
    lab.lose_header(int(calls.item))
    return calls


def begun_and_buried(lab: Lab) -> Calls:
    calls = buried(lab)
    lab.command("HSET", calls.tokens, "#", "t1")
    return calls


def entry(calls: Calls, user: str) -> tuple[str, str]:
    return field(user), calls.lab.journal(int(calls.item))[field(user)]


Case = tuple[str, str, Callable[[Lab], Calls], Callable[[Calls], Call[Any]], Callable[[Any], bool]]


def kind(of: type) -> Callable[[Any], bool]:
    return lambda reply: isinstance(reply, of)


def shut(prepare: Callable[[Lab], Calls]) -> Callable[[Lab], Calls]:
    return lambda lab: prepare(lab).close_shard()


CASES: list[Case] = [
    ("set", "CLOSED", shut(warm), lambda c: c.set(), lambda r: r == s.Closed("1")),
    ("set", "GONE", buried, lambda c: c.set(), kind(s.Gone)),
    ("set", "COLD", cold, lambda c: c.set(), kind(s.Cold)),
    ("set", "SAME", warm, lambda c: c.set("u1"), lambda r: r == s.Same(1, "")),
    ("set", "SAME", dirty, lambda c: c.set("u2"), lambda r: r == s.Same(2, "1:1.1")),
    ("set", "DONE", warm, lambda c: c.set("u2"), lambda r: r == s.Done(2, "1:1.1")),
    ("set", "DONE", dirty, lambda c: c.set("u2", "0"), lambda r: r == s.Done(1, "0:1.2")),
    ("begin", "CLOSED", shut(warm), lambda c: c.begin(), kind(s.Closed)),
    ("begin", "GONE", buried, lambda c: c.begin(), kind(s.Gone)),
    ("begin", "DIRTY", headless, lambda c: c.begin(), kind(s.Dirty)),
    ("begin", "TOKEN", cold, lambda c: c.begin(), lambda r: r == s.Token("t1", "#")),
    ("begin", "TOKEN", warm, lambda c: c.begin("u7"), lambda r: r == s.Token("t1", field("u7"))),
    ("begin", "TOKEN", begun, lambda c: c.begin(token="t2"), lambda r: r == s.Token("t1", "#")),
    ("fill", "CLOSED", begun, lambda c: c.fill(epoch="7"), kind(s.Closed)),
    ("fill", "REFUSED", begun, lambda c: c.fill(token="t2"), kind(s.Refused)),
    ("fill", "REFUSED", cold, lambda c: c.fill(), kind(s.Refused)),
    ("fill", "DIRTY", begun_and_headless, lambda c: c.fill(), kind(s.Dirty)),
    ("fill", "DIRTY", begun_and_headless, lambda c: c.fill(count=""), kind(s.Dirty)),
    ("fill", "GONE", begun, lambda c: c.fill(count=""), kind(s.Gone)),
    ("fill", "GONE", begun_and_buried, lambda c: c.fill(), kind(s.Gone)),
    ("fill", "FILLED", begun, lambda c: c.fill("uu1", "1", count="1"), lambda r: r == s.Filled(5)),
    (
        "look",
        "epoch",
        warm,
        lambda c: c.look(),
        lambda r: r.epoch == "1" and r.identity == r.server,
    ),
    ("look", "error", warm, lambda c: c.look(ELSEWHERE), kind(resp.NotPrimary)),
    ("open", "OPEN", warm, lambda c: c.open("1", 2), kind(s.Opened)),
    ("open", "OTHER", warm, lambda c: c.open("7", 8), lambda r: r == s.Other("1")),
    ("due", "wait_ms", warm, lambda c: c.due(), lambda r: r == s.Due(-1, ())),
    ("due", "wait_ms", dirty, lambda c: c.due(), lambda r: 0 <= r.wait_ms <= 250 or r.items),
    ("claim", "CLOSED", shut(dirty), lambda c: c.claim(), kind(s.Closed)),
    (
        "claim",
        "CLAIMED",
        dirty,
        lambda c: c.claim(),
        lambda r: r.fence == 1 and r.journals == (Journal(True, ((field("u2"), "1:1.1"),)),),
    ),
    ("ack", "CLOSED", shut(dirty), lambda c: c.ack(), kind(s.Closed)),
    ("ack", "GONE", dirty, lambda c: c.ack(*entry(c, "u2"), gone="1"), kind(s.Gone)),
    ("ack", "ACKED", dirty, lambda c: c.ack(*entry(c, "u2")), lambda r: r.left == 0),
    ("ack", "ACKED", dirty, lambda c: c.ack(field("u2"), "1:1.9"), lambda r: r.left == 1),
    ("ack", "ACKED", headless, lambda c: c.ack(*entry(c, "u2")), lambda r: r == s.Acked(0, 0)),
    ("ack", "ACKED", buried, lambda c: c.ack(), lambda r: r.left == 0),
    ("inspect", "CLOSED", shut(dirty), lambda c: c.inspect(), kind(s.Closed)),
    ("inspect", "INSPECTED", dirty, lambda c: c.inspect(), lambda r: r.fence == 1),
    ("forget", "CLOSED", shut(dirty), lambda c: c.forget(), kind(s.Closed)),
    ("forget", "GONE", dirty, lambda c: c.forget(), kind(s.Gone)),
    ("invalidate", "INVALIDATED", dirty, lambda c: c.invalidate(), lambda r: r is not None),
    ("evict", "EVICTED", dirty, lambda c: c.evict("u1", "u2"), lambda r: r is not None),
]


def all_scripts() -> dict[str, Script[Any]]:
    return {one.name: getattr(SCRIPTS, one.name) for one in dataclasses.fields(SCRIPTS)}


def test_every_reply_of_every_contract_has_a_case() -> None:
    listed = {
        (verb, reply.split()[0])
        for verb, script in all_scripts().items()
        for reply in script.contract.replies
    }
    assert listed == {(verb, reply) for verb, reply, *_ in CASES}


class Confined:
    """A user of the server who may touch nothing but the keys of one call."""

    def __init__(self, server: ServerProcess, name: str) -> None:
        self.name = name
        self.admin: Any = redis.Redis(unix_socket_path=str(server.socket))
        self.socket = str(server.socket)

    def ask(self, call: Call[Any], identity: str) -> Any:
        keys = [f"%RW~{key}" for key in call.keys]
        self.admin.execute_command(
            "ACL", "SETUSER", self.name, "reset", "on", ">pw", "+@all", *keys
        )
        link: Any = redis.Redis(
            unix_socket_path=self.socket, username=self.name, password="pw", protocol=3
        )
        with link:
            return link.execute_command(*call.words(identity, whole=True))

    def close(self) -> None:
        self.admin.execute_command("ACL", "DELUSER", self.name)
        self.admin.close()


@pytest.fixture
def confined(server: ServerProcess, namespace: str) -> Iterator[Confined]:
    user = Confined(server, namespace)
    yield user
    user.close()


@pytest.mark.parametrize(
    ("verb", "reply", "prepare", "make", "right"),
    CASES,
    ids=[f"{number:02d}-{verb}-{reply}" for number, (verb, reply, *_) in enumerate(CASES)],
)
def test_reply_by_a_user_who_may_touch_only_the_keys_declared(
    make_lab: LabMaker,
    confined: Confined,
    verb: str,
    reply: str,
    prepare: Callable[[Lab], Calls],
    make: Callable[[Calls], Call[Any]],
    right: Callable[[Any], bool],
) -> None:
    """Each reply is reached, is parsed, and takes no key that its call does not declare."""
    lab = make_lab(flush_delay=0)
    calls = prepare(lab)
    call = make(calls)
    assert call.verb == verb
    if reply == "error":
        with pytest.raises(redis.ResponseError) as refused:
            confined.ask(call, lab.known.server)
        assert right(resp.error_of(str(refused.value)))
        return
    raw = confined.ask(call, lab.known.server)
    said = raw[0] if isinstance(raw[0], bytes) else b""
    assert reply in ("epoch", "wait_ms") or said.decode() == reply
    assert right(call.parse(raw)), call.parse(raw)


def test_confined_user_would_be_caught(make_lab: LabMaker, confined: Confined) -> None:
    """The control: a script that touches a key it was not given."""
    lab = make_lab()
    calls = warm(lab)
    thief = altered(SCRIPTS.invalidate, "DEL', header, tokens", f"DEL', '{calls.journal}', tokens")
    with pytest.raises(redis.ResponseError, match="key"):
        confined.ask(thief((calls.header, calls.tokens)), lab.known.server)


# -- all or nothing


@pytest.mark.parametrize("part", ["opening", "header", "journal", "due_list", "since"])
@pytest.mark.parametrize("want", ["0", "1"])
def test_set_that_meets_a_foreign_key_changes_nothing(lab: Lab, part: str, want: str) -> None:
    """Somebody put a string where a hash or a list of due times should be: the click fails whole."""
    calls = warm(lab)
    key = getattr(calls, part)
    lab.delete(key)
    lab.command("SET", key, "foreign")
    before = lab.dump()
    user = "u2" if want == "1" else "u1"
    with pytest.raises(ServerError, match="WRONGTYPE"):
        calls.ask(calls.set(user, want))
    assert lab.dump() == before


def test_set_that_schedules_before_it_looks_is_caught(lab: Lab) -> None:
    """The control: the same without the look at what will be written."""
    calls = warm(lab)
    lab.command("SET", calls.due_list, "foreign")
    script = altered(SCRIPTS.set, "redis.call('ZSCORE', due, item)", "false")
    call = calls.set("u2")
    before = lab.dump()
    with pytest.raises(ServerError, match="WRONGTYPE"):
        calls.ask(script(call.keys, call.args))
    assert lab.dump() != before


@pytest.mark.parametrize(
    ("part", "look"),
    [
        ("journal", "redis.call('HLEN', journal)"),
        ("since", "redis.call('ZSCORE', since, item)"),
    ],
)
def test_each_look_of_a_set_matters(lab: Lab, part: str, look: str) -> None:
    """The same for what is looked at only before an item becomes dirty."""
    calls = warm(lab)
    lab.delete(calls.due_list)
    lab.command("SET", getattr(calls, part), "foreign")
    script = altered(SCRIPTS.set, look, "")
    call = calls.set("u2")
    before = lab.dump()
    with pytest.raises(ServerError, match="WRONGTYPE"):
        calls.ask(script(call.keys, call.args))
    assert lab.dump() != before


@pytest.fixture(scope="module")
def full_server() -> Iterator[ServerProcess]:
    """A server of this module alone, to be filled up."""
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey", "--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture
def cramped(full_server: ServerProcess, namespace: str, tmp_path: Path) -> Iterator[Lab]:
    """A lab on a server whose memory ``full`` takes away."""
    with lab_maker(full_server.url, namespace, tmp_path) as make:
        lab = make(flush_delay=0)
        yield lab
        lab.command("CONFIG", "SET", "maxmemory", 0)


def fill_up(lab: Lab) -> None:
    lab.command("CONFIG", "SET", "maxmemory", 1)


def test_out_of_memory_refuses_changes_whole(cramped: Lab) -> None:
    """No click, no load is half done; what changes nothing is answered still."""
    calls, cold_item = dirty(cramped), cramped.item("u1")
    other = Calls(cramped, cold_item)
    before = cramped.dump()
    fill_up(cramped)
    for call in (calls.set("u3"), calls.set("u1", "0"), other.begin(), calls.begin("u9")):
        with pytest.raises(Overloaded):
            calls.ask(call)
    assert calls.ask(calls.set("u2")) == s.Same(2, "1:1.1")
    assert cramped.seen(int(calls.item), "u1").count == 2
    assert cramped.dump() == before


def test_out_of_memory_does_not_stop_the_flush(cramped: Lab) -> None:
    """Only the flush makes room, so it needs none: due, claim, ack."""
    calls = dirty(cramped)
    item = int(calls.item)
    fill_up(cramped)
    assert calls.ask(calls.due()).items == (calls.item,)
    assert cramped.flushed(item).changed == 1
    assert cramped.rows(item) == {"u1", "u2"}
    assert cramped.journal(item) == {}
    cramped.is_clean(item)


def test_out_of_memory_does_not_stop_a_partial_flush(cramped: Lab) -> None:
    """A rest that is scheduled anew takes no room that was not there."""
    calls = dirty(cramped)
    cramped.like(int(calls.item), "u3")
    fill_up(cramped)
    assert calls.ask(calls.ack(*entry(calls, "u2"))).left == 1
    assert calls.ask(calls.ack(*entry(calls, "u3"), gone="1")) == s.Gone()


def test_out_of_memory_does_not_stop_the_opening(cramped: Lab) -> None:
    """A shard that lost its record is opened; else what is in its journal could not be flushed."""
    item = int(dirty(cramped).item)
    cramped.delete(cramped.keys.opening)
    fill_up(cramped)
    assert cramped.open().epoch == "2"
    assert cramped.flushed(item).changed == 1


@pytest.mark.parametrize("verb", ["open", "claim"])
def test_out_of_memory_control(cramped: Lab, verb: str) -> None:
    """The control: without its flag each of them is refused. (An ack begins by deleting, and then
    the server asks no more.)"""
    calls = dirty(cramped)
    makers: dict[str, Callable[[], Call[Any]]] = {
        "open": lambda: calls.open("1", 2),
        "claim": calls.claim,
    }
    call = makers[verb]()
    script = getattr(SCRIPTS, verb)
    plain = Script(dataclasses.replace(script.contract, flags=()), script.plain, script.parse)
    fill_up(cramped)
    with pytest.raises(Overloaded):
        calls.ask(plain(call.keys, call.args))


# -- how long keys live


def test_times_to_live(make_lab: LabMaker) -> None:
    """What is owed to SQL never expires; what can be had from there does."""
    lab = make_lab(ttl=100, load_limit=10, missing_ttl=7)
    calls = warm(lab)
    item = int(calls.item)
    assert 90_000 < lab.life(calls.header) <= 100_000
    assert 10_000 < lab.life(calls.tokens) <= 20_000
    lab.like(item, "u2")
    for key in (calls.header, calls.journal, calls.due_list, calls.since, calls.opening):
        assert lab.life(key) == -1
    lab.flushed(item)
    assert 90_000 < lab.life(calls.header) <= 100_000
    with pytest.raises(UnknownItem):
        lab.seen(404)
    assert 0 < lab.life(lab.keys.header("404")) <= 7_000


def test_header_of_a_partly_flushed_item_does_not_expire(make_lab: LabMaker) -> None:
    lab = make_lab(batch_changes=1)
    item = lab.item("u1")
    lab.like(item, "u2")
    lab.like(item, "u3")
    assert lab.flushed(item).entries == 1
    assert lab.life(lab.keys.header(str(item))) == -1
    assert lab.flushed(item).entries == 1
    assert lab.life(lab.keys.header(str(item))) > 0


def test_pair_load_does_not_renew_a_header(make_lab: LabMaker) -> None:
    """Else a busy item would never be read from SQL again."""
    lab = make_lab(full_max=0)
    item = lab.item("u1")
    lab.seen(item)
    header = lab.keys.header(str(item))
    lab.command("PEXPIRE", header, 50_000)
    assert lab.seen(item, "u1").liked
    assert 0 < lab.life(header) <= 50_000


def test_age_of_the_oldest_change_is_kept(make_lab: LabMaker) -> None:
    """Flushers that die push the due time only: since when an item is dirty stays known."""
    lab = make_lab(flush_delay=0)
    calls = dirty(lab)
    since = lab.command("ZSCORE", calls.since, calls.item)
    calls.ask(calls.claim())
    assert calls.ask(calls.due()).items == ()  # pushed
    lab.like(int(calls.item), "u3")
    assert lab.command("ZSCORE", calls.since, calls.item) == since


# -- large numbers: Lua's own conversion keeps 14 digits


@pytest.mark.parametrize("start", [10**15, 2**53 - 10], ids=["16 digits", "the last that count"])
def test_sequences_of_sixteen_digits_do_not_collide(lab: Lab, start: int) -> None:
    calls = warm(lab)
    lab.command("HSET", calls.opening, "s", start, "f", start)
    versions = [calls.ask(calls.set(user)).version for user in ("u2", "u3")]
    assert versions == [f"1:1.{start + 1}", f"1:1.{start + 2}"]
    assert calls.ask(calls.claim()).fence == start + 1
    assert calls.ask(calls.inspect()).fence == start + 2
    lab.holds(int(calls.item), {"u1", "u2", "u3"})


def test_sequences_joined_with_dots_would_collide(lab: Lab) -> None:
    calls = warm(lab)
    lab.command("HSET", calls.opening, "s", 10**15)
    careful = "string.format('%s:%s.%.0f', want, epoch, seq)"
    script = altered(SCRIPTS.set, careful, "want .. ':' .. epoch .. '.' .. seq")
    calls_of = [calls.set("u2"), calls.set("u3")]
    versions = [calls.ask(script(call.keys, call.args)).version for call in calls_of]
    assert versions[0] == versions[1]


def test_counts_of_sixteen_digits_are_exact(lab: Lab) -> None:
    calls = warm(lab)
    lab.command("HSET", calls.header, "#n", 10**15 + 1)
    assert calls.ask(calls.set("u1")).count == 10**15 + 1
    assert calls.ask(calls.set("u2")).count == 10**15 + 2


# -- due and claim


def test_due_gives_the_earliest_first_and_says_when_more_comes(lab: Lab) -> None:
    calls = warm(lab)
    for score, item in enumerate(("i3", "i1", "i2")):
        lab.command("ZADD", calls.due_list, score, item)
    soon = int(lab.command("TIME")[0]) * 1000 + 50_000
    lab.command("ZADD", calls.due_list, soon, "later")
    assert calls.ask(calls.due(2)).items == ("i3", "i1")
    found = calls.ask(calls.due())
    assert found.items == ("i3", "i1", "i2")
    assert 0 < found.wait_ms <= 51_000


def test_due_takes_what_is_further_away_than_anybody_sets_it_for_late(lab: Lab) -> None:
    """The server's clock was set back: it was due before, and is not early."""
    calls = warm(lab)
    now = int(lab.command("TIME")[0]) * 1000
    for away, item in ((50_000, "later"), (10**9, "i2"), (10**8, "i1")):
        lab.command("ZADD", calls.due_list, now + away, item)
    assert calls.ask(calls.due()).items == ("i1", "i2")
    assert calls.ask(calls.due(1)).items == ("i1",)


def test_due_gives_ten_thousand_items(lab: Lab) -> None:
    """As many as ``batch_items`` may be: more than Lua's stack holds."""
    calls = warm(lab)
    scores: list[str | int] = [word for item in range(10_000) for word in (item, f"i{item}")]
    lab.command("ZADD", calls.due_list, *scores)
    assert len(calls.ask(calls.due(10_000)).items) == 10_000


@pytest.mark.parametrize("entries", [10, 2_000], ids=["packed", "hashed"])
def test_claim_takes_a_bounded_part_of_a_long_journal(lab: Lab, entries: int) -> None:
    """However the server keeps a hash, a claim gives some of it and says that this was not all."""
    calls = warm(lab)
    for number in range(entries):
        lab.command("HSET", calls.journal, f"u{number}", f"1:1.{number}")
    (journal,) = calls.ask(calls.claim(limit=4)).journals
    assert 0 < len(journal.entries) <= 4
    assert not journal.whole
    assert lab.command("HLEN", calls.journal) == entries  # nothing is removed


def test_claim_of_a_clean_item_schedules_nothing(lab: Lab) -> None:
    calls = warm(lab)
    assert calls.ask(calls.claim()).journals == (Journal(True, ()),)
    assert lab.command("ZSCORE", calls.due_list, calls.item) is None


# -- what is said to be harmless when it is sent twice


@pytest.mark.parametrize(
    ("prepare", "make"),
    [
        (cold, lambda c: c.begin()),
        (headless, lambda c: c.begin()),
        (begun, lambda c: c.fill("uu1", "1", count="1")),
        (begun, lambda c: c.fill(count="")),
        (dirty, lambda c: c.ack(*entry(c, "u2"))),
        (dirty, lambda c: c.ack(*entry(c, "u2"), gone="1")),
        (warm, lambda c: c.open("1", 2)),
        (dirty, lambda c: c.invalidate()),
        (dirty, lambda c: c.evict("u1", "u2")),
        (dirty, lambda c: c.forget()),
    ],
    ids=[
        "begin",
        "begin-dirty",
        "fill",
        "fill-gone",
        "ack",
        "ack-gone",
        "open",
        "invalidate",
        "evict",
        "forget",
    ],
)
def test_second_sending_changes_nothing(
    lab: Lab, prepare: Callable[[Lab], Calls], make: Callable[[Calls], Call[Any]]
) -> None:
    calls = prepare(lab)
    call = make(calls)
    assert call.resend
    calls.ask(call)
    once = lab.dump()
    calls.ask(call)
    assert lab.dump() == once


def test_set_is_not_sent_twice_unasked(lab: Lab) -> None:
    """It would be right, but the answer to "did I change it" would not."""
    assert not warm(lab).set().resend


def test_evict_spares_what_is_owed_and_the_header(lab: Lab) -> None:
    """A clean state may go, if the header then no longer claims to know all."""
    calls = dirty(lab)
    calls.ask(SCRIPTS.evict((calls.header, calls.journal), ("#n", "#e", "uu1", "uu2")))
    header = lab.header(int(calls.item))
    assert header.keys() == {"#e", "#n", "#born", "uu2"}
    lab.holds(int(calls.item), {"u1", "u2"})
