"""A group shard with requests of classic members and of administrators."""

from collections.abc import Sequence

from odradek.coordinator.group.events import EventKind
from odradek.coordinator.group.requests import (
    DeleteGroup,
    DescribeGroup,
    DropTopicOffsets,
    ExplainGroup,
    FetchOffsets,
)
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.loader import LogEntry
from odradek.coordinator.runtime import BATCH_BYTES_MAX
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import ExplainedGroup
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequestTopic,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
)
from odradek.protocol.messages.groups import (
    DeletableGroupResult,
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.protocol.messages.partitions import PartitionNumber, TopicPartitionNumbers
from odradek.protocol.types import ZERO_UUID, Uuid
from tests.support import shard_playbook
from tests.support.shard_playbook import ShardPlaybook

NO_DELAY = GroupSettings(initial_rebalance_delay_ms=0)
START_MS = shard_playbook.START_MS
SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE: tuple[tuple[str, bytes], ...] = (("range", b"range metadata"),)


class GroupCall(shard_playbook.Call):
    """One request to a group and its result."""

    @property
    def joined(self) -> JoinGroupResponse:
        return self.response(JoinGroupResponse)

    @property
    def synced(self) -> SyncGroupResponse:
        return self.response(SyncGroupResponse)


class Playbook(ShardPlaybook[GroupShard, GroupCall]):
    """See the module's docstring."""

    def __init__(
        self,
        settings: GroupSettings = NO_DELAY,
        *,
        log: Sequence[LogEntry] = (),
        now_ms: int = START_MS,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self._settings = settings
        super().__init__(
            lambda: GroupShard(self._settings),
            GroupCall,
            log=log,
            now_ms=now_ms,
            batch_bytes_max=batch_bytes_max,
        )

    def reload(self) -> None:
        """As of any shard; the next coordinator has the same settings."""
        self._settings = self.shard.settings
        super().reload()

    # -- requests -------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        version: int = 9,
        client: str = "client",
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        reason: str | None = None,
    ) -> GroupCall:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in protocols
            ],
            reason=reason,
        )
        return self.ask(request, version=version, client=client)

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> GroupCall:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=assignee, assignment=assignment)
                for assignee, assignment in (assignments or {}).items()
            ],
        )
        return self.ask(request, version=5)

    def heartbeat_call(
        self, member_id: str, generation_id: int, *, group: str = "g", instance: str | None = None
    ) -> GroupCall:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
        )
        return self.ask(request, version=4)

    def heartbeat(
        self, member_id: str, generation_id: int, *, group: str = "g", instance: str | None = None
    ) -> int:
        call = self.heartbeat_call(member_id, generation_id, group=group, instance=instance)
        return call.response(HeartbeatResponse).error_code

    def leave_call(self, *identities: MemberIdentity, group: str = "g") -> GroupCall:
        request = LeaveGroupRequest(group_id=group, members=list(identities))
        return self.ask(request, version=5)

    def leave(self, *identities: MemberIdentity, group: str = "g") -> LeaveGroupResponse:
        return self.leave_call(*identities, group=group).response(LeaveGroupResponse)

    def commit_call(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member_id: str = "",
        generation_id: int = -1,
        instance: str | None = None,
        version: int = 9,
        metadata: str | None = "",
        leader_epoch: int = -1,
        retention_ms: int = -1,
        topic_id: Uuid = ZERO_UUID,
    ) -> GroupCall:
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (topic, partition), offset in offsets.items():
            entry = topics.setdefault(
                topic, OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[])
            )
            entry.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=leader_epoch,
                    committed_metadata=metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=list(topics.values()),
        )
        return self.ask(request, version=version)

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member_id: str = "",
        generation_id: int = -1,
        instance: str | None = None,
        version: int = 9,
        metadata: str | None = "",
        leader_epoch: int = -1,
        retention_ms: int = -1,
        topic_id: Uuid = ZERO_UUID,
    ) -> int:
        """The error code of the first partition."""
        call = self.commit_call(
            offsets,
            group=group,
            member_id=member_id,
            generation_id=generation_id,
            instance=instance,
            version=version,
            metadata=metadata,
            leader_epoch=leader_epoch,
            retention_ms=retention_ms,
            topic_id=topic_id,
        )
        return call.response(OffsetCommitResponse).topics[0].partitions[0].error_code

    def fetch(
        self,
        topic: str,
        partition: int,
        *,
        group: str = "g",
        topic_id: Uuid = ZERO_UUID,
    ) -> OffsetFetchResponsePartition:
        topics = [
            OffsetFetchRequestTopic(name=topic, topic_id=topic_id, partition_indexes=[partition])
        ]
        call = self.ask(FetchOffsets(group, topics), version=9)
        return call.response(OffsetFetchResponseGroup).topics[0].partitions[0]

    def fetch_all(self, *, group: str = "g") -> dict[tuple[str, int], int]:
        found = self.ask(FetchOffsets(group, None), version=9).response(OffsetFetchResponseGroup)
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in found.topics
            for partition in topic.partitions
        }

    def delete_offsets(
        self, topic: str, *partitions: int, group: str = "g"
    ) -> OffsetDeleteResponse:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                TopicPartitionNumbers(
                    name=topic,
                    partitions=[PartitionNumber(partition_index=index) for index in partitions],
                )
            ],
        )
        return self.ask(request).response(OffsetDeleteResponse)

    def forget_topics(self, *topics: tuple[str, Uuid]) -> None:
        self.ask(DropTopicOffsets(topics))

    def describe(self, group: str = "g", *, version: int = 6) -> DescribedGroup:
        return self.ask(DescribeGroup(group), version=version).response(DescribedGroup)

    def state(self, group: str = "g") -> str:
        return self.describe(group).group_state

    def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> dict[str, ListedGroup]:
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        listed = self.ask(request, version=5).response(ListGroupsResponse).groups
        return {group.group_id: group for group in listed}

    def delete_group(self, group: str = "g") -> DeletableGroupResult:
        return self.ask(DeleteGroup(group), version=3).response(DeletableGroupResult)

    def explain(self, group: str = "g") -> list[str]:
        """The kinds of the group's events, oldest first, as `member left`."""
        kinds = (EventKind(event.kind) for event in self.explained(group).events)
        return [kind.name.lower().replace("_", " ") for kind in kinds]

    def explained(self, group: str = "g") -> ExplainedGroup:
        return self.ask(ExplainGroup(group)).response(ExplainedGroup)

    # -- whole scenes ---------------------------------------------------------------------------

    def give_id(self, *, group: str = "g", client: str = "client") -> str:
        """The member id that a dynamic member has to join with."""
        call = self.join(group=group, client=client)
        assert call.joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return call.joined.member_id

    def stable(
        self,
        count: int = 1,
        *,
        group: str = "g",
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        instances: Sequence[str] = (),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
    ) -> list[str]:
        """A Stable group of new members, static ones for the instance ids; the first one is the
        leader. Every member's assignment is the text of its index."""
        ids: list[str] = []
        generation_id = 0
        for index in range(count):
            instance = instances[index] if index < len(instances) else None
            new_id = "" if instance is not None else self.give_id(group=group)
            new = self.join(
                new_id,
                group=group,
                instance=instance,
                protocols=protocols,
                protocol_type=protocol_type,
                session_ms=session_ms,
            )
            for at, known_id in enumerate(ids):
                self.join(
                    known_id,
                    group=group,
                    instance=instances[at] if at < len(instances) else None,
                    protocols=protocols,
                    protocol_type=protocol_type,
                    session_ms=session_ms,
                )
            ids.append(new.joined.member_id)
            generation_id = new.joined.generation_id
        assignments = {member_id: b"%d" % at for at, member_id in enumerate(ids)}
        for at, member_id in enumerate(ids):
            self.sync(
                member_id,
                generation_id,
                assignments if at == 0 else None,
                group=group,
                protocol_type=protocol_type,
                protocol_name=protocols[0][0],
            )
        assert self.state(group) == "Stable"
        return ids

    def generation(self, *, group: str = "g") -> int:
        found = self.shard.classic.group(group)
        assert found is not None
        return found.generation_id
