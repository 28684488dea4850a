"""Share coordinators: their topic, their settings, and a log that is dropped from its beginning."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.metadata.topic_names import SHARE_GROUP_STATE
from odradek.coordinator.share.requests import ForgetTopicStates, MeasureLog, StateRead
from odradek.coordinator.share.shard import ShareStateShard
from odradek.node.router.shards.share_kind import ShareKind
from tests.support.share_room import GROUP, ShareRoom
from tests.support.waiting import wait_until


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ShareRoom]:
    with ShareRoom(tmp_path) as room:
        yield room


def test_the_topic_is_made_as_the_broker_says(room: ShareRoom) -> None:
    topic = room.image.topics_by_name[SHARE_GROUP_STATE]
    assert len(topic.partitions) == 3
    assert room.image.configs.of(ConfigResourceType.TOPIC, SHARE_GROUP_STATE) == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "2",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert not ShareStateShard.is_log_compacted


def test_shards_write_as_the_broker_says(room: ShareRoom) -> None:
    kind = ShareKind(room.services)
    static = {"share.coordinator.snapshot.update.records.per.snapshot": "3"}
    kind.configure(broker_settings(room.image, 0, static), room.image)
    shard = kind.new_shard()
    assert shard.settings.updates_per_snapshot == 3
    assert shard.topics is room.image.topics_by_id
    kind.configure(broker_settings(room.image, 0, {}), room.image)
    kind.update(shard)
    assert shard.settings.updates_per_snapshot == 500


def test_shards_hear_of_new_topics(room: ShareRoom) -> None:
    other = room.have_topic("other", 2)
    room.result(room.here.initialize(GROUP, other, 0, 1, 0))
    assert room.result(room.here.read(GROUP, other, 0, 0)) == StateRead(1, 0, ())


def test_deletions_that_were_missed_are_found(room: ShareRoom) -> None:
    kind = ShareKind(room.services)
    room.result(room.here.initialize(GROUP, room.topic_id, 0, 1, 0))
    [shard] = [shard for shard in room.shards() if len(shard.states)]
    assert kind.missed_deletions(shard, room.image) is None
    before = room.image
    room.drop_topic("t")
    assert not len(shard.states)
    # As if it had moved here with what it knew.
    lost = ShareStateShard(shard.settings, before.topics_by_id)
    for entry in log_of(room):
        record = lost.decode(*entry)
        if record is not None and record.value is not None:
            lost.replay(record)
    assert kind.missed_deletions(lost, room.image) == ForgetTopicStates(frozenset({room.topic_id}))


def log_of(room: ShareRoom) -> list[tuple[bytes, bytes | None]]:
    """All records of the shard that has any."""
    found: list[tuple[bytes, bytes | None]] = []
    for host in room.shares._hosts.values():
        start_offset, end_offset = host._log.bounds()
        if end_offset > start_offset:
            entries, _ = host._log.read(start_offset, end_offset)
            found += entries  # type: ignore[arg-type]  # there are no transactions
    return found


def test_the_beginning_of_a_long_log_is_dropped(room: ShareRoom) -> None:
    name = GROUP, room.topic_id, 0
    room.result(room.here.initialize(*name, 1, 0))
    for at in range(5):
        room.result(room.here.write(*name, 1, 0, at, 0, ()))
    [host] = [
        host
        for host in room.shares._hosts.values()
        if isinstance(host.runtime.shard, ShareStateShard) and len(host.runtime.shard.states)
    ]
    assert host._log.bounds() == (0, 6)
    host._carry_out(MeasureLog())

    def is_dropped() -> bool:
        room.turn_loop()
        return host._log.bounds() == (6, 7)

    wait_until(is_dropped)
    room.restart_router()
    assert room.result(room.here.read(*name, 0)) == StateRead(1, 4, ())
