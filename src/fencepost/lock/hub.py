"""What all locks of one client share: who prolongs their leases, and who hears that they are called."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from fencepost.lock.keeper import Keeper
from fencepost.wire.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost._core.observe import Hook
    from fencepost.wire.address import Address
    from fencepost.wire.options import WireOptions


class Hub:
    """Of one client in one process; its threads and connections begin when they are needed."""

    def __init__(self, locate: Callable[[], Address], options: WireOptions, hook: Hook) -> None:
        self.keeper = Keeper(locate, options, hook)
        self.listener = Listener(locate, options)
        self.owner = f"{socket.gethostname()}:{os.getpid()}"

    def close(self) -> None:
        """End what must be ended, and stop."""
        self.listener.close()
        self.keeper.close()

    def forget(self) -> None:
        """In a forked child: let go of what is the parent's."""
        self.listener.forget()
        self.keeper.forget()
