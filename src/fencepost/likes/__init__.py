"""A like button at scale: set, count and journal change in one script, a flusher persists to SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.likes.api import AsyncLikes, Likes
from fencepost.likes.audit import Difference
from fencepost.likes.base import DURABILITIES, AuditReport, Backlog, Durability
from fencepost.likes.lists import Page
from fencepost.likes.options import LikeOptions
from fencepost.likes.protocol import FlushReport, LikeResult, LikeStatus
from fencepost.likes.store import LikeStore

if TYPE_CHECKING:
    from fencepost.likes.sql import AsyncSqlLikes, SqlLikes

__all__ = [
    "DURABILITIES",
    "AsyncLikes",
    "AsyncSqlLikes",
    "AuditReport",
    "Backlog",
    "Difference",
    "Durability",
    "FlushReport",
    "LikeOptions",
    "LikeResult",
    "LikeStatus",
    "LikeStore",
    "Likes",
    "Page",
    "SqlLikes",
]


def __getattr__(name: str) -> Any:
    if name in ("AsyncSqlLikes", "SqlLikes"):  # needs SQLAlchemy, which likes alone do not
        from fencepost.likes import sql

        return getattr(sql, name)
    raise AttributeError(name)
