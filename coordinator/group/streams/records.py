"""The records of streams groups (KIP-1071) in `__consumer_offsets`, in Kafka's own formats.

Values are immutable, their mappings are never written to. Called by `records`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from odradek.coordinator.group.modern.records import (
    TARGET_EPOCH,
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    MemberState,
    ModernRecord,
    ModernRecords,
    TargetEpochRecord,
    TargetRecord,
    epochs_of,
    modern_format,
)
from odradek.protocol.messages.streams import (
    KeyValue,
    StreamsGroupEndpoint,
    StreamsGroupHeartbeatTopology,
    TaskIds,
)
from odradek.protocol.schema import array, int8, int32, int64, optional, string, struct

Tasks: TypeAlias = Mapping[str, frozenset[int]]
"""The partitions of tasks by subtopology; a subtopology without tasks is omitted."""
TaskEpochs: TypeAlias = Mapping[str, Mapping[int, int]]
"""Tasks by subtopology, each with the member epoch in which it was assigned to the member."""

NOT_VALIDATED: Final = -1


class StoredPair(msgspec.Struct, frozen=True, order=True, gc=False):
    """A key and its value: of a topic's config, a client tag, or the assignor's configuration."""

    key: str
    value: str


Pairs: TypeAlias = tuple[StoredPair, ...]
"""In the order of their keys."""


class StreamsEndpoint(msgspec.Struct, frozen=True, gc=False):
    """A member's address for interactive queries."""

    host: str
    port: int


class InternalTopic(msgspec.Struct, frozen=True, gc=False):
    """A topic of the topology; with 0 partitions or replicas the broker chooses the number."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    topic_configs: Pairs = ()


class StoredCopartitionGroup(msgspec.Struct, frozen=True, gc=False):
    """Topics with the same number of partitions, as indexes into the subtopology's lists."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


class Subtopology(msgspec.Struct, frozen=True, kw_only=True):
    """Processors that run together: a task has the same partition of all source topics."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    state_changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[StoredCopartitionGroup, ...] = ()

    def sources(self) -> list[str]:
        """The topics that its tasks read."""
        return [*self.source_topics, *(topic.name for topic in self.repartition_source_topics)]


class Topology(msgspec.Struct, frozen=True):
    """The topology of the application; subtopologies are sorted by id."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]


_NONE: Final[Mapping[str, frozenset[int]]] = {}
_NONE_WITH_EPOCHS: Final[Mapping[str, Mapping[int, int]]] = {}


class TasksTuple(NamedTuple):
    """A member's tasks by role."""

    active: Tasks = _NONE
    standby: Tasks = _NONE
    warmup: Tasks = _NONE


class TasksTupleWithEpochs(NamedTuple):
    """A member's tasks by role; active ones with the epochs in which they were assigned."""

    active: TaskEpochs = _NONE_WITH_EPOCHS
    standby: Tasks = _NONE
    warmup: Tasks = _NONE


NO_TASKS: Final = TasksTuple()
NO_TASKS_WITH_EPOCHS: Final = TasksTupleWithEpochs()


class StreamsGroupEpoch(GroupEpoch, frozen=True, gc=False):
    """A group epoch, with the epoch of the topology whose topics have been validated, and the
    configuration of the assignor."""

    validated_topology_epoch: int = NOT_VALIDATED
    assignment_configs: Pairs = ()


class StreamsGroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member, which is one thread of a process."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: StreamsEndpoint | None = None
    client_tags: Pairs = ()


class StreamsCurrentAssignment(CurrentAssignment, frozen=True):
    """The tasks that a member may run, and those that it still has to revoke."""

    assigned: TasksTupleWithEpochs = NO_TASKS_WITH_EPOCHS
    pending_revocation: TasksTupleWithEpochs = NO_TASKS_WITH_EPOCHS


class StreamsEpochRecord(EpochRecord[StreamsGroupEpoch], frozen=True, gc=False):
    """See EpochRecord."""


class StreamsMemberRecord(MemberRecord[StreamsGroupMember], frozen=True):
    """See MemberRecord."""


class StreamsTargetEpochRecord(TargetEpochRecord, frozen=True, gc=False):
    """See TargetEpochRecord."""


class StreamsTargetRecord(TargetRecord[TasksTuple], frozen=True):
    """See TargetRecord."""


class StreamsCurrentRecord(CurrentRecord[StreamsCurrentAssignment], frozen=True):
    """See CurrentRecord."""


class StreamsTopologyRecord(ModernRecord, frozen=True):
    """The group's topology."""

    value: Topology | None


STREAMS_RECORDS: Final = ModernRecords(
    StreamsEpochRecord,
    StreamsTargetEpochRecord,
    StreamsMemberRecord,
    StreamsTargetRecord,
    StreamsCurrentRecord,
    StreamsTopologyRecord,
)


# -- formats --------------------------------------------------------------------------------------


@struct
class _EpochValue:
    epoch: int = int32()
    metadata_hash: int = int64()
    validated_topology_epoch: int = int32(default=NOT_VALIDATED, tag=0)
    assignment_configs: list[KeyValue] = array(KeyValue, tag=1)


@struct
class _MemberValue:
    instance_id: str | None = string(nullable_since=0)
    rack_id: str | None = string(nullable_since=0)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout_ms: int = int32()
    topology_epoch: int = int32()
    process_id: str = string()
    endpoint: StreamsGroupEndpoint | None = optional(StreamsGroupEndpoint, nullable_since=0)
    client_tags: list[KeyValue] = array(KeyValue)


@struct
class _TaskEpochsValue:
    subtopology_id: str = string()
    partitions: list[int] = array(int32)
    epochs: list[int] | None = array(int32, nullable_since=0, default=None, tag=0)


@struct
class _TargetValue:
    active: list[TaskIds] = array(TaskIds)
    standby: list[TaskIds] = array(TaskIds)
    warmup: list[TaskIds] = array(TaskIds)


@struct
class _CurrentValue:
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    active: list[_TaskEpochsValue] = array(_TaskEpochsValue)
    standby: list[TaskIds] = array(TaskIds)
    warmup: list[TaskIds] = array(TaskIds)
    pending_active: list[_TaskEpochsValue] = array(_TaskEpochsValue)
    pending_standby: list[TaskIds] = array(TaskIds)
    pending_warmup: list[TaskIds] = array(TaskIds)


def _tasks_values(tasks: Tasks) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=subtopology, partitions=sorted(indexes))
        for subtopology, indexes in tasks.items()
    ]


def _tasks(values: list[TaskIds]) -> Tasks:
    return {value.subtopology_id: frozenset(value.partitions) for value in values}


def _task_epochs_values(tasks: TaskEpochs) -> list[_TaskEpochsValue]:
    return [
        _TaskEpochsValue(
            subtopology_id=subtopology,
            partitions=(in_order := sorted(epochs)),
            epochs=[epochs[index] for index in in_order],
        )
        for subtopology, epochs in tasks.items()
    ]


def _task_epochs(values: list[_TaskEpochsValue]) -> TaskEpochs:
    return {value.subtopology_id: epochs_of(value.partitions, value.epochs) for value in values}


def _current_value(current: StreamsCurrentAssignment) -> _CurrentValue:
    assigned, pending = current.assigned, current.pending_revocation
    return _CurrentValue(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_member_epoch,
        state=_STATE_NUMBERS[current.state],
        active=_task_epochs_values(assigned.active),
        standby=_tasks_values(assigned.standby),
        warmup=_tasks_values(assigned.warmup),
        pending_active=_task_epochs_values(pending.active),
        pending_standby=_tasks_values(pending.standby),
        pending_warmup=_tasks_values(pending.warmup),
    )


def _current(read: _CurrentValue) -> StreamsCurrentAssignment:
    return StreamsCurrentAssignment(
        read.member_epoch,
        read.previous_member_epoch,
        _STATES.get(read.state, MemberState.UNKNOWN),
        TasksTupleWithEpochs(_task_epochs(read.active), _tasks(read.standby), _tasks(read.warmup)),
        TasksTupleWithEpochs(
            _task_epochs(read.pending_active),
            _tasks(read.pending_standby),
            _tasks(read.pending_warmup),
        ),
    )


def _target_value(target: TasksTuple) -> _TargetValue:
    active, standby, warmup = map(_tasks_values, target)
    return _TargetValue(active=active, standby=standby, warmup=warmup)


def _target(read: _TargetValue) -> TasksTuple:
    return TasksTuple(_tasks(read.active), _tasks(read.standby), _tasks(read.warmup))


_STATES: Final = {
    1: MemberState.STABLE,
    2: MemberState.UNREVOKED,
    3: MemberState.UNRELEASED,
    127: MemberState.UNKNOWN,
}
_STATE_NUMBERS: Final = {state: number for number, state in _STATES.items()}

STREAMS_FORMATS: Final = (
    modern_format(
        17, StreamsEpochRecord, "StreamsGroupMetadataValue", _EpochValue, StreamsGroupEpoch
    ),
    modern_format(
        19, StreamsMemberRecord, "StreamsGroupMemberMetadataValue", _MemberValue, StreamsGroupMember
    ),
    modern_format(
        20, StreamsTargetEpochRecord, "StreamsGroupTargetAssignmentMetadataValue", *TARGET_EPOCH
    ),
    modern_format(
        21,
        StreamsTargetRecord,
        "StreamsGroupTargetAssignmentMemberValue",
        _TargetValue,
        _target,
        _target_value,
    ),
    modern_format(
        22,
        StreamsCurrentRecord,
        "StreamsGroupCurrentMemberAssignmentValue",
        _CurrentValue,
        _current,
        _current_value,
    ),
    modern_format(
        23,
        StreamsTopologyRecord,
        "StreamsGroupTopologyValue",
        StreamsGroupHeartbeatTopology,
        Topology,
    ),
)
"""No release of Kafka has type 18. It decodes to None."""
