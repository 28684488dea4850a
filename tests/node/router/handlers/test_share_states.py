"""The APIs of share states as other brokers use them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.coordinator.share.requests import InitializeShareState, ShareKey
from odradek.node.router.cooperative_iteration import ITEMS_PER_TURN
from odradek.node.router.handlers import share_states
from odradek.node.router.handlers.groups import KEY_TYPE_SHARE, handle_find_coordinator
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages import share_state as messages
from odradek.protocol.messages.groups import Coordinator, FindCoordinatorRequest
from odradek.protocol.types import uuid_to_text
from tests.support.share_harness import GROUP, ShareHarness

BATCH = messages.StateBatch(first_offset=3, last_offset=4, delivery_state=2, delivery_count=1)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareHarness]:
    with ShareHarness(tmp_path) as harness:
        yield harness


def initialize(harness: ShareHarness, *partitions: int, group_id: str = GROUP) -> list[int]:
    request = messages.InitializeShareGroupStateRequest(
        group_id=group_id,
        topics=[
            messages.InitializeStateData(
                topic_id=harness.topic_id,
                partitions=[
                    messages.InitializeShareGroupStatePartitionData(
                        partition=partition, state_epoch=1, start_offset=2
                    )
                    for partition in partitions
                ],
            )
        ],
    )
    response: messages.ShareGroupStateResponse = harness.call(
        share_states.handle_share_group_state, request
    )
    [topic] = response.results
    assert [result.partition for result in topic.partitions] == [*partitions]
    return [result.error_code for result in topic.partitions]


def write(harness: ShareHarness, version: int = 1) -> int:
    request = messages.WriteShareGroupStateRequest(
        group_id=GROUP,
        topics=[
            messages.WriteStateData(
                topic_id=harness.topic_id,
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
    response: messages.ShareGroupStateResponse = harness.call(
        share_states.handle_share_group_state, request, version
    )
    return response.results[0].partitions[0].error_code


def read(harness: ShareHarness) -> messages.ReadShareGroupStatePartitionResult:
    request = messages.ReadShareGroupStateRequest(
        group_id=GROUP,
        topics=[
            messages.ReadStateData(
                topic_id=harness.topic_id,
                partitions=[messages.ReadShareGroupStatePartitionData(partition=0)],
            )
        ],
    )
    response: messages.ReadShareGroupStateResponse = harness.call(
        share_states.handle_share_group_state, request
    )
    return response.results[0].partitions[0]


def summary(
    harness: ShareHarness, version: int = 1
) -> messages.ReadShareGroupStateSummaryPartitionResult:
    request = messages.ReadShareGroupStateSummaryRequest(
        group_id=GROUP,
        topics=[
            messages.ReadStateData(
                topic_id=harness.topic_id,
                partitions=[messages.ReadShareGroupStatePartitionData(partition=0)],
            )
        ],
    )
    response: messages.ReadShareGroupStateSummaryResponse = harness.call(
        share_states.handle_share_group_state, request, version
    )
    return response.results[0].partitions[0]


def delete(harness: ShareHarness) -> int:
    request = messages.DeleteShareGroupStateRequest(
        group_id=GROUP,
        topics=[
            messages.DeleteStateData(
                topic_id=harness.topic_id,
                partitions=[messages.DeleteShareGroupStatePartitionData(partition=0)],
            )
        ],
    )
    response: messages.ShareGroupStateResponse = harness.call(
        share_states.handle_share_group_state, request
    )
    return response.results[0].partitions[0].error_code


def test_a_state_is_initialized_written_read_and_deleted(harness: ShareHarness) -> None:
    assert initialize(harness, 0, 1, 2) == [0, 0, 0]
    assert write(harness) == ErrorCode.NONE
    found = read(harness)
    assert (found.state_epoch, found.start_offset) == (1, 2)
    assert found.state_batches == [BATCH]
    assert summary(harness) == messages.ReadShareGroupStateSummaryPartitionResult(
        state_epoch=1, start_offset=2, delivery_complete_count=2
    )
    assert delete(harness) == ErrorCode.NONE
    assert read(harness).error_code == ErrorCode.INVALID_REQUEST
    assert summary(harness).start_offset == -1


def test_each_partition_has_its_own_error(harness: ShareHarness) -> None:
    assert initialize(harness, 0, 9, -1) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    ]


def test_version_0_has_no_delivery_complete_count(harness: ShareHarness) -> None:
    initialize(harness, 0)
    assert write(harness, version=0) == ErrorCode.NONE
    assert summary(harness, version=0).delivery_complete_count == -1
    assert summary(harness, version=1).delivery_complete_count == 0


def test_errors_have_a_message(harness: ShareHarness) -> None:
    found = read(harness)
    assert found.error_code == ErrorCode.INVALID_REQUEST
    assert found.error_message is not None
    assert "uninitialized" in found.error_message


def test_a_state_too_large_for_a_record_is_an_invalid_request(harness: ShareHarness) -> None:
    # A string has at most 32,767 bytes in a record, and more in a flexible request.
    group_id = "x" * 40_000
    assert initialize(harness, 0, group_id=group_id) == [ErrorCode.INVALID_REQUEST]
    reply = harness.here.call(
        InitializeShareState(ShareKey(group_id, harness.topic_id, 0), state_epoch=1, start_offset=0)
    )
    with pytest.raises(ApiError) as raised:
        harness.result(reply)
    assert raised.value.code == ErrorCode.INVALID_REQUEST


def test_share_states_need_cluster_action(harness: ShareHarness) -> None:
    initialize(harness, 0)
    harness.deny(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    expected = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert initialize(harness, 0, 1) == [expected, expected]
    assert read(harness).error_code == expected
    assert write(harness) == expected
    assert summary(harness).error_code == expected
    assert delete(harness) == expected
    assert find(harness, f"g:{uuid_to_text(harness.topic_id)}:0").error_code == expected


def test_a_shard_hosted_elsewhere_answers_not_coordinator(harness: ShareHarness) -> None:
    initialize(harness, 0)
    harness.shares.close()
    assert read(harness).error_code == ErrorCode.NOT_COORDINATOR


def find(harness: ShareHarness, key: str, version: int = 6) -> Coordinator:
    request = FindCoordinatorRequest(key_type=KEY_TYPE_SHARE, coordinator_keys=[key])
    [found] = harness.call(handle_find_coordinator, request, version).coordinators
    return found


def _topic_id(index: int) -> bytes:
    return index.to_bytes(16)


def test_very_many_partitions_are_read_in_turns(harness: ShareHarness) -> None:
    count = 2 * ITEMS_PER_TURN
    many = [
        messages.DeleteStateData(
            topic_id=_topic_id(index),
            partitions=[messages.DeleteShareGroupStatePartitionData(partition=0)],
        )
        for index in range(count)
    ]
    request = messages.DeleteShareGroupStateRequest(group_id=GROUP, topics=many)
    answer = harness.call_in_turns(share_states.handle_share_group_state, request, harness.loop)
    assert [topic.topic_id for topic in answer.results] == [topic.topic_id for topic in many]
    assert all(len(topic.partitions) == 1 for topic in answer.results)
    summaries = messages.ReadShareGroupStateSummaryRequest(
        group_id=GROUP,
        topics=[
            messages.ReadStateData(
                topic_id=harness.topic_id,
                partitions=[
                    messages.ReadShareGroupStatePartitionData(partition=index)
                    for index in range(count)
                ],
            )
        ],
    )
    told = harness.call_in_turns(share_states.handle_share_group_state, summaries, harness.loop)
    assert [each.partition for each in told.results[0].partitions] == list(range(count))


def test_the_share_coordinator_is_found_by_group_topic_and_partition(harness: ShareHarness) -> None:
    text = uuid_to_text(harness.topic_id)
    for group in ("g", "a:b"):
        found = find(harness, f"{group}:{text}:0")
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, harness.services.node_id)
    for key in ("g", f"g:{text}", f":{text}:0", f"g:{text}:x", "g:topic:0"):
        found = find(harness, key)
        assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert find(harness, f"g:{text}:0", 5).error_code == ErrorCode.INVALID_REQUEST
