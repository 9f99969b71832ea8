"""A like cache a test: on the shared server, with a database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

# their asserts say what they saw
from support.likes import Lab, LabMaker, lab_maker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def make_lab(server_url: str, namespace: str, tmp_path: Path) -> Iterator[LabMaker]:
    """Makes labs with options, scripts or a store of their own."""
    with lab_maker(server_url, namespace, tmp_path) as make:
        yield make


@pytest.fixture
def lab(make_lab: LabMaker) -> Lab:
    """One shard, opened, all as it comes."""
    return make_lab()
