"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): which error for which offence, and
what the classic APIs answer about a group of the consumer protocol (KIP-848)."""

from collections.abc import Callable, Sequence

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
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
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.types import Uuid
from tests.conformance.dialogue import DialogueCluster
from tests.conformance.members import RawMember, stabilise, wait_for_coordinator
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

LEAVE = -1
STEP_OUT = -2


@pytest.fixture(autouse=True)
def coordinator(cluster: DialogueCluster, group: str) -> None:
    """The test's group has a coordinator."""
    wait_for_coordinator(cluster, group)


class Beats:
    """Sends heartbeats of any member of one group, exactly as told."""

    def __init__(self, wire: WireClient, group: str, topic: str, topic_id: Uuid) -> None:
        self.wire = wire
        self.group = group
        self.topic = topic
        self.topic_id = topic_id

    def ask(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        group: str | None = None,
        timeout_ms: int = -1,
        topics: Sequence[str] | None = None,
        regex: str | None = None,
        owned: Sequence[int] | None = None,
        instance: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
        version: int = 1,
    ) -> ConsumerGroupHeartbeatResponse:
        """One heartbeat with these fields and no others."""
        places = TopicIdPartitions(topic_id=self.topic_id, partitions=list(owned or ()))
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group if group is None else group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=timeout_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            server_assignor=assignor,
            topic_partitions=None if owned is None else [places] if owned else [],
        )
        if version >= 1:
            request.subscribed_topic_regex = regex
        return self.wire.ask(request, version, ConsumerGroupHeartbeatResponse)

    def join(
        self,
        member_id: str,
        *,
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
    ) -> ConsumerGroupHeartbeatResponse:
        """A member as a client lets it join."""
        return self.ask(
            member_id,
            timeout_ms=30_000,
            topics=None if regex is not None else [self.topic],
            regex=regex,
            owned=[],
            instance=instance,
            assignor=assignor,
        )

    def assigned(self, member_id: str) -> int:
        """A member that has joined and got its partition; its epoch."""
        joined = self.join(member_id)
        assert joined.error_code == ErrorCode.NONE, joined.error_message
        epoch = joined.member_epoch
        if joined.assignment is None or not joined.assignment.topic_partitions:

            def has_partition() -> bool:
                nonlocal epoch
                answer = self.ask(member_id, epoch, owned=[])
                epoch = answer.member_epoch
                return bool(answer.assignment and answer.assignment.topic_partitions)

            wait_until(has_partition, timeout_s=30, what="it has its partition")
        assert self.ask(member_id, epoch, owned=[0]).error_code == ErrorCode.NONE
        return epoch


@pytest.fixture
def heartbeats(wire: WireClient, group: str, topic: str, cluster: DialogueCluster) -> Beats:
    return Beats(wire, group, topic, cluster.topic_id(topic))


Offence = Callable[[Beats], ConsumerGroupHeartbeatResponse]

INVALID: dict[str, Offence] = {
    "no group": lambda heartbeats: heartbeats.ask(
        "m", group="", timeout_ms=1, topics=["t"], owned=[]
    ),
    "an empty instance id": lambda heartbeats: heartbeats.ask(
        "m", timeout_ms=1, topics=["t"], owned=[], instance=""
    ),
    "an empty rack": lambda heartbeats: heartbeats.ask(
        "m", timeout_ms=1, topics=["t"], owned=[], rack=""
    ),
    "no member id": lambda heartbeats: heartbeats.ask("", timeout_ms=1, topics=["t"], owned=[]),
    "no member id in version 0 but to join": lambda heartbeats: heartbeats.ask("", 1, version=0),
    "no rebalance timeout": lambda heartbeats: heartbeats.ask("m", topics=["t"], owned=[]),
    "no partitions told": lambda heartbeats: heartbeats.ask("m", timeout_ms=1, topics=["t"]),
    "partitions owned by who joins": lambda heartbeats: heartbeats.ask(
        "m", timeout_ms=1, topics=["t"], owned=[0]
    ),
    "no subscription": lambda heartbeats: heartbeats.ask("m", timeout_ms=1, owned=[]),
    "stepping out without an instance id": lambda heartbeats: heartbeats.ask("m", STEP_OUT),
    "an epoch that means nothing": lambda heartbeats: heartbeats.ask("m", -3),
}


@pytest.mark.parametrize("offence", INVALID.values(), ids=list(INVALID))
def test_a_heartbeat_that_breaks_a_rule_of_the_message_is_invalid(
    heartbeats: Beats, offence: Offence
) -> None:
    answer = offence(heartbeats)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message


def test_an_assignor_that_nobody_offers_is_unsupported(heartbeats: Beats) -> None:
    answer = heartbeats.join("m", assignor="mine")
    assert answer.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "mine" in (answer.error_message or "")


@pytest.mark.parametrize(
    "regex",
    ["(", "[z-a]", "a**", r"(a)\1", "(?=a)", "(" * 2_000],
    ids=["paren", "range", "stars", "backreference", "lookahead", "nesting"],
)
def test_an_expression_that_re2_does_not_know_is_invalid(heartbeats: Beats, regex: str) -> None:
    """It knows neither backreferences nor lookahead."""
    assert heartbeats.join("m", regex=regex).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_an_expression_that_makes_others_slow_is_matched_in_linear_time(heartbeats: Beats) -> None:
    assert heartbeats.join("m", regex="(a*)*(a|aa)+b").error_code == ErrorCode.NONE


@pytest.mark.parametrize("epoch", [1, LEAVE])
def test_a_member_of_no_group_is_told_that_there_is_none(heartbeats: Beats, epoch: int) -> None:
    assert heartbeats.ask("m", epoch).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [1, 5, LEAVE])
def test_a_stranger_to_a_group_is_told_so(heartbeats: Beats, epoch: int) -> None:
    heartbeats.join("m")
    assert heartbeats.ask("stranger", epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_begins_with_epoch_1_and_its_first_member_starts_epoch_2(heartbeats: Beats) -> None:
    assert heartbeats.join("m").member_epoch == 2
    request = ConsumerGroupDescribeRequest(group_ids=[heartbeats.group])
    [described] = heartbeats.wire.ask(request, 1, ConsumerGroupDescribeResponse).groups
    assert (described.group_epoch, described.assignment_epoch) == (2, 2)
    heartbeats.join("n")
    [described] = heartbeats.wire.ask(request, 1, ConsumerGroupDescribeResponse).groups
    assert described.group_epoch == 3


def test_epochs_that_cannot_be_are_fenced(heartbeats: Beats) -> None:
    epoch = heartbeats.assigned("m")
    assert heartbeats.ask("m", epoch + 1, owned=[0]).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    # Another one's coming and going moves the group on, and this one with it.
    heartbeats.join("other")
    heartbeats.ask("other", LEAVE)

    def has_moved_on() -> bool:
        return heartbeats.ask("m", epoch, owned=[0]).member_epoch > epoch

    wait_until(has_moved_on, timeout_s=30, what="the member is in a later epoch")
    answer = heartbeats.ask("m", epoch, owned=[0, 1, 2])
    assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_an_instance_id_belongs_to_who_holds_it(heartbeats: Beats) -> None:
    epoch = heartbeats.join("m", instance="i").member_epoch
    assert heartbeats.join("n", instance="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    fenced = heartbeats.ask("n", epoch, instance="i")
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
    unknown = heartbeats.ask("m", epoch, instance="j")
    assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeats.ask("m", STEP_OUT, instance="i").error_code == ErrorCode.NONE
    assert heartbeats.join("n", instance="i").error_code == ErrorCode.NONE
    assert heartbeats.ask("m", epoch, instance="i").error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_group_of_another_type_is_no_consumer_group(
    heartbeats: Beats, cluster: DialogueCluster
) -> None:
    with cluster.connect() as wire:
        member = RawMember(wire, heartbeats.group)
        member.protocol_type = "connect"
        member.metadata = b"workers"
        stabilise(member)
        assert heartbeats.join("m").error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert member.heartbeat() == ErrorCode.NONE


def test_the_classic_apis_know_no_member_of_the_consumer_protocol(heartbeats: Beats) -> None:
    epoch = heartbeats.assigned("m")
    wire, group = heartbeats.wire, heartbeats.group
    heartbeat = HeartbeatRequest(group_id=group, generation_id=epoch, member_id="m")
    assert wire.ask(heartbeat, 4, HeartbeatResponse).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=epoch,
        member_id="m",
        protocol_type="consumer",
        protocol_name="range",
    )
    assert wire.ask(sync, 5, SyncGroupResponse).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert heartbeats.ask("m", epoch, owned=[0]).error_code == ErrorCode.NONE


def test_a_member_of_the_consumer_protocol_is_removed_as_any_other(heartbeats: Beats) -> None:
    """As an administrator does it: by its id, or a static one by its instance id."""
    epoch = heartbeats.assigned("m")
    static_epoch = heartbeats.join("n", instance="i").member_epoch
    gone = [
        MemberIdentity(member_id="m"),
        MemberIdentity(member_id="", group_instance_id="i"),
        MemberIdentity(member_id="stranger"),
    ]
    request = LeaveGroupRequest(group_id=heartbeats.group, members=gone)
    left = heartbeats.wire.ask(request, 5, LeaveGroupResponse).members
    assert [ErrorCode(member.error_code) for member in left] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    for answer in (heartbeats.ask("m", epoch), heartbeats.ask("n", static_epoch, instance="i")):
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_of_another_type_cannot_join_a_consumer_group(
    heartbeats: Beats, cluster: DialogueCluster
) -> None:
    heartbeats.assigned("m")
    with cluster.connect() as wire:
        member = RawMember(wire, heartbeats.group)
        member.protocol_type = "connect"
        assert member.join_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_groups_are_described_by_the_api_of_their_kind(
    heartbeats: Beats, cluster: DialogueCluster, wire: WireClient
) -> None:
    heartbeats.assigned("m")
    described = wire.ask(
        DescribeGroupsRequest(groups=[heartbeats.group]), 6, DescribeGroupsResponse
    ).groups[0]
    assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert described.group_state == "Dead"
    classic = f"{heartbeats.group}-classic"
    wait_for_coordinator(cluster, classic)
    with cluster.connect() as other:
        stabilise(RawMember(other, classic))
        request = ConsumerGroupDescribeRequest(group_ids=[heartbeats.group, classic, "nobody", ""])
        groups = wire.ask(request, 1, ConsumerGroupDescribeResponse).groups
    assert {group.group_id: ErrorCode(group.error_code) for group in groups} == {
        heartbeats.group: ErrorCode.NONE,
        classic: ErrorCode.GROUP_ID_NOT_FOUND,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
        "": ErrorCode.INVALID_GROUP_ID,
    }


def test_a_group_with_members_is_not_deleted(heartbeats: Beats) -> None:
    heartbeats.join("m")
    request = DeleteGroupsRequest(groups_names=[heartbeats.group])
    (deleted,) = heartbeats.wire.ask(request, 2, DeleteGroupsResponse).results
    assert deleted.error_code == ErrorCode.NON_EMPTY_GROUP


@pytest.mark.parametrize(
    ("member_id", "later", "version", "metadata", "expected"),
    [
        ("m", 0, 9, "", ErrorCode.NONE),
        ("m", 1, 9, "", ErrorCode.STALE_MEMBER_EPOCH),
        ("stranger", 0, 9, "", ErrorCode.UNKNOWN_MEMBER_ID),
        ("m", 0, 8, "", ErrorCode.UNSUPPORTED_VERSION),
        ("m", 0, 9, "x" * 4_097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_offsets_are_committed_by_members_at_their_epoch(
    heartbeats: Beats, member_id: str, later: int, version: int, metadata: str, expected: ErrorCode
) -> None:
    epoch = heartbeats.assigned("m")
    request = OffsetCommitRequest(
        group_id=heartbeats.group,
        generation_id_or_member_epoch=epoch + later,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=heartbeats.topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=1, committed_metadata=metadata
                    )
                ],
            )
        ],
    )
    answer = heartbeats.wire.ask(request, version, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == expected


@pytest.mark.parametrize(
    ("member_id", "later", "expected"),
    [
        ("m", 0, ErrorCode.NONE),
        ("m", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("stranger", 0, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_offsets_are_fetched_by_members_at_their_epoch(
    heartbeats: Beats, member_id: str, later: int, expected: ErrorCode
) -> None:
    epoch = heartbeats.assigned("m")
    wanted = OffsetFetchRequestGroup(
        group_id=heartbeats.group, member_id=member_id, member_epoch=epoch + later, topics=None
    )
    request = OffsetFetchRequest(groups=[wanted])
    assert heartbeats.wire.ask(request, 9, OffsetFetchResponse).groups[0].error_code == expected
