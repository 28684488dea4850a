"""A streams group (KIP-1071) as the log has it: topology, members, their tasks, epochs.

Everything that lasts is in the log and therefore in tables that can go back to the committed state;
what follows from it (who runs a task, how many threads of a process have it) is kept in tables
beside them, changed by the same records, so that a heartbeat looks things up and never goes over
members or tasks.

A group with members is NotReady while the topics that its topology needs are not all there as they
must be, Assigning while its epoch is ahead of its target's, Reconciling until every member has
reached the target and has what that says, and Stable then. Called by `streams.heartbeats` and
`streams.groups`; only `replay` changes anything.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from odradek.coordinator.group.consumer.records import TargetEpoch
from odradek.coordinator.group.modern.group import ModernGroup
from odradek.coordinator.group.streams.records import (
    NO_TASKS,
    StreamsCurrentAssignment,
    StreamsCurrentRecord,
    StreamsEpochRecord,
    StreamsGroupEpoch,
    StreamsGroupMember,
    StreamsGroupRecord,
    StreamsMemberRecord,
    StreamsMemberState,
    StreamsTargetEpochRecord,
    StreamsTargetRecord,
    StreamsTopologyRecord,
    TasksTuple,
    TasksTupleWithEpochs,
    Topology,
)
from odradek.coordinator.group.streams.topology import ConfiguredTopology, configure
from odradek.coordinator.group.topics import TopicCatalog
from odradek.coordinator.timeline import Timeline, TimelineTable, count

FIRST_EPOCH: Final = 1
"""Of a group that nobody has joined yet, and of the assignment that nobody has made."""
NEW_STREAMS_MEMBER: Final = StreamsCurrentAssignment()

_GROUP: Final = "group"
_TARGET: Final = "target"


class StreamsGroupState(StrEnum):
    """Kafka's names, as StreamsGroupDescribe and ListGroups spell them."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class StreamsGroup(ModernGroup[StreamsGroupMember, TasksTuple]):
    """See the module's docstring. It exists as long as its epoch is stored."""

    __slots__ = (
        "_configured",
        "_currents",
        "_epochs",
        "_held",
        "_runners",
        "_settled",
        "_static",
        "_target_epochs",
        "_topologies",
    )

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        super().__init__(group_id, timeline)
        self._epochs: TimelineTable[str, StreamsGroupEpoch] = TimelineTable(timeline)
        self._target_epochs: TimelineTable[str, TargetEpoch] = TimelineTable(timeline)
        self._topologies: TimelineTable[str, Topology] = TimelineTable(timeline)
        self._currents: TimelineTable[str, StreamsCurrentAssignment] = TimelineTable(timeline)
        # What follows: who holds an instance id, who runs a task, how many members of a process
        # have a task in whatever role, how many members are Stable at an epoch.
        self._static: TimelineTable[str, str] = TimelineTable(timeline)
        self._runners: TimelineTable[tuple[str, int], str] = TimelineTable(timeline)
        self._held: TimelineTable[tuple[str, int, str], int] = TimelineTable(timeline)
        self._settled: TimelineTable[int, int] = TimelineTable(timeline)
        # Soft: the newest answer of `configured`, and to which question.
        self._configured: tuple[Topology, TopicCatalog, ConfiguredTopology] | None = None

    # -- what the log says ------------------------------------------------------------------------

    def replay(self, record: StreamsGroupRecord) -> None:
        """Change the tables as the record says."""
        match record:
            case StreamsEpochRecord():
                self._epochs.assign(_GROUP, record.epoch)
            case StreamsTargetEpochRecord():
                self._target_epochs.assign(_TARGET, record.epoch)
            case StreamsTopologyRecord():
                self._topologies.assign(_GROUP, record.topology)
            case StreamsTargetRecord():
                self._targets.assign(record.member_id, record.target)
            case StreamsMemberRecord():
                self._replay_member(record.member_id, record.member)
            case StreamsCurrentRecord():
                self._replay_current(record.member_id, record.current)

    def _replay_member(self, member_id: str, member: StreamsGroupMember | None) -> None:
        old = self._members.get(member_id)
        current = self._currents.get(member_id)
        process_before = self._process_of(member_id)
        self._members.assign(member_id, member)
        process_after = self._process_of(member_id)
        if current is not None and process_before != process_after:
            # A log that has been compacted may tell of the tasks first.
            self._count_held(current, process_before, -1)
            self._count_held(current, process_after, 1)
        instance_id = None if old is None else old.instance_id
        # Whoever has taken the place of an old static member keeps it.
        if instance_id is not None and self._static.get(instance_id) == member_id:
            self._static.remove(instance_id)
        if member is not None and member.instance_id is not None:
            self._static.put(member.instance_id, member_id)

    def _replay_current(self, member_id: str, current: StreamsCurrentAssignment | None) -> None:
        old = self._currents.get(member_id)
        process_id = self._process_of(member_id)
        if old is not None:
            if old.state is StreamsMemberState.STABLE:
                count(self._settled, old.member_epoch, -1)
            self._count_held(old, process_id, -1)
            for task in _active_of(old):
                # A log that has been compacted may tell of the new runner first.
                if self._runners.get(task) == member_id:
                    self._runners.remove(task)
        if current is not None:
            if current.state is StreamsMemberState.STABLE:
                count(self._settled, current.member_epoch, 1)
            self._count_held(current, process_id, 1)
            for task in _active_of(current):
                self._runners.put(task, member_id)
        self._currents.assign(member_id, current)

    def _process_of(self, member_id: str) -> str:
        member = self._members.get(member_id)
        return "" if member is None else member.process_id

    def _count_held(self, current: StreamsCurrentAssignment, process_id: str, step: int) -> None:
        for subtopology, index in _held_tasks(current):
            count(self._held, (subtopology, index, process_id), step)

    @property
    def is_droppable(self) -> bool:
        """Whether nothing is left, neither newest nor committed: the object may be dropped."""
        return (
            self._epochs.is_droppable
            and self._target_epochs.is_droppable
            and self._topologies.is_droppable
            and self._members.is_droppable
            and self._targets.is_droppable
            and self._currents.is_droppable
        )

    # -- questions about the group ----------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is such a group."""
        return _GROUP in self._epochs

    @property
    def stored_epoch(self) -> StreamsGroupEpoch:
        """The group epoch with what it was chosen for."""
        return self._epochs.get(_GROUP) or StreamsGroupEpoch(FIRST_EPOCH)

    @property
    def epoch(self) -> int:
        """The group epoch: one more for every change of members, topics or settings."""
        return self.stored_epoch.epoch

    @property
    def target_epoch(self) -> int:
        """The group epoch that the target assignment was made for."""
        epoch = self._target_epochs.get(_TARGET)
        return FIRST_EPOCH if epoch is None else epoch.epoch

    @property
    def has_target_epoch(self) -> bool:
        """Whether a target assignment was ever made."""
        return _TARGET in self._target_epochs

    @property
    def assigned_at_ms(self) -> int:
        """When the target assignment was made; 0 if never."""
        epoch = self._target_epochs.get(_TARGET)
        return 0 if epoch is None else epoch.assigned_at_ms

    @property
    def topology(self) -> Topology | None:
        """What its first member has brought."""
        return self._topologies.get(_GROUP)

    @property
    def state(self) -> StreamsGroupState:
        """See the module's docstring."""
        if not len(self._members):
            return StreamsGroupState.EMPTY
        topology, stored = self.topology, self.stored_epoch
        validated = stored.validated_topology_epoch
        if topology is None or validated != topology.epoch:
            return StreamsGroupState.NOT_READY
        if stored.epoch > self.target_epoch:
            return StreamsGroupState.ASSIGNING
        if (self._settled.get(self.target_epoch) or 0) < len(self._members):
            return StreamsGroupState.RECONCILING
        return StreamsGroupState.STABLE

    def configured(self, topology: Topology, topics: TopicCatalog) -> ConfiguredTopology:
        """The topology, which is the group's or will be, beside the topics that there are."""
        known = self._configured
        if known is None or known[0] is not topology or known[1] is not topics:
            known = self._configured = (topology, topics, configure(topology, topics))
        return known[2]

    # -- questions about members ------------------------------------------------------------------

    def static_member_id(self, instance_id: str) -> str | None:
        """Who holds the instance id."""
        return self._static.get(instance_id)

    def current(self, member_id: str) -> StreamsCurrentAssignment:
        """The tasks that the member may have; none, at epoch 0, if it has just come."""
        return self._currents.get(member_id) or NEW_STREAMS_MEMBER

    def target(self, member_id: str) -> TasksTuple:
        """The tasks that the member shall have."""
        return self._targets.get(member_id) or NO_TASKS

    def runner(self, subtopology: str, index: int) -> str | None:
        """Who runs the task, or has still to give it up."""
        return self._runners.get((subtopology, index))

    def held_count(self, subtopology: str, index: int, process_id: str) -> int:
        """How many members of a process have the task, in whatever role, or have still to give
        it up."""
        return self._held.get((subtopology, index, process_id)) or 0


def _active_of(current: StreamsCurrentAssignment) -> Iterator[tuple[str, int]]:
    for held in (current.assigned, current.pending_revocation):
        for subtopology, epochs in held.active.items():
            for index in epochs:
                yield subtopology, index


def _held_tasks(current: StreamsCurrentAssignment) -> Iterator[tuple[str, int]]:
    for held in (current.assigned, current.pending_revocation):
        yield from tasks_of(held)


def tasks_of(held: TasksTupleWithEpochs) -> Iterator[tuple[str, int]]:
    """All tasks, in whatever role: (subtopology, partition)."""
    for tasks in held:
        for subtopology, indexes in tasks.items():
            for index in indexes:
                yield subtopology, index


def tasks_by_role(held: TasksTupleWithEpochs | TasksTuple) -> Iterator[tuple[int, str, int]]:
    """All tasks with their roles: (0 active, 1 standby, 2 warm-up; subtopology, partition)."""
    for role, tasks in enumerate(held):
        for subtopology, indexes in tasks.items():
            for index in indexes:
                yield role, subtopology, index
