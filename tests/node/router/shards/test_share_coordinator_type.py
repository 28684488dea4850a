"""The share coordinator type: topic, settings, and deletion of records before a checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.metadata.topic_names import SHARE_GROUP_STATE
from odradek.coordinator.share.requests import (
    ForgetTopicStates,
    InitializeShareState,
    MeasureLog,
    PersistedShareState,
    ReadShareState,
    ShareKey,
    WriteShareState,
)
from odradek.coordinator.share.shard import ShareStateShard
from odradek.node.router.shards.share_coordinator_type import ShareCoordinatorType
from tests.support.share_harness import GROUP, ShareHarness
from tests.support.waiting import wait_until


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareHarness]:
    with ShareHarness(tmp_path) as harness:
        yield harness


def test_the_topic_is_created_with_the_broker_configs(harness: ShareHarness) -> None:
    topic = harness.image.topics_by_name[SHARE_GROUP_STATE]
    assert len(topic.partitions) == 3
    assert harness.image.configs.of(ConfigResourceType.TOPIC, SHARE_GROUP_STATE) == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "2",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert not ShareStateShard.is_log_compacted


def share_type(harness: ShareHarness) -> ShareCoordinatorType:
    services = harness.services
    return ShareCoordinatorType(services.metadata, services.logs, services.worker_client)


def test_shards_have_the_settings_of_the_broker(harness: ShareHarness) -> None:
    kind = share_type(harness)
    static = {"share.coordinator.snapshot.update.records.per.snapshot": "3"}
    kind.configure(broker_settings(harness.image, 0, static), harness.image)
    shard = kind.new_shard()
    assert shard.settings.updates_per_snapshot == 3
    assert shard.topics is harness.image.topics_by_id
    kind.configure(broker_settings(harness.image, 0, {}), harness.image)
    kind.update(shard)
    assert shard.settings.updates_per_snapshot == 500


def test_shards_get_new_topics(harness: ShareHarness) -> None:
    other = harness.have_topic("other", 2)
    harness.result(
        harness.here.call(
            InitializeShareState(ShareKey(GROUP, other, 0), state_epoch=1, start_offset=0)
        )
    )
    assert harness.result(
        harness.here.call(ReadShareState(ShareKey(GROUP, other, 0), 0))
    ) == PersistedShareState(1, 0, ())


def test_missed_topic_deletions_are_found(harness: ShareHarness) -> None:
    kind = share_type(harness)
    harness.result(
        harness.here.call(
            InitializeShareState(
                ShareKey(GROUP, harness.topic_id, 0), state_epoch=1, start_offset=0
            )
        )
    )
    [shard] = [shard for shard in harness.shards() if len(shard.states)]
    assert kind.missed_topic_deletions(shard, harness.image) is None
    before = harness.image
    harness.drop_topic("t")
    assert not len(shard.states)
    # As if it had moved here with what it knew.
    lost = ShareStateShard(shard.settings, before.topics_by_id)
    for entry in log_of(harness):
        record = lost.decode(*entry)
        if record is not None and record.value is not None:
            lost.replay(record)
    assert kind.missed_topic_deletions(lost, harness.image) == ForgetTopicStates(
        frozenset({harness.topic_id})
    )


def log_of(harness: ShareHarness) -> list[tuple[bytes, bytes | None]]:
    """All records of the shard that has some."""
    found: list[tuple[bytes, bytes | None]] = []
    for host in harness.shares._hosts.values():
        start_offset, end_offset = host._log.bounds()
        if end_offset > start_offset:
            entries, _ = host._log.read(start_offset, end_offset)
            found += entries  # type: ignore[arg-type]  # there are no transactions
    return found


def test_records_before_a_checkpoint_are_deleted(harness: ShareHarness) -> None:
    name = GROUP, harness.topic_id, 0
    harness.result(
        harness.here.call(InitializeShareState(ShareKey(*name), state_epoch=1, start_offset=0))
    )
    for at in range(5):
        harness.result(
            harness.here.call(
                WriteShareState(
                    ShareKey(*name),
                    state_epoch=1,
                    leader_epoch=0,
                    start_offset=at,
                    delivery_complete_count=0,
                    batches=(),
                )
            )
        )
    [host] = [
        host
        for host in harness.shares._hosts.values()
        if isinstance(host.runtime.shard, ShareStateShard) and len(host.runtime.shard.states)
    ]
    assert host._log.bounds() == (0, 6)
    host._run_effect(MeasureLog())

    def is_dropped() -> bool:
        harness.turn_loop()
        return host._log.bounds() == (6, 7)

    wait_until(is_dropped)
    harness.restart_router()
    assert harness.result(
        harness.here.call(ReadShareState(ShareKey(*name), 0))
    ) == PersistedShareState(1, 4, ())
