"""``fencepost jobs``: what an operator sees of queues, may do about jobs, and how workers are started."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost import Client
from fencepost.cli import main
from support.until import until_sync


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    # A namespace with signs that mean something in a pattern.
    with Client.from_url(server_url, namespace=f"t[{secrets.token_hex(4)}]*") as client:
        yield client


@pytest.fixture
def run(client: Client, server_url: str) -> Any:
    def one(*words: str, json: bool = False) -> Result:
        where = ["--url", server_url, "--namespace", client.namespace]
        return CliRunner().invoke(main, ["jobs", *where, *(["--json"] if json else []), *words])

    return one


class Mail:
    def __init__(self, client: Client) -> None:
        self.jobs = client.jobs("ma:il", history=100)

        @self.jobs.job(retries=0)
        def welcome(user: int, greeting: str = "hello") -> None:
            if user == 13:
                raise ValueError("no such user")

        self.welcome = welcome

    def work(self) -> None:
        self.jobs.worker(name="w1").run(burst=True, signals=False)


@pytest.fixture
def mail(client: Client) -> Mail:
    return Mail(client)


def test_a_stuck_queue_is_seen(run: Any, mail: Mail) -> None:
    assert run().output == "there is no queue\n"
    mail.welcome.send(7)
    assert "1 ready, 0 due, 0 running" in run().output
    assert "STUCK: no worker has looked ever" in run().output
    mail.jobs.pause()
    assert "STUCK: it is paused" in run("stats", "ma:il").output
    mail.jobs.resume()
    mail.work()
    told = run("stats", "ma:il").output
    assert told.startswith("ma:il: 0 ready, 0 due, 0 running\n  worker w1:")
    mail.welcome.after(days=1).send(7)
    [row] = json.loads(run(json=True).output)
    assert (row["due"], row["overdue"], row["stuck"], len(row["workers"])) == (1, 0, "", 1)


def test_a_late_queue_can_be_watched(run: Any, client: Client, mail: Mail) -> None:
    assert run("stats", "ma:il", "--max-late", "60").exit_code == 0
    mail.welcome.send(7)
    handle = mail.welcome.send(8)
    ready = mail.jobs._place.keys.ready
    client.command("ZINCRBY", ready, -120_000, handle.id)
    assert run("stats", "ma:il", "--max-late", "60").exit_code == 2
    assert "the one that waits longest is 12" in run("stats", "ma:il").output


def test_jobs_are_listed_and_shown(run: Any, mail: Mail) -> None:
    assert run("list", "ma:il").output == "there is none\n"
    due = mail.welcome.after(hours=1).send(1)
    dead = mail.welcome.named("the 13th").send(13, greeting="g" * 100)
    mail.work()
    ready = mail.welcome.send(2)
    lines = run("list", "ma:il").output.splitlines()
    assert [line.split(" ")[0] for line in lines] == [due.id, ready.id, dead.id]
    assert f"{ready.id} welcome(2) ready since 20" in lines[1]
    assert "1 failed: ValueError: no such user" in lines[2]
    assert "…" in lines[2]
    assert run("list", "ma:il", "--state", "due").output.count("\n") == 1
    rows = json.loads(run("list", "ma:il", json=True).output)
    assert [row["state"] for row in rows] == ["due", "ready", "dead"]
    told = run("show", "ma:il", "the 13th")
    assert told.exit_code == 0
    head, added, failed = told.output.splitlines()
    assert head.startswith("the 13th: dead at 20")
    assert " added, due " in added
    assert " failed, given up by w1:" in failed
    assert " s late" in failed
    assert run("show", "ma:il", "nobody").exit_code == 1
    assert json.loads(run("show", "ma:il", due.id, json=True).output)["state"] == "due"


def test_jobs_are_run_again_moved_and_cancelled(run: Any, mail: Mail) -> None:
    dead, due = mail.welcome.send(13), mail.welcome.after(hours=1).send(1)
    mail.work()
    told = run("retry", "ma:il", dead.id, due.id)
    assert (told.exit_code, told.output.count("runs as soon as")) == (0, 2)
    assert (dead.status().state, due.status().state) == ("ready", "ready")
    assert run("move", "ma:il", due.id, "--in", "60").exit_code == 0
    assert due.status().state == "due"
    assert run("move", "ma:il", due.id, "--at", "2090-01-01T00:00:00+00:00").exit_code == 0
    assert run("move", "ma:il", due.id, "--at", "2090-01-01T00:00:00").exit_code == 1
    assert run("move", "ma:il", due.id, "--at", "soon").exit_code == 2
    assert run("move", "ma:il", due.id).exit_code == 2
    assert run("cancel", "ma:il", due.id).output == f"{due.id}: cancelled\n"
    assert run("cancel", "ma:il", due.id).exit_code == 1
    assert run("retry", "ma:il", due.id).exit_code == 1
    assert run("move", "ma:il", due.id, "--in", "1").exit_code == 1


def test_the_dead_are_replayed_or_forgotten(run: Any, mail: Mail) -> None:
    for _ in range(3):
        mail.welcome.send(13)
    mail.work()
    assert run("dead", "ma:il").output.count("ValueError: no such user") == 3
    assert run("dead", "ma:il", "--most", "1", "--discard").output.endswith("1 are forgotten\n")
    assert run("dead", "ma:il", "--replay").output.endswith("2 run again\n")
    assert run("dead", "ma:il").output == "there is none\n"
    assert mail.jobs.count().ready == 2
    assert run("dead", "ma:il", "--replay", "--discard").exit_code == 2


def test_what_does_not_work_is_one_line() -> None:
    invoke = CliRunner().invoke
    assert invoke(main, ["jobs", "--url", "nonsense://"]).output.startswith("Error: a server URL")
    told = invoke(main, ["jobs"], env={"FENCEPOST_URL": ""})
    assert (told.exit_code, "--url" in told.output) == (2, True)
    for app, why in (
        ("mail", "is not package.module:name"),
        ("no_such_module:mail", "there is no module"),
        ("json:nothing", "json has no nothing"),
        ("json:dumps", "is no queue of jobs but function"),
    ):
        told = invoke(main, ["jobs", "work", app])
        assert (told.exit_code, why in told.output) == (2, True), told.output


# -- work, as a process

APP = """
import asyncio, os
from fencepost import AsyncClient, Client

client = AsyncClient.from_url(os.environ["FENCEPOST_URL"], namespace=os.environ["NAMESPACE"])
mail = client.jobs("mail")
bills = Client.from_url(os.environ["FENCEPOST_URL"], namespace=os.environ["NAMESPACE"]).jobs("bills")

@mail.job()
async def welcome(user: int) -> None:
    if user < 0:
        await asyncio.Event().wait()

@bills.job()
def bill(order: int) -> int:
    return order
"""


@pytest.fixture
def start(tmp_path: Path, server_url: str, namespace: str) -> Iterator[Any]:
    (tmp_path / "shopapp.py").write_text(APP)
    begun: list[subprocess.Popen[str]] = []

    def one(*words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "FENCEPOST_URL": server_url, "NAMESPACE": namespace}
        process = subprocess.Popen(
            [sys.executable, "-m", "fencepost.cli", "jobs", "work", *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        begun.append(process)
        return process

    yield one
    for process in begun:
        process.kill()
        process.communicate()


def test_work_runs_the_queues_of_an_application(
    start: Any, server_url: str, namespace: str
) -> None:
    with Client.from_url(server_url, namespace=namespace) as client:
        mail, bills = client.jobs("mail"), client.jobs("bills")
        welcome = mail.job(name="welcome")(lambda user: None)
        bill = bills.job(name="bill")(lambda order: None)
        mail.add_many([welcome.message(n) for n in range(5)])
        handle = bill.send(7)
        output, _ = start("shopapp:mail", "shopapp:bills", "--burst").communicate(timeout=120)
        assert "works on mail: welcome\nworks on bills: bill\n" in output
        assert "mail: 5 done, 0 failed" in output
        assert handle.result(wait=0) == 7


def test_sigterm_drains_and_hands_back(start: Any, server_url: str, namespace: str) -> None:
    with Client.from_url(server_url, namespace=namespace) as client:
        mail = client.jobs("mail")
        welcome = mail.job(name="welcome")(lambda user: None)
        endless = welcome.send(-1)
        process = start("shopapp:mail", "--grace", "0.1", "--name", "w")
        until_sync(lambda: endless.status().state == "running")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        # At once, not when its lease ends, and nothing is counted against it.
        status = endless.status()
        assert (status.state, status.counts.tries, status.counts.crashes) == ("ready", 0, 0)
