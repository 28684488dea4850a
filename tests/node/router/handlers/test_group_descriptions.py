"""Describing groups of the newer types: in the requested order, and in turns of the loop."""

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.features import SHARE_VERSION, STREAMS_VERSION
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.node.router.handlers.consumer_groups import handle_consumer_group_describe
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.share_groups import handle_share_group_describe
from odradek.node.router.handlers.streams import handle_streams_group_describe
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import ConsumerGroupDescribeRequest, FindCoordinatorRequest
from odradek.protocol.messages.share import ShareGroupDescribeRequest
from odradek.protocol.messages.streams import StreamsGroupDescribeRequest
from tests.support.group_harness import GroupHarness


class Kind(NamedTuple):
    """A group type: its handler, and the request for groups of these ids."""

    handler: Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]
    request: Callable[..., object]


KINDS: Final = [
    pytest.param(Kind(handle_consumer_group_describe, ConsumerGroupDescribeRequest), id="consumer"),
    pytest.param(Kind(handle_share_group_describe, ShareGroupDescribeRequest), id="share"),
    pytest.param(Kind(handle_streams_group_describe, StreamsGroupDescribeRequest), id="streams"),
]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        for feature in (SHARE_VERSION, STREAMS_VERSION):
            harness.controller.write(FeatureLevelChanged(feature, 1))
        harness.follow()
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        yield harness


@pytest.mark.parametrize("kind", KINDS)
def test_very_many_groups_are_described_in_turns(harness: GroupHarness, kind: Kind) -> None:
    names = [f"g{index}" for index in range(2_000)]
    answer = harness.call_in_turns(kind.handler, kind.request(group_ids=names), harness.loop)
    assert [group.group_id for group in answer.groups] == names


@pytest.mark.parametrize("kind", KINDS)
def test_each_group_fails_by_itself(harness: GroupHarness, kind: Kind) -> None:
    harness.deny(AclOperation.DESCRIBE, ResourceType.GROUP, "secret")
    groups = harness.call(kind.handler, kind.request(group_ids=["secret", "", "none"])).groups
    assert [group.error_code for group in groups] == [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    assert all(group.error_message for group in groups)
