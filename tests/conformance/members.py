"""A member of a classic consumer group that does exactly what a test tells it to."""

from collections.abc import Sequence

from odradek.protocol.consumer_protocol import ConsumerProtocolSubscription
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.protocol.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.conformance.dialogue import DialogueCluster
from tests.conformance.routing import ARE_RESTARTED
from tests.support.subscriptions import encode_subscription
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

SESSION_TIMEOUT_MS = 30_000
REBALANCE_TIMEOUT_MS = 20_000
REBALANCES_MAX = 5
"""While nodes restart: so often does a group form until its assignment is stored."""


def subscription(*topics: str, user_data: bytes | None = None) -> bytes:
    """The metadata of a consumer. Kafka reads it, and a group with any other never forms."""
    return encode_subscription(
        ConsumerProtocolSubscription(topics=list(topics), user_data=user_data), 1
    )


def wait_for_coordinator(cluster: DialogueCluster, group: str) -> None:
    """Return when the group's coordinator is found and answers; the first group has to wait."""
    with cluster.connect() as wire:

        def is_available() -> bool:
            found = wire.ask(FindCoordinatorRequest(key=group), 3, FindCoordinatorResponse)
            probe = HeartbeatRequest(group_id=group, generation_id=0, member_id="probe")
            return found.error_code == ErrorCode.NONE and (
                wire.ask(probe, 3, HeartbeatResponse).error_code == ErrorCode.UNKNOWN_MEMBER_ID
            )

        wait_until(is_available, timeout_s=30, what=f"{group} has a coordinator")


class RawMember:
    """One member with a connection of its own; what it learns from answers it remembers."""

    def __init__(
        self,
        wire: WireClient,
        group: str,
        *,
        instance_id: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        metadata: bytes | None = None,
        version: int = 7,
    ) -> None:
        self.wire = wire
        self.group = group
        self.instance_id = instance_id
        self.protocols = protocols
        self.metadata = subscription() if metadata is None else metadata
        self.version = version
        self.session_timeout_ms = SESSION_TIMEOUT_MS
        self.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
        self.protocol_type = "consumer"
        self.id = ""
        self.generation = -1

    def post_join(self) -> None:
        """Send a JoinGroup without waiting for the answer."""
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_timeout_ms,
            member_id=self.id,
            protocol_type=self.protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=self.metadata)
                for name in self.protocols
            ],
        )
        if self.version >= 1:
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
        if self.version >= 5:
            request.group_instance_id = self.instance_id
        self.wire.post(request, self.version)

    def joined(self) -> JoinGroupResponse:
        """The answer to a JoinGroup that was posted."""
        answer = self.wire.receive(JoinGroupResponse)
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.id = answer.member_id
            self.generation = answer.generation_id
        return answer

    def join_once(self) -> JoinGroupResponse:
        """One JoinGroup and its answer, whatever that is."""
        self.post_join()
        return self.joined()

    def get_id(self) -> None:
        """Obtain a member id, where the version asks for one (KIP-394)."""
        if self.version >= 4 and not self.id and self.instance_id is None:
            assert self.join_once().error_code == ErrorCode.MEMBER_ID_REQUIRED

    def join(self) -> JoinGroupResponse:
        """Join as a client does: with an id if that is what it takes."""
        self.get_id()
        answer = self.join_once()
        assert answer.error_code == ErrorCode.NONE, answer
        return answer

    def post_sync(self, assignments: dict[str, bytes] | None = None) -> None:
        """Send a SyncGroup without waiting for the answer."""
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        self.wire.post(request, 3)

    def synced(self) -> SyncGroupResponse:
        """The answer to a SyncGroup that was posted."""
        return self.wire.receive(SyncGroupResponse)

    def sync(self, assignments: dict[str, bytes] | None = None) -> SyncGroupResponse:
        """One SyncGroup and its answer."""
        self.post_sync(assignments)
        return self.synced()

    def heartbeat(self, generation: int | None = None) -> int:
        """The error code of one Heartbeat."""
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation if generation is None else generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
        )
        return self.wire.ask(request, 3, HeartbeatResponse).error_code

    def leave(self) -> int:
        """The error code for this member of one LeaveGroup."""
        identity = MemberIdentity(member_id=self.id, group_instance_id=self.instance_id)
        request = LeaveGroupRequest(group_id=self.group, members=[identity])
        answer = self.wire.ask(request, 3, LeaveGroupResponse)
        return answer.error_code or answer.members[0].error_code

    def commit(
        self, topic: str, offset: int, *, generation: int | None = None, metadata: str = ""
    ) -> int:
        """The error code of committing one offset of partition 0."""
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=metadata
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        answer = self.wire.ask(request, 8, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code


def form(*members: RawMember) -> list[JoinGroupResponse]:
    """Bring members into one generation, the first as leader; their answers to JoinGroup.

    With others, the first is called back from a generation that it had for itself.
    """
    first, *others = members
    alone = first.join()
    if not others:
        return [alone]
    first.sync({first.id: b""})
    for member in others:
        member.get_id()
        member.post_join()
    wait_until(lambda: first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="a rebalance")
    first.post_join()
    joined = [member.joined() for member in members]
    assert {answer.error_code for answer in joined} == {ErrorCode.NONE}
    assert len({answer.generation_id for answer in joined}) == 1
    return joined


def stabilise(*members: RawMember) -> list[JoinGroupResponse]:
    """Form a group and give every member its own id as assignment."""
    joined = form(*members)
    rebalances = 1
    while not _are_assigned(members, joined):
        rebalances += 1
        assert rebalances <= REBALANCES_MAX
        for member in members:
            member.post_join()
        joined = [member.joined() for member in members]
        assert {answer.error_code for answer in joined} == {ErrorCode.NONE}
    return joined


def _are_assigned(members: Sequence[RawMember], joined: list[JoinGroupResponse]) -> bool:
    """Synchronize the members. False if they have to join again: while nodes restart, the
    assignment may be lost with the coordinator, which then asks for another rebalance."""
    (leader,) = [member for member in members if member.id == joined[0].leader]
    leader.post_sync({member.id: member.id.encode() for member in members})
    for member in members:
        if member is not leader:
            member.post_sync()
    answers = [(member.synced(), member) for member in members]
    codes = {answer.error_code for answer, _ in answers}
    if ARE_RESTARTED and ErrorCode.REBALANCE_IN_PROGRESS in codes:
        return False
    for answer, member in answers:
        assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, member.id.encode())
    return True
