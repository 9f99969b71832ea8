"""A process that holds a lock and does what it is told, a line at a time.

    python -m support.lock_holder URL NAMESPACE NAME TTL

It says ``held FENCE``. Then, for each line: ``act`` checks the lease and writes with its fence
(``done``, or ``lost``, or ``refused``); ``blind`` writes without the check; ``fork`` forks, and the
child leaves the block (``child …``); ``end`` leaves it.
"""

from __future__ import annotations

import os
import sys

from fencepost import Client, FenceRefused, LeaseLost


def say(*words: object) -> None:
    print(*words, flush=True)


def main(url: str, namespace: str, name: str, ttl: str) -> None:
    client = Client.from_url(url, namespace=namespace)
    try:
        with client.lock(name, ttl=float(ttl)) as lease:
            say("held", lease.fence)
            for line in sys.stdin:
                match line.strip():
                    case "act":
                        try:
                            lease.check()
                            client.command("RPUSH", f"{namespace}:acts", lease.fence)
                        except LeaseLost:
                            say("lost")
                        else:
                            say("done")
                    case "blind":
                        try:
                            client.fenced_set(f"{namespace}:doc", str(lease.fence), lease)
                        except FenceRefused as error:
                            say("refused", error.fence)
                        else:
                            say("done")
                    case "fork":
                        if os.fork() == 0:
                            break
                        os.wait()
                        say("parent", int(lease.lost))
                    case "end":
                        break
    except LeaseLost as error:
        say("exit lost", "fork" if "fork" in str(error) else "here")
    else:
        say("exit well")
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
