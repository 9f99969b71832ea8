"""A fleet: services and flushers as processes, one Valkey with an append-only file, one SQLite file.

Services reach the server through a proxy that may cut and hold, over TLS if asked for; flushers reach it
directly. In place of the SQLite file there may be a PostgreSQL, behind a proxy that cuts at COMMIT.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import httpx
import redis
import trustme
from sqlalchemy import make_url, text

from campus.running import bytecode
from fencepost.campus.service import open_client, open_likes, open_store
from fencepost.campus.settings import Settings
from fencepost.campus.tables import open_engine
from fencepost.errors import FencepostError
from robustness.machine import Clock, small_disk
from robustness.validate import Ending, Pair
from support.postgres import CommitCutter, PostgresProcess
from support.proxy import Proxy
from support.servers import ServerProcess, ended, ends_with_us

SOON = 60.0
_PATIENCE: Final = {"deadlock_timeout": "100ms"}
_TESTS = Path(__file__).parent.parent


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    until = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < until, f"never came true: {what}"
        # time itself: processes start and end when the machine lets them
        time.sleep(0.02)


class Worker:
    """One process that can be killed, stopped and started again.

    Args:
        log: What it prints goes here.
        words: Its command line.
        ready: What it prints once it is up; a group in it is kept in ``found``.
        env: Variables that it gets beside ours.
    """

    def __init__(
        self, log: Path, words: list[str], ready: str, env: Mapping[str, str] | None = None
    ) -> None:
        self.log, self._words, self._ready, self._env = log, words, ready, env or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._from = 0
        self.found = ""

    def start(self) -> None:
        clean = {name: text for name, text in os.environ.items() if "FENCEPOST" not in name}
        with self.log.open("ab") as out:
            self._from = out.tell()
            self._process = subprocess.Popen(
                self._words,
                cwd=_TESTS,
                env={**clean, "PYTHONUNBUFFERED": "1", **bytecode(), **self._env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        ends_with_us(self._process)

    def wait_ready(self) -> None:
        eventually(self._is_ready, f"{self._words[1:4]} is up; it said {self.said()[-2000:]}")

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended: {self.said()[-2000:]}"
        found = re.search(self._ready, self.said())
        if found:
            self.found = found[1] if found.groups() else found[0]
        return found is not None

    def said(self) -> str:
        return self.log.read_bytes()[self._from :].decode(errors="replace")

    def tell(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            ended(self._process)

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(SOON)
        ended(self._process)
        return code


class Fleet:
    """Everything that runs.

    Args:
        home: Where files go.
        services: How many services.
        flushers: How many flushers.
        items: How many activities there are.
        proxy: Whether services reach the server through a proxy, which takes its time.
        careless: Take a guard away from the flushers, for a run that must fail.
        clocks: Give the server a clock that can be set, and the workers another.
        disk: Give the database a small disk of its own.
        tls: Let services speak TLS to the proxy.
        postgres: Keep the rows in a PostgreSQL.
    """

    postgres: PostgresProcess
    cutter: CommitCutter
    database = ""

    def __init__(
        self,
        home: Path,
        *,
        services: int = 2,
        flushers: int = 2,
        items: int = 6,
        proxy: bool = True,
        careless: bool = False,
        clocks: bool = False,
        disk: bool = False,
        tls: bool = False,
        postgres: bool = False,
    ) -> None:
        self._stack = contextlib.ExitStack()
        home.mkdir(exist_ok=True)
        self.home = home
        names = ("server", "workers") if clocks else ()
        self.clocks = [Clock(home / f"{name}.clock") for name in names]
        envs = [clock.env for clock in self.clocks] or [{}, {}]
        self.server, self._env = ServerProcess("valkey", aof="always", env=envs[0]), envs[1]
        self.settings = Settings(data=home / "data", url=self.server.unix_url, samples=False)
        self._disk, self._behind_proxy, self._tls = disk, proxy, tls
        self._with_postgres = postgres
        self._count = (services, flushers, items)
        self._careless = ["careless"] if careless else []
        self.services: list[Worker] = []
        self.flushers: list[Worker] = []
        self.items: list[int] = []

    def __enter__(self) -> Self:
        with self._stack:
            if self._disk:
                self._stack.enter_context(small_disk(self.settings.data))
            self._stack.enter_context(self.server)
            self.proxy = self._stack.enter_context(Proxy(self.server, tls=self._certified()))
            if self._with_postgres:
                self._keep_rows_in(self._stack.enter_context(PostgresProcess(**_PATIENCE)))
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _certified(self) -> ssl.SSLContext | None:
        """What a proxy that speaks TLS needs; services trust its authority."""
        if not self._tls:
            return None
        authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        authority.cert_pem.write_to_path(self.home / "ca.pem")
        return context

    def _keep_rows_in(self, postgres: PostgresProcess) -> None:
        url = postgres.create_database()
        self.postgres, self.database = postgres, make_url(url).database or ""
        self.cutter = self._stack.enter_context(CommitCutter(postgres))
        self.settings = dataclasses.replace(self.settings, database=url)

    def _start(self) -> None:
        services, flushers, items = self._count
        settings = self.settings
        serve = [sys.executable, "-m", "fencepost.cli", "serve", "--port", "0", "--no-flusher"]
        serve += ["--no-samples", "--data", str(settings.data)]
        url = self.proxy.url + (f"?ssl_ca_certs={self.home / 'ca.pem'}" if self._tls else "")
        serve += ["--url", url if self._behind_proxy else self.server.unix_url]
        database = self.cutter.database(settings.database) if settings.database else ""
        if database:
            serve += ["--database", database]
        flush = [sys.executable, "-m", "robustness.flusher", str(settings.data)]
        flush += [str(settings.url), settings.namespace, database, *self._careless]
        for number in range(services):
            self.services.append(
                Worker(
                    self.home / f"service{number}.log",
                    serve,
                    r"http://[^:\s]+:(\d+)",
                    self._env,
                )
            )
        for number in range(flushers):
            log = self.home / f"flusher{number}.log"
            self.flushers.append(Worker(log, flush, "flushing", self._env))
        for worker in self.services:
            self._stack.callback(worker.kill)
            worker.start()
        self.services[0].wait_ready()  # its tables are what the flushers need
        for worker in self.flushers:
            self._stack.callback(worker.kill)
            worker.start()
        for worker in (*self.services, *self.flushers):
            worker.wait_ready()
        self._add(items)

    def _add(self, items: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port(0)}", timeout=SOON) as client:
            for number in range(items):
                new = {
                    "title": f"no. {number}",
                    "place": "x",
                    "starts_at": "2030-01-01T00:00:00Z",
                    "capacity": 1,
                }
                answer = client.post("/api/activities", json=new)
                assert answer.status_code == 201, answer.text
                self.items.append(answer.json()["id"])

    def port(self, service: int) -> int:
        """Where a service listens now."""
        return int(self.services[service].found)

    def command(self, *words: Any) -> Any:
        """A command past everything of ours, on a connection of its own."""
        client: Any = redis.Redis(unix_socket_path=str(self.server.socket))
        with contextlib.closing(client):
            return client.execute_command(*words)

    def sql(self) -> sqlite3.Connection:
        """The database, past everything of ours."""
        return sqlite3.connect(self.settings.sqlite_path, timeout=10, isolation_level=None)

    # -- the end

    def drain(self) -> None:
        """Wait until the fleet's own flushers have brought everything into SQL."""
        eventually(lambda: asyncio.run(self._backlog()) == 0, "the flushers empty the journal")

    async def _backlog(self) -> int:
        engine = open_engine(self.settings)
        try:
            async with open_client(self.settings) as client:
                return (await open_likes(client, open_store(engine)).backlog()).items
        except FencepostError:
            return -1
        finally:
            engine.dispose()

    def stop(self) -> None:
        """Stop services and flushers as a deploy would; each must end in order."""
        for worker in (*self.services, *self.flushers):
            code = worker.stop()
            assert code == 0, f"it ended with {code}: {worker.said()[-2000:]}"

    def complaints(self, allowed: str = "") -> list[str]:
        """Errors and traces in anybody's log, but for those that a run expects."""
        lines = [
            f"{worker.log.name}: {line}"
            for worker in (*self.services, *self.flushers)
            for line in worker.log.read_text(errors="replace").splitlines()
            if re.search(r"\bERROR\b|^Traceback", line)
        ]
        return [line for line in lines if not allowed or allowed not in line]

    def ending(self, pairs: list[Pair]) -> Ending:
        """What SQL and the cache say of these pairs, and what an audit finds."""
        return asyncio.run(self._ending(pairs))

    async def _ending(self, pairs: list[Pair]) -> Ending:
        engine = open_engine(self.settings)
        try:
            async with open_client(self.settings) as client:
                likes = open_likes(client, open_store(engine))
                backlog = (await likes.backlog()).items
                cached = {}
                for user in sorted({user for _, user in pairs}):
                    for item, status in (await likes.status_many(self.items, user)).items():
                        cached[item, user] = (status.liked, status.count)
                audit = await likes.audit()
            with engine.connect() as connection:
                liked = frozenset(
                    (row.activity_id, row.user_id)
                    for row in connection.execute(text("SELECT * FROM activities_likes"))
                )
                activities = connection.execute(text("SELECT id, like_count FROM activities"))
                counted = {row.id: row.like_count for row in activities}
        finally:
            engine.dispose()
        found = [
            f"{one.kind} of {one.item}: {one.found}, not {one.expected}"
            for one in audit.differences
        ]
        return Ending(liked, counted, cached, backlog, found)
