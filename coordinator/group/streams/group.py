"""A streams group (KIP-1071): topology, members, tasks and epochs.

In addition to `modern.group`, it knows the member that runs each task and counts the members of
each process that have a task. A group with members is NotReady while topics of its topology are
missing or have wrong numbers of partitions. Called by `streams.heartbeats` and `streams.groups`;
only `replay` changes a group.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from odradek.coordinator.group.modern.group import (
    GROUP_TYPE_STREAMS,
    ModernGroup,
    ModernGroupState,
    ModernTimers,
)
from odradek.coordinator.group.modern.records import flat
from odradek.coordinator.group.requests import CommitTopic
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.streams.records import (
    NO_TASKS,
    STREAMS_RECORDS,
    StreamsCurrentAssignment,
    StreamsGroupEpoch,
    StreamsGroupMember,
    StreamsTopologyRecord,
    TasksTuple,
    TasksTupleWithEpochs,
    Topology,
)
from odradek.coordinator.group.streams.topology import ConfiguredTopology, configure
from odradek.coordinator.group.topics import TopicCatalog
from odradek.coordinator.timeline import Timeline, TimelineTable, count

_GROUP: Final = "group"


class StreamsGroup(
    ModernGroup[StreamsGroupMember, TasksTuple, StreamsCurrentAssignment, StreamsGroupEpoch]
):
    """See the module's docstring."""

    __slots__ = ("_configured", "_held", "_runners", "_topologies")

    group_type = GROUP_TYPE_STREAMS
    unit = "tasks"
    records = STREAMS_RECORDS
    timers = ModernTimers("streams-session", "streams-assignment", "streams-revocation")
    settings_of = staticmethod(GroupSettings.streams_of)
    first_epoch = StreamsGroupEpoch(1)
    no_target = NO_TASKS
    new_current = StreamsCurrentAssignment()

    def __init__(self, group_id: str, timeline: Timeline) -> None:
        super().__init__(group_id, timeline)
        self._topologies: TimelineTable[str, Topology] = TimelineTable(timeline)
        # Derived: the member that runs a task, and the number of members of a process that have a
        # task in any role.
        self._runners: TimelineTable[tuple[str, int], str] = TimelineTable(timeline)
        self._held: TimelineTable[tuple[str, int, str], int] = TimelineTable(timeline)
        # In memory only: the last arguments and result of `configured`.
        self._configured: tuple[Topology, TopicCatalog, ConfiguredTopology] | None = None

    # -- the log ---------------------------------------------------------------------------------

    def _replay_own(self, record: object) -> None:
        assert isinstance(record, StreamsTopologyRecord)
        self._topologies.assign(_GROUP, record.value)

    def _replay_member(self, member_id: str, member: StreamsGroupMember | None) -> None:
        current = self._currents.get(member_id)
        process_before = self._process_of(member_id)
        super()._replay_member(member_id, member)
        process_after = self._process_of(member_id)
        if current is not None and process_before != process_after:
            # In a compacted log the record of the tasks may come first.
            self._count_held(current, process_before, -1)
            self._count_held(current, process_after, 1)

    def _replay_current(self, member_id: str, current: StreamsCurrentAssignment | None) -> None:
        old = self._currents.get(member_id)
        process_id = self._process_of(member_id)
        if old is not None:
            self._count_held(old, process_id, -1)
            for task in flat(old.assigned.active, old.pending_revocation.active):
                # In a compacted log the record of the new runner may come first.
                if self._runners.get(task) == member_id:
                    self._runners.remove(task)
        if current is not None:
            self._count_held(current, process_id, 1)
            for task in flat(current.assigned.active, current.pending_revocation.active):
                self._runners.put(task, member_id)
        super()._replay_current(member_id, current)

    def _process_of(self, member_id: str) -> str:
        member = self._members.get(member_id)
        return "" if member is None else member.process_id

    def _count_held(self, current: StreamsCurrentAssignment, process_id: str, step: int) -> None:
        for subtopology, index in flat(*current.assigned, *current.pending_revocation):
            count(self._held, (subtopology, index, process_id), step)

    def _tables(self) -> tuple[TimelineTable[Any, Any], ...]:
        return (*super()._tables(), self._topologies)

    def tombstones(self) -> list[Any]:
        """See ModernGroup. The topology is last."""
        return [*super().tombstones(), StreamsTopologyRecord(self.group_id, None)]

    # -- settings ---------------------------------------------------------------------------------

    def longest_interval_ms(self, settings: GroupSettings) -> int:
        """See ModernGroup."""
        return settings.streams_of(self.group_id).heartbeat_interval_ms

    # -- the group --------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology | None:
        """The topology, which the first member has sent."""
        return self._topologies.get(_GROUP)

    @property
    def state(self) -> ModernGroupState:
        """See ModernGroupState."""
        topology = self.topology
        is_validated = (
            topology is not None and self.stored_epoch.validated_topology_epoch == topology.epoch
        )
        return super().state if is_validated or self.is_empty else ModernGroupState.NOT_READY

    def configured(self, topology: Topology, topics: TopicCatalog) -> ConfiguredTopology:
        """The topology, which is or becomes the group's, configured for the existing topics."""
        known = self._configured
        if known is None or known[0] is not topology or known[1] is not topics:
            known = self._configured = (topology, topics, configure(topology, topics))
        return known[2]

    # -- tasks ------------------------------------------------------------------------------------

    def pending_count(self, current: StreamsCurrentAssignment) -> int:
        """See ModernGroup."""
        return sum(1 for _ in flat(*current.pending_revocation))

    def owned_since(self, member_id: str, topic: CommitTopic) -> Mapping[int, int]:
        """See ModernGroup: the partitions that active tasks read, also those to be revoked."""
        current, topology = self.current(member_id), self.topology
        if topology is None:
            return {}
        readers = (part for part in topology.subtopologies if topic.name in part.sources())
        subtopology = next((part.subtopology_id for part in readers), "")
        return {
            **current.pending_revocation.active.get(subtopology, {}),
            **current.assigned.active.get(subtopology, {}),
        }

    def runner(self, subtopology: str, index: int) -> str | None:
        """The member that runs the task or still has to revoke it."""
        return self._runners.get((subtopology, index))

    def held_count(self, subtopology: str, index: int, process_id: str) -> int:
        """How many members of a process have the task in any role, or still have to revoke it."""
        return self._held.get((subtopology, index, process_id)) or 0


def tasks_by_role(held: TasksTupleWithEpochs | TasksTuple) -> Iterator[tuple[int, str, int]]:
    """All tasks with their roles: (0 active, 1 standby, 2 warm-up; subtopology, partition)."""
    for role, tasks in enumerate(held):
        for subtopology, index in flat(tasks):
            yield role, subtopology, index
