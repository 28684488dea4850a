"""The settings of groups from the configuration."""

import pytest

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.group_settings import ConsumerGroupSettings, MigrationPolicy
from odradek.cluster.metadata.image import ConfigResource, ConfigResourceType, ConfigsImage
from odradek.coordinator.group.settings import GroupSettings, group_settings


@pytest.mark.parametrize(
    ("policy", "allows"),
    [
        ("bidirectional", (True, True)),
        ("upgrade", (True, False)),
        ("downgrade", (False, True)),
        ("disabled", (False, False)),
    ],
)
def test_the_migration_policy_decides_the_direction(policy: str, allows: tuple[bool, bool]) -> None:
    found = MigrationPolicy(policy)
    assert (found.allows_upgrade, found.allows_downgrade) == allows


def test_a_group_has_its_own_settings_or_the_defaults() -> None:
    own = {"own": ConsumerGroupSettings(assignment_interval_ms=0, session_timeout_ms=50_000)}
    settings = GroupSettings(consumer_overrides=own)
    found = [settings.consumer_of(group_id) for group_id in ("own", "none")]
    assert [each.assignment_interval_ms for each in found] == [0, 100]
    assert [each.session_timeout_ms for each in found] == [50_000, 45_000]


def test_defaults_are_those_of_a_broker_without_configs() -> None:
    assert group_settings(BrokerSettings(), ConfigsImage({})) == GroupSettings()
    assert GroupSettings().offsets_retention_ms == 7 * 24 * 3_600_000


def test_only_groups_with_own_values_have_own_settings() -> None:
    configs = ConfigsImage(
        {
            ConfigResource(ConfigResourceType.GROUP, "c"): {
                "consumer.heartbeat.interval.ms": "7000",
                "group.rewind.by.commit.enable": "true",
            },
            ConfigResource(ConfigResourceType.GROUP, "s"): {"share.session.timeout.ms": "50000"},
            ConfigResource(ConfigResourceType.TOPIC, "t"): {"retention.ms": "5"},
        }
    )
    settings = group_settings(BrokerSettings(), configs)
    assert settings.consumer_overrides.keys() == {"c"}
    assert settings.share_overrides.keys() == {"s"}
    assert not settings.streams_overrides
    assert settings.consumer_of("c").is_interval_fixed
    assert not settings.share_of("s").is_interval_fixed
    assert settings.rewind_by_commit_groups == {"c"}
    assert not settings.policies.own
