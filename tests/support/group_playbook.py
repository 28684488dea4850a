"""A group shard on stage: real runtime, a log in memory, and a clock that is moved by hand.

Requests return a `Call`, which is answered now or by a later event, so that a test reads as the
dialogue it is. Unless the log is held, what an event writes is committed before the next event.
What is to be done outside waits in `sent`.
"""

import uuid
from collections.abc import Sequence

from coordinator.group.records import GroupRecord
from coordinator.group.requests import (
    DeleteGroup,
    DescribeGroup,
    ExplainGroup,
    FetchOffsets,
    ForgetTopics,
)
from coordinator.group.settings import GroupSettings
from coordinator.group.shard import GroupShard
from coordinator.outcome import Answer, Command
from coordinator.runtime import Batch, ShardRuntime
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
)
from protocol.messages.groups import (
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
from protocol.messages.insight import ExplainedGroup
from protocol.types import ZERO_UUID, Uuid
from tests.support import shard_playbook

NO_DELAY = GroupSettings(initial_rebalance_delay_ms=0)
START_MS = shard_playbook.START_MS
SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE: tuple[tuple[str, bytes], ...] = (("range", b"range metadata"),)


class Call(shard_playbook.Call):
    """One request to a group and what became of it."""

    def __init__(self, request_id: int) -> None:
        super().__init__()
        self.request_id = request_id

    @property
    def joined(self) -> JoinGroupResponse:
        return self.response(JoinGroupResponse)

    @property
    def synced(self) -> SyncGroupResponse:
        return self.response(SyncGroupResponse)


class Playbook:
    """See the module's docstring."""

    def __init__(
        self,
        settings: GroupSettings = NO_DELAY,
        *,
        log: Sequence[tuple[bytes, bytes | None]] = (),
        now_ms: int = START_MS,
        batch_bytes_max: int = 1_000_000,
    ) -> None:
        self.now_ms = now_ms
        self.log: list[tuple[bytes, bytes | None]] = list(log)
        self.is_log_held = False
        self.held: list[Batch[GroupRecord]] = []
        self.sent: list[object] = []
        self.calls: dict[int, Call] = {}
        self.batch_bytes_max = batch_bytes_max
        self._load(settings)

    def _load(self, settings: GroupSettings) -> None:
        self.shard = GroupShard(settings)
        self.runtime = ShardRuntime(self.shard, batch_bytes_max=self.batch_bytes_max)
        self.runtime.load(self.log)
        self._hear(self.runtime.finish_loading(next_offset=len(self.log), now_ms=self.now_ms))
        self._settle()

    # -- the log and the clock ------------------------------------------------------------------

    def reload(self) -> None:
        """The coordinator dies and another one loads what the log has."""
        self._hear(self.runtime.unload())
        self.held.clear()
        self.sent.clear()
        self._load(self.shard.settings)

    def hold_log(self) -> None:
        """From now on nothing that is written gets committed."""
        self.is_log_held = True

    def release_log(self) -> None:
        """Commit what was held, and go on committing."""
        self.is_log_held = False
        for batch in self.held:
            self._commit(batch)
        self.held.clear()
        self._settle()

    def fail_log(self, error_code: ErrorCode) -> None:
        """What was held could not be written; go on committing."""
        self.is_log_held = False
        for batch in self.held:
            self._hear(self.runtime.append_failed(batch, error_code, self.now_ms))
        self.held.clear()
        self._settle()

    def tick(self, duration_ms: int) -> None:
        """Let time pass; timers fire when they are due."""
        end_ms = self.now_ms + duration_ms
        while True:
            deadline_ms = self.runtime.next_deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self._hear(self.runtime.fire_due(self.now_ms))
            self._settle()
        self.now_ms = end_ms

    def _settle(self) -> None:
        for batch in self.runtime.take_batches():
            if self.is_log_held:
                self.held.append(batch)
            else:
                self._commit(batch)

    def _commit(self, batch: Batch[GroupRecord]) -> None:
        base_offset = len(self.log)
        self.log.extend(batch.entries)
        self._hear(self.runtime.appended(batch, base_offset))
        self._hear(self.runtime.committed_below(len(self.log), self.now_ms))

    def _hear(self, answers: Sequence[Answer]) -> None:
        self.sent += (send.instruction for send in self.runtime.take_sends())
        for answer in answers:
            call = self.calls[answer.request_id]
            assert call.answer is None, "a request was answered twice"
            call.answer = answer

    # -- requests -------------------------------------------------------------------------------

    def ask(self, request: object, *, version: int = 0, client: str = "client") -> Call:
        request_id = len(self.calls)
        call = self.calls[request_id] = Call(request_id)
        command = Command(
            request=request,
            request_id=request_id,
            api_version=version,
            client_id=client,
            client_host="/127.0.0.1",
            fresh_id=str(uuid.UUID(int=request_id)),
        )
        self._hear(self.runtime.execute(command, self.now_ms))
        self._settle()
        return call

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
    ) -> Call:
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
    ) -> Call:
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
    ) -> Call:
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

    def leave_call(self, *identities: MemberIdentity, group: str = "g") -> Call:
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
    ) -> Call:
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
    ) -> OffsetFetchResponsePartitions:
        topics = [
            OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[partition])
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
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=index) for index in partitions
                    ],
                )
            ],
        )
        return self.ask(request).response(OffsetDeleteResponse)

    def forget_topics(self, *topics: tuple[str, Uuid]) -> None:
        self.ask(ForgetTopics(topics))

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
        """The kinds of what happened, oldest first."""
        return [event.kind for event in self.explained(group).events]

    def explained(self, group: str = "g") -> ExplainedGroup:
        return self.ask(ExplainGroup(group)).response(ExplainedGroup)

    # -- whole scenes ---------------------------------------------------------------------------

    def give_id(self, *, group: str = "g", client: str = "client") -> str:
        """The id that a dynamic member is told to join with."""
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
        """A Stable group of new members, static ones for the instance ids; the first one leads.

        Every member is assigned the text of its index.
        """
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
        found = self.shard.group(group)
        assert found is not None
        return found.generation_id
