"""What is the threads' own: sockets that are taken, given back, waited for and interrupted."""

from __future__ import annotations

import select
import signal
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from fencepost import Client, OutcomeUnknown, Overloaded, Unavailable
from fencepost._core import commands
from fencepost.wire import pool
from fencepost.wire.pool import SyncServer
from fencepost.wire.sock import Connection
from support.until import until_sync

if TYPE_CHECKING:
    from support.proxy import Proxy


class Worker(threading.Thread):
    """A thread whose outcome is kept."""

    def __init__(self, fn: Any, *args: Any) -> None:
        super().__init__(daemon=True)
        self._work = (fn, args)
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        fn, args = self._work
        try:
            self.outcome = fn(*args)
        except BaseException as error:
            self.outcome = error


def test_last_socket_used_is_the_first_one_taken(proxy: Proxy) -> None:
    with Client.from_url(proxy.url) as client:
        proxy.hold("reply", "ECHO")
        workers = [Worker(client.command, "ECHO", n) for n in range(3)]
        proxy.wait(lambda: proxy.waiting == 3)
        proxy.release("reply")
        for worker in workers:
            worker.join()
        assert proxy.connections == 3
        assert len({client.command("CLIENT", "ID") for _ in range(20)}) == 1


def test_threads_over_the_bound_wait_in_order(proxy: Proxy) -> None:
    with Client.from_url(proxy.url, max_connections=1, budget=60) as client:
        client.command("PING")
        proxy.hold("reply", "ECHO")
        workers = []
        for number in range(6):
            workers.append(Worker(client.command, "ECHO", number))
            if number == 0:
                proxy.wait(lambda: proxy.waiting == 1)
            else:
                until_sync(lambda: len(client._server._queue) == number)  # noqa: B023
        proxy.release("reply")
        for number, worker in enumerate(workers):
            worker.join()
            assert worker.outcome == b"%d" % number
        order = [int(words[1]) for words in proxy.requests if words[0] == b"ECHO"]
        assert order == list(range(6))
        assert proxy.connections == 1


def test_thread_that_waited_its_whole_budget_is_overloaded(proxy: Proxy) -> None:
    with Client.from_url(proxy.url, max_connections=1, budget=0.6) as client:
        client.command("PING")
        proxy.hold("reply", "ECHO")
        first = Worker(client.command, "ECHO", 1)
        proxy.wait(lambda: proxy.waiting == 1)
        second = Worker(client.command, "ECHO", 2)
        third = Worker(client.command, "ECHO", 3)
        for worker in (first, second, third):
            worker.join()
        assert isinstance(first.outcome, OutcomeUnknown)
        # Who waits goes on when the first one's socket is given up, if there is time left: for a
        # connection and a reply, for a connection only, or for neither.
        assert {type(w.outcome) for w in (second, third)} <= {
            Overloaded,
            Unavailable,
            OutcomeUnknown,
        }
        proxy.release("reply")
        assert client.command("ECHO", "again") == b"again"
        assert client._server._places == 1
        assert not client._server._queue


def test_sockets_that_die_make_room_for_new_ones(proxy: Proxy) -> None:
    with Client.from_url(proxy.url, max_connections=2) as client:
        for _ in range(5):
            client.command("PING")
            proxy.fault("reply", "ECHO", "cut")
            with pytest.raises(OutcomeUnknown):
                client.command("ECHO", "x")
        assert client._server._places <= 2


def test_threads_that_fail_together_fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else eight threads would push the next try eight steps away."""
    together = threading.Barrier(8)

    def refuse(*_: Any) -> Connection:
        together.wait()
        raise Unavailable("nobody there")

    monkeypatch.setattr(pool, "open_connection", refuse)
    with Client.from_url("redis://h") as client:
        server = client._server
        workers = [Worker(server._open, monotonic() + 60) for _ in range(8)]
        for worker in workers:
            worker.join()
            assert isinstance(worker.outcome, Unavailable)
        assert server._failures == 1


def interrupt_a_read(client: Client, proxy: Proxy) -> None:
    """Ctrl-C while the reply to ECHO old is on its way."""
    main = threading.get_ident()
    proxy.hold("reply", "ECHO")

    def press() -> None:
        proxy.wait(lambda: proxy.waiting == 1)
        signal.pthread_kill(main, signal.SIGINT)

    presser = Worker(press)
    # As in a terminal: a run in the background begins with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            client.command("ECHO", "old")
    finally:
        signal.signal(signal.SIGINT, before)
    presser.join()
    proxy.release("reply")


def test_ctrl_c_before_a_reply_ends_the_socket(proxy: Proxy) -> None:
    with Client.from_url(proxy.url, budget=60) as client:
        client.command("PING")
        interrupt_a_read(client, proxy)
        assert client.command("ECHO", "new") == b"new"
        assert proxy.connections == 2
        assert client._server._places == 1


def test_socket_kept_after_ctrl_c_gives_the_next_caller_the_old_reply(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: returned to the pool, it mixes replies."""
    with Client.from_url(proxy.url, budget=60) as client:
        client.command("PING")
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "close", lambda *_: None)
            patch.setattr(Connection, "alive", lambda *_: True)
            interrupt_a_read(client, proxy)
            [connection] = client._server._idle
            select.select([connection._sock], [], [])  # the old reply is there, and alone:
            proxy.hold("reply", "ECHO")
            deadline = connection.used + 60
            assert connection.ask(b"*2\r\n$4\r\nECHO\r\n$3\r\nnew\r\n", deadline) == b"old"


def test_batches_are_sent_in_slices_and_answered_in_order(server_url: str, namespace: str) -> None:
    with Client.from_url(server_url) as client:
        calls = [commands.raw("INCR", namespace) for _ in range(5000)]
        assert client._server.all(calls) == list(range(1, 5001))
        big = [commands.raw("SET", namespace, b"x" * 300_000) for _ in range(20)]
        assert client._server.all(big) == [b"OK"] * 20
        assert client._server.all([]) == []
        assert len(client._server._all) == 1


def test_batch_over_a_cut_repeats_only_what_is_harmless(proxy: Proxy, namespace: str) -> None:
    with Client.from_url(proxy.url) as client:
        client.command("SET", namespace, "v")
        proxy.fault("reply", "GET", "cut")
        calls = [commands.get(namespace) for _ in range(20)]
        assert client._server.all(calls) == [b"v"] * 20


def test_place_is_given_back_when_an_argument_is_wrong(server_url: str) -> None:
    with Client.from_url(server_url, max_connections=1, budget=0.6) as client:
        server: SyncServer = client._server
        for _ in range(3):
            with pytest.raises(TypeError):
                server.all([commands.raw("SET", "k", None)])  # type: ignore[arg-type]
        assert client.command("PING") == b"PONG"
