"""The likes of a campus without serving it: for flusher processes, audits and repairs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from fencepost.campus.service import make_data_dir, open_client, open_likes, open_store
from fencepost.campus.tables import create_tables, open_engine
from fencepost.errors import Unavailable

if TYPE_CHECKING:
    from fencepost.campus.settings import Settings
    from fencepost.likes import AsyncLikes


@contextlib.asynccontextmanager
async def likes_of(settings: Settings) -> AsyncIterator[AsyncLikes]:
    """Open the likes of a campus.

    Raises:
        FencepostError: The like server or the database does not answer.
    """
    make_data_dir(settings)
    engine = open_engine(settings)
    try:
        store = open_store(engine)
        await run_in_threadpool(create_tables, engine, store.create_tables)
        async with open_client(settings) as client:
            yield open_likes(client, store, embedded=settings.url is None)
    except SQLAlchemyError as error:
        raise Unavailable(f"the database does not answer: {error}") from error
    finally:
        engine.dispose()
