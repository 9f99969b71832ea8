"""The event loops that async tests run on: plain asyncio unless a test asks for both.

    @pytest.mark.parametrize("anyio_backend", BOTH_LOOPS)
    async def test_something(): ...

or, for a module, ``pytestmark = on_both_loops``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

Backend = tuple[str, dict[str, Any]]

ASYNCIO: Backend = ("asyncio", {})
UVLOOP: Backend = ("asyncio", {"use_uvloop": True})

BOTH_LOOPS = [pytest.param(ASYNCIO, id="asyncio"), pytest.param(UVLOOP, id="uvloop")]

on_both_loops = pytest.mark.parametrize("anyio_backend", BOTH_LOOPS)


def has_uvloop() -> bool:
    return find_spec("uvloop") is not None
