"""StreamsGroupHeartbeat and StreamsGroupDescribe through their handlers and coordinators."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.coordinator.group.streams.responses import DescriptionStatus
from odradek.coordinator.group.streams.topology import StatusCode
from odradek.node.router.handlers.groups import handle_find_coordinator, handle_list_groups
from odradek.node.router.handlers.streams import (
    handle_streams_group_describe,
    handle_streams_group_heartbeat,
    handle_streams_group_topology_description_update,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, ListGroupsRequest
from odradek.protocol.messages.streams import (
    StreamsGroupDescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatTopology,
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS
from tests.support.group_harness import GroupHarness
from tests.support.streams_playbook import subtopology, topology, word_count

GROUP, TOPIC, CLUSTER = ResourceType.GROUP, ResourceType.TOPIC, ResourceType.CLUSTER
AT_ONCE = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}
ALONE = topology(subtopology("0", "in"))


def finalise(harness: GroupHarness, level: int) -> None:
    harness.controller.write(FeatureLevelChanged("streams.version", level))
    harness.follow()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    """With `__consumer_offsets`, and a topic to read."""
    with GroupHarness(tmp_path, static=AT_ONCE) as harness:
        finalise(harness, 1)
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("in", 101, 2)
        yield harness


def join(
    harness: GroupHarness,
    plan: StreamsGroupHeartbeatTopology = ALONE,
    member_id: str = "m",
    version: int = 0,
) -> StreamsGroupHeartbeatResponse:
    request = StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        rebalance_timeout_ms=30_000,
        process_id="p",
        topology=plan,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    return harness.call(handle_streams_group_heartbeat, request, version)


def heartbeat(harness: GroupHarness, epoch: int, group: str = "g") -> StreamsGroupHeartbeatResponse:
    request = StreamsGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=epoch)
    return harness.call(handle_streams_group_heartbeat, request, 0)


def describe(
    harness: GroupHarness, *groups: str, version: int = 0, ops: bool = False, whole: bool = False
) -> list[StreamsGroupDescribedGroup]:
    request = StreamsGroupDescribeRequest(
        group_ids=list(groups),
        include_authorized_operations=ops,
        include_topology_description=whole,
    )
    return harness.call(handle_streams_group_describe, request, version).groups


def statuses(response: StreamsGroupHeartbeatResponse) -> list[tuple[int, str]]:
    return [(each.status_code, each.status_detail) for each in response.status or ()]


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_joins_and_sends_heartbeats(harness: GroupHarness, version: int) -> None:
    joined = join(harness, version=version)
    assert (joined.error_code, joined.member_epoch) == (ErrorCode.NONE, 2)
    assert [each.partitions for each in joined.active_tasks or ()] == [[0, 1]]
    assert joined.topology_description_required == (version == 1)
    harness.restart_router()
    assert heartbeat(harness, 2).error_code == ErrorCode.NONE


def test_errors_have_a_message(harness: GroupHarness) -> None:
    refused = heartbeat(harness, 5)
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == "Group g not found."
    assert (
        join(harness, topology(subtopology("0"))).error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    )


def test_missing_internal_topics_are_created(harness: GroupHarness) -> None:
    first = join(harness, word_count())
    assert statuses(first) == [
        (StatusCode.MISSING_INTERNAL_TOPICS, "Internal topics are missing: counts, words")
    ]
    harness.turn_loop()
    assert statuses(heartbeat(harness, first.member_epoch)) == []
    image = harness.services.image
    assert {name: len(image.topics_by_name[name].partitions) for name in ("counts", "words")} == {
        "counts": 2,
        "words": 2,
    }


def test_topics_that_the_member_may_not_create_are_named_in_the_status(
    harness: GroupHarness,
) -> None:
    harness.deny(AclOperation.CREATE, CLUSTER, "kafka-cluster")
    harness.deny(AclOperation.CREATE, TOPIC, "counts")
    [(code, detail)] = statuses(join(harness, word_count()))
    assert code == StatusCode.MISSING_INTERNAL_TOPICS
    assert detail.endswith("; Unauthorized to CREATE on topics counts.")
    assert "words" not in harness.services.image.topics_by_name


def test_topics_that_cannot_be_created_are_in_the_status_with_the_reason(
    harness: GroupHarness,
) -> None:
    plan = word_count()
    plan.subtopologies[1].state_changelog_topics[0].replication_factor = 99
    [(code, detail)] = statuses(join(harness, plan))
    assert code == StatusCode.MISSING_INTERNAL_TOPICS
    assert "Creation failed: counts (" in detail


def test_permissions_on_the_group_and_on_the_topics_are_needed(harness: GroupHarness) -> None:
    harness.deny(AclOperation.READ, GROUP, "g")
    assert join(harness).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    harness.authorizer.denied.clear()
    harness.deny(AclOperation.DESCRIBE, TOPIC, "in")
    assert join(harness).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    harness.authorizer.denied.clear()
    join(harness)
    harness.deny(AclOperation.DESCRIBE, TOPIC, "in")
    [hidden] = describe(harness, "g")
    assert (hidden.error_code, hidden.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
    harness.deny(AclOperation.DESCRIBE, GROUP, "g")
    [hidden] = describe(harness, "g")
    assert hidden.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_a_description_includes_what_was_requested(harness: GroupHarness) -> None:
    join(harness)
    [plain] = describe(harness, "g")
    assert plain.authorized_operations == NO_AUTHORIZED_OPERATIONS
    [told, missing, nameless] = describe(harness, "g", "x", "", version=1, ops=True, whole=True)
    assert (told.group_state, told.assignor_name) == ("Stable", "sticky")
    assert told.topology_description_status == DescriptionStatus.NOT_STORED
    assert told.authorized_operations != NO_AUTHORIZED_OPERATIONS
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID
    [listed] = harness.call(
        handle_list_groups, ListGroupsRequest(types_filter=["streams"]), 5
    ).groups
    assert (listed.group_id, listed.group_type) == ("g", "streams")


def test_requests_are_unsupported_before_the_feature_is_enabled(harness: GroupHarness) -> None:
    finalise(harness, 0)
    assert join(harness).error_code == ErrorCode.UNSUPPORTED_VERSION
    [described] = describe(harness, "g")
    assert described.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_group_configs_take_effect_at_once(harness: GroupHarness) -> None:
    epoch = join(harness).member_epoch
    harness.controller.set_config(
        ConfigResourceType.GROUP, "g", streams_heartbeat_interval_ms="7000"
    )
    harness.follow()
    assert heartbeat(harness, epoch).heartbeat_interval_ms == 7_000


# -- descriptions of topologies -------------------------------------------------------------------


def push(
    harness: GroupHarness, member_id: str = "m", *, group: str = "g", epoch: int = 0, kind: int = 1
) -> int:
    node = TopologyDescriptionNode(name="source", node_type=kind, source_topics=["in"])
    part = TopologyDescriptionSubtopology(subtopology_id="0", nodes=[node])
    request = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id=group,
        member_id=member_id,
        topology_epoch=epoch,
        topology_description=TopologyDescription(subtopologies=[part]),
    )
    answer = harness.call(handle_streams_group_topology_description_update, request, 0)
    assert bool(answer.error_message) == bool(answer.error_code)
    return answer.error_code


def test_a_requested_topology_description_is_returned(harness: GroupHarness) -> None:
    assert join(harness, version=1).topology_description_required
    assert not join(harness, member_id="n", version=1).topology_description_required
    assert push(harness) == ErrorCode.NONE
    [told] = describe(harness, "g", version=1, whole=True)
    assert told.topology_description_status == DescriptionStatus.AVAILABLE
    assert told.topology_description is not None
    assert told.topology_description.subtopologies[0].nodes[0].source_topics == ["in"]
    [plain] = describe(harness, "g", version=1)
    assert plain.topology_description_status == DescriptionStatus.NOT_REQUESTED
    assert plain.topology_description is None
    harness.restart_router()
    assert join(harness, version=1).topology_description_required, "the new coordinator asks again"


def test_invalid_topology_descriptions_are_refused(harness: GroupHarness) -> None:
    join(harness)
    assert push(harness, group="x") == ErrorCode.GROUP_ID_NOT_FOUND
    assert push(harness, "stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert push(harness, epoch=3) == ErrorCode.INVALID_REQUEST
    assert push(harness, kind=9) == ErrorCode.INVALID_REQUEST
    assert push(harness, "") == ErrorCode.INVALID_REQUEST
    assert push(harness, group="") == ErrorCode.INVALID_REQUEST
    harness.deny(AclOperation.READ, GROUP, "g")
    assert push(harness) == ErrorCode.GROUP_AUTHORIZATION_FAILED
    harness.authorizer.denied.clear()
    finalise(harness, 0)
    assert push(harness) == ErrorCode.UNSUPPORTED_VERSION
    finalise(harness, 1)
    [told] = describe(harness, "g", version=1, whole=True)
    assert told.topology_description_status == DescriptionStatus.NOT_STORED
