"""Three small protocols with a hole each, and the same without: ``fencepost explore examples/explored.py``.

A scenario says who acts, what the world may do meanwhile and what must hold. The explorer runs the
real scripts on a real server in every order and prints the shortest schedule that goes wrong.
"""

from __future__ import annotations

from typing import Any

from fencepost._core.script import Script, read_contract
from fencepost.errors import OutcomeUnknown
from fencepost.testing import Cell, Faults, Scenario, SimPort, expiry


def script(text: str) -> Script[Any]:
    return Script(read_contract(text), text, lambda reply: reply)


# -- 1. cache-aside with a lease: does invalidating the value do?

KEYS = ("{k}:lease", "{k}:value")

CLAIM = script("""-- claim: the value, or the right to load it
-- KEYS lease, value
-- ARGV token
local value = redis.call('GET', KEYS[2])
if value then return {'VALUE', value} end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 1000) then return {'WON'} end
return {'WAIT'}
""")

PUBLISH = script("""-- publish: only who still holds the lease
-- KEYS lease, value
-- ARGV token, value
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'REJECTED' end
redis.call('SET', KEYS[2], ARGV[2], 'PX', 60000)
redis.call('DEL', KEYS[1])
return 'PUBLISHED'
""")

INVALIDATE = script("""-- invalidate: the value is out of date
-- KEYS lease, value
redis.call('DEL', KEYS[1], KEYS[2])
return 1
""")


def cache_aside(invalidate: Script[Any] = INVALIDATE) -> Scenario:
    """Two readers, a writer, an expiry: no old value is left behind."""
    source = Cell(1)

    async def reader(io: SimPort) -> Any:
        token = io.token()
        answer = await io.run(CLAIM(KEYS, [token]))
        if answer[0] != b"WON":
            return answer[0]
        value = await io.call(source.get)
        return await io.run(PUBLISH(KEYS, [token, value]))

    async def writer(io: SimPort) -> None:
        await io.call(source.set, 2)
        await io.run(invalidate(KEYS))

    return Scenario(
        actors={"a": reader, "b": reader, "w": writer},
        environment={"x": expiry()},
        cells=[source],
        final=lambda view: (
            f"an old value is left: {view.value(KEYS[1])}"
            if view.value(KEYS[1], str(source.state)) != str(source.state)
            else None
        ),
    )


def cache_aside_that_keeps_the_lease() -> Scenario:
    """The same, but a load that began before the write may still publish after it."""
    return cache_aside(INVALIDATE.with_text("redis.call('DEL', KEYS[2]) return 1"))


# -- 2. a counter whose reply is lost: is trying again harmless?

ADD = script("""-- add: count one more
-- KEYS counter
-- ARGV id
return redis.call('INCR', KEYS[1])
""")

ADD_ONCE = script("""-- add_once: count one more, once an id
-- KEYS counter, seen
-- ARGV id
if redis.call('SADD', KEYS[2], ARGV[1]) == 0 then return redis.call('GET', KEYS[1]) end
return redis.call('INCR', KEYS[1])
""")


def counter(once: bool = True) -> Scenario:
    """Two clients that try again after a lost reply: each counts once."""

    async def client(io: SimPort) -> Any:
        attempt = io.token()
        for _ in range(3):
            try:
                if once:
                    return await io.run(ADD_ONCE(("{c}:n", "{c}:seen"), [attempt]))
                return await io.run(ADD(("{c}:n",), [attempt]))
            except OutcomeUnknown:
                continue
        return None

    return Scenario(
        actors={"a": client, "b": client},
        faults=Faults(times=2, kinds=("lost", "dropped")),
        final=lambda view: (
            None if view.value("{c}:n") == "2" else f"counted {view.value('{c}:n')}, not 2"
        ),
    )


def counter_that_counts_twice() -> Scenario:
    """The same without an id."""
    return counter(once=False)


# -- 3. a lock without a TTL: what if its holder dies?

LOCK = script("""-- lock: take it if it is free
-- KEYS lock
-- ARGV owner, ttl_ms
if ARGV[2] == '0' then return redis.call('SETNX', KEYS[1], ARGV[1]) end
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0
""")

UNLOCK = script("""-- unlock: only by its owner
-- KEYS lock
-- ARGV owner
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
""")


def lock(ttl_ms: int = 1000) -> Scenario:
    """Two holders, one of whom may die at any step: whoever comes later gets the lock."""

    async def holder(io: SimPort) -> bool:
        owner = io.token()
        if not await io.run(LOCK(("lock",), [owner, ttl_ms])):
            return False
        await io.sleep(1)
        await io.run(UNLOCK(("lock",), [owner]))
        return True

    async def waits(io: SimPort) -> bool:
        await io.until(lambda view: "lock" not in view.keys, "free")
        return True

    return Scenario(
        actors={"a": holder, "b": holder, "c": waits},
        crashes=frozenset(("a", "b")),
        environment={"x": expiry(2)},
    )


def lock_for_ever() -> Scenario:
    """The same without a TTL."""
    return lock(ttl_ms=0)
