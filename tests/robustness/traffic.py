"""Clients that like, unlike and look, each for users of its own, and write down what they were told."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from robustness.model import Mark, Op, Outcome

PATIENCE = 60.0
"""Seconds after which a fleet that has healed and still gives no answers fails the run."""

_ANNOUNCED: dict[str, Outcome] = {
    "unavailable": "refused",
    "overloaded": "refused",
    "outcome-unknown": "unknown",
    "database-unavailable": "unknown",
}


class Client:
    """One client: a thread, some users, and a history.

    Args:
        number: Names its users.
        where: Where services listen now, by number; asked before each connection.
        items: Ids of the items.
        seed: Of what it does.
        services: How many there are.
    """

    def __init__(
        self,
        number: int,
        where: Callable[[int], int],
        items: Sequence[int],
        seed: int,
        services: int = 2,
    ) -> None:
        self.history: list[Op | Mark] = []
        self.unannounced: list[str] = []
        self.answers = 0
        self._users = [f"c{number}u{user}" for user in range(3)]
        self._where = where
        self._services = services
        self._items = items
        self._dice = random.Random(f"{seed}:{number}")
        self._connections: dict[int, http.client.HTTPConnection] = {}
        self._state: dict[tuple[int, str], bool] = {}

    def run(self, stopped: Callable[[], bool], answered: Callable[[], None]) -> None:
        """Go on until it is told to stop; a request whose outcome is unknown is repeated first."""
        try:
            while not stopped():
                pair = (self._dice.choice(self._items), self._dice.choice(self._users))
                if self._dice.random() < 0.4:
                    self._ask(*pair, None)
                else:
                    want = not self._state.get(pair, False)
                    self._state[pair] = want
                    while self._ask(*pair, want) != "ok" and not stopped():
                        # time itself: what a client waits before it tries again
                        threading.Event().wait(0.05)
                answered()
        finally:
            self._hang_up()

    def look_round(self) -> None:
        """Ask once for every pair: what was lost long ago, and not touched since, is known again."""
        for item in self._items:
            for user in self._users:
                self._ask(item, user, None)
        self._hang_up()

    def _hang_up(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _ask(self, item: int, user: str, want: bool | None) -> Outcome:
        service = self._dice.randrange(self._services)
        path = f"/api/activities/{item}"
        if want is None:
            method, path = "GET", f"{path}?user={user}"
        else:
            method, path = ("PUT" if want else "DELETE"), f"{path}/likes/{user}"
        status, body = 0, {}
        try:
            status, body = self._send(service, method, path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            body = {"detail": f"{type(error).__name__}: {error}"}
            self._connections.pop(service).close() if service in self._connections else None
        outcome = self._outcome(status, body)
        detail = f"{method} {path} at service {service}: {status} {body.get('detail', '')}"
        if outcome is None:
            self.unannounced.append(detail)
            outcome = "unknown"
        self.answers += outcome == "ok"
        self.history.append(Op(item, user, want, outcome, body.get("liked"), detail))
        return outcome

    def _send(self, service: int, method: str, path: str) -> tuple[int, dict[str, Any]]:
        connection = self._connections.get(service)
        if connection is None:
            connection = http.client.HTTPConnection(
                "127.0.0.1", self._where(service), timeout=PATIENCE
            )
            self._connections[service] = connection
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def _outcome(self, status: int, body: dict[str, Any]) -> Outcome | None:
        """What an answer means; None if it is none that was announced."""
        if status == 200:
            return "ok"
        if status == 0:  # no answer at all: the service died, or its connection did
            return "unknown"
        slug = str(body.get("type", "")).removeprefix("/problems/")
        return _ANNOUNCED.get(slug) if status == 503 and "retry_after" in body else None


class Traffic:
    """All clients.

    Args:
        clients: Them.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = clients
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._broken: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(client,), daemon=True) for client in clients
        ]

    def _run(self, client: Client) -> None:
        try:
            client.run(self._stop.is_set, self._answered)
        except BaseException as error:
            self._broken.append(error)
            self._answered()

    def _answered(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def mark(self, kind: Any) -> None:
        """Note a moment in every history."""
        for client in self.clients:
            client.history.append(Mark(kind))

    def go_on(self, answers: int = 3) -> None:
        """Wait until every client has had so many more answers.

        Raises:
            AssertionError: One has not, though nothing hinders it any more.
        """
        goals = [client.answers + answers for client in self.clients]

        def there() -> bool:
            return bool(self._broken) or all(
                client.answers >= goal for client, goal in zip(self.clients, goals, strict=True)
            )

        with self._changed:
            arrived = self._changed.wait_for(there, PATIENCE)
        if self._broken:
            raise self._broken[0]
        last = [client.history[-1] if client.history else None for client in self.clients]
        assert arrived, f"clients get no answers though everything has healed; their last: {last}"

    def stop(self, *, look_round: bool = True) -> None:
        """Let everybody finish what it is at, and look round."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a request got no answer"
        for client in self.clients if look_round else ():
            client.look_round()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
