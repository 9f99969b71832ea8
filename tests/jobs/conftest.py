"""Queues on the shared server, in a namespace of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencepost import AsyncClient, Client
from support.jobs import Bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def client(server_url: str, namespace: str) -> Iterator[Client]:
    with Client.from_url(server_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def bench(client: Client) -> Bench:
    return Bench(client)


@pytest.fixture
async def aclient(server_url: str, namespace: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient.from_url(server_url, namespace=namespace) as client:
        yield client
