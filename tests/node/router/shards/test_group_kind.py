"""Coordinators of groups: their settings, and what their shards are told."""

from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.settings import broker_settings
from odradek.coordinator.group.ephemeral import GroupVanished
from odradek.coordinator.group.requests import FollowTopics
from odradek.coordinator.group.rules import OwnRules, Rules
from odradek.node.bus.reply import Reply
from odradek.node.router.patterns import Patterns
from odradek.node.router.shards.group_kind import GroupKind, group_settings
from odradek.node.router.shards.kinds import Errand
from odradek.node.router.share.state_keeper import StateKeeper
from tests.support.group_room import GroupRoom


def test_rules_for_groups_come_from_brokers_and_groups(tmp_path: Path) -> None:
    group = ConfigResourceType.GROUP
    with GroupRoom(tmp_path) as room:
        room.controller.set_config(
            ConfigResourceType.BROKER,
            "",
            group_ephemeral_patterns="console-*,ci",
            group_ephemeral_ttl_ms="7",
        )
        room.controller.set_config(group, "a", group_ephemeral="true", group_ttl_ms="9")
        room.controller.set_config(group, "b", group_protocol_allow="share,consumer")
        room.controller.set_config(group, "c", consumer_session_timeout_ms="50000")
        room.follow()
        rules = group_settings(broker_settings(room.image, 0, {}), room.image).rules
    assert rules == Rules(
        ephemeral_patterns=("console-*", "ci"),
        ephemeral_ttl_ms=7,
        own={
            "a": OwnRules(is_ephemeral=True, ttl_ms=9),
            "b": OwnRules(protocols=frozenset({"share", "consumer"})),
        },
    )


def test_groups_say_themselves_whether_commits_rewind_them(tmp_path: Path) -> None:
    group = ConfigResourceType.GROUP
    with GroupRoom(tmp_path) as room:
        room.controller.set_config(group, "a", group_rewind_by_commit_enable="TRUE")
        room.controller.set_config(group, "b", group_rewind_by_commit_enable="false")
        room.controller.set_config(group, "c", group_ttl_ms="7")
        room.follow()
        settings = group_settings(broker_settings(room.image, 0, {}), room.image)
    assert settings.rewound_by_commit == {"a"}


def test_shards_are_told_when_rules_change_and_only_then(tmp_path: Path) -> None:
    with GroupRoom(tmp_path) as room:
        kind = GroupKind(Patterns(), StateKeeper(room.services))
        kind.configure(broker_settings(room.image, 0, {}), room.image)
        shard = kind.new_shard()
        for ttl_ms, is_news in (("9", True), ("9", False), ("8", True)):
            before = room.image
            room.controller.set_config(
                ConfigResourceType.GROUP, "g", group_ephemeral="true", group_ttl_ms=ttl_ms
            )
            room.follow()
            kind.configure(broker_settings(room.image, 0, {}), room.image)
            assert kind.follow(before, room.image) is is_news
            news = kind.news(shard)
            assert isinstance(news, FollowTopics)
            assert news.has_new_rules is is_news


def test_ephemeral_groups_that_are_gone_are_told_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    errand = Errand(0, lambda: True, lambda _request: Reply(), 0)
    with GroupRoom(tmp_path) as room, caplog.at_level("INFO"):
        kind = GroupKind(Patterns(), StateKeeper(room.services))
        kind.carry_out(GroupVanished("ci-7", 5_000), errand)
    assert kind.vanished_count == 1
    assert "group ci-7 is ephemeral, was Empty for 5000 ms" in caplog.text


def test_share_groups_have_settings_of_their_own(tmp_path: Path) -> None:
    static = {"group.share.max.size": "7", "group.share.assignment.interval.ms": "9"}
    with GroupRoom(tmp_path, static=static) as room:
        room.controller.set_config(ConfigResourceType.GROUP, "s", share_session_timeout_ms="50000")
        room.follow()
        found = group_settings(broker_settings(room.image, 0, static), room.image)
    assert (found.share_size_max, found.share_assignment_interval_ms) == (7, 9)
    assert (found.share_session_of("s"), found.share_session_of("t")) == (50_000, 45_000)
    assert found.consumer_session_of("s") == 45_000


def test_every_kind_of_group_has_its_own_assignment_interval(tmp_path: Path) -> None:
    with GroupRoom(tmp_path) as room:
        room.controller.set_config(
            ConfigResourceType.GROUP,
            "g",
            consumer_assignment_interval_ms="1",
            share_assignment_interval_ms="2",
            streams_assignment_interval_ms="3",
        )
        room.follow()
        settings = group_settings(broker_settings(room.image, 0, {}), room.image)

    def intervals(group_id: str) -> tuple[int, int, int]:
        return (
            settings.consumer_assignment_interval_of(group_id),
            settings.share_assignment_interval_of(group_id),
            settings.streams_of(group_id).assignment_interval_ms,
        )

    assert intervals("g") == (1, 2, 3)
    assert intervals("h") == (100, 100, 100)
