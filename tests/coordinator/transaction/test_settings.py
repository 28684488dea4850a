"""The settings of a transaction shard."""

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_schema import copy_of
from odradek.coordinator.transaction.settings import TransactionSettings


def test_durations_are_those_of_the_broker() -> None:
    broker = BrokerSettings(
        transaction_max_timeout_ms=1,
        transactional_id_expiration_ms=2,
        transaction_remove_expired_transaction_cleanup_interval_ms=3,
    )
    assert copy_of(TransactionSettings, broker) == TransactionSettings(
        timeout_max_ms=1, expiration_ms=2, expiry_check_interval_ms=3
    )
    assert copy_of(TransactionSettings, BrokerSettings()) == TransactionSettings()
