"""StreamsGroupHeartbeat (88), StreamsGroupDescribe (89) and StreamsGroupTopologyDescriptionUpdate
(93), KIP-1071 and 1331: what they answer, and with which error codes. The members
here do what the test says, as no library would."""

from collections.abc import Sequence

import pytest

from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from odradek.protocol.messages.streams import (
    StreamsGroupDescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupHeartbeatTopology,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
    TaskIds,
    TopologyDescription,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from tests.conformance.dialogue import DialogueCluster, describe_topic, unique
from tests.conformance.members import wait_for_coordinator
from tests.support.streams_playbook import subtopology, topology
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, versions_of

MISSING_SOURCE, WRONG_COUNTS, MISSING_INTERNAL, DELAYED = 1, 2, 3, 5
TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def coordinator(cluster: DialogueCluster, group: str) -> None:
    """The test's group has a coordinator, and the broker serves streams groups."""
    if ApiKey.STREAMS_GROUP_HEARTBEAT not in versions_of(cluster.bootstrap):
        pytest.skip("the broker under test serves no streams groups")
    wait_for_coordinator(cluster, group)


def send_heartbeat(
    wire: WireClient,
    group: str,
    member: str = "m",
    epoch: int = 0,
    *,
    plan: StreamsGroupHeartbeatTopology | None = None,
    owned: Sequence[TaskIds] | None = None,
) -> StreamsGroupHeartbeatResponse:
    """One heartbeat; one that joins brings all that it must but the topology."""
    tasks: list[TaskIds] | None = [] if epoch == 0 else None
    request = StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000 if epoch == 0 else -1,
        process_id="process" if epoch == 0 else None,
        topology=plan,
        active_tasks=tasks if owned is None else list(owned),
        standby_tasks=tasks if owned is None else [],
        warmup_tasks=tasks if owned is None else [],
    )
    return wire.ask(request, 0, StreamsGroupHeartbeatResponse)


def settled(wire: WireClient, group: str, plan: StreamsGroupHeartbeatTopology) -> int:
    """Join and wait for tasks; the member's epoch then."""
    joined = send_heartbeat(wire, group, plan=plan)
    assert joined.error_code == ErrorCode.NONE, joined
    epoch, has_tasks = joined.member_epoch, bool(joined.active_tasks)

    def is_there() -> bool:
        nonlocal epoch, has_tasks
        if not has_tasks:
            answer = send_heartbeat(wire, group, epoch=epoch)
            assert answer.error_code == ErrorCode.NONE, answer
            epoch, has_tasks = answer.member_epoch, bool(answer.active_tasks)
        return has_tasks

    wait_until(is_there, timeout_s=TIMEOUT_S, what="the member has tasks")
    return epoch


def statuses(answer: StreamsGroupHeartbeatResponse) -> set[int]:
    return {each.status_code for each in answer.status or ()} - {DELAYED}


def describe(wire: WireClient, group: str) -> StreamsGroupDescribedGroup:
    request = StreamsGroupDescribeRequest(group_ids=[group])
    [found] = wire.ask(request, 0, StreamsGroupDescribeResponse).groups
    return found


def test_an_application_with_a_repartition_topic_and_a_store_comes_to_run(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    source, words, counts = cluster.new_topic(2), unique("words"), unique("counts")
    plan = topology(
        subtopology("0", source, sinks=[words]),
        subtopology("1", repartition=[words], changelogs=[counts]),
    )
    for part in plan.subtopologies:
        for topic in (*part.repartition_source_topics, *part.state_changelog_topics):
            topic.replication_factor = 1
    first = send_heartbeat(wire, group, plan=plan)
    assert statuses(first) == {MISSING_INTERNAL}
    epoch = settled(wire, group, plan)
    assert [len(describe_topic(wire, name).partitions) for name in (words, counts)] == [2, 2]
    told = describe(wire, group)
    assert (told.error_code, told.group_state) == (ErrorCode.NONE, "Stable")
    [member] = told.members
    assert member.member_epoch == epoch
    assert sum(len(each.partitions) for each in member.assignment.active_tasks) == 4
    assert told.topology is not None
    assert [part.subtopology_id for part in told.topology.subtopologies or ()] == ["0", "1"]


def test_topics_that_are_not_as_they_must_be_are_told(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    missing = send_heartbeat(wire, group, plan=topology(subtopology("0", unique("missing"))))
    assert (missing.error_code, statuses(missing)) == (ErrorCode.NONE, {MISSING_SOURCE})
    assert describe(wire, group).group_state == "NotReady"
    one, two = cluster.new_topic(1), cluster.new_topic(2)
    plan = topology(subtopology("0", one, two, together=[([0, 1], [])]))
    other = unique("other")
    wait_for_coordinator(cluster, other)
    assert statuses(send_heartbeat(wire, other, plan=plan)) == {WRONG_COUNTS}


@pytest.mark.parametrize(
    "plan",
    [
        topology(subtopology("0", "__consumer_offsets")),
        topology(subtopology("0", "no/topic")),
    ],
)
def test_an_invalid_topology_is_refused(
    wire: WireClient, group: str, plan: StreamsGroupHeartbeatTopology
) -> None:
    answer = send_heartbeat(wire, group, plan=plan)
    assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert answer.error_message


def test_a_topology_whose_repartition_topics_feed_each_other_is_refused(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    source, ring = cluster.new_topic(1), unique("ring")
    plan = topology(
        subtopology("0", source),
        subtopology("1", repartition=[ring], sinks=[ring]),
    )
    assert send_heartbeat(wire, group, plan=plan).error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_requests_that_break_a_rule_are_invalid(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    topic = cluster.new_topic(1)
    plan = topology(subtopology("0", topic))
    tasks = [TaskIds(subtopology_id="0", partitions=[0])]
    codes = [
        send_heartbeat(wire, group).error_code,
        send_heartbeat(wire, group, "", plan=plan).error_code,
        send_heartbeat(wire, group, plan=plan, owned=tasks).error_code,
        send_heartbeat(wire, group, epoch=1, plan=plan).error_code,
        send_heartbeat(wire, group, epoch=-3).error_code,
        send_heartbeat(wire, group, epoch=-2).error_code,
    ]
    assert codes == [ErrorCode.INVALID_REQUEST] * 6


def test_groups_members_and_epochs_that_there_are_not(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    assert send_heartbeat(wire, group, epoch=1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert send_heartbeat(wire, group, epoch=-1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    topic = cluster.new_topic(1)
    plan = topology(subtopology("0", topic))
    epoch = settled(wire, group, plan)
    assert send_heartbeat(wire, group, "x", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert send_heartbeat(wire, group, "x", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert send_heartbeat(wire, group, epoch=epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert send_heartbeat(wire, group, epoch=1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    nowhere = [TaskIds(subtopology_id="0", partitions=[7])]
    assert (
        send_heartbeat(wire, group, epoch=epoch, owned=nowhere).error_code
        == ErrorCode.INVALID_REQUEST
    )
    other = topology(subtopology("9", topic))
    assert send_heartbeat(wire, group, "y", plan=other).error_code == ErrorCode.INVALID_REQUEST
    left = send_heartbeat(wire, group, epoch=-1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -1)


def test_offsets_are_for_members_of_the_right_epoch(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    topic = cluster.new_topic(1)
    epoch = settled(wire, group, topology(subtopology("0", topic)))

    def commit(member: str, at: int, version: int = 9) -> int:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=at,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        answer = wire.ask(request, version, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    assert commit("m", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("m", epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit("x", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("m", epoch, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert commit("m", epoch) == ErrorCode.NONE

    def fetch(member: str | None, at: int) -> tuple[int, int]:
        asked = OffsetFetchRequestGroup(
            group_id=group,
            member_id=member,
            member_epoch=at,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])],
        )
        [found] = wire.ask(OffsetFetchRequest(groups=[asked]), 9, OffsetFetchResponse).groups
        offsets = [p.committed_offset for each in found.topics for p in each.partitions]
        return found.error_code, offsets[0] if offsets and not found.error_code else -1

    assert fetch("m", epoch) == (ErrorCode.NONE, 3)
    assert fetch(None, -1) == (ErrorCode.NONE, 3)
    assert fetch("m", epoch - 1)[0] == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("x", epoch)[0] == ErrorCode.UNKNOWN_MEMBER_ID


def test_kinds_of_groups_do_not_mix(cluster: DialogueCluster, wire: WireClient, group: str) -> None:
    topic = cluster.new_topic(1)
    plan = topology(subtopology("0", topic))
    settled(wire, group, plan)
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="c",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    joined = wire.ask(consumer, 1, ConsumerGroupHeartbeatResponse)
    assert joined.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    classic = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    refused = wire.ask(classic, 5, JoinGroupResponse)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    [described] = wire.ask(DescribeGroupsRequest(groups=[group]), 6, DescribeGroupsResponse).groups
    assert (described.error_code, described.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    listed = wire.ask(ListGroupsRequest(types_filter=["streams"]), 5, ListGroupsResponse).groups
    assert {g.group_id: (g.group_type, g.protocol_type, g.group_state) for g in listed}[group] == (
        "streams",
        "streams",
        "Stable",
    )

    def delete() -> int:
        request = DeleteGroupsRequest(groups_names=[group])
        return wire.ask(request, 2, DeleteGroupsResponse).results[0].error_code

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    send_heartbeat(wire, group, epoch=-1)
    assert delete() == ErrorCode.NONE
    assert describe(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_consumer_group_is_no_streams_group(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    topic = cluster.new_topic(1)
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="c",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    assert wire.ask(consumer, 1, ConsumerGroupHeartbeatResponse).error_code == ErrorCode.NONE
    answer = send_heartbeat(wire, group, plan=topology(subtopology("0", topic)))
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert describe(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_description_is_kept_unless_it_is_too_long(
    cluster: DialogueCluster, wire: WireClient, group: str
) -> None:
    if ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE not in versions_of(cluster.bootstrap):
        pytest.skip("the broker under test takes no descriptions of topologies")
    settled(wire, group, topology(subtopology("0", cluster.new_topic(1))))

    def push(name: str) -> int:
        node = TopologyDescriptionNode(name=name, node_type=1)
        part = TopologyDescriptionSubtopology(subtopology_id="0", nodes=[node])
        request = StreamsGroupTopologyDescriptionUpdateRequest(
            group_id=group,
            member_id="m",
            topology_description=TopologyDescription(subtopologies=[part]),
        )
        return wire.ask(request, 0, StreamsGroupTopologyDescriptionUpdateResponse).error_code

    assert push("x" * (1 << 20)) == ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED
    assert push("source") == ErrorCode.NONE
    request = StreamsGroupDescribeRequest(group_ids=[group], include_topology_description=True)
    [told] = wire.ask(request, 1, StreamsGroupDescribeResponse).groups
    assert told.topology_description is not None
    [part] = told.topology_description.subtopologies
    assert [node.name for node in part.nodes] == ["source"]
