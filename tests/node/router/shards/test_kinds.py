"""The kinds of coordinators: what holds for each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.metadata.settings import broker_settings
from cluster.metadata.topic_configs import TOPIC_CONFIGS
from cluster.metadata.topic_names import INTERNAL_TOPICS
from node.router.shards.group_kind import GroupKind
from node.router.shards.kinds import ShardKind
from node.router.shards.share_kind import ShareKind
from node.router.shards.transaction_kind import TransactionKind
from node.router.share.state_keeper import StateKeeper
from tests.support.share_room import ShareRoom


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ShareRoom]:
    with ShareRoom(tmp_path) as room:
        yield room


def kinds(room: ShareRoom) -> list[ShardKind]:
    services = room.services
    return [
        GroupKind(services.patterns, StateKeeper(services)),
        TransactionKind(services.markers),
        ShareKind(services),
    ]


def test_each_internal_topic_belongs_to_one_kind(room: ShareRoom) -> None:
    assert sorted(kind.topic_name for kind in kinds(room)) == sorted(INTERNAL_TOPICS)


def test_the_topics_are_made_with_configs_that_topics_have(room: ShareRoom) -> None:
    settings = broker_settings(room.image, 0, {})
    for kind in kinds(room):
        configs = kind.topic_plan(settings).configs
        assert configs
        for key, value in configs:
            assert TOPIC_CONFIGS[key].parse(value) is not None, (kind.topic_name, key, value)


def test_an_image_in_which_nothing_changed_is_no_news_for_a_shard_that_knows_nothing(
    room: ShareRoom,
) -> None:
    settings = broker_settings(room.image, 0, {})
    for kind in kinds(room):
        kind.configure(settings, room.image)
        kind.follow(room.image, room.image)
        assert not kind.follow(room.image, room.image)
        assert kind.missed_deletions(kind.new_shard(), room.image) is None
