"""The stories, one a file, in the order in which they are told."""

from __future__ import annotations

from fencepost.testing.lab.stories import (
    expired_like,
    expired_unlike,
    last_unlike,
    late_fill,
    lost_queue,
    lost_reply,
    rpop_crash,
    zombie_flusher,
)

STORIES = {
    one.STORY.name: one.STORY
    for one in (
        last_unlike,
        expired_unlike,
        expired_like,
        late_fill,
        lost_queue,
        rpop_crash,
        zombie_flusher,
        lost_reply,
    )
}
