"""What the configuration says about groups."""

import pytest

from odradek.coordinator.group.settings import (
    GroupSettings,
    GroupSettingsOverrides,
    MigrationPolicy,
)


@pytest.mark.parametrize(
    ("policy", "allows"),
    [
        ("bidirectional", (True, True)),
        ("upgrade", (True, False)),
        ("downgrade", (False, True)),
        ("disabled", (False, False)),
    ],
)
def test_the_policy_says_which_way_a_group_may_go(policy: str, allows: tuple[bool, bool]) -> None:
    found = MigrationPolicy(policy)
    assert (found.allows_upgrade, found.allows_downgrade) == allows


def test_a_groups_own_assignment_interval_wins() -> None:
    overrides = {
        "own": GroupSettingsOverrides(assignment_interval_ms=0),
        "other": GroupSettingsOverrides(heartbeat_interval_ms=6_000),
    }
    settings = GroupSettings(consumer_overrides=overrides, share_overrides=overrides)
    for found in (
        settings.consumer_assignment_interval_ms_of,
        settings.share_assignment_interval_ms_of,
    ):
        assert [found(name) for name in ("own", "other", "none")] == [0, 100, 100]


def test_a_groups_own_session_wins() -> None:
    overrides = {
        "own": GroupSettingsOverrides(session_timeout_ms=50_000),
        "other": GroupSettingsOverrides(heartbeat_interval_ms=6_000),
    }
    settings = GroupSettings(consumer_overrides=overrides)
    assert [settings.consumer_session_timeout_ms_of(name) for name in ("own", "other", "none")] == [
        50_000,
        45_000,
        45_000,
    ]
