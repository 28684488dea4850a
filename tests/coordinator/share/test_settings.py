"""The settings of a shard of share states."""

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_schema import copy_of
from odradek.coordinator.share.settings import ShareStateSettings


def test_the_broker_config_sets_the_updates_per_snapshot() -> None:
    broker = BrokerSettings(share_coordinator_snapshot_update_records_per_snapshot=3)
    assert copy_of(ShareStateSettings, broker) == ShareStateSettings(updates_per_snapshot=3)
    assert copy_of(ShareStateSettings, BrokerSettings()) == ShareStateSettings()
