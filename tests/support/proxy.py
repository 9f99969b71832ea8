"""``fencepost.testing.proxy`` before a ``ServerProcess``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.testing import proxy
from fencepost.testing.frames import split, words_of
from fencepost.testing.proxy import PATIENCE, LoopThread

if TYPE_CHECKING:
    from support.servers import ServerProcess

__all__ = ["PATIENCE", "LoopThread", "Proxy", "split", "words_of"]


class Proxy(proxy.Proxy):
    """A proxy before a server of the tests.

    Args:
        server: Where to.
        **options: As for ``LoopThread``.
    """

    def __init__(self, server: ServerProcess, **options: Any) -> None:
        super().__init__(server.unix_url, **options)
