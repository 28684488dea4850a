"""The moves of a rewind and whether it is valid, before anything is changed.

Called by `live_rewinder`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.modern.group import GROUP_TYPE_STREAMS
from odradek.coordinator.group.offsets.records import CommittedOffset
from odradek.coordinator.group.rewind.offset_moves import move_to, with_previous
from odradek.coordinator.group.rewind.records import OffsetMove
from odradek.coordinator.group.rewind.requests import RewindGroup
from odradek.coordinator.group.rewind.rewind_tables import MOVE_COUNT_MAX, RewindTables
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NO_OFFSET, ZERO_UUID, Uuid

_STREAMS_PROTOCOL: Final = "stream"
"""The protocol of a Kafka Streams application in a classic group
(StreamsPartitionAssignor.name)."""
_STOP_IT_FIRST: Final = (
    "Its members run a Kafka Streams topology: their state stores would count the same records "
    "twice. Stop every instance of the application, rewind the group, reset its state "
    "(KafkaStreams.cleanUp, kafka-streams-application-reset), and start it again."
)


@dataclass(frozen=True, slots=True)
class RewindPlanner:
    """See the module's docstring."""

    _rewinds: RewindTables
    _directory: GroupDirectory

    def refusal(
        self, request: RewindGroup, refused: Collection[tuple[str, int, ErrorCode]]
    ) -> tuple[ErrorCode, str | None]:
        """The error of an invalid rewind, with what to do about it; NONE if it is valid."""
        group_id = request.group_id
        kind = self._directory.group_type_of(group_id)
        group = self._directory.classic.group(group_id)
        pending = self._rewinds.pending(group_id)
        if kind is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
        if self._is_topology_running(group_id):
            return ErrorCode.NON_EMPTY_GROUP, _STOP_IT_FIRST
        if group is not None and not group.is_empty and not group.uses_consumer_protocol:
            return (
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Group {group_id} has the protocol type {group.protocol_type!r}, not consumer.",
            )
        if not request.positions and not request.undoes:
            return ErrorCode.INVALID_REQUEST, "The request names no partitions."
        if len(request.positions) > MOVE_COUNT_MAX:
            return (
                ErrorCode.INVALID_REQUEST,
                f"{len(request.positions)} partitions; the limit is {MOVE_COUNT_MAX}.",
            )
        if len({(at.topic, at.partition) for at in request.positions}) < len(request.positions):
            return ErrorCode.INVALID_REQUEST, "A partition is named more than once."
        if pending is not None:
            return ErrorCode.REBALANCE_IN_PROGRESS, "Another rewind of the group is pending."
        newest = max(self._rewinds.undo_points(group_id), default=0)
        if request.undoes and request.undoes != newest:
            return ErrorCode.INVALID_REQUEST, "The undo point is not the newest one any more."
        for topic, partition, error in refused:
            if error is ErrorCode.UNSTABLE_OFFSET_COMMIT:
                return error, f"A transaction has a pending offset of {topic}-{partition}. Retry."
            return error, f"{topic}-{partition} has no committed offset to shift."
        return ErrorCode.NONE, None

    def _is_topology_running(self, group_id: str) -> bool:
        """Whether members run a Kafka Streams topology, which has state stores."""
        if self._directory.is_empty(group_id):
            return False
        group = self._directory.classic.group(group_id)
        if group is not None:
            protocols = {name for member in group.members for name, _ in member.protocols}
            return _STREAMS_PROTOCOL in protocols
        return self._directory.group_type_of(group_id) == GROUP_TYPE_STREAMS

    def moves(
        self, request: RewindGroup
    ) -> tuple[tuple[OffsetMove, ...], tuple[tuple[str, int, ErrorCode], ...]]:
        """The moves of all partitions, and the partitions that cannot be moved."""
        moves = []
        refused = []
        for at in request.positions:
            before = self._committed(request.group_id, at.topic, at.topic_id, at.partition)
            if request.group_id in self._directory.shares:
                before = None if at.previous == NO_OFFSET else CommittedOffset(at.previous)
            if self._directory.pending_offsets.is_unstable(
                (request.group_id, at.topic, at.partition)
            ):
                refused.append((at.topic, at.partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            elif at.offset is None and before is None:
                refused.append((at.topic, at.partition, ErrorCode.INVALID_REQUEST))
            moves.append(with_previous(move_to(at, before), before))
        return tuple(moves), tuple(refused)

    def from_committed(self, group_id: str, move: OffsetMove) -> OffsetMove:
        """The move, with the currently committed offset as the previous one."""
        at = self._committed(group_id, move.topic, move.topic_id, move.partition)
        return with_previous(move, at)

    def _committed(
        self, group_id: str, topic: str, topic_id: Uuid, partition: int
    ) -> CommittedOffset | None:
        """The group's offset, unless it belongs to an earlier topic of that name."""
        found = self._directory.offsets.newest(group_id, topic, partition)
        if found is None or ZERO_UUID in (topic_id, found.topic_id) or found.topic_id == topic_id:
            return found
        return None
