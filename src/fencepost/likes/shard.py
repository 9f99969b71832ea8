"""One shard of a like cache, as its algorithms take it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencepost._core.keys import LikeShard
from fencepost._core.observe import Hook
from fencepost.journal.protocol import Place
from fencepost.likes import scripts as s
from fencepost.likes.options import LikeOptions
from fencepost.likes.store import LikeStore


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of one like cache: where it is, and how it behaves."""

    name: str
    keys: LikeShard
    place: Place
    store: LikeStore
    options: LikeOptions
    hook: Hook = field(default_factory=Hook, compare=False, repr=False)
    scripts: s.Scripts = field(default=s.SCRIPTS, compare=False, repr=False)
    what: str = field(default="likes", init=False, compare=False, repr=False)
