"""Writing the journal to SQL without serving: for a cron job, or before a database is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from fencepost.campus.service import make_data_dir, open_client, open_likes, open_store
from fencepost.campus.tables import create_tables, open_engine
from fencepost.errors import Unavailable

if TYPE_CHECKING:
    from fencepost.campus.settings import Settings


async def flush(settings: Settings, within: float) -> tuple[int, int]:
    """Flush everything that waits.

    Args:
        settings: Which campus.
        within: Seconds at most.

    Returns:
        Of how many activities likes waited, and of how many they still do.

    Raises:
        FencepostError: The like server or the database does not answer.
    """
    make_data_dir(settings)
    engine = open_engine(settings)
    try:
        store = open_store(engine)
        await run_in_threadpool(create_tables, engine, store.create_tables)
        async with open_client(settings) as client:
            likes = open_likes(client, store)
            waiting = (await likes.backlog()).items
            return waiting, await likes.drain(within)
    except SQLAlchemyError as error:
        raise Unavailable(f"the database does not answer: {error}") from error
    finally:
        engine.dispose()
