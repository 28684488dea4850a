"""The group coordinator type: settings and updates of its shards."""

from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.settings import broker_settings
from odradek.coordinator.group.administration.ephemeral_groups import EphemeralGroupExpired
from odradek.coordinator.group.policies import GroupPolicies, GroupPolicyOverrides
from odradek.coordinator.group.requests import UpdateTopics
from odradek.coordinator.group.settings import group_settings
from odradek.node.bus.reply import Reply
from odradek.node.router.patterns import TopicPatterns
from odradek.node.router.shards.coordinator_type import EffectContext
from odradek.node.router.shards.group_coordinator_type import GroupCoordinatorType
from tests.support.group_harness import GroupHarness
from tests.support.log_lines import log_text


def test_group_settings_come_from_broker_and_group_configs(tmp_path: Path) -> None:
    group = ConfigResourceType.GROUP
    with GroupHarness(tmp_path) as harness:
        harness.controller.set_config(
            ConfigResourceType.BROKER,
            "",
            group_ephemeral_patterns="console-*,ci",
            group_ephemeral_ttl_ms="7",
        )
        harness.controller.set_config(group, "a", group_ephemeral="true", group_ttl_ms="9")
        harness.controller.set_config(group, "b", group_protocol_allow="share,consumer")
        harness.controller.set_config(group, "c", consumer_session_timeout_ms="50000")
        harness.follow()
        settings = group_settings(broker_settings(harness.image, 0, {}), harness.image.configs)
    assert settings.policies == GroupPolicies(
        ephemeral_patterns=("console-*", "ci"),
        ephemeral_ttl_ms=7,
        own={
            "a": GroupPolicyOverrides(is_ephemeral=True, ttl_ms=9),
            "b": GroupPolicyOverrides(protocols=frozenset({"share", "consumer"})),
        },
    )


def test_a_group_config_allows_commits_to_rewind(tmp_path: Path) -> None:
    group = ConfigResourceType.GROUP
    with GroupHarness(tmp_path) as harness:
        harness.controller.set_config(group, "a", group_rewind_by_commit_enable="TRUE")
        harness.controller.set_config(group, "b", group_rewind_by_commit_enable="false")
        harness.controller.set_config(group, "c", group_ttl_ms="7")
        harness.follow()
        settings = group_settings(broker_settings(harness.image, 0, {}), harness.image.configs)
    assert settings.rewind_by_commit_groups == {"a"}


def test_shards_are_updated_only_when_settings_change(tmp_path: Path) -> None:
    with GroupHarness(tmp_path) as harness:
        kind = GroupCoordinatorType(TopicPatterns(), lambda _effect, _context: None)
        kind.configure(broker_settings(harness.image, 0, {}), harness.image)
        shard = kind.new_shard()
        for ttl_ms, is_news in (("9", True), ("9", False), ("8", True)):
            before = harness.image
            harness.controller.set_config(
                ConfigResourceType.GROUP, "g", group_ephemeral="true", group_ttl_ms=ttl_ms
            )
            harness.follow()
            kind.configure(broker_settings(harness.image, 0, {}), harness.image)
            assert kind.apply_image(before, harness.image) is is_news
            metadata_update = kind.metadata_update(shard)
            assert isinstance(metadata_update, UpdateTopics)
            assert metadata_update.has_new_rules is is_news


def test_deleted_ephemeral_groups_are_logged_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = EffectContext(0, lambda: True, lambda _request: Reply(), 0)
    with caplog.at_level("INFO"):
        kind = GroupCoordinatorType(TopicPatterns(), lambda _effect, _context: None)
        kind.run_effect(EphemeralGroupExpired("ci-7", 5_000), context)
    assert kind.deleted_ephemeral_count == 1
    assert "deleted with its offsets group=ci-7 duration_ms=5000" in log_text(caplog)


def test_share_groups_have_their_own_settings(tmp_path: Path) -> None:
    static = {"group.share.max.size": "7", "group.share.assignment.interval.ms": "9"}
    with GroupHarness(tmp_path, static=static) as harness:
        harness.controller.set_config(
            ConfigResourceType.GROUP, "s", share_session_timeout_ms="50000"
        )
        harness.follow()
        found = group_settings(broker_settings(harness.image, 0, static), harness.image.configs)
    assert (found.share.max_size, found.share.assignment_interval_ms) == (7, 9)
    assert found.share_of("s").session_timeout_ms == 50_000
    assert found.share_of("t").session_timeout_ms == 45_000
    assert found.consumer_of("s").session_timeout_ms == 45_000


def test_every_group_type_has_its_own_assignment_interval(tmp_path: Path) -> None:
    with GroupHarness(tmp_path) as harness:
        harness.controller.set_config(
            ConfigResourceType.GROUP,
            "g",
            consumer_assignment_interval_ms="1",
            share_assignment_interval_ms="2",
            streams_assignment_interval_ms="3",
        )
        harness.follow()
        settings = group_settings(broker_settings(harness.image, 0, {}), harness.image.configs)

    def intervals(group_id: str) -> tuple[int, int, int]:
        return (
            settings.consumer_of(group_id).assignment_interval_ms,
            settings.share_of(group_id).assignment_interval_ms,
            settings.streams_of(group_id).assignment_interval_ms,
        )

    assert intervals("g") == (1, 2, 3)
    assert intervals("h") == (100, 100, 100)
