"""What may happen to a PostgreSQL under a fleet, one class each."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

import psycopg

from robustness.faults import Fault

if TYPE_CHECKING:
    from robustness.fleet import Fleet


def _session(fleet: Fleet) -> psycopg.Connection[Any]:
    return psycopg.connect(fleet.postgres.dsn(fleet.database), autocommit=True)


class _Cut(Fault):
    """A connection breaks at a COMMIT, and at the next one."""

    when: Literal["before", "after"]

    def strike(self, fleet: Fleet) -> None:
        for _ in range(2):
            fleet.cutter.cut(self.when)

    def heal(self, fleet: Fleet) -> None:
        fleet.cutter.wait(lambda: fleet.cutter.left == 0)  # traffic goes on, so somebody commits


class CutBeforeCommit(_Cut):
    """The server never hears of it."""

    when = "before"


class CutAfterCommit(_Cut):
    """The server did it, and nobody hears of that."""

    when = "after"


class _Told(Fault):
    """Somebody with a session of the server's owner."""

    def tell(self, fleet: Fleet, *statements: str) -> None:
        with psycopg.connect(fleet.postgres.dsn(), autocommit=True) as session:
            for statement in statements:
                session.execute(statement)


_END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


class KillSessions(_Told):
    """An administrator ends every session."""

    def strike(self, fleet: Fleet) -> None:
        self.tell(fleet, _END_ALL)


class Serializable(_Told):
    """What does not choose its isolation is serializable: whoever had to wait is told to try again."""

    seconds = (1.0, 3.0)

    def strike(self, fleet: Fleet) -> None:
        self._set(fleet, "serializable")

    def heal(self, fleet: Fleet) -> None:
        self._set(fleet, "read committed")

    def _set(self, fleet: Fleet, level: str) -> None:
        self.tell(
            fleet, f"ALTER ROLE postgres SET default_transaction_isolation = '{level}'", _END_ALL
        )


class Deadlock(Fault):
    """Somebody locks what a flush locks in the other order, until the server has undone one of two."""

    seconds = (0.1, 0.5)

    def strike(self, fleet: Fleet) -> None:
        with _session(fleet) as session:
            before = self._deadlocks(session)
            for _ in range(100):
                with contextlib.suppress(psycopg.errors.DeadlockDetected), session.transaction():
                    session.execute("SELECT 1 FROM activities FOR UPDATE")
                    session.execute("SELECT pg_sleep(0.2)")  # time for a flush to come
                    session.execute("SELECT 1 FROM fencepost_fence FOR UPDATE")
                if self._deadlocks(session) > before:
                    return
        raise AssertionError("no flush came meanwhile")

    def _deadlocks(self, session: psycopg.Connection[Any]) -> int:
        session.execute("SELECT pg_stat_force_next_flush()")
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        (count,) = session.execute(query).fetchone() or (0,)
        return int(count)


class LockTable(Fault):
    """A migration holds the table of activities for a while."""

    seconds = (0.5, 2.0)
    needed = True

    def strike(self, fleet: Fleet) -> None:
        self._session = _session(fleet)
        self._session.execute("BEGIN")
        self._session.execute("LOCK TABLE activities IN ACCESS EXCLUSIVE MODE")

    def heal(self, fleet: Fleet) -> None:
        self._session.execute("ROLLBACK")
        self._session.close()


class KillPostgres(Fault):
    """SIGKILL; it recovers from its log."""

    seconds = (0.2, 1.0)
    needed = True

    def strike(self, fleet: Fleet) -> None:
        fleet.postgres.kill()

    def heal(self, fleet: Fleet) -> None:
        fleet.postgres.start()


POSTGRES: tuple[type[Fault], ...] = (
    CutBeforeCommit,
    CutAfterCommit,
    KillSessions,
    Serializable,
    Deadlock,
    LockTable,
    KillPostgres,
)
