"""What the broker's configuration says about a shard of share states."""

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_schema import copy_of
from odradek.coordinator.share.settings import ShareStateSettings


def test_snapshots_are_as_frequent_as_the_broker_says() -> None:
    broker = BrokerSettings(share_coordinator_snapshot_update_records_per_snapshot=3)
    assert copy_of(ShareStateSettings, broker) == ShareStateSettings(updates_per_snapshot=3)
    assert copy_of(ShareStateSettings, BrokerSettings()) == ShareStateSettings()
