"""Where a share group stands in its partitions, by its states and share.auto.offset.reset."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.coordinator.group.offsets.committed_offsets import PartitionKey
from odradek.coordinator.group.offsets.lag import BEYOND_END, SharePosition
from odradek.coordinator.group.share.records import NamedPartitions, TopicStates
from odradek.node.bus.reply import Reply, start_coroutine
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NO_OFFSET
from tests.support.share_fetching import ACCEPT, RELEASE, ShareFetchHarness, batch
from tests.support.share_harness import GROUP, TOPIC
from tests.support.stores import NOW_MS, batch_of

HOUR_MS = 3_600_000


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareFetchHarness]:
    with ShareFetchHarness(tmp_path) as harness:
        yield harness


def positions(
    harness: ShareFetchHarness, *partitions: int, group: str = GROUP, states: TopicStates
) -> dict[int, SharePosition | ErrorCode]:
    keys = [(TOPIC, index) for index in partitions]

    async def find() -> Reply[dict[PartitionKey, SharePosition | ErrorCode]]:
        return start_coroutine(harness.services.share_lag_positions.find(group, states, keys))

    found = harness.result(harness.loop.run_until_complete(find()))
    assert {topic for topic, _ in found} <= {TOPIC}
    return {index: position for (_, index), position in found.items()}


def test_a_read_partition_counts_what_is_done_with_beyond_the_start(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(10))
    member = harness.member()
    member.fetch(0)
    answer = member.acknowledge_partition(
        batch(0, 1, ACCEPT), batch(2, 2, RELEASE), batch(3, 6, ACCEPT)
    )
    assert answer.error_code == ErrorCode.NONE
    states = {harness.topic_id: NamedPartitions(TOPIC, frozenset({0}))}
    assert positions(harness, 0, states=states) == {0: SharePosition(2, 4)}


@pytest.mark.parametrize(
    ("reset", "position"),
    [
        ("earliest", SharePosition(NO_OFFSET)),
        ("latest", SharePosition(BEYOND_END)),
        ("by_duration:PT1H", SharePosition(2)),
        ("by_duration:PT1M", SharePosition(BEYOND_END)),
    ],
)
def test_an_unread_partition_begins_as_the_group_says(
    harness: ShareFetchHarness, reset: str, position: SharePosition
) -> None:
    harness.configure("new", {"share.auto.offset.reset": reset})
    harness.now_ms = NOW_MS + HOUR_MS
    harness.append(
        TOPIC, batch_of(2, timestamp=NOW_MS - 10), batch_of(2, timestamp=NOW_MS + 60_000)
    )
    assert positions(harness, 0, group="new", states={}) == {0: position}
    # It has a state, whose start the first fetch will determine.
    harness.initialise(0, group="new")
    states = {harness.topic_id: NamedPartitions(TOPIC, frozenset({0}))}
    assert positions(harness, 0, group="new", states=states) == {0: position}


def test_a_state_that_cannot_be_read_is_an_error(harness: ShareFetchHarness) -> None:
    harness.services.share_coordinator.close()
    harness.services.share_persister.close()
    states = {harness.topic_id: NamedPartitions(TOPIC, frozenset({0}))}
    found = positions(harness, 0, states=states)
    assert isinstance(found[0], ErrorCode)
