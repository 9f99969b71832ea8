"""``fencepost likes`` on likes of one's own: what each command says, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select, text

from fencepost import Client
from fencepost.cli import main
from fencepost.likes import Likes, SqlLikes
from support.likes import TABLES, activities, open_database

APP = """
from fencepost import AsyncClient
from fencepost.likes import SqlLikes
from support.likes import TABLES, open_database
import contextlib

@contextlib.asynccontextmanager
async def likes():
    async with AsyncClient.from_url({url!r}, namespace={namespace!r}) as client:
        yield client.likes("activities", store=SqlLikes(open_database({path!r}), **TABLES))
"""


@pytest.fixture
def app(server_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with likes of two items, three of them waiting for their flush."""
    module = f"app_{namespace}"
    path = tmp_path / "app.db"
    (tmp_path / f"{module}.py").write_text(
        APP.format(url=server_url, namespace=namespace, path=str(path))
    )
    monkeypatch.syspath_prepend(tmp_path)
    engine = open_database(path)
    with engine.begin() as connection:
        connection.execute(
            activities.insert(), [{"id": 1, "like_count": 0}, {"id": 2, "like_count": 0}]
        )
    store = SqlLikes(engine, **TABLES)
    store.create_tables()
    with Client.from_url(server_url, namespace=namespace) as client:
        likes: Likes = client.likes("activities", store=store)
        for item, user in ((1, "ann"), (1, "bob"), (2, "ann")):
            likes.like(item, user)
    engine.dispose()
    return f"{module}:likes"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["likes", *words])


def rows(tmp_path: Path) -> dict[int, int]:
    engine = open_database(tmp_path / "app.db")
    with engine.connect() as connection:
        found = {row.id: row.like_count for row in connection.execute(select(activities))}
    engine.dispose()
    return found


def told(result: Result) -> Any:
    return json.loads(result.stdout)


def test_status_tells_what_waits(app: str) -> None:
    result = run("status", "--app", app, "--json")
    assert (result.exit_code, told(result)["items"]) == (0, 2)
    assert "2 items with 3 changes wait" in run("status", "--app", app).output


def test_drain_brings_it_to_sql(app: str, tmp_path: Path) -> None:
    assert rows(tmp_path) == {1: 0, 2: 0}
    result = run("drain", "--app", app)
    assert (result.exit_code, result.output) == (0, "likes of 2 items waited; 0 are left\n")
    assert rows(tmp_path) == {1: 2, 2: 1}


def test_audit_finds_and_repair_mends(app: str, tmp_path: Path) -> None:
    assert run("audit", "--app", app).output == "2 items compared, 0 differences found\n"
    assert run("drain", "--app", app).exit_code == 0
    engine = open_database(tmp_path / "app.db")
    with engine.begin() as connection:  # somebody writes past us
        connection.execute(
            text("DELETE FROM activities_likes WHERE activity_id = 1 AND user_id = 'bob'")
        )
    engine.dispose()
    found = run("audit", "--app", app, "--json")
    assert found.exit_code == 1
    assert {one["kind"] for one in told(found)["differences"]} == {"rows", "count", "heart"}
    assert rows(tmp_path) == {1: 2, 2: 1}, "an audit changes nothing"
    mended = run("repair", "--app", app)
    assert mended.exit_code == 0
    assert mended.output.endswith("2 items compared, 3 differences found and mended\n")
    assert rows(tmp_path) == {1: 1, 2: 1}
    assert run("audit", "--app", app).exit_code == 0


def test_flush_runs_until_it_is_told_to_stop(app: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fencepost.cli", "likes", "flush", "--app", app, "--json"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "flushing; Ctrl-C or SIGTERM ends it\n"
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, json.loads(said)["left"]) == (0, 0)
    assert rows(tmp_path) == {1: 2, 2: 1}


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere:likes", "No module named 'nowhere'"),
        ("json:nothing", "nothing"),
        ("json", "package.module:name"),
        ("json:JSONEncoder", "not AsyncLikes"),
    ],
)
def test_wrong_app_is_one_line(target: str, says: str) -> None:
    result = run("status", "--app", target)
    assert result.exit_code != 0
    assert says in result.output
    assert "Traceback" not in result.output
