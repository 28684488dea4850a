"""Share groups (KIP-932) on the wire: APIs 76, 77, 90 to 92, and groups of other kinds beside them;
Kafka's own kafka-share-groups, where it is there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from odradek.protocol.messages.partitions import PartitionOffset, TopicName, TopicOffsets
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    ShareGroupDescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tests.conformance.dialogue import DialogueCluster, append, unique
from tests.conformance.members import subscription, wait_for_coordinator
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

DEADLINE_S = 30.0
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
needs_java = pytest.mark.skipif(
    bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"
)


@pytest.fixture
def share(cluster: DialogueCluster) -> str:
    """The name of a group that nobody has used, whose coordinator answers."""
    name = unique("share")
    wait_for_coordinator(cluster, name)
    return name


def send_heartbeat(
    wire: WireClient,
    group: str,
    epoch: int = 0,
    *topics: str,
    member: str = "m",
    rack: str | None = None,
) -> ShareGroupHeartbeatResponse:
    request = ShareGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rack_id=rack,
        subscribed_topic_names=list(topics) or None,
    )
    return wire.ask(request, 1, ShareGroupHeartbeatResponse)


def joined(wire: WireClient, group: str, *topics: str, count: int, member: str = "m") -> int:
    """Join, and heartbeat until that many partitions are assigned; returns the member's epoch."""
    newest = send_heartbeat(wire, group, 0, *topics, member=member)

    def is_given(response: ShareGroupHeartbeatResponse) -> bool:
        assigned = response.assignment
        found = [] if assigned is None else assigned.topic_partitions
        return sum(len(topic.partitions) for topic in found) == count

    def is_settled() -> bool:
        nonlocal newest
        if newest.error_code == ErrorCode.NONE and not is_given(newest):
            newest = send_heartbeat(wire, group, newest.member_epoch, member=member)
        return newest.error_code != ErrorCode.NONE or is_given(newest)

    wait_until(is_settled, timeout_s=DEADLINE_S, what="the partitions are assigned")
    assert newest.error_code == ErrorCode.NONE, newest
    return newest.member_epoch


def leave(wire: WireClient, group: str, member: str = "m") -> None:
    assert send_heartbeat(wire, group, -1, member=member).error_code == ErrorCode.NONE


def describe(wire: WireClient, group: str) -> ShareGroupDescribedGroup:
    request = ShareGroupDescribeRequest(group_ids=[group])
    [found] = wire.ask(request, 1, ShareGroupDescribeResponse).groups
    return found


def offsets(wire: WireClient, group: str) -> DescribeShareGroupOffsetsResponseGroup:
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[asked])
    [found] = wire.ask(request, 1, DescribeShareGroupOffsetsResponse).groups
    return found


def alter(wire: WireClient, group: str, topic: str, offset: int) -> AlterShareGroupOffsetsResponse:
    """What is answered once the coordinator of the share's state is there, as clients ask."""
    partition = PartitionOffset(partition_index=0, offset=offset)
    request = AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[TopicOffsets(name=topic, partitions=[partition])],
    )

    def settled() -> AlterShareGroupOffsetsResponse | None:
        answer = wire.ask(request, 0, AlterShareGroupOffsetsResponse)
        return None if answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE else answer

    answer = wait_until(settled, timeout_s=DEADLINE_S, what="the share's state has a coordinator")
    assert answer is not None
    return answer


def forget(wire: WireClient, group: str, topic: str) -> DeleteShareGroupOffsetsResponse:
    request = DeleteShareGroupOffsetsRequest(group_id=group, topics=[TopicName(name=topic)])
    return wire.ask(request, 0, DeleteShareGroupOffsetsResponse)


def delete(wire: WireClient, group: str) -> int:
    request = DeleteGroupsRequest(groups_names=[group])
    return wire.ask(request, 2, DeleteGroupsResponse).results[0].error_code


# -- members --------------------------------------------------------------------------------------


def test_a_member_joins_reads_and_leaves(
    cluster: DialogueCluster, wire: WireClient, share: str
) -> None:
    topic = cluster.new_topic(3)
    epoch = joined(wire, share, topic, count=3)
    described = describe(wire, share)
    assert (described.error_code, described.group_state) == (ErrorCode.NONE, "Stable")
    assert described.assignor_name == "simple"
    # A group begins with epoch 1; then its member joins, and the partitions are initialized: again
    # in another epoch if that fails.
    assert described.assignment_epoch == described.group_epoch >= 3
    [member] = described.members
    assert (member.member_id, member.member_epoch) == ("m", epoch)
    assert member.subscribed_topic_names == [topic]
    [assigned] = member.assignment.topic_partitions
    assert (assigned.topic_name, sorted(assigned.partitions)) == (topic, [0, 1, 2])
    gone = send_heartbeat(wire, share, -1)
    assert (gone.error_code, gone.member_id, gone.member_epoch) == (ErrorCode.NONE, "m", -1)
    assert describe(wire, share).group_state == "Empty"


def test_members_share_what_is_less_than_they_are(
    cluster: DialogueCluster, wire: WireClient, share: str
) -> None:
    topic = cluster.new_topic(1)
    for name in ("m", "n", "o"):
        joined(wire, share, topic, count=1, member=name)


@pytest.mark.parametrize(
    ("member", "epoch", "topics", "rack"),
    [("", 0, ["t"], None), ("m", 0, [], None), ("m", 0, ["t"], ""), ("m", -2, [], None)],
)
def test_a_heartbeat_that_breaks_a_rule_is_an_invalid_request(
    wire: WireClient, share: str, member: str, epoch: int, topics: list[str], rack: str | None
) -> None:
    refused = send_heartbeat(wire, share, epoch, *topics, member=member, rack=rack)
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_who_is_not_there_or_comes_with_another_epoch_is_told_so(
    cluster: DialogueCluster, wire: WireClient, share: str
) -> None:
    for epoch in (1, -1):
        assert send_heartbeat(wire, share, epoch).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    epoch = joined(wire, share, cluster.new_topic(), count=1)
    for other in (1, -1):
        assert (
            send_heartbeat(wire, share, other, member="x").error_code == ErrorCode.UNKNOWN_MEMBER_ID
        )
    assert send_heartbeat(wire, share, epoch + 9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert send_heartbeat(wire, share, epoch).error_code == ErrorCode.NONE


# -- groups of other kinds ------------------------------------------------------------------------


def test_a_share_group_is_listed_as_one_and_is_nothing_else(
    cluster: DialogueCluster, wire: WireClient, share: str
) -> None:
    topic = cluster.new_topic()
    joined(wire, share, topic, count=1)
    listed = wire.ask(ListGroupsRequest(types_filter=["share"]), 5, ListGroupsResponse).groups
    [mine] = [each for each in listed if each.group_id == share]
    assert (mine.group_type, mine.protocol_type, mine.group_state) == ("share", "share", "Stable")
    [classic] = wire.ask(DescribeGroupsRequest(groups=[share]), 6, DescribeGroupsResponse).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    [consumer] = wire.ask(
        ConsumerGroupDescribeRequest(group_ids=[share]), 1, ConsumerGroupDescribeResponse
    ).groups
    assert consumer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    beaten = wire.ask(
        ConsumerGroupHeartbeatRequest(
            group_id=share,
            member_id="c",
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        ),
        1,
        ConsumerGroupHeartbeatResponse,
    )
    assert beaten.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    heartbeat = HeartbeatRequest(group_id=share, generation_id=1, member_id="m")
    assert wire.ask(heartbeat, 3, HeartbeatResponse).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_classic_member_does_not_come_into_a_share_group(
    cluster: DialogueCluster, wire: WireClient, share: str, is_empty: bool
) -> None:
    topic = cluster.new_topic()
    joined(wire, share, topic, count=1)
    if is_empty:
        leave(wire, share)
    request = JoinGroupRequest(
        group_id=share,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription(topic))],
    )
    refused = wire.ask(request, 7, JoinGroupResponse)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_share_member_does_not_come_into_another_group(
    wire: WireClient, topic: str, share: str
) -> None:
    assert commit(wire, share, topic) == ErrorCode.NONE
    refused = send_heartbeat(wire, share, 0, topic)
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused.error_message == f"Group {share} is not a share group."
    assert describe(wire, share).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def commit(wire: WireClient, group: str, topic: str) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    return wire.ask(request, 8, OffsetCommitResponse).topics[0].partitions[0].error_code


def test_a_share_group_has_no_offsets_of_the_other_kind(
    cluster: DialogueCluster, wire: WireClient, share: str
) -> None:
    topic = cluster.new_topic()
    joined(wire, share, topic, count=1)
    assert commit(wire, share, topic) == ErrorCode.GROUP_ID_NOT_FOUND
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=share, topics=None)])
    [found] = wire.ask(fetch, 8, OffsetFetchResponse).groups
    assert (found.error_code, found.topics) == (ErrorCode.NONE, [])
    dropped = wire.ask(OffsetDeleteRequest(group_id=share), 0, OffsetDeleteResponse)
    assert dropped.error_code == ErrorCode.GROUP_ID_NOT_FOUND


# -- offsets --------------------------------------------------------------------------------------


def test_offsets_are_set_told_and_forgotten_while_nobody_reads(
    cluster: DialogueCluster, wire: WireClient, share: str
) -> None:
    topic = cluster.new_topic()
    append(wire, topic, b"a", b"b", b"c")
    joined(wire, share, topic, count=1)
    [told] = offsets(wire, share).topics
    assert [(each.start_offset, each.lag) for each in told.partitions] == [(-1, -1)]
    assert alter(wire, share, topic, 1).error_code == ErrorCode.NON_EMPTY_GROUP
    assert forget(wire, share, topic).error_code == ErrorCode.NON_EMPTY_GROUP
    assert delete(wire, share) == ErrorCode.NON_EMPTY_GROUP
    leave(wire, share)
    response = alter(wire, share, topic, 1)
    assert response.error_code == ErrorCode.NONE
    assert response.responses[0].partitions[0].error_code == ErrorCode.NONE
    [told] = offsets(wire, share).topics
    assert (told.topic_name, told.partitions[0].start_offset) == (topic, 1)
    [missing] = alter(wire, share, unique("none"), 1).responses
    assert missing.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    [gone] = forget(wire, share, topic).responses
    assert (gone.topic_name, gone.error_code) == (topic, ErrorCode.NONE)
    assert offsets(wire, share).topics == []
    [never] = forget(wire, share, topic).responses
    assert never.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(wire, share) == ErrorCode.NONE
    assert describe(wire, share).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert delete(wire, share) == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_make_a_group(cluster: DialogueCluster, wire: WireClient, share: str) -> None:
    topic = cluster.new_topic()
    assert alter(wire, share, topic, 0).error_code == ErrorCode.NONE
    assert describe(wire, share).group_state == "Empty"
    other = unique("share")
    assert forget(wire, other, topic).error_code == ErrorCode.GROUP_ID_NOT_FOUND


# -- Kafka's own tool -----------------------------------------------------------------------------

Tool = Callable[..., str]


@pytest.fixture
def tool(cluster: DialogueCluster, tmp_path: Path) -> Tool:
    """Runs kafka-share-groups against the broker under test; what it prints."""

    def run(*arguments: str) -> str:
        given = ("--bootstrap-server", cluster.bootstrap, *arguments)
        done = run_java_tool(SHARE_GROUPS, *given, directory=tmp_path, timeout_s=60.0)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.java
@needs_java
def test_kafka_share_groups_lists_describes_resets_and_deletes(
    cluster: DialogueCluster, wire: WireClient, share: str, tool: Tool
) -> None:
    topic = cluster.new_topic()
    append(wire, topic, b"a", b"b", b"c")
    joined(wire, share, topic, count=1)
    assert share in tool("--list", "--state", "Stable")
    members = tool("--describe", "--group", share, "--members")
    assert f"{topic}:0" in members
    leave(wire, share)
    reset = tool(
        "--reset-offsets", "--group", share, "--topic", topic, "--to-earliest", "--execute"
    )
    assert topic in reset
    [row] = [
        line.split() for line in tool("--describe", "--group", share).splitlines() if topic in line
    ]
    assert row[:4] == [share, topic, "0", "0"]
    tool("--delete-offsets", "--group", share, "--topic", topic)
    assert offsets(wire, share).topics == []
    tool("--delete", "--group", share)
    assert describe(wire, share).error_code == ErrorCode.GROUP_ID_NOT_FOUND
