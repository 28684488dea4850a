"""Describing groups of the newer kinds: in the order asked for, and in turns of the loop."""

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from odradek.cluster.metadata.features import SHARE_VERSION, STREAMS_VERSION
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.node.router.authorizer import Operation, ResourceType
from odradek.node.router.handlers.consumer_groups import handle_consumer_group_describe
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.share_groups import handle_share_group_describe
from odradek.node.router.handlers.streams import handle_streams_group_describe
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import ConsumerGroupDescribeRequest, FindCoordinatorRequest
from odradek.protocol.messages.share import ShareGroupDescribeRequest
from odradek.protocol.messages.streams import StreamsGroupDescribeRequest
from tests.support.group_room import GroupRoom


class Kind(NamedTuple):
    """A kind of groups: its handler, and the request for groups of these ids."""

    handler: Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]
    request: Callable[..., object]


KINDS: Final = [
    pytest.param(Kind(handle_consumer_group_describe, ConsumerGroupDescribeRequest), id="consumer"),
    pytest.param(Kind(handle_share_group_describe, ShareGroupDescribeRequest), id="share"),
    pytest.param(Kind(handle_streams_group_describe, StreamsGroupDescribeRequest), id="streams"),
]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[GroupRoom]:
    with GroupRoom(tmp_path) as room:
        for feature in (SHARE_VERSION, STREAMS_VERSION):
            room.controller.write(FeatureLevelChanged(feature, 1))
        room.follow()
        room.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        yield room


@pytest.mark.parametrize("kind", KINDS)
def test_very_many_groups_are_described_in_turns(room: GroupRoom, kind: Kind) -> None:
    names = [f"g{index}" for index in range(2_000)]
    answer = room.call_in_turns(kind.handler, kind.request(group_ids=names), room.loop)
    assert [group.group_id for group in answer.groups] == names


@pytest.mark.parametrize("kind", KINDS)
def test_each_group_fails_by_itself(room: GroupRoom, kind: Kind) -> None:
    room.deny(Operation.DESCRIBE, ResourceType.GROUP, "secret")
    groups = room.call(kind.handler, kind.request(group_ids=["secret", "", "none"])).groups
    assert [group.error_code for group in groups] == [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert all(group.error_message for group in groups)
