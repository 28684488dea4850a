"""The transaction coordinator type: topic and settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.metadata.topic_names import TRANSACTION_STATE
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.node.router.shards.transaction_coordinator_type import transaction_settings
from tests.support.transaction_harness import TransactionHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[TransactionHarness]:
    with TransactionHarness(tmp_path) as harness:
        yield harness


def test_the_topic_is_created_with_the_broker_configs(harness: TransactionHarness) -> None:
    topic = harness.image.topics_by_name[TRANSACTION_STATE]
    assert len(topic.partitions) == 3
    assert harness.image.configs.of(ConfigResourceType.TOPIC, TRANSACTION_STATE) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "16777216",
        "unclean.leader.election.enable": "false",
    }
    assert TransactionShard.is_log_compacted


def test_transaction_settings_come_from_configs_and_features(
    harness: TransactionHarness,
) -> None:
    static = {
        "transaction.max.timeout.ms": "1",
        "transactional.id.expiration.ms": "2",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "3",
    }
    settings = transaction_settings(
        broker_settings(harness.image, 1, static), {"transaction.version": 2}
    )
    assert (settings.timeout_max_ms, settings.expiration_ms) == (1, 2)
    assert settings.expiry_check_interval_ms == 3
    assert settings.transaction_version == 2
    assert transaction_settings(broker_settings(harness.image, 0, {}), {}).transaction_version == 0
