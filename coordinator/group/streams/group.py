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
from typing import Any, Final

from odradek.coordinator.group.modern.group import (
    GROUP_TYPE_STREAMS,
    ModernGroup,
    ModernGroupState,
    ModernTimers,
)
from odradek.coordinator.group.modern.records import flat
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
        # What follows: who runs a task, and how many members of a process have a task in whatever
        # role.
        self._runners: TimelineTable[tuple[str, int], str] = TimelineTable(timeline)
        self._held: TimelineTable[tuple[str, int, str], int] = TimelineTable(timeline)
        # In memory only: the newest answer of `configured`, and to which question.
        self._configured: tuple[Topology, TopicCatalog, ConfiguredTopology] | None = None

    # -- what the log says ------------------------------------------------------------------------

    def _replay_other(self, record: object) -> None:
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
        """See ModernGroup. The topology goes last."""
        return [*super().tombstones(), StreamsTopologyRecord(self.group_id, None)]

    # -- settings ---------------------------------------------------------------------------------

    def longest_interval_ms(self, settings: GroupSettings) -> int:
        """See ModernGroup."""
        return settings.streams_of(self.group_id).heartbeat_interval_ms

    # -- questions about the group ----------------------------------------------------------------

    @property
    def topology(self) -> Topology | None:
        """What its first member has brought."""
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
        """The topology, which is the group's or will be, beside the topics that there are."""
        known = self._configured
        if known is None or known[0] is not topology or known[1] is not topics:
            known = self._configured = (topology, topics, configure(topology, topics))
        return known[2]

    # -- questions about tasks --------------------------------------------------------------------

    def pending_count(self, current: StreamsCurrentAssignment) -> int:
        """See ModernGroup."""
        return sum(1 for _ in flat(*current.pending_revocation))

    def runner(self, subtopology: str, index: int) -> str | None:
        """The member that runs the task or still has to revoke it."""
        return self._runners.get((subtopology, index))

    def held_count(self, subtopology: str, index: int, process_id: str) -> int:
        """How many members of a process have the task, in whatever role, or have still to give
        it up."""
        return self._held.get((subtopology, index, process_id)) or 0


def tasks_by_role(held: TasksTupleWithEpochs | TasksTuple) -> Iterator[tuple[int, str, int]]:
    """All tasks with their roles: (0 active, 1 standby, 2 warm-up; subtopology, partition)."""
    for role, tasks in enumerate(held):
        for subtopology, index in flat(tasks):
            yield role, subtopology, index
