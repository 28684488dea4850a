"""Share groups (KIP-932) with the playbook: heartbeats, and a share coordinator driven by hand.

Requests of the shard for share states wait in `sent` until `keep_states` carries them out; a test
may let some fail.
"""

from collections.abc import Mapping, Sequence

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.requests import DeleteGroup, UpdateTopics
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.requests import (
    DeleteStates,
    DescribeShareGroup,
    InitializeStates,
    StatesDeleted,
    StatesInitialized,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.partitions import PartitionOffset, TopicName, TopicOffsets
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    ShareGroupDescribedGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from odradek.protocol.types import Uuid
from tests.support.consumer_playbook import Stage
from tests.support.group_playbook import START_MS, GroupCall

AT_ONCE = GroupSettings(
    initial_rebalance_delay_ms=0, share=ShareGroupSettings(assignment_interval_ms=0)
)
SESSION_MS = 45_000

Assigned = dict[str, list[int]]


class ShareStage(Stage):
    """See the module's docstring. `states` are the start offsets by (group, topic, partition),
    with the state epoch before; a state of a lower epoch is refused."""

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        settings: GroupSettings = AT_ONCE,
        *,
        log: Sequence[tuple[bytes, bytes | None]] = (),
        now_ms: int = START_MS,
    ) -> None:
        self.states: dict[tuple[str, Uuid, int], tuple[int, int]] = {}
        super().__init__(topics, settings, log=log, now_ms=now_ms)

    # -- the share coordinator --------------------------------------------------------------------

    def keep_states(self, failing: Mapping[str, ErrorCode] | None = None) -> list[object]:
        """Carry out the requests and report them; topics of these names fail."""
        done, self.sent = self.sent, []
        for instruction in done:
            self.report(instruction, failing)
        return done

    def report(self, instruction: object, failing: Mapping[str, ErrorCode] | None = None) -> None:
        """Carry out one of the requests."""
        assert isinstance(instruction, InitializeStates | DeleteStates)
        outcomes: dict[Uuid, dict[int, ErrorCode]] = {}
        for topic_id, partitions in instruction.topics.items():
            code = (failing or {}).get(self.name_of(topic_id))
            codes = outcomes[topic_id] = {}
            for index in partitions:
                codes[index] = self._keep(instruction, topic_id, index) if code is None else code
        kind = StatesInitialized if isinstance(instruction, InitializeStates) else StatesDeleted
        self.ask(kind(instruction.group_id, outcomes, instruction.request_id))

    def _keep(
        self, instruction: InitializeStates | DeleteStates, topic_id: Uuid, index: int
    ) -> ErrorCode:
        key = (instruction.group_id, topic_id, index)
        if isinstance(instruction, DeleteStates):
            self.states.pop(key, None)
            return ErrorCode.NONE
        if instruction.state_epoch < self.states.get(key, (-1, -1))[0]:
            return ErrorCode.FENCED_STATE_EPOCH
        self.states[key] = (instruction.state_epoch, instruction.topics[topic_id][index])
        return ErrorCode.NONE

    # -- requests ---------------------------------------------------------------------------------

    def share_call(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        group: str = "s",
        topics: Sequence[str] | None = None,
        rack: str | None = None,
    ) -> GroupCall:
        request = ShareGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            rack_id=rack,
            subscribed_topic_names=None if topics is None else list(topics),
        )
        return self.ask(request, version=1)

    def share(
        self,
        member_id: str,
        epoch: int = 0,
        *,
        group: str = "s",
        topics: Sequence[str] | None = None,
    ) -> ShareGroupHeartbeatResponse:
        """A heartbeat and its response; one that joins has its topics."""
        topics = ["a"] if epoch == 0 and topics is None else topics
        call = self.share_call(member_id, epoch, group=group, topics=topics)
        return call.response(ShareGroupHeartbeatResponse)

    def alter(self, offsets: Mapping[str, Mapping[int, int]], *, group: str = "s") -> GroupCall:
        request = AlterShareGroupOffsetsRequest(
            group_id=group,
            topics=[
                TopicOffsets(
                    name=name,
                    partitions=[
                        PartitionOffset(partition_index=index, offset=offset)
                        for index, offset in partitions.items()
                    ],
                )
                for name, partitions in offsets.items()
            ],
        )
        return self.ask(request)

    def forget(self, *topics: str, group: str = "s") -> GroupCall:
        """DeleteShareGroupOffsets."""
        request = DeleteShareGroupOffsetsRequest(
            group_id=group,
            topics=[TopicName(name=name) for name in topics],
        )
        return self.ask(request)

    def delete_call(self, group: str = "s") -> GroupCall:
        return self.ask(DeleteGroup(group), version=3)

    def shares(self, group: str = "s") -> ShareGroup:
        found = self.shard.shares.get(group)
        assert found is not None
        return found

    def describe_shares(self, group: str = "s") -> ShareGroupDescribedGroup:
        return self.ask(DescribeShareGroup(group)).response(ShareGroupDescribedGroup)

    def catch_up(self) -> None:
        """Any topic may have changed."""
        self.ask(UpdateTopics(None, {}))

    def assigned(self, response: ShareGroupHeartbeatResponse) -> Assigned | None:
        """The assignment of a response, None if it has none."""
        if response.assignment is None:
            return None
        return {
            self.name_of(topic.topic_id): topic.partitions
            for topic in response.assignment.topic_partitions
        }


class ShareConsumerMember:
    """A member that behaves as a client library does."""

    def __init__(
        self, stage: ShareStage, member_id: str, *, topics: Sequence[str] = ("a",)
    ) -> None:
        self.stage = stage
        self.member_id = member_id
        self.topics = list(topics)
        self.epoch = 0
        self.reads: Assigned = {}

    def send_heartbeat(self) -> ShareGroupHeartbeatResponse:
        topics = self.topics if self.epoch == 0 else None
        response = self.stage.share(self.member_id, self.epoch, topics=topics)
        assert response.error_code == ErrorCode.NONE, response
        self.epoch = response.member_epoch
        assigned = self.stage.assigned(response)
        if assigned is not None:
            self.reads = assigned
        return response


def settle(stage: ShareStage, *members: ShareConsumerMember, rounds: int = 12) -> None:
    """Heartbeats of all members in turn, with initialization of states, until nothing changes
    any more."""
    for _ in range(rounds):
        before = [(member.epoch, member.reads) for member in members]
        for member in members:
            member.send_heartbeat()
        if not stage.keep_states() and before == [
            (member.epoch, member.reads) for member in members
        ]:
            return
    raise AssertionError("the group does not come to rest")
