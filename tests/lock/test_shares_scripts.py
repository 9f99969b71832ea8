"""The scripts of shares, one call after another under a clock of the test's own; each guard taken out once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.lock.protocol import Ask
from fencepost.lock.scripts import SHARES, Scripts
from fencepost.testing import Sandbox, ScratchServer, ServerState
from support.require import require
from support.servers import find_binary
from support.shares import ShareWorld, without


@pytest.fixture(scope="module")
def scratch() -> Iterator[ScratchServer]:
    require("valkey", find_binary("valkey") is not None)
    with ScratchServer(None) as server:
        yield server


class Clock:
    """Calls on a semaphore or a read/write lock, each at a time."""

    def __init__(self, scratch: ScratchServer, scripts: Scripts, permits: int | None = 2) -> None:
        self.sandbox, self.state = Sandbox(scratch.port), ServerState()
        self.world = ShareWorld(scripts, permits=permits)
        self.now_ms = 1_000_000

    def run(self, call: Any, after_ms: int = 0) -> str:
        self.now_ms += after_ms
        reply, self.state = self.sandbox.run(self.state._replace(clock_ms=self.now_ms), call)
        assert isinstance(reply, list), reply
        return str(reply[0].decode())

    def take(self, attempt: str, share: Any = 1, after_ms: int = 0, **ask: Any) -> str:
        self.world.taking(attempt, share)
        place = self.world.places[attempt]
        return self.run(place.take(Ask(attempt, "me", 10.0, ask.pop("wait", 0.0), **ask)), after_ms)


NEVER_REAPS = without(
    "acquire", "    take_out(shares, ends, attempt)\n", "    if false then return end\n"
)


@pytest.mark.parametrize("scripts", [SHARES, NEVER_REAPS], ids=["reaps", "never reaps"])
def test_a_permit_that_nobody_prolongs_ends_by_the_clock(
    scratch: ScratchServer, scripts: Scripts
) -> None:
    clock = Clock(scratch, scripts)
    place = clock.world.place
    assert clock.take("dead") == clock.take("lives") == "TAKEN"
    assert clock.run(place.prolong("lives", 10.0), 9_000) == "RENEWED"
    assert clock.take("b") == "HELD"
    expected = "TAKEN" if scripts is SHARES else "HELD"
    assert clock.take("b", after_ms=1_000) == expected
    assert clock.take("c") == "HELD"


PROLONGS_THE_DEAD = without(
    "renew",
    "if end_ms <= now_ms or redis.call('HEXISTS', shares, attempt) == 0 then return {'LOST'} end\n",
)


@pytest.mark.parametrize("scripts", [SHARES, PROLONGS_THE_DEAD], ids=["asks", "does not ask"])
def test_a_renewal_makes_no_lost_share_anew(scratch: ScratchServer, scripts: Scripts) -> None:
    clock = Clock(scratch, scripts)
    place = clock.world.place
    assert clock.take("a") == "TAKEN"
    assert clock.run(place.prolong("never", 10.0)) == ("LOST" if scripts is SHARES else "RENEWED")
    assert clock.run(place.prolong("a", 10.0), 10_000) == (
        "LOST" if scripts is SHARES else "RENEWED"
    )


def test_a_share_that_is_over_is_lost_when_it_is_given_back(scratch: ScratchServer) -> None:
    clock = Clock(scratch, SHARES)
    place = clock.world.place
    assert clock.take("a") == "TAKEN"
    assert clock.run(place.give_back("a"), 9_999) == "RELEASED"
    assert clock.take("b") == "TAKEN"
    assert clock.run(place.give_back("b"), 10_000) == "LOST"
    assert clock.take("c", 2) == "TAKEN"  # nothing was left of it


ANY_READER = without("acquire", "  if theirs < rank then return math.huge end\n")


@pytest.mark.parametrize("scripts", [SHARES, ANY_READER], ids=["asks", "does not ask"])
def test_a_waiting_writer_keeps_readers_out_until_it_is_silent(
    scratch: ScratchServer, scripts: Scripts
) -> None:
    clock = Clock(scratch, scripts, permits=None)
    assert clock.take("r", "read") == "TAKEN"
    assert clock.take("w", "write", wait=5.0) == "HELD"
    assert clock.take("s", "read", after_ms=1_499) == ("HELD" if scripts is SHARES else "TAKEN")
    assert clock.take("t", "read", after_ms=1) == "TAKEN"


def test_a_writer_passes_readers_that_wait_and_readers_pass_each_other(
    scratch: ScratchServer,
) -> None:
    clock = Clock(scratch, SHARES, permits=None)
    assert clock.take("w", "write") == "TAKEN"
    assert clock.take("r", "read", wait=5.0) == "HELD"
    assert clock.take("s", "read", wait=5.0) == "HELD"
    assert clock.run(clock.world.place.give_back("w")) == "RELEASED"
    assert clock.take("v", "write") == "TAKEN"  # before readers that wait
    assert clock.run(clock.world.place.give_back("v")) == "RELEASED"
    assert clock.take("s", "read", wait=5.0) == "TAKEN"  # not in the way of the one ahead of it
    assert clock.take("t", "read") == "TAKEN"
    assert clock.take("r", "read", wait=5.0) == "TAKEN"


ALWAYS_PASSES = without("acquire", "and overtaken <= overtakes then", "then")


@pytest.mark.parametrize("scripts", [SHARES, ALWAYS_PASSES], ids=["counts", "does not count"])
def test_a_fair_semaphore_lets_no_newcomer_pass(scratch: ScratchServer, scripts: Scripts) -> None:
    clock = Clock(scratch, scripts)
    assert clock.take("a", 1, overtakes=0) == "TAKEN"
    assert clock.take("heavy", 2, wait=5.0, overtakes=0) == "HELD"
    assert clock.take("b", 1, overtakes=0) == ("HELD" if scripts is SHARES else "TAKEN")


@pytest.mark.parametrize("bad", ["0", "-1", "1.5", "x", "", "1e9", "05"])
@pytest.mark.parametrize("which", [2, 7, 8], ids=["ttl_ms", "weight", "permits"])
def test_what_is_no_count_is_refused_before_any_change(
    scratch: ScratchServer, which: int, bad: str
) -> None:
    sandbox, state = Sandbox(scratch.port), ServerState()
    call = ShareWorld(permits=2).place.take(Ask("a", "me", 10.0, 0.0))
    call.args = (*call.args[:which], bad, *call.args[which + 1 :])
    reply, after = sandbox.run(state, call)
    assert "positive whole numbers" in str(reply)
    assert after == state
