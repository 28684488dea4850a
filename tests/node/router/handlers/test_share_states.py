"""The APIs of share states as other brokers, and administrators, speak them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.router.authorizer import CLUSTER_NAME, Operation, ResourceType
from odradek.node.router.handlers import share_states
from odradek.node.router.handlers.groups import KEY_TYPE_SHARE, handle_find_coordinator
from odradek.node.router.pacing import ITEMS_PER_TURN
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages import share_state as messages
from odradek.protocol.messages.groups import Coordinator, FindCoordinatorRequest
from odradek.protocol.types import uuid_to_text
from tests.support.share_room import GROUP, ShareRoom

BATCH = messages.StateBatch(first_offset=3, last_offset=4, delivery_state=2, delivery_count=1)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[ShareRoom]:
    with ShareRoom(tmp_path) as room:
        yield room


def initialize(room: ShareRoom, *partitions: int, group_id: str = GROUP) -> list[int]:
    request = messages.InitializeShareGroupStateRequest(
        group_id=group_id,
        topics=[
            messages.InitializeStateData(
                topic_id=room.topic_id,
                partitions=[
                    messages.InitializeShareGroupStatePartitionData(
                        partition=partition, state_epoch=1, start_offset=2
                    )
                    for partition in partitions
                ],
            )
        ],
    )
    response = room.call(share_states.handle_initialize_share_group_state, request)
    [topic] = response.results
    assert [result.partition for result in topic.partitions] == [*partitions]
    return [result.error_code for result in topic.partitions]


def write(room: ShareRoom, version: int = 1) -> int:
    request = messages.WriteShareGroupStateRequest(
        group_id=GROUP,
        topics=[
            messages.WriteStateData(
                topic_id=room.topic_id,
                partitions=[
                    messages.WriteShareGroupStatePartitionData(
                        partition=0,
                        state_epoch=1,
                        leader_epoch=0,
                        start_offset=-1,
                        delivery_complete_count=2,
                        state_batches=[BATCH],
                    )
                ],
            )
        ],
    )
    response = room.call(share_states.handle_write_share_group_state, request, version)
    return response.results[0].partitions[0].error_code


def read(room: ShareRoom) -> messages.ReadShareGroupStatePartitionResult:
    request = messages.ReadShareGroupStateRequest(
        group_id=GROUP,
        topics=[
            messages.ReadStateData(
                topic_id=room.topic_id,
                partitions=[messages.ReadShareGroupStatePartitionData(partition=0)],
            )
        ],
    )
    response = room.call(share_states.handle_read_share_group_state, request)
    return response.results[0].partitions[0]


def summary(
    room: ShareRoom, version: int = 1
) -> messages.ReadShareGroupStateSummaryPartitionResult:
    request = messages.ReadShareGroupStateSummaryRequest(
        group_id=GROUP,
        topics=[
            messages.ReadStateSummaryData(
                topic_id=room.topic_id,
                partitions=[messages.ReadShareGroupStateSummaryPartitionData(partition=0)],
            )
        ],
    )
    response = room.call(share_states.handle_read_share_group_state_summary, request, version)
    return response.results[0].partitions[0]


def delete(room: ShareRoom) -> int:
    request = messages.DeleteShareGroupStateRequest(
        group_id=GROUP,
        topics=[
            messages.DeleteStateData(
                topic_id=room.topic_id,
                partitions=[messages.DeleteShareGroupStatePartitionData(partition=0)],
            )
        ],
    )
    response = room.call(share_states.handle_delete_share_group_state, request)
    return response.results[0].partitions[0].error_code


def test_a_share_partition_from_beginning_to_end(room: ShareRoom) -> None:
    assert initialize(room, 0, 1, 2) == [0, 0, 0]
    assert write(room) == ErrorCode.NONE
    found = read(room)
    assert (found.state_epoch, found.start_offset) == (1, 2)
    assert found.state_batches == [BATCH]
    assert summary(room) == messages.ReadShareGroupStateSummaryPartitionResult(
        state_epoch=1, start_offset=2, delivery_complete_count=2
    )
    assert delete(room) == ErrorCode.NONE
    assert read(room).error_code == ErrorCode.INVALID_REQUEST
    assert summary(room).start_offset == -1


def test_each_partition_has_its_own_error(room: ShareRoom) -> None:
    assert initialize(room, 0, 9, -1) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ]


def test_older_versions_know_no_count(room: ShareRoom) -> None:
    initialize(room, 0)
    assert write(room, version=0) == ErrorCode.NONE
    assert summary(room, version=0).delivery_complete_count == -1
    assert summary(room, version=1).delivery_complete_count == 0


def test_a_refusal_says_why(room: ShareRoom) -> None:
    found = read(room)
    assert found.error_code == ErrorCode.INVALID_REQUEST
    assert found.error_message is not None
    assert "uninitialized" in found.error_message


def test_what_no_record_can_hold_is_refused(room: ShareRoom) -> None:
    # Kafka's strings end at 32,767 octets in a record, and at more in a flexible request.
    group_id = "x" * 40_000
    assert initialize(room, 0, group_id=group_id) == [ErrorCode.INVALID_REQUEST]
    reply = room.here.initialize(group_id, room.topic_id, 0, 1, 0)
    with pytest.raises(ApiError) as raised:
        room.result(reply)
    assert raised.value.code == ErrorCode.INVALID_REQUEST


def test_only_the_cluster_itself_may(room: ShareRoom) -> None:
    initialize(room, 0)
    room.deny(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    expected = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert initialize(room, 0, 1) == [expected, expected]
    assert read(room).error_code == expected
    assert write(room) == expected
    assert summary(room).error_code == expected
    assert delete(room) == expected
    assert find(room, f"g:{uuid_to_text(room.topic_id)}:0").error_code == expected


def test_a_shard_that_is_elsewhere_says_so(room: ShareRoom) -> None:
    initialize(room, 0)
    room.shares.close()
    assert read(room).error_code == ErrorCode.NOT_COORDINATOR


def find(room: ShareRoom, key: str, version: int = 6) -> Coordinator:
    request = FindCoordinatorRequest(key_type=KEY_TYPE_SHARE, coordinator_keys=[key])
    [found] = room.call(handle_find_coordinator, request, version).coordinators
    return found


def _no_uuid(index: int) -> bytes:
    return index.to_bytes(16)


def test_very_many_partitions_are_asked_for_in_turns(room: ShareRoom) -> None:
    count = 2 * ITEMS_PER_TURN
    many = [
        messages.DeleteStateData(
            topic_id=_no_uuid(index),
            partitions=[messages.DeleteShareGroupStatePartitionData(partition=0)],
        )
        for index in range(count)
    ]
    request = messages.DeleteShareGroupStateRequest(group_id=GROUP, topics=many)
    answer = room.call_in_turns(share_states.handle_delete_share_group_state, request, room.loop)
    assert [topic.topic_id for topic in answer.results] == [topic.topic_id for topic in many]
    assert all(len(topic.partitions) == 1 for topic in answer.results)
    summaries = messages.ReadShareGroupStateSummaryRequest(
        group_id=GROUP,
        topics=[
            messages.ReadStateSummaryData(
                topic_id=room.topic_id,
                partitions=[
                    messages.ReadShareGroupStateSummaryPartitionData(partition=index)
                    for index in range(count)
                ],
            )
        ],
    )
    told = room.call_in_turns(
        share_states.handle_read_share_group_state_summary, summaries, room.loop
    )
    assert [each.partition for each in told.results[0].partitions] == list(range(count))


def test_its_coordinator_is_found_by_group_topic_and_partition(room: ShareRoom) -> None:
    text = uuid_to_text(room.topic_id)
    for group in ("g", "a:b"):
        found = find(room, f"{group}:{text}:0")
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, room.services.node_id)
    for key in ("g", f"g:{text}", f":{text}:0", f"g:{text}:x", "g:topic:0"):
        found = find(room, key)
        assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert find(room, f"g:{text}:0", 5).error_code == ErrorCode.INVALID_REQUEST
