"""``fencepost serve`` as processes: started, joined, stopped, killed, and started wrongly."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
from click.testing import CliRunner

from campus.running import Forms, Serve, eventually, heart, in_sql
from fencepost.campus.security import load_secret
from fencepost.cli import main
from support.process import TESTS, bytecode
from support.servers import ServerProcess
from support.until import until_sync

if TYPE_CHECKING:
    from pathlib import Path

Start = Any  # the fixture `serve`: options and environment to a `Serve`
NO_ENV: dict[str, str | None] = dict.fromkeys(
    f"FENCEPOST_{name}" for name in ("URL", "DATABASE", "NAMESPACE", "TOKEN", "SECRET")
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def put(client: httpx.Client, item: int, user: str) -> dict[str, Any]:
    answer = client.put(f"/api/activities/{item}/likes/{user}")
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def ids(client: httpx.Client) -> list[int]:
    items = client.get("/api/activities", params={"limit": 100}).json()["items"]
    return [item["id"] for item in items]


def fails(process: Serve) -> str:
    """The one line of a process that could not start."""
    return one_line(*process.wait())


def refuses(data: Path, *options: str, **env: str) -> str:
    """The same, of the command called in this process: as it ends before it serves anything."""
    words = ["serve", "--port", "0", "--data", str(data), *options]
    result = CliRunner().invoke(main, words, env=NO_ENV | env)
    return one_line(result.exit_code, result.stdout, result.stderr)


def one_line(code: int, said: str, complained: str) -> str:
    assert code == 1, complained
    assert said == ""
    line, *rest = complained.splitlines()
    assert rest == [], complained
    return line


# -- one campus, however many processes


def test_two_processes_on_one_data_directory_behave_as_one(serve: Start) -> None:
    one, two = serve(), serve()  # both start at once: tables, key and samples are made once
    with one.client() as first, two.client() as second:
        assert ids(first) == ids(second) == list(range(12, 0, -1))
        assert put(first, 12, "ada") == {"liked": True, "like_count": 1, "changed": True}
        assert put(second, 12, "ada") == {"liked": True, "like_count": 1, "changed": False}
        assert put(second, 12, "bob")["like_count"] == 2
        shown = first.get("/api/activities/12", params={"user": "bob"}).json()
        assert (shown["liked"], shown["like_count"]) == (True, 2)
        made = second.post(
            "/api/activities",
            json={"title": "T", "place": "P", "starts_at": "2026-01-01T00:00Z", "capacity": 1},
        ).json()
        place = f"/api/activities/{made['id']}"
        assert first.get(place).json()["title"] == "T"
        for changer, other, title in ((second, first, "U"), (first, second, "V")):
            assert changer.patch(place, json={"title": title}).status_code == 200
            for each in (changer, other):
                assert each.get(place).json()["title"] == title
                assert each.get("/api/activities").json()["items"][0]["title"] == title
        # on the disk of the server that both share
        safe = first.put("/api/activities/11/likes/ada", params={"durability": "replicated"})
        assert safe.json() == {"liked": True, "like_count": 1, "changed": True}
        # a session that one signed is good for the other
        form = Forms(first.get("/").text).forms["/sign-in"]
        first.post("/sign-in", data=form | {"name": "ada"})
        second.cookies = first.cookies
        assert heart(second.get("/").text, 12) == ("true", 2)


def test_many_clients_of_two_processes_end_as_each_user_wished(serve: Start, data: Path) -> None:
    one, two = serve(), serve()
    urls = [one.url, two.url]

    def click(user: int) -> bool:
        """One user's wishes, each sent to either process; returns the last."""
        dice = random.Random(user)
        wish = False
        with httpx.Client(timeout=30) as client:
            for _ in range(20):
                wish = dice.random() < 0.5
                send = client.put if wish else client.delete
                answer = send(f"{dice.choice(urls)}/api/activities/7/likes/u{user}")
                assert answer.json()["liked"] is wish
        return wish

    with ThreadPoolExecutor(12) as threads:
        wishes = dict(enumerate(threads.map(click, range(24))))
    count = sum(wishes.values())
    with one.client() as client:
        for user, wish in wishes.items():
            shown = client.get("/api/activities/7", params={"user": f"u{user}"}).json()
            assert (shown["liked"], shown["like_count"]) == (wish, count)
    assert one.stop()[0] == two.stop()[0] == 0
    assert in_sql(data) == {7: (count, count)}


def test_a_restart_keeps_everything(serve: Start, data: Path) -> None:
    before = serve()
    with before.client() as client:
        put(client, 3, "ada")
        put(client, 3, "bob")
        client.delete("/api/activities/3/likes/bob")
    assert before.stop()[0] == 0
    with serve().client() as client:
        assert ids(client) == list(range(12, 0, -1))
        shown = client.get("/api/activities/3", params={"user": "ada"}).json()
        assert (shown["liked"], shown["like_count"]) == (True, 1)
        assert not client.get("/api/activities/3", params={"user": "bob"}).json()["liked"]
    assert in_sql(data) == {3: (1, 1)}


# -- stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_writes_every_like_to_the_database_and_exits_0(
    serve: Start, data: Path, number: signal.Signals
) -> None:
    process = serve()
    with process.client() as client:
        for user in range(30):
            put(client, 1 + user % 12, f"u{user}")
    process.tell(number)
    code, said, complained = process.wait()
    assert (code, complained) == (0, "")
    assert said.splitlines()[-1] == "campus has stopped; every like is in the database"
    assert in_sql(data) == {item: (3, 3) if item <= 6 else (2, 2) for item in range(1, 13)}


def test_a_stop_says_what_is_left(serve: Start, data: Path) -> None:
    process = serve("--no-flusher")
    with process.client() as client:
        put(client, 1, "ada")
        put(client, 2, "ada")
    code, said, _ = process.stop()
    assert code == 0
    assert "likes of 2 activities wait in the journal" in said
    assert in_sql(data) == {}
    flushed = CliRunner().invoke(main, ["likes", "drain", "--data", str(data)], env=NO_ENV)
    assert flushed.output == "likes of 2 items waited; 0 are left\n"
    assert flushed.exit_code == 0
    assert in_sql(data) == {1: (1, 1), 2: (1, 1)}


RUN_THAT_IS_KILLED = """
import os, sys
from campus.running import Serve
one = Serve("--data", sys.argv[1], "--no-samples")
assert one.url
print(one.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_service_ends_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", RUN_THAT_IS_KILLED, str(tmp_path / "data")],
        env={**os.environ, **bytecode(), "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == -signal.SIGKILL
    until_sync(lambda: not psutil.pid_exists(int(run.stdout)))


def test_a_stop_ends_though_the_like_server_hangs(serve: Start) -> None:
    with ServerProcess("valkey", aof="always") as server:
        process = serve("--drain", "1", FENCEPOST_URL=server.url)
        with process.client() as client:
            put(client, 1, "ada")
        server.pause()
        process.tell(signal.SIGTERM)
        code, said, _ = process.wait()
        server.resume()
    assert code == 0
    assert "in the journal" in said.splitlines()[-1]


def test_a_stop_ends_though_the_database_is_locked(serve: Start, data: Path) -> None:
    process = serve("--drain", "1")
    with process.client() as client:
        put(client, 1, "ada")  # opens the shard, and is soon flushed
    with closing(sqlite3.connect(data / "campus.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with process.client() as client:
            assert put(client, 1, "bob")["like_count"] == 2
        code, said, _ = process.stop()
        other.execute("ROLLBACK")
    assert code == 0
    assert "likes of 1 activities wait in the journal" in said
    again = serve()
    with again.client() as client:
        assert client.get("/api/activities/1?user=bob").json()["liked"]
    assert again.stop()[1].splitlines()[-1] == "campus has stopped; every like is in the database"
    assert in_sql(data) == {1: (2, 2)}


def test_a_request_under_way_is_answered_before_the_stop(serve: Start) -> None:
    process = serve()
    body = b'{"title":"T","place":"P","starts_at":"2026-01-01T00:00Z","capacity":1}'
    head = (
        b"POST /api/activities HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    port = int(process.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(head + body[:10])
        with process.client() as client:  # an answer later than ours shows that ours has arrived
            client.get("/healthz")
        process.tell(signal.SIGTERM)
        half.sendall(body[10:])
        answer = half.makefile("rb").readline()
    assert answer == b"HTTP/1.1 201 Created\r\n"
    assert process.wait()[0] == 0


async def test_likes_acknowledged_before_a_kill_reach_the_database_after_it(
    serve: Start, data: Path
) -> None:
    killed = serve("--no-flusher")
    with killed.client() as client:
        for user in range(40):
            put(client, 1 + user % 4, f"u{user}")
        for user in range(0, 40, 8):
            client.delete(f"/api/activities/{1 + user % 4}/likes/u{user}")
    killed.kill()
    assert in_sql(data) == {}
    after = serve()
    expected = {1: 5, 2: 10, 3: 10, 4: 10}
    with after.client() as client:
        shown = client.get("/api/activities", params={"user": "u0", "limit": 100}).json()["items"]
        assert {each["id"]: each["like_count"] for each in shown if each["like_count"]} == expected
        assert not any(each["liked"] for each in shown)

    async def written() -> bool:
        found = await asyncio.to_thread(in_sql, data)
        return found == {item: (count, count) for item, count in expected.items()}

    await eventually(written)


async def test_another_process_writes_what_a_killed_one_left(serve: Start, data: Path) -> None:
    killed, other = serve(), serve()
    assert other.url
    with killed.client() as client:
        for user in range(20):
            put(client, 5, f"u{user}")
    killed.kill()

    async def written() -> bool:
        return await asyncio.to_thread(in_sql, data) == {5: (20, 20)}

    await eventually(written)


# -- started wrongly


def test_a_port_that_is_taken_is_one_line_that_says_what_to_do(serve: Start, data: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        line = fails(serve("--port", port))
        assert f"127.0.0.1:{port} is taken" in line
        assert "--port" in line
        assert not data.exists()  # nothing was started for it


def test_beyond_loopback_a_token_is_needed(serve: Start, data: Path) -> None:
    line = refuses(data, "--host", "0.0.0.0")
    assert "FENCEPOST_TOKEN" in line
    assert "127.0.0.1" in line
    assert "too short" in refuses(data, "--host", "0.0.0.0", "--token", "abc")
    guarded = serve("--host", "0.0.0.0", FENCEPOST_TOKEN="open sesame")
    port = re.search(r":(\d+)$", guarded.url)
    assert port
    with guarded.client() as client:
        client.base_url = f"http://127.0.0.1:{port[1]}"
        assert client.get("/api/activities").status_code == 401
        client.headers["Authorization"] = "Bearer open sesame"
        assert client.get("/api/activities").status_code == 200


def test_a_like_server_that_does_not_answer_is_one_line(data: Path, tmp_path: Path) -> None:
    line = refuses(data, FENCEPOST_URL=f"unix://{tmp_path}/nobody")
    assert "FENCEPOST_URL" in line
    assert "wrong scheme" not in line
    assert "URL" in refuses(data, FENCEPOST_URL="gopher://localhost")


@pytest.mark.parametrize(
    "options",
    [
        ("--data", "/dev/null/x"),
        ("--drain", "0"),
        ("--database", "nonsense://x"),
        ("--database", "not a url"),
        ("--database", "sqlite://"),
        ("--database", "sqlite:////nowhere/at/all.sqlite3"),
    ],
)
def test_other_wrong_settings_are_one_line_too(data: Path, options: tuple[str, ...]) -> None:
    assert refuses(data, *options).startswith("Error: ")


def test_a_signing_key_that_others_can_read_is_refused(data: Path) -> None:
    data.mkdir()
    assert load_secret(data / "secret")
    (data / "secret").chmod(0o644)
    assert "chmod 600" in refuses(data)


def test_help_names_the_commands() -> None:
    for words, part in (
        (["--help"], "serve"),
        (["serve", "--help"], "--allow-host"),
        (["likes", "--help"], "flush"),
        (["--version"], "fencepost, version"),
    ):
        assert part in CliRunner().invoke(main, words).output
