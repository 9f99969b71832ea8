"""A holder is paused between its check and its act, for longer than its lease lasts.

    python examples/paused_holder.py [redis://localhost:6379]

No lock can stop what it does when it goes on: it looked, and the lease stood. The resource can. Both
holders here write a document with ``fenced_set``, which compares fences in the script that writes; the
one that comes too late is refused. With a plain SET it would win.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from fencepost import Client, FenceRefused, LeaseLost


def paused(url: str) -> None:
    """The process that will be paused."""
    with Client.from_url(url, namespace="example") as client:
        try:
            with client.lock("document", ttl=1) as lease:
                lease.check()
                print("first : holds the lock, has checked it, and is paused here", flush=True)
                sys.stdin.readline()
                for name, write in (
                    ("plain", lambda: client.command("SET", "example:plain", "first")),
                    ("fenced", lambda: client.fenced_set("example:fenced", "first", lease)),
                ):
                    try:
                        write()
                        print(f"first : goes on, and has written the {name} document", flush=True)
                    except FenceRefused as error:
                        print(f"first : goes on, and is refused: {error}", flush=True)
        except LeaseLost as error:
            print(f"first : learns that {error}", flush=True)


def main(url: str) -> None:
    child = subprocess.Popen(
        [sys.executable, __file__, url, "paused"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    print(child.stdout.readline(), end="")
    os.kill(child.pid, signal.SIGSTOP)
    with Client.from_url(url, namespace="example") as client:
        with client.lock("document", wait=30) as lease:
            client.command("SET", "example:plain", "second")
            client.fenced_set("example:fenced", "second", lease)
            print("second: got the lock when the lease had ended, and has written both")
            os.kill(child.pid, signal.SIGCONT)
            print(child.communicate("go on\n")[0], end="")
        for name in ("plain", "fenced"):
            value = client.command("GET", f"example:{name}").decode()
            print(f"the {name} document is by the {value}")
        client.command("DEL", "example:plain", "example:fenced", "{example:fenced}:fence")


if __name__ == "__main__":
    if sys.argv[2:] == ["paused"]:
        paused(sys.argv[1])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "redis://localhost:6379")
