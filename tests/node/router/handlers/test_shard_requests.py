"""The response to a shard's error, and requests that no shard takes."""

from pathlib import Path
from typing import Any

import pytest

from odradek.cluster.metadata.features import SHARE_VERSION, STREAMS_VERSION
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.handlers.consumer_groups import handle_consumer_group_heartbeat
from odradek.node.router.handlers.group_offsets import handle_offset_delete
from odradek.node.router.handlers.groups import (
    handle_find_coordinator,
    handle_heartbeat,
    handle_join_group,
    handle_leave_group,
    handle_sync_group,
)
from odradek.node.router.handlers.shard_requests import answer_of
from odradek.node.router.handlers.share_groups import handle_share_group_heartbeat
from odradek.node.router.handlers.streams import (
    handle_streams_group_heartbeat,
    handle_streams_group_topology_description_update,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.group_offsets import OffsetDeleteRequest
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from odradek.protocol.messages.share import ShareGroupHeartbeatRequest
from odradek.protocol.messages.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupTopologyDescriptionUpdateRequest,
)
from tests.support.group_harness import GroupHarness


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_record_that_is_too_large_is_not_retriable(code: ErrorCode, expected: ErrorCode) -> None:
    reply: Reply[None] = Reply()
    errors: list[BaseException | None] = []
    drive(answer_of(reply), lambda _answer, error: errors.append(error))
    assert errors == []
    reply.fail(ApiError(code))
    [error] = errors
    assert isinstance(error, ApiError)
    assert error.code is expected


@pytest.mark.parametrize("is_hosted", [False, True])
def test_an_empty_group_id_is_refused_by_every_node(tmp_path: Path, is_hosted: bool) -> None:
    """Not with NOT_COORDINATOR, upon which the client would look for a coordinator for ever."""
    with GroupHarness(tmp_path) as harness:
        harness.controller.write(FeatureLevelChanged(SHARE_VERSION, 1))
        harness.controller.write(FeatureLevelChanged(STREAMS_VERSION, 1))
        harness.follow()
        if is_hosted:
            harness.call(handle_find_coordinator, FindCoordinatorRequest(key=""), 0)
        sync = SyncGroupRequest(protocol_type="consumer", protocol_name="range")
        invalid_id, invalid_request = ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_REQUEST
        topology = StreamsGroupTopologyDescriptionUpdateRequest(member_id="m")
        answers: list[tuple[Any, ErrorCode]] = [
            (harness.call(handle_join_group, JoinGroupRequest(), 9), invalid_id),
            (harness.call(handle_sync_group, sync, 5), invalid_id),
            (harness.call(handle_heartbeat, HeartbeatRequest(), 4), invalid_id),
            (harness.call(handle_leave_group, LeaveGroupRequest(), 5), invalid_id),
            (harness.call(handle_offset_delete, OffsetDeleteRequest(), 0), invalid_id),
            (
                harness.call(
                    handle_consumer_group_heartbeat, ConsumerGroupHeartbeatRequest(member_id="m"), 1
                ),
                invalid_request,
            ),
            (
                harness.call(
                    handle_share_group_heartbeat, ShareGroupHeartbeatRequest(member_id="m"), 1
                ),
                invalid_request,
            ),
            (
                harness.call(
                    handle_streams_group_heartbeat, StreamsGroupHeartbeatRequest(member_id="m"), 0
                ),
                invalid_request,
            ),
            (
                harness.call(handle_streams_group_topology_description_update, topology, 0),
                invalid_request,
            ),
        ]
        for answer, expected in answers:
            assert answer.error_code == expected, type(answer)
