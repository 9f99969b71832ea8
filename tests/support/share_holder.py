"""A process that takes shares and does what it is told, a line at a time.

    python -m support.share_holder URL NAMESPACE KIND PERMITS TTL

``take`` takes one (of a semaphore, or to ``read`` or ``write``), says ``held FENCE`` and keeps it;
``acts`` checks all it holds and says how many stand. ``churn N`` takes and gives back N times; while
it is in, it counts itself on the server, and says the most that it saw.
"""

from __future__ import annotations

import sys
from typing import Any

from fencepost import Client, LeaseLost


def say(*words: object) -> None:
    print(*words, flush=True)


def main(url: str, namespace: str, kind: str, permits: str, ttl: str) -> None:
    client = Client.from_url(url, namespace=namespace)
    if kind == "semaphore":
        taker: Any = client.semaphore("x", permits=int(permits), ttl=float(ttl), wait=60)
    else:
        taker = getattr(client.rwlock("x", ttl=float(ttl), wait=60), kind)()
    held = []
    say("ready")
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        match word:
            case "take":
                held.append(taker.acquire())
                say("held", held[-1].fence)
            case "acts":
                stand = 0
                for lease in held:
                    try:
                        lease.check()
                        stand += 1
                    except LeaseLost:
                        pass
                say("stand", stand)
            case "churn":
                most, counter = 0, f"{namespace}:inside"
                for _ in range(int(number)):
                    with taker:
                        most = max(most, client.command("INCR", counter))
                        client.command("DECR", counter)
                say("most", most)


if __name__ == "__main__":
    main(*sys.argv[1:])
