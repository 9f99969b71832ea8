"""Every way to die, of users, supervisors and servers: no orphan, no loss, no second server."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import threading
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost.server import launcher, start, supervisor
from server.processes import Starter, empty, eventually, servers_in, supervisors_in
from support.require import require
from support.servers import ServerProcess, find_binary

if TYPE_CHECKING:
    from pathlib import Path


def client(path: Path | str) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(path), decode_responses=True, retry=Retry(NoBackoff(), 0)
    )


def durable(link: redis.Redis) -> None:
    """Return when the append-only file holds all that was acknowledged: within a second or two."""
    assert link.execute_command("WAITAOF", 1, 0, 0)[0] == 1


def test_sigkill_of_the_starter_leaves_the_server_to_the_others(data: Path) -> None:
    with Starter(data) as first, Starter(data) as second:
        pid, path = first.ready()
        assert second.ready()[0] == pid
        first.kill()
        # Twice around: a supervisor that wrongly stopped would have done so by the second join.
        for _ in range(2):
            with Starter(data) as third:
                assert third.ready()[0] == pid
        with client(path) as link:
            assert link.ping()


def test_sigkill_of_all_ends_the_server_and_keeps_what_was_written(data: Path) -> None:
    with Starter(data) as one, Starter(data) as two:
        pid, path = one.ready()
        two.ready()
        with client(path) as link:
            for i in range(100):
                link.set(f"k{i}", i)
            durable(link)
            link.set("last", "acknowledged only")
        one.kill()
        two.kill()
        empty(data)
    with start(data) as server, client(server.path) as link:
        assert server.pid != pid
        assert link.mget([f"k{i}" for i in range(100)]) == [str(i) for i in range(100)]
        # More than is promised: the server is stopped, not killed, so it writes its file out.
        assert link.get("last") == "acknowledged only"


def test_hundred_sigkilled_starters_leave_no_orphan(data: Path) -> None:
    dice = random.Random(1)
    for _ in range(10):
        starters = [Starter(data) for _ in range(10)]
        dice.shuffle(starters)
        for number, starter in enumerate(starters):
            # Some before they have it, wherever that finds them; some when they have it.
            starter.begun() if number % 2 else starter.ready()
            starter.kill()
    empty(data)
    with start(data) as server, client(server.path) as link:
        assert link.ping()


def test_sigkill_of_the_starter_while_it_starts_brings_no_second_server(data: Path) -> None:
    for _ in range(5):
        with Starter(data) as first, Starter(data) as second:
            first.begun()
            eventually(lambda: bool(supervisors_in(data)), "a supervisor runs")
            first.kill()
            pid, path = second.ready()
            assert servers_in(data) == [pid]
            with client(path) as link:
                assert link.ping()
        empty(data)


def test_sigkill_of_the_supervisor_leaves_no_orphan_and_loses_nothing(data: Path) -> None:
    with start(data) as server, client(server.path) as link:
        link.set("k", "v")
        (boss,) = supervisors_in(data)
        os.kill(boss, signal.SIGKILL)
        # Its threads end one by one, the last lets go of the lock.
        eventually(lambda: not launcher._supervised(data), "the supervisor has ended")
        # The old server may still answer, but it is ending, or nobody would ever stop it.
        with start(data) as again, client(again.path) as second:
            assert again.pid != server.pid
            assert second.get("k") == "v"
            eventually(lambda: servers_in(data) == [again.pid], "the old server is gone")
    empty(data)


def test_sigkill_of_the_supervisor_alone_ends_the_server(data: Path) -> None:
    if not os.path.exists("/proc/self"):
        pytest.skip("PR_SET_PDEATHSIG is Linux: elsewhere the next start ends the orphan")
    with start(data):
        (boss,) = supervisors_in(data)
        os.kill(boss, signal.SIGKILL)
        empty(data)


def test_orphan_without_the_kernels_help_is_ended_by_the_next_start(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: the server outlives its supervisor until somebody starts again."""
    wrapper = data.parent / "wrapper"
    binary = find_binary("valkey")
    # prctl does not outlive this shell's own fork; the lock's descriptor does.
    wrapper.write_text(f'#!/bin/sh\n"{binary}" "$@" &\nwait\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("FENCEPOST_SERVER", str(wrapper))
    with start(data) as server, client(server.path) as link:
        link.set("k", "v")
        orphan = link.info("server")["process_id"]
        (boss,) = supervisors_in(data)
        os.kill(boss, signal.SIGKILL)
        eventually(lambda: not launcher._supervised(data), "the supervisor has ended")
        eventually(lambda: servers_in(data) == [orphan], "only the orphan runs")
        monkeypatch.delenv("FENCEPOST_SERVER")
        with start(data) as again, client(again.path) as second:
            assert servers_in(data) == [again.pid]
            assert second.get("k") == "v"
    empty(data)


def test_sigkill_of_the_server_and_the_next_start_has_the_data(data: Path) -> None:
    with start(data) as server, client(server.path) as link:
        link.set("k", "v")
        durable(link)
        os.kill(server.pid, signal.SIGKILL)
        # At once: the supervisor may not have noticed yet.
        with start(data) as again, client(again.path) as second:
            assert again.pid != server.pid
            assert second.get("k") == "v"
            assert servers_in(data) == [again.pid]
            assert len(supervisors_in(data)) == 1
    empty(data)


def test_supervisor_ends_with_its_server(data: Path) -> None:
    with start(data) as server:
        os.kill(server.pid, signal.SIGKILL)
        empty(data)


def test_last_user_leaves_while_a_new_one_arrives(data: Path) -> None:
    """Whoever has started has a server: the one that runs, or the next."""
    held = start(data)
    for number in range(30):
        if number % 3:
            held.close()
            held = start(data)
        else:
            starter = Starter(data)
            starter.begun()
            held.close()
            pid, _ = starter.ready()
            held = start(data)
            assert held.pid == pid
            starter.kill()
        with client(held.path) as link:
            assert link.incr("n") == number + 1
        assert servers_in(data) == [held.pid]
    held.close()


def test_torn_tail_of_the_file_costs_the_torn_command_only(data: Path) -> None:
    with start(data) as server, client(server.path) as link:
        link.set("k", "v")
        link.set("torn", "x" * 100)
    empty(data)
    (tail,) = (data / "appendonlydir").glob("*.incr.aof")
    os.truncate(tail, tail.stat().st_size - 50)
    with start(data) as server, client(server.path) as link:
        assert link.get("k") == "v"
        assert link.get("torn") is None


def test_what_a_starter_blocks_or_ignores_does_not_reach_the_server(data: Path) -> None:
    before = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "os.umask(0)"
    )
    with Starter(data, before=before) as starter:
        pid, _ = starter.ready()
        assert (data / "appendonlydir").stat().st_mode & 0o077 == 0
        starter.kill()
        empty(data)
    assert f"{pid}:signal-handler" in (data / "server.log").read_text()  # it was stopped, in order


def test_ctrl_c_in_the_starters_terminal_reaches_neither_supervisor_nor_server(data: Path) -> None:
    default = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)"
    with Starter(data, group=True, before=default) as starter:
        pid, path = starter.ready()
        held = start(data)  # the second: the supervisor is the first one's
        bosses = supervisors_in(data)
        starter.interrupt()
        with client(path) as link:
            assert link.ping()
        assert supervisors_in(data) == bosses
        assert start_and_leave(data) == pid
        held.close()


def start_and_leave(data: Path) -> int:
    with start(data) as server:
        return server.pid


def test_locale_that_this_machine_lacks_is_no_hindrance(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "xx_XX.nonsense")
    assert start_and_leave(data)


@pytest.mark.parametrize("moment", ["socket_for", "_answers"])
def test_fork_in_the_middle_of_a_start_blocks_nobody(
    data: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As another thread may: the child has a copy of start.lock and does not know it."""
    go, wake = os.pipe()
    children = []
    original = getattr(launcher, moment)

    def forking(data: Path) -> object:
        child = os.fork()
        if not child:
            os.close(wake)
            os.read(go, 1)  # until the parent lets go
            os._exit(0)
        children.append(child)
        return original(data)

    held = start(data) if moment == "_answers" else None  # else this start is the first
    monkeypatch.setattr(launcher, moment, forking)
    with start(data) as server, Starter(data) as other:
        assert other.ready()[0] == server.pid
    if held:
        held.close()
    os.close(wake)
    os.close(go)
    for child in children:
        os.waitpid(child, 0)


def test_fork_of_a_starter_that_is_killed_blocks_nobody(data: Path) -> None:
    """Nobody but the supervisor is left to unlock what the child has a copy of."""
    before = """
import os, signal
from fencepost.server import launcher
run = launcher.subprocess.run
def forks_and_dies(*args, **options):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    run(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
launcher.subprocess.run = forks_and_dies
"""
    with Starter(data, before=before) as first:
        first.begun()
        eventually(lambda: bool(supervisors_in(data)), "a supervisor runs")
        with Starter(data) as second:
            pid, _ = second.ready()
            assert servers_in(data) == [pid]


def test_server_that_still_loads_is_not_ready(data: Path) -> None:
    require("valkey", find_binary("valkey") is not None)
    with start(data) as server, client(server.path) as link:
        for i in range(6):
            batch = link.pipeline(transaction=False)
            for j in range(1000):
                batch.set(f"k{i}{j:03}", "v")
            batch.execute()
    empty(data)
    seen: set[str] = set()
    wrapper = data.parent / "slow"
    # A key takes 200 µs to load, and the server says LOADING every 1024 keys.
    slow = "--key-load-delay 200"
    wrapper.write_text(f'#!/bin/sh\nexec "{find_binary("valkey")}" "$@" {slow}\n')
    wrapper.chmod(0o755)
    with Starter(data, env={**os.environ, "FENCEPOST_SERVER": str(wrapper)}) as starter:
        starter.begun()

        def loading() -> bool:
            seen.add(supervisor.probe(str(data / "socket")))
            return "loading" in seen

        eventually(loading, "a server that loads was seen")
        starter.line()
        with client(data / "socket") as link:  # a client that would not wait
            assert link.get("k5999") == "v"


def test_probe_tells_the_four_states(tmp_path: Path) -> None:
    require("valkey", find_binary("valkey") is not None)
    assert supervisor.probe(str(tmp_path / "none")) == "absent"
    with ServerProcess("valkey", "--requirepass", "secret") as server:
        assert supervisor.probe(str(server.socket)) == "ready"
        server.pause()
        assert supervisor.probe(str(server.socket)) == "silent"
        server.resume()


class Locks:
    """Stands for ``fcntl`` in the supervisor and notes what it asks for, and what it got."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def __getattr__(self, name: str) -> int:
        value: int = getattr(fcntl, name)
        return value

    def flock(self, fd: int, how: int) -> None:
        self.seen.append(("asks", fd, how))
        fcntl.flock(fd, how)
        self.seen.append(("has", fd, how))


def test_user_who_joins_while_the_supervisor_decides_keeps_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = Locks()
    monkeypatch.setattr(supervisor, "fcntl", locks)
    ours_start, start_lock = (os.open(tmp_path / "start", os.O_RDWR | os.O_CREAT) for _ in "12")
    ours_users, users_lock = (os.open(tmp_path / "users", os.O_RDWR | os.O_CREAT) for _ in "12")
    decided = threading.Event()

    def decide() -> None:
        supervisor._until_unused(users_lock, start_lock)
        decided.set()

    fcntl.flock(ours_start, fcntl.LOCK_EX)  # a starter at work; nobody uses the server yet
    thread = threading.Thread(target=decide, daemon=True)
    thread.start()
    asks = ("asks", start_lock, fcntl.LOCK_EX)
    eventually(lambda: asks in locks.seen, "the supervisor wants to stop the server")
    # The starter counts itself as a user: not kept waiting, which would be a deadlock …
    fcntl.flock(ours_users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(ours_start, fcntl.LOCK_UN)
    # … and seen at the second look.
    backs_off = ("has", start_lock, fcntl.LOCK_UN)
    eventually(lambda: backs_off in locks.seen or decided.is_set(), "the supervisor looks again")
    assert not decided.is_set()
    os.close(ours_users)
    thread.join()
    # Until the server has ended, nobody may start another or join it.
    with pytest.raises(BlockingIOError):
        fcntl.flock(ours_start, fcntl.LOCK_SH | fcntl.LOCK_NB)
    for fd in (ours_start, start_lock, users_lock):
        os.close(fd)
