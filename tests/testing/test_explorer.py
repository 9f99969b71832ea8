"""The explorer: both searches agree, what they find replays, and each fault does what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost._core import commands
from fencepost._core.port import OtherServer
from fencepost._core.script import SERVER, Call, Script, read_contract
from fencepost.errors import FencepostError, OutcomeUnknown, Refused, ServerError, Unavailable
from fencepost.testing import (
    Cell,
    Faults,
    Found,
    Play,
    PlayError,
    Sandbox,
    Scenario,
    ScratchServer,
    ServerState,
    SimPort,
    UndeclaredKey,
    expiry,
    explore,
    failover,
    flush_all,
    reexecute,
    replay,
    restart_empty,
    script_flush,
    tick,
)
from fencepost.testing.files import load
from support.require import require
from support.servers import ServerProcess, find_binary

EXAMPLES = load(Path(__file__).parents[2] / "examples" / "explored.py")
RIGHT = ("cache_aside", "counter", "lock")
WRONG = ("cache_aside_that_keeps_the_lease", "counter_that_counts_twice", "lock_for_ever")


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer() as server:
        yield server


def script(text: str, parse: Callable[[Any], Any] = lambda reply: reply) -> Script[Any]:
    return Script(read_contract(text), text, parse)


INCR = script("-- incr: one more\n-- KEYS n\nreturn redis.call('INCR', KEYS[1])")
INCR_AGAIN = script(
    "-- incr: one more\n-- KEYS n\n-- resend: harmless, says this test\nreturn redis.call('INCR', KEYS[1])"
)


async def increments(io: SimPort) -> Any:
    return await io.run(INCR(("n",)))


async def reads_then_writes(io: SimPort) -> Any:
    seen = await io.run(commands.raw("GET", "n"))
    await io.run(commands.raw("SET", "n", int(seen or 0) + 1))


def counts_to(number: int) -> Callable[[Any], str | None]:
    return lambda view: None if view.value("n") == str(number) else f"n is {view.value('n')}"


# -- two searches


@pytest.mark.parametrize("name", RIGHT)
def test_both_searches_find_the_same_endings_and_nothing_wrong(
    name: str, scratch: ScratchServer
) -> None:
    graph = explore(EXAMPLES[name](), server=scratch, endings=True).check()
    whole = reexecute(EXAMPLES[name](), server=scratch, endings=True).check()
    assert graph.complete
    assert whole.complete
    assert graph.endings == whole.endings


@pytest.mark.parametrize("name", WRONG)
def test_both_searches_find_what_is_wrong(name: str, scratch: ScratchServer) -> None:
    graph = explore(EXAMPLES[name](), server=scratch)
    whole = reexecute(EXAMPLES[name](), server=scratch)
    assert graph.finding is not None
    assert whole.finding is not None
    # Breadth first: no schedule is shorter. Depth first finds some, and shortens it.
    assert len(graph.finding.schedule.split()) <= len(whole.finding.schedule.split())


def test_sleep_sets_leave_out_schedules_and_no_ending(scratch: ScratchServer) -> None:
    reduced = reexecute(EXAMPLES["cache_aside"](), server=scratch, endings=True)
    every = reexecute(EXAMPLES["cache_aside"](), server=scratch, endings=True, reduce=False)
    assert reduced.endings == every.endings
    assert reduced.schedules < every.schedules / 3


@pytest.mark.parametrize("name", WRONG)
def test_what_is_found_replays_from_its_text(name: str, scratch: ScratchServer) -> None:
    finding = explore(EXAMPLES[name](), server=scratch).finding
    assert finding is not None
    for live in (False, True):
        again = replay(EXAMPLES[name](), finding.schedule, server=scratch, live=live)
        assert again.told == finding.schedule
        assert again.wrong == finding.message


def test_the_shortest_schedule_of_a_late_publication(scratch: ScratchServer) -> None:
    finding = explore(EXAMPLES["cache_aside_that_keeps_the_lease"](), server=scratch).finding
    assert finding is not None
    assert finding.schedule == "a.claim a.get b.claim w.set w.invalidate a.publish"
    with pytest.raises(Found, match="an old value is left: 1"):
        explore(EXAMPLES["cache_aside_that_keeps_the_lease"](), server=scratch).check()


def test_a_play_takes_the_same_text(scratch: ScratchServer) -> None:
    scenario = EXAMPLES["cache_aside_that_keeps_the_lease"]()
    scratch.empty()
    play = Play(scratch.port, **scenario.actors)
    play.run("a.claim a.get b.claim w.set w.invalidate a.publish")
    assert play.result("a") == b"PUBLISHED"
    play.close()


def test_a_play_knows_the_same_faults(scratch: ScratchServer) -> None:
    scratch.empty()
    play = Play(scratch.port, a=increments, b=increments, c=increments)
    play.run("a.incr!resent a.incr b.incr!dropped c.incr!lost")
    assert play.result("a") == 2
    for name in "bc":
        with pytest.raises(OutcomeUnknown):
            play.result(name)
    play.close()


def test_a_word_that_does_not_fit_says_what_would(scratch: ScratchServer) -> None:
    with pytest.raises(PlayError, match=r"a.publish does not fit: a.claim, b.claim, w.set"):
        replay(EXAMPLES["cache_aside"](), "a.publish", server=scratch)


def test_a_star_runs_an_actor_to_its_end(scratch: ScratchServer) -> None:
    again = replay(EXAMPLES["cache_aside"](), "w.* a.* x.expire(value) b.claim", server=scratch)
    assert again.told == "w.set w.invalidate a.claim a.get a.publish x.expire(value) b.claim"
    assert again.view.value("{k}:lease") == "b.1"


# -- bounds, and what a report says


def test_a_bound_is_reported(scratch: ScratchServer) -> None:
    report = explore(EXAMPLES["cache_aside"](), server=scratch, limit=20)
    assert report.bounded_by == "at most 20 states"
    assert not report.complete
    report = reexecute(EXAMPLES["cache_aside"](), server=scratch, limit=5)
    assert report.bounded_by == "at most 5 schedules"


def test_walks_go_on_where_the_graph_stopped_and_are_minimised(scratch: ScratchServer) -> None:
    reports = [
        explore(
            EXAMPLES["cache_aside_that_keeps_the_lease"](),
            server=scratch,
            limit=5,
            walks=500,
            seed=7,
        )
        for _ in range(2)
    ]
    assert [one.finding.schedule for one in reports if one.finding] == [
        reports[0].finding.schedule if reports[0].finding else ""
    ] * 2
    assert "seed 7" in reports[0].bounded_by
    assert reports[0].finding is not None
    schedule = reports[0].finding.schedule
    again = replay(EXAMPLES["cache_aside_that_keeps_the_lease"](), schedule, server=scratch)
    assert again.wrong == reports[0].finding.message
    assert len(schedule.split()) <= 9


@pytest.mark.parametrize(("preemptions", "found"), [(0, False), (1, True)])
@pytest.mark.parametrize("search", [explore, reexecute])
def test_a_preemption_bound(
    search: Any, preemptions: int, found: bool, scratch: ScratchServer
) -> None:
    scenario = Scenario(
        actors={"a": reads_then_writes, "b": reads_then_writes},
        final=counts_to(2),
        preemptions=preemptions,
    )
    report = search(scenario, server=scratch)
    assert (report.finding is not None) == found
    assert f"at most {preemptions} preemptions" in report.bounded_by


def test_a_server_that_holds_keys_is_refused() -> None:
    require("valkey", find_binary("valkey") is not None)
    with ServerProcess("valkey") as server:
        with ScratchServer(server.url) as own:
            assert explore(EXAMPLES["counter"](), server=own).complete
        assert explore(EXAMPLES["counter"](), server=server.url).complete  # it was left empty
        filled = ScratchServer(server.url)
        Sandbox(filled.port).put(ServerState((b"k", b"string", b"0", b"1", b"v")))
        with pytest.raises(Refused, match="holds 1 keys"):
            ScratchServer(server.url)
        filled.close()


# -- what may go wrong


@pytest.mark.parametrize("search", [explore, reexecute])
@pytest.mark.parametrize(
    ("kind", "answers", "count"),
    [
        ("lost", {OutcomeUnknown}, {"1"}),
        ("dropped", {OutcomeUnknown}, {None}),
        ("cut", {Unavailable}, {None}),
        ("resent", {int}, {"2"}),
    ],
)
def test_each_fault(
    search: Any, kind: str, answers: set[type], count: set[str | None], scratch: ScratchServer
) -> None:
    seen = set()

    async def client(io: SimPort) -> Any:
        return await io.run(INCR_AGAIN(("n",)))

    def final(view: Any) -> None:
        seen.add((type(view.results["a"]), view.value("n")))

    scenario = Scenario(actors={"a": client}, faults=Faults(kinds=(kind,)), final=final)
    assert search(scenario, server=scratch).check().complete
    assert seen == {(int, "1"), *((answer, n) for answer in answers for n in count)}


def test_only_a_call_that_says_so_is_sent_again(scratch: ScratchServer) -> None:
    scenario = Scenario(
        actors={"a": increments}, faults=Faults(kinds=("resent",)), final=counts_to(1)
    )
    assert explore(scenario, server=scratch).check().complete


@pytest.mark.parametrize("search", [explore, reexecute])
def test_a_function_meets_faults_too(search: Any, scratch: ScratchServer) -> None:
    source = Cell(0)

    async def saver(io: SimPort) -> None:
        await io.call(source.set, 1)

    scenario = Scenario(
        actors={"a": saver},
        cells=[source],
        faults=Faults(kinds=("lost",)),
        final=lambda view: None if source.state == 1 else f"not saved, and {view.results['a']!r}",
    )
    assert search(scenario, server=scratch).check().complete
    assert source.state == 0  # set back to where it began


@pytest.mark.parametrize("search", [explore, reexecute])
def test_a_crash_at_every_step(search: Any, scratch: ScratchServer) -> None:
    ends = set()

    def final(view: Any) -> None:
        ends.add((repr(view.results["a"]), view.value("n")))

    scenario = Scenario(actors={"a": reads_then_writes}, crashes=frozenset("a"), final=final)
    assert search(scenario, server=scratch).check().complete
    assert ends == {("died", None), ("None", "1")}


@pytest.mark.parametrize("search", [explore, reexecute])
def test_nobody_can_go_on(search: Any, scratch: ScratchServer) -> None:
    async def waits(io: SimPort) -> None:
        await io.until(lambda view: view.value("n") == "2", "two")

    scenario = Scenario(actors={"a": increments, "b": waits})
    finding = search(scenario, server=scratch).finding
    assert finding is not None
    assert finding.message == "deadlock: nobody can go on, b at two"
    more = Scenario(actors={"a": increments, "b": waits, "c": increments})
    assert search(more, server=scratch).check().complete


@pytest.mark.parametrize("search", [explore, reexecute])
def test_an_error_that_nobody_expects_is_found(search: Any, scratch: ScratchServer) -> None:
    async def stumbles(io: SimPort) -> None:
        if await io.run(INCR(("n",))) == 2:
            raise KeyError("two")

    finding = search(Scenario(actors={"a": stumbles, "b": increments}), server=scratch).finding
    assert finding is not None
    assert finding.message == "a raised KeyError: 'two'"
    assert finding.schedule == "b.incr a.incr"
    allowed = Scenario(actors={"a": stumbles, "b": increments}, allowed=(FencepostError, KeyError))
    assert search(allowed, server=scratch).check().complete


@pytest.mark.parametrize("search", [explore, reexecute])
def test_a_dropped_protocol_must_not_await(search: Any, scratch: ScratchServer) -> None:
    async def cleans_up(io: SimPort) -> None:
        try:
            await io.run(INCR(("n",)))
        finally:
            await io.run(INCR(("n",)))

    scenario = Scenario(actors={"a": cleans_up}, crashes=frozenset("a"))
    finding = search(scenario, server=scratch).finding
    assert finding is not None
    assert "a awaits while it is dropped" in finding.message


@pytest.mark.parametrize("search", [explore, reexecute])
def test_calls_at_once_are_not_one_step(search: Any, scratch: ScratchServer) -> None:
    async def both(io: SimPort) -> Any:
        return await io.all([INCR(("n",)), INCR(("n",))])

    seen = set()

    def final(view: Any) -> None:
        seen.add(tuple(view.results["a"]))

    scenario = Scenario(actors={"a": both, "b": increments}, final=final)
    assert search(scenario, server=scratch).check().complete
    assert seen == {(1, 2), (1, 3), (2, 3)}


@pytest.mark.parametrize("search", [explore, reexecute])
def test_what_heals_is_judged(search: Any, scratch: ScratchServer) -> None:
    async def repairs(io: SimPort) -> None:
        if not await io.run(commands.raw("EXISTS", "n")):
            await io.run(INCR(("n",)))

    def scenario(number: int) -> Scenario:
        return Scenario(actors={"a": increments}, heal=repairs, healed=counts_to(number))

    assert search(scenario(1), server=scratch).check().complete
    finding = search(scenario(2), server=scratch).finding
    assert finding is not None
    assert finding.message == "if all die here, after healing: n is 1"


# -- the world


def test_every_type_of_key_comes_back_as_it_was(scratch: ScratchServer) -> None:
    sandbox, state = Sandbox(scratch.port), ServerState()
    blob = bytes(range(256))
    for words in (
        ("SET", "string", blob),
        ("HSET", "hash", "b", "2", "a", blob),
        ("ZADD", "zset", 2.5, "b", 1, "a"),
        ("SADD", "set", "b", "a"),
        ("RPUSH", "list", "b", "a"),
        ("PEXPIRE", "list", 1000),
    ):
        _, state = sandbox.run(state, Call(words[0], words, lambda reply: reply))
    _, again = sandbox.run(state, commands.raw("PING"))
    assert again == state
    found = state.by_name()
    assert found["zset"].value == {"a": 1.0, "b": 2.5}
    assert found["set"].value == {"a", "b"}
    assert found["list"] == ("list", True, ["b", "a"])
    assert found["hash"].value["b"] == "2"
    reply, _ = sandbox.run(state, commands.raw("GET", "string"))
    assert reply == blob
    sandbox.put(state)
    assert sandbox.read(ServerState()) == state


def test_a_script_sees_the_simulated_clock_and_server(scratch: ScratchServer) -> None:
    sees = script("""-- sees: what there is
-- ARGV server
local info = redis.pcall('INFO', 'server')
return {redis.call('TIME'), info:match('run_id:(%x+)'), info:match('maxmemory_policy:([%w-]+)'), ARGV[1]}
""")
    state = ServerState(clock_ms=1_234_567, identity="c1:d1", greeted="c1:d1", policy="allkeys-lru")
    reply, _ = Sandbox(scratch.port).run(state, sees((), (SERVER,)))
    assert reply == [[b"1234", b"567000"], b"c1", b"allkeys-lru", b"c1:d1"]


def test_what_a_call_was_meant_for_is_checked(scratch: ScratchServer) -> None:
    async def client(io: SimPort) -> Any:
        call = commands.raw("GET", "n")
        call.only = "a0:b0"
        return await io.run(call)

    seen = set()

    def final(view: Any) -> None:
        seen.add(type(view.results["a"]))

    scenario = Scenario(actors={"a": client}, environment={"x": restart_empty()}, final=final)
    assert explore(scenario, server=scratch).check().complete
    assert seen == {type(None), OtherServer}


@pytest.mark.parametrize(
    "body",
    [
        "return redis.call('GET', 'other')",
        "return redis.pcall('HSET', 'other', 'a', 'b')",
        "return redis.call('KEYS', '*')",
        "return server.call('DEL', KEYS[1], 'other')",
    ],
)
def test_a_key_that_was_not_declared_is_found(body: str, scratch: ScratchServer) -> None:
    call = script(f"-- peeks: too far\n-- KEYS n\n{body}")(("n",))
    with pytest.raises(UndeclaredKey, match="did not declare"):
        Sandbox(scratch.port).run(ServerState(), call)


def test_an_error_keeps_what_was_written_before_it(scratch: ScratchServer) -> None:
    half = script(
        "-- half: way\n-- KEYS n\nredis.call('SET', KEYS[1], 'x') return redis.call('INCR', KEYS[1])"
    )
    reply, state = Sandbox(scratch.port).run(ServerState(), half(("n",)))
    assert isinstance(reply, ServerError)
    assert "not an integer" in str(reply)
    assert state.by_name()["n"].value == "x"


def test_moves_of_the_world(scratch: ScratchServer) -> None:
    words = set()

    async def idles(io: SimPort) -> None:
        await io.sleep(1)

    def note(name: str, call: Any, value: Any) -> None:
        words.add(name)

    moves = {
        "expiry": expiry(),
        "flush": flush_all(),
        "restart": restart_empty(),
        "failover": failover(hidden=True),
        "tick": tick(100),
        "script": script_flush(),
    }
    labels = ("expire", "flushall", "restart", "replica_stops", "failover", "reconnect", "tick")
    scenario = Scenario(
        actors={"a": idles},
        environment=moves,
        setup=[("SET", "k", "v", "PX", "1000")],
        observe=dict.fromkeys((*labels, "script_flush"), note),
    )
    assert explore(scenario, server=scratch).check().complete
    assert words == set(moves)


def test_a_server_that_forgot_its_scripts(scratch: ScratchServer) -> None:
    scenario = Scenario(
        actors={"a": increments, "b": increments},
        environment={"x": script_flush(2)},
        final=counts_to(2),
    )
    assert reexecute(scenario, server=scratch).check().complete


def test_what_needs_a_simulated_server_is_refused_live(scratch: ScratchServer) -> None:
    scenario = Scenario(actors={"a": increments}, environment={"x": restart_empty()})
    with pytest.raises(Refused, match="needs a simulated server"):
        reexecute(scenario, server=scratch)


def test_spawned_protocols_are_stepped_and_waited_for(scratch: ScratchServer) -> None:
    async def parent(io: SimPort) -> Any:
        task = io.spawn(reads_then_writes(io))
        await io.run(commands.raw("GET", "n"))
        await io.wait(task)
        return await io.run(commands.raw("GET", "n"))

    seen = set()

    def final(view: Any) -> None:
        seen.add(view.results["a"])

    scenario = Scenario(actors={"a": parent, "b": increments}, final=final)
    report = reexecute(scenario, server=scratch).check()
    assert report.complete
    assert seen == {b"1", b"2"}
    with pytest.raises(NotImplementedError, match="re-execution"):
        explore(scenario, server=scratch)


@pytest.mark.parametrize(
    "options",
    [
        {"actors": {"not a name": increments}},
        {"actors": {"a": increments}, "environment": {"a": expiry()}},
        {"actors": {"a": increments}, "crashes": frozenset("b")},
        {"actors": {"a": increments}, "heal": increments},
    ],
)
def test_a_scenario_that_can_not_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        Scenario(**options)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(Refused, match="unknown faults melted"):
        Faults(kinds=("melted",))
