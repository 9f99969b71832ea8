"""Events: every listener hears every event, and a broken one harms nobody."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fencepost._core.observe import Connected, Disconnected, Event, Hook

if TYPE_CHECKING:
    import pytest

CONNECTED = Connected("redis://h:1/0", "a:b", 3, False)
LOST = Disconnected("redis://h:1/0", "gone", 2)


def test_nobody_listens_at_first() -> None:
    assert Hook().listener is None


def test_every_listener_hears_every_event_in_order() -> None:
    heard: list[tuple[str, Event]] = []
    hook = Hook(lambda event: heard.append(("first", event)))
    hook.listen(lambda event: heard.append(("second", event)))
    for event in (CONNECTED, LOST):
        assert hook.listener is not None
        hook.listener(event)
    assert heard == [
        ("first", CONNECTED), ("second", CONNECTED), ("first", LOST), ("second", LOST)
    ]  # fmt: skip


def test_broken_listener_is_logged_once_a_kind_and_the_others_hear(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise LookupError("mine")

    hook = Hook(broken)
    hook.listen(heard.append)
    assert hook.listener is not None
    with caplog.at_level(logging.ERROR):
        for event in (CONNECTED, CONNECTED, LOST):
            hook.listener(event)
    assert heard == [CONNECTED, CONNECTED, LOST]
    assert [record.getMessage() for record in caplog.records] == [
        "a listener failed on Connected",
        "a listener failed on Disconnected",
    ]
