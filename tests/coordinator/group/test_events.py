"""The newest events of a group."""

from odradek.coordinator.group.events import (
    EVENT_COUNT_MAX,
    REASON_LENGTH_MAX,
    EventBuffer,
    EventKind,
    GroupEvent,
)


def test_events_come_oldest_first() -> None:
    ring = EventBuffer()
    ring.add(1, EventKind.MEMBER_JOINED, "m", "why not")
    ring.add(2, EventKind.BECAME_EMPTY)
    assert ring.newest() == (
        GroupEvent(1, EventKind.MEMBER_JOINED, "m", "why not"),
        GroupEvent(2, EventKind.BECAME_EMPTY, "", ""),
    )


def test_only_the_newest_events_are_kept_and_reasons_are_truncated() -> None:
    ring = EventBuffer()
    for at_ms in range(EVENT_COUNT_MAX + 5):
        ring.add(at_ms, EventKind.REBALANCE_STARTED, "", "x" * 1_000)
    events = ring.newest()
    assert len(events) == EVENT_COUNT_MAX
    assert events[0].at_ms == 5
    assert len(events[0].reason) == REASON_LENGTH_MAX
