"""A process that stands in an election and writes as long as it leads.

    python -m support.election_worker URL NAMESPACE IDENTITY TTL async|threads

On SIGTERM it drains, stops and resigns: ``stop`` is called by a handler of this program. It says each
step: ``ready``, ``leads FENCE``, ``draining``, ``ended``, ``stopped``, ``lost``, ``over``. Each act first
checks the term, then writes its fence: the list ``acts`` by a plain push, and ``doc`` behind a gate.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from fencepost import AsyncClient, Client, FenceRefused
from fencepost.election import AsyncTerm, Term


def say(*words: object) -> None:
    print(*words, flush=True)


def options(ttl: str) -> dict[str, float]:
    seconds = float(ttl)
    return {"ttl": seconds, "renew_deadline": seconds / 2, "retry": seconds / 10, "drain": 60.0}


async def on_a_loop(url: str, namespace: str, identity: str, ttl: str) -> None:
    async with AsyncClient.from_url(url, namespace=namespace) as client:
        election = client.election("x", identity=identity, **options(ttl))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, election.stop)

        async def work(term: AsyncTerm) -> None:
            say("leads", term.fence)
            try:
                while await term.sleep(0.001):
                    term.check()
                    await client.command("RPUSH", f"{namespace}:acts", term.fence)
                    await client.fenced_set(f"{namespace}:doc", str(term.fence), term)
                say("draining")
            except FenceRefused:
                say("refused")
                raise
            finally:
                say("ended")

        say("ready")
        await election.run(work, stopped=lambda term: say("lost" if term.lost else "stopped"))
        say("over")


def in_a_thread(url: str, namespace: str, identity: str, ttl: str) -> None:
    with Client.from_url(url, namespace=namespace) as client:
        election = client.election("x", identity=identity, **options(ttl))
        signal.signal(signal.SIGTERM, lambda *_: election.stop())

        def work(term: Term) -> None:
            say("leads", term.fence)
            try:
                while term.sleep(0.001):
                    term.check()
                    client.command("RPUSH", f"{namespace}:acts", term.fence)
                    client.fenced_set(f"{namespace}:doc", str(term.fence), term)
                say("draining")
            except FenceRefused:
                say("refused")
                raise
            finally:
                say("ended")

        say("ready")
        election.run(work, stopped=lambda term: say("lost" if term.lost else "stopped"))
        say("over")


if __name__ == "__main__":
    if sys.argv.pop() == "async":
        asyncio.run(on_a_loop(*sys.argv[1:]))
    else:
        in_a_thread(*sys.argv[1:])
