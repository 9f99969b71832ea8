"""One server a data directory, alive while somebody uses it, whatever happens to them."""

from __future__ import annotations

import concurrent.futures
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from fencepost.errors import Unavailable
from fencepost.server import EmbeddedServer, launcher, start
from server.conftest import alone
from server.processes import Starter, empty, eventually, servers_in, supervisors_in


def client(server: EmbeddedServer | str) -> redis.Redis:
    url = server if isinstance(server, str) else server.url
    return redis.Redis.from_url(url, decode_responses=True)


def test_server_is_what_it_says(data: Path) -> None:
    with start(data) as server, client(server) as link:
        assert server.data == data
        assert server.path == data / "socket"
        assert servers_in(data) == [server.pid] == [link.info("server")["process_id"]]
        assert len(supervisors_in(data)) == 1
        settings = link.config_get(
            "port", "appendonly", "appendfsync", "save", "maxmemory-policy", "aof-load-truncated"
        )
        assert settings == {
            "port": "0",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "aof-load-truncated": "yes",
        }
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()}
        assert modes["socket"] == 0o700
        assert modes["appendonlydir"] == 0o700
        assert {mode for name, mode in modes.items() if name.endswith(("lock", "log"))} == {0o600}
    empty(data)
    assert not (data / "socket").exists()


def test_default_directory_is_used(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    with start() as server:
        assert server.data == data / "fencepost" / "embedded"
    alone(server.data)


def test_relative_directory_is_the_same_wherever_one_goes(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    monkeypatch.chdir(data.parent)
    with start(Path("data")) as server:
        monkeypatch.chdir("/")
        assert server.data == data
        with client(server) as link:
            assert link.ping()


def test_closing_twice_is_harmless_and_does_not_end_another_hold(data: Path) -> None:
    first, second = start(data), start(data)
    assert first.pid == second.pid
    first.close()
    first.close()
    with client(second) as link:
        assert link.ping()
    assert "closed" in repr(first)
    assert "closed" not in repr(second)
    second.close()
    empty(data)


def test_a_hold_that_is_forgotten_lasts_as_long_as_its_process(data: Path) -> None:
    with Starter(data, after="pid = server.pid; del server; import gc; gc.collect()") as starter:
        pid, path = starter.ready()
        with start(data) as joined:  # joins and leaves: the other still holds it
            assert joined.pid == pid
        with client(f"unix://{path}") as link:
            assert link.ping()
        assert servers_in(data) == [pid]
        starter.leave()
    empty(data)


def test_eight_starters_at_once_get_one_server(data: Path) -> None:
    for _ in range(3):
        starters = [Starter(data) for _ in range(8)]
        try:
            pids = {starter.ready()[0] for starter in starters}
            assert servers_in(data) == list(pids)
            assert len(supervisors_in(data)) == 1
        finally:
            for starter in starters:
                starter.kill()
        empty(data)


def test_eight_threads_at_once_get_one_server(data: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        servers = list(pool.map(start, [data] * 8))
    assert servers_in(data) == list({server.pid for server in servers})
    for server in servers:
        server.close()


def test_two_directories_are_two_servers(data: Path) -> None:
    other = data.with_name("other")
    with start(data) as one, start(other) as two, client(one) as a, client(two) as b:
        assert one.pid != two.pid
        a.set("k", "one")
        assert b.get("k") is None
    alone(other)


@pytest.mark.parametrize("name", ["a b", "q?x=1#y%41", 'quo"te\\n', "ünï"])
def test_url_of_an_odd_path_leads_there(data: Path, name: str) -> None:
    odd = data.with_name(name)
    with start(odd) as server, client(server) as link:
        assert link.info("server")["process_id"] == server.pid
    alone(odd)


def test_long_path_works_and_others_find_its_socket(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    long = data / ("x" * 100) / "data"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    runtime = data.parent / "run"
    runtime.mkdir(mode=0o700)
    with start(long) as server, client(server) as link:
        assert len(os.fsencode(server.path)) <= 103
        link.set("k", "v")
        # Another process, whose own choice would be another place.
        with Starter(long, env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)}) as other:
            assert other.ready() == (server.pid, str(server.path))
    alone(long)
    with start(long) as server, client(server) as link:
        assert link.get("k") == "v"
    alone(long)


def test_exec_ed_child_is_no_user_and_a_forked_one_is(data: Path) -> None:
    child = 0
    with (
        start(data) as server,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as cat,
    ):
        go, wake = os.pipe()
        child = os.fork()
        if not child:
            os.close(wake)
            os.read(go, 1)  # until the parent lets go
            os._exit(0)
        os.close(go)
        server.close()
        with Starter(data) as joined:  # had the server been stopping, this one would be another
            assert joined.ready()[0] == server.pid
        os.close(wake)
        os.waitpid(child, 0)
        empty(data)
        assert cat.poll() is None


def test_named_binary_that_cannot_run_is_an_error(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    monkeypatch.setenv("FENCEPOST_SERVER", "/nowhere/valkey-server")
    with pytest.raises(Unavailable, match="FENCEPOST_SERVER"):
        start(data)
    text = data.parent / "text"
    text.write_bytes(b"\x7fELF no")
    text.chmod(0o755)
    monkeypatch.setenv("FENCEPOST_SERVER", str(text))
    with pytest.raises(Unavailable, match=f"cannot run {text}"):
        start(data)
    monkeypatch.delenv("FENCEPOST_SERVER")
    with start(data):
        pass


def test_named_binary_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    named = data.parent / "my-server"
    named.symlink_to(launcher.find_binary())
    monkeypatch.setenv("FENCEPOST_SERVER", str(named))
    with start(data) as server, client(server) as link:
        assert link.info("server")["executable"] == str(named)


def test_server_that_cannot_start_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    with start(data):
        pass
    empty(data)
    manifest = next((data / "appendonlydir").glob("*.manifest"))
    kept = manifest.read_text()
    manifest.write_text("nonsense\n")
    with pytest.raises(Unavailable, match="manifest") as caught:
        start(data)
    assert "did not start: the server ended with 1" in str(caught.value)
    empty(data)
    manifest.write_text(kept)
    with start(data) as server, client(server) as link:
        assert link.ping()


def test_error_has_the_words_of_this_start_only(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    script = data.parent / "script"
    monkeypatch.setenv("FENCEPOST_SERVER", str(script))
    for words in ("one", "two"):
        script.write_text(f"#!/bin/sh\necho {words}; exit 3\n")
        script.chmod(0o755)
        with pytest.raises(Unavailable) as caught:
            start(data)
    assert str(caught.value).splitlines() == [
        "the embedded server did not start: the server ended with 3 while starting",
        "  two",
    ]


def test_interpreter_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    for wrong in ("/nowhere/python", "/bin/true"):
        monkeypatch.setattr(sys, "executable", wrong)
        with pytest.raises(Unavailable, match="did not start"):
            start(data)
    monkeypatch.undo()
    with start(data):
        pass


def test_leftovers_of_a_power_cut_confuse_nothing(data: Path) -> None:
    data.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(data / "socket"))  # closed below: a socket file that nobody listens on
    (data / "running").write_text(f"{os.getpid()}\n{data / 'socket'}")  # a pid that lives
    (data / "running.new").write_text("half")
    with start(data) as server, client(server) as link:
        assert servers_in(data) == [server.pid]
        assert link.ping()


def test_long_log_begins_anew_and_keeps_the_last(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    monkeypatch.setattr(launcher, "LOG_LIMIT", 10)
    for _ in range(2):
        with start(data):
            pass
        empty(data)
    assert (data / "server.log.old").stat().st_size > 10


def test_server_whose_socket_was_removed_is_named_not_doubled(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    monkeypatch.setattr(launcher, "ANSWER_LIMIT", 0.0)
    with start(data) as server:
        server.path.unlink()
        with pytest.raises(Unavailable, match=rf"runs \(pid {server.pid}\) but does not answer"):
            start(data)
        assert servers_in(data) == [server.pid]


def test_failed_join_is_no_user(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    monkeypatch.setattr(launcher, "ANSWER_LIMIT", 0.0)
    server = start(data)
    server.path.unlink()
    with pytest.raises(Unavailable, match="does not answer"):
        start(data)
    server.close()
    eventually(lambda: not servers_in(data), "the server ends with its one user")
