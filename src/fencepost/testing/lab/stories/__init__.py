"""The stories, one a file, in the order in which they are told."""

from __future__ import annotations

from fencepost.testing.lab.stories import (
    dead_worker,
    dead_writer,
    empty_comeback,
    expired_like,
    expired_unlike,
    invalidated_load,
    last_unlike,
    late_ack,
    late_fill,
    late_tag,
    lost_lease,
    lost_queue,
    lost_reply,
    paused_loader,
    rpop_crash,
    stampede,
    third_vote,
    two_schedulers,
    two_writers,
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
        paused_loader,
        invalidated_load,
        lost_lease,
        stampede,
        late_tag,
        two_writers,
        dead_writer,
        late_ack,
        third_vote,
        empty_comeback,
        dead_worker,
        two_schedulers,
    )
}
