"""``fencepost leaders``: who leads, as everybody can see it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost import Client
from fencepost.cli import main


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    # A namespace with signs that mean something in a pattern.
    with Client.from_url(server_url, namespace=f"t[{secrets.token_hex(4)}]*") as client:
        yield client


@pytest.fixture
def run(client: Client, server_url: str) -> Any:
    def one(command: str = "leaders", json: bool = False) -> Result:
        where = ["--url", server_url, "--namespace", client.namespace]
        return CliRunner().invoke(main, [command, *where, *(["--json"] if json else [])])

    return one


def test_who_leads_what(client: Client, run: Any) -> None:
    assert run().output == "nobody leads\n"
    assert json.loads(run(json=True).output) == []
    one = client.election("nightly", identity="db1", metadata={"version": "3", "port": "80"})
    two = client.election("a{:", identity="db2", ttl=600, renew_deadline=400)
    long = client.election("n" * 500, identity="db3")
    with (
        one.lead() as term,
        two.lead() as other,
        long.lead(),
        client.lock("no election", owner="me"),
    ):
        rows = json.loads(run(json=True).output)
        assert [row["identity"] for row in rows] == ["db2", "db1", "db3"]
        assert [row["name"] for row in rows][:2] == ["a{:", "nightly"]
        assert rows[2]["name"].startswith("nnnn")
        assert [row["fence"] for row in rows][:2] == [other.fence, term.fence]
        assert [row["ttl"] for row in rows] == [600, 15, 15]  # each as its own leader has it
        assert rows[1]["metadata"] == {"version": "3", "port": "80"}
        for row in rows:
            assert row["since"] <= row["until"]
            assert 0 < row["remaining"] <= row["ttl"]
        text = run().output
        assert f"nightly: db1, fence {term.fence}, since 20" in text
        assert "s, port=80, version=3\n" in text
        # Among the locks it is shown by who it is, not by its card.
        assert f"election:nightly: db1, fence {term.fence}" in run("locks").output
    assert run().output == "nobody leads\n"


def test_somebody_without_a_card_is_shown_too(client: Client, run: Any) -> None:
    with client.lock("election:x", owner="maintenance"):
        [row] = json.loads(run(json=True).output)
        assert (row["name"], row["identity"], row["metadata"]) == ("x", "maintenance", {})


def test_what_does_not_work_is_one_line() -> None:
    told = CliRunner().invoke(main, ["leaders", "--url", "nonsense://"])
    assert told.exit_code == 1
    assert told.output.startswith("Error: a server URL begins with")
