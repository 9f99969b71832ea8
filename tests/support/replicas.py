"""A primary and its replica, and a failover between them that loses what the replica had not received.

with Pair() as pair:
    client = Client.from_url(pair.url)      # wherever the primary is
    pair.fall_behind()                      # from here on the replica receives nothing
    ...
    pair.fail_over()                        # the primary is gone, the replica is promoted
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Self

import redis

from support.servers import ServerProcess


class Pair:
    """Both run, and the replica has everything that the primary has."""

    def __init__(self) -> None:
        quick = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
        self.primary = ServerProcess("valkey", *quick, port=0)
        follow = ("--replicaof", "127.0.0.1", str(self.primary.port))
        self.replica = ServerProcess("valkey", *follow)
        self._now = self.replica.home / "now"

    @property
    def url(self) -> str:
        """Where clients find the primary: before a failover and after it."""
        return f"unix://{self._now}"

    def fall_behind(self) -> None:
        """The replica loses its primary, keeps what it has, and waits."""
        _ask(self.replica, "REPLICAOF", "127.0.0.1", 1)

    def ask_replica(self, *words: Any) -> Any:
        """A command to the replica, in whatever role it is."""
        return _ask(self.replica, *words)

    def promote(self) -> None:
        """The replica becomes a primary, and clients find it; the old primary is left alone."""
        _ask(self.replica, "REPLICAOF", "NO", "ONE")
        self._point_at(self.replica)

    def fail_over(self) -> None:
        """The primary is gone for good, and the replica takes its place."""
        self.primary.kill()
        self.promote()

    def caught_up(self) -> None:
        """Wait until the replica has all that the primary has."""
        with _connected(self.primary) as client:
            while client.info("replication").get("slave0", {}).get("state") != "online":
                client.ping()
            client.set("caught:up", 1)  # what the WAIT behind it waits for
            assert client.wait(1, 0) == 1

    def _point_at(self, server: ServerProcess) -> None:
        other = self._now.with_name("next")
        other.symlink_to(server.socket)
        os.replace(other, self._now)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.primary)
            stack.enter_context(self.replica)
            self._point_at(self.primary)
            self.caught_up()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.replica.running:
            self.replica.resume()
        self._stack.close()


def _connected(server: ServerProcess) -> Any:
    """A plain client: ours would refuse a replica."""
    client: Any = redis.Redis(unix_socket_path=str(server.socket))
    return contextlib.closing(client)


def _ask(server: ServerProcess, *words: Any) -> Any:
    with _connected(server) as client:
        return client.execute_command(*words)
