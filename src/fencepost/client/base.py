"""What both clients share: where the server is, how keys and events are named, and what a fork means."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fencepost._core import commands
from fencepost._core.keys import escape
from fencepost._core.observe import Event, Hook
from fencepost._core.script import Call
from fencepost._core.taps import Taps
from fencepost.errors import ClientClosed, Refused
from fencepost.wire.address import Address, parse_url
from fencepost.wire.options import WireOptions
from fencepost.wire.resp import SHARED, why_not_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost._core.script import Word
    from fencepost.lock.hub import Hub
    from fencepost.server import EmbeddedServer

_ENV = "FENCEPOST_URL"
_clients: weakref.WeakSet[Base] = weakref.WeakSet()


def _after_fork() -> None:
    """A child must not touch its parent's sockets: it forgets them and opens its own."""
    for client in list(_clients):
        client.taps.forget()
        client.__dict__.pop("hotkeys", None)  # a child that wants to count begins anew
        client._forget()  # noqa: SLF001  # same module


os.register_at_fork(after_in_child=_after_fork)


def _accepts(path: Path) -> bool:
    """Whether anybody listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
        return True


def raw(words: tuple[Word, ...]) -> Call[Any]:
    """The call of a raw command, if it may go over a connection that all callers share."""
    verb = SHARED.get(words[0]) if words else None
    if verb is not None:
        return Call(verb, words, commands.same)
    if why := why_not_shared(words):
        raise Refused(f"{why}; use a connection of your own for it")
    return commands.raw(*words)


class Base(ABC):
    """What both clients share: where the server is, and how keys and events are named."""

    def __init__(
        self,
        source: str | Path | None,
        *,
        namespace: str = "fp",
        budget: float = 2.0,
        observe: Callable[[Event], None] | None = None,
        **options: Any,
    ) -> None:
        escape(namespace)  # refused now, not at the first call
        self.namespace = namespace
        self.hook = Hook(observe)
        self.taps = Taps()
        self._options = WireOptions(budget=budget, **options)
        self._address = parse_url(source) if isinstance(source, str) else None
        self._data = None if isinstance(source, str) else source
        self._embedded: EmbeddedServer | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._closing = False  # no more locks; the rest goes on until they are given back
        self._hub: Hub | None = None
        _clients.add(self)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """A client of the server at ``url``; nothing is opened yet.

        Args:
            url: ``redis://``, ``rediss://``, ``valkey://``, ``valkeys://`` or ``unix://``; see
                ``fencepost.wire.address.parse_url`` for its parts.
            **options: ``namespace`` (the first part of every key), ``budget`` (seconds a call may
                take, waiting included), ``observe`` (a listener for events), ``health`` (seconds of
                silence before a probe), ``max_requests`` and ``max_bytes`` (bounds of what is
                unanswered), ``max_connections`` (sockets that threads share).

        Raises:
            Refused: The URL or an option is wrong.
        """
        return cls(url, **options)

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """A client of the server that ``FENCEPOST_URL`` names.

        Raises:
            Refused: The variable is not set, or its URL is wrong.
        """
        url = os.environ.get(_ENV, "")
        if not url:
            raise Refused(
                f"{_ENV} is not set; give a server URL, or use .embedded() for one machine"
            )
        return cls(url, **options)

    @classmethod
    def embedded(cls, data: str | Path | None = None, **options: Any) -> Self:
        """A client of a server of its own on this machine, started at first use.

        Every process that names the same folder shares one server; it stops with its last user,
        and what it acknowledged is on disk within a second.

        Args:
            data: The folder for its files; None is a folder of this user.
            **options: As for ``from_url``.
        """
        return cls(Path(data) if data is not None else None, **options)

    def observe(self, listener: Callable[[Event], None]) -> None:
        """Hear of connections, loads, flushes … as frozen events; see ``fencepost.observe``."""
        self.hook.listen(listener)

    def _locate(self) -> Address:
        """The server's address; starts the embedded one (blocking, at most a few seconds)."""
        if self._address is not None:
            return self._address
        with self._starting:
            if self._closed:
                raise ClientClosed("the client is closed; nothing was sent")
            held = self._embedded
            if held is not None and _accepts(held.path):
                return Address(path=str(held.path))
            from fencepost.server import start

            # Held anew before it is let go: a server stops with its last user.
            now_held = self._embedded = start(self._data)
            if held is not None:
                held.close()
            return Address(path=str(now_held.path))

    def _lock_hub(self) -> Hub:
        """What the locks of this client share; begun with the first of them."""
        hub = self._hub
        if hub is not None:
            return hub
        from fencepost.lock.hub import Hub

        with self._starting:
            if self._closed or self._closing:
                raise ClientClosed("the client is closed; nothing was sent")
            if self._hub is None:
                self._hub = Hub(self._locate, self._options, self.hook)
            return self._hub

    def _close_hub(self) -> None:
        """While the server can still be told which locks are given back."""
        with self._starting:
            self._closing = True
            hub, self._hub = self._hub, None
        if hub is not None:
            hub.close()

    def _forget_hub(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.forget()

    def _close_embedded(self) -> None:
        with self._starting:
            if self._embedded is not None:
                self._embedded.close()
                self._embedded = None

    @abstractmethod
    def _forget(self) -> None:
        """Let go, in a forked child, of what is the parent's."""

    def __repr__(self) -> str:
        where = self._address or f"embedded:{self._data or 'default'}"
        return f"{type(self).__name__}({where}, namespace={self.namespace!r})"
