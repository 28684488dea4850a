"""The settings for delegation tokens: Kafka's keys; the secret key is a node's own."""

from odradek.cluster.metadata.config_definitions import ConfigScope, ConfigType
from odradek.cluster.metadata.config_tables import BROKER_CONFIGS
from odradek.cluster.metadata.delegation_token_settings import DelegationTokenSettings

DAY_MS = 86_400_000


def test_the_defaults_are_those_of_kafka() -> None:
    settings = DelegationTokenSettings()
    assert settings.delegation_token_secret_key is None
    assert settings.delegation_token_max_lifetime_ms == 7 * DAY_MS
    assert settings.delegation_token_expiry_time_ms == DAY_MS
    assert settings.delegation_token_expiry_check_interval_ms == DAY_MS // 24


def test_the_secret_key_is_a_secret_that_no_client_can_set() -> None:
    key = BROKER_CONFIGS["delegation.token.secret.key"]
    assert (key.type, key.scope) == (ConfigType.PASSWORD, ConfigScope.READ_ONLY)


def test_the_times_can_be_changed_for_all_brokers() -> None:
    for name in ("max.lifetime.ms", "expiry.time.ms", "expiry.check.interval.ms"):
        assert BROKER_CONFIGS[f"delegation.token.{name}"].scope is ConfigScope.CLUSTER
