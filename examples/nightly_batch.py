"""Two services start the same batch at once. An election lets one begin; a gate in SQL decides.

    python examples/nightly_batch.py [redis://localhost:6379] [--without-gate]

The leader computes, looks at its term, which stands, and is paused just before it writes: by its machine,
a debugger, a garbage collector. When its lease has ended the other one leads and pays the interest. Then
the first goes on, with a check that lies long behind it. Its statement carries its fence, and changes no
row where a newer one has been. Without that condition, interest is paid twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
    update,
)

from fencepost import Client
from fencepost.election import Term
from fencepost.sql.guards import fence_guard, fence_values

NIGHT = "2026-03-29"
metadata = MetaData()
accounts = Table(
    "accounts", metadata, Column("id", Integer, primary_key=True), Column("cents", Integer)
)
batches = Table(
    "batches",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("night", String(10), nullable=False),
    Column("fence", BigInteger),  # of who ran it last
)


def pay_interest(engine: Engine, term: Term, gate: bool) -> str:
    """The batch: all of it is one transaction, and begins with its gate."""
    mine = batches.c.name == "interest"
    with engine.begin() as connection:
        done = connection.execute(select(batches.c.night).where(mine)).scalar_one() == NIGHT
    term.check(at_least=0.1)
    print(f"leads, has looked (paid: {done}), and is about to write", flush=True)
    sys.stdin.readline()  # whoever is paused, is paused here
    with engine.begin() as connection:
        passed = connection.execute(
            update(batches)
            .where(mine, fence_guard(batches.c.fence, term) if gate else True)
            .values({batches.c.night: NIGHT, **fence_values(batches.c.fence, term)})
        )
        if passed.rowcount == 0:
            return "is refused: a newer leader has been here, and nothing was changed"
        if done:
            return "finds that it is paid, and has nothing to do"
        connection.execute(update(accounts).values(cents=accounts.c.cents + 5))
    return "has paid"


def service(url: str, database: str, identity: str, gate: bool) -> None:
    """One of the two services."""
    engine = create_engine(f"sqlite:///{database}")
    with Client.from_url(url, namespace="example") as client:
        election = client.election("nightly", ttl=3, renew_deadline=2, retry=0.5, identity=identity)

        def batch(term: Term) -> None:
            print(pay_interest(engine, term, gate), flush=True)
            election.stop()

        election.run(batch)
    engine.dispose()


class Service:
    """A process of this program."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def goes_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def main(url: str, *more: str) -> None:
    with (
        tempfile.TemporaryDirectory() as home,
        Client.from_url(url, namespace="example") as client,
    ):
        database = str(Path(home) / "bank.sqlite3")
        engine = create_engine(f"sqlite:///{database}")
        metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(insert(accounts), [{"id": n, "cents": 100} for n in range(3)])
            connection.execute(insert(batches).values(name="interest", night=""))
        services = {
            name: Service("service", url, database, name, *more) for name in ("berlin", "paris")
        }
        leaders = client.election("nightly").observe()
        first = next(leader for leader in leaders if leader is not None)
        one = services.pop(first.identity)
        [other] = services.values()
        print(f"first : {one.says()}")
        os.kill(one.process.pid, signal.SIGSTOP)
        print("first : is paused for longer than its lease lasts")
        second = next(
            leader for leader in leaders if leader is not None and leader.fence > first.fence
        )
        print(f"second: {other.says()}")
        assert second.fence > first.fence
        other.goes_on()
        print(f"second: {other.says()}")
        os.kill(one.process.pid, signal.SIGCONT)
        one.goes_on()
        print(f"first : {one.says()}")
        for each in (one, other):
            each.process.communicate("\n")
        with engine.begin() as connection:
            print("cents on each account:", *connection.scalars(select(accounts.c.cents)))
        engine.dispose()


if __name__ == "__main__":
    gated = "--without-gate" not in sys.argv
    words = [word for word in sys.argv[1:] if word != "--without-gate"]
    if words[:1] == ["service"]:
        service(words[1], words[2], words[3], gated)
    else:
        main(
            words[0] if words else "redis://localhost:6379", *([] if gated else ["--without-gate"])
        )
