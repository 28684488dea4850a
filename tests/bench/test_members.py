"""Members whose rebalances are timed: their assignments, and when the group is stable."""

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from bench.members import GroupMembers, is_balanced

if TYPE_CHECKING:
    from odradek.node.embedded import EmbeddedBroker


def test_partitions_are_shared_when_each_has_one_owner_and_nobody_has_too_many() -> None:
    assert is_balanced([{0, 1}, {2}], 3)
    assert not is_balanced([{0}, {2}], 3)
    assert not is_balanced([{0, 1}, {1, 2}], 3)
    assert not is_balanced([{0, 1}, {1}], 3)
    assert not is_balanced([{0, 1, 2}, {3}], 4)


@pytest.mark.e2e
def test_times_count_to_the_last_change(
    kafka_broker: "EmbeddedBroker", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.members.SETTLED_S", 0.5)
    topic = f"members-{uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions=4)
    with GroupMembers(kafka_broker.bootstrap_servers, topic, 4, "consumer") as members:
        assert members.join(2) > 0
        assert members.join() > 0
        assert members.leave() > 0
