"""The two faces of hot keys, side by side; the docstrings stand on the async one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from fencepost._core.port import run_sync
from fencepost.hotkeys.base import HotKeysBase
from fencepost.hotkeys.options import HotKeysOptions
from fencepost.hotkeys.scripts import HotKey
from fencepost.hotkeys.server import ServerKey, server_top

if TYPE_CHECKING:
    from fencepost.client import AsyncClient, Client


class AsyncHotKeys(HotKeysBase):
    """The keys that are asked for most; ``AsyncClient.hotkeys``. Off until ``start``.

    While it counts, each call of a cache or of likes of this client costs a subtraction, and one in ``every``
    is counted; once an ``interval`` one call tells the server, and brings back what the fleet's hot keys are.
    Where that ends is written in ``docs/hotkeys.md``.
    """

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client)
        self._task: asyncio.Task[None] | None = None

    async def start(self, options: HotKeysOptions | None = None) -> None:
        """Count from now on, and merge in the background, until ``stop`` or the client's end. No I/O.

        Args:
            options: How; the same in every process.

        Raises:
            Refused: It counts already.
        """
        interval = self._begin(options).interval
        self._task = asyncio.create_task(self._main(interval), name="fencepost-hotkeys")

    async def stop(self) -> None:
        """Count no more. What this process said is forgotten after three intervals."""
        task, self._task = self._task, None
        self._end()
        if task is None:
            return
        if task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
            return
        with contextlib.suppress(RuntimeError):  # its loop is closed
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def top(self, n: int = 20) -> list[HotKey]:
        """The keys with the most calls a second over all processes that count, the most first.

        Args:
            n: At most so many, up to 1,000.

        Raises:
            Unavailable, OutcomeUnknown: The server can't be asked; nothing was changed.
        """
        return await self._top(n)

    async def server_top(self, n: int = 20, *, look_at: int = 10_000) -> list[ServerKey]:
        """What the server itself says, of ``look_at`` keys of our namespace: ``OBJECT FREQ``.

        It counts for all clients, ours or not, and says how often relatively and not how often a second.

        Args:
            n: At most so many.
            look_at: Keys that are asked about, each a command.

        Raises:
            Refused: The server keeps no counters: its ``maxmemory-policy`` is not one of LFU.
        """
        return await server_top(self._io, self._namespace, n, look_at)

    async def _main(self, interval: float) -> None:
        while True:
            await self._io.sleep(interval)
            await self._tick()


class HotKeys(HotKeysBase):
    """The keys that are asked for most, for threads; see ``AsyncHotKeys``."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, options: HotKeysOptions | None = None) -> None:
        interval = self._begin(options).interval
        stopped = self._stopped = threading.Event()

        def main() -> None:
            while not stopped.wait(interval):
                run_sync(self._tick())

        self._thread = threading.Thread(target=main, name="fencepost-hotkeys", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()  # a merge under way ends within the client's budget
        self._end()

    def top(self, n: int = 20) -> list[HotKey]:
        return run_sync(self._top(n))

    def server_top(self, n: int = 20, *, look_at: int = 10_000) -> list[ServerKey]:
        return run_sync(server_top(self._io, self._namespace, n, look_at))
