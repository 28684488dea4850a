"""The positions of share groups, from which their lag is counted.

The share coordinator has the start offsets; what a position is, is defined in
coordinator/group/offsets/lag.py. Called by the lag metrics.
"""

from collections.abc import Callable, Iterable
from typing import Final

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.offsets.committed_offsets import PartitionKey
from odradek.coordinator.group.offsets.lag import BEYOND_END, SharePosition
from odradek.coordinator.group.share.records import TopicStates
from odradek.coordinator.share.requests import ShareStateSummary
from odradek.node.router.cooperative_iteration import take_turn
from odradek.node.router.offset_lookup import OffsetLookup
from odradek.node.router.share.persister import SharePersister
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NO_OFFSET, Uuid

_PARTITIONS_PER_TURN: Final = 200
"""Whose states are asked for at a time."""


class ShareLagPositions:
    """Finds positions. `settings_of` returns the settings of a group."""

    def __init__(
        self,
        persister: SharePersister,
        offset_lookup: OffsetLookup,
        settings_of: Callable[[str], ShareGroupSettings],
        now_ms: Callable[[], int],
    ) -> None:
        self._persister = persister
        self._offset_lookup = offset_lookup
        self._settings_of = settings_of
        self._now_ms = now_ms

    async def find(
        self, group_id: str, states: TopicStates, partitions: Iterable[PartitionKey]
    ) -> dict[PartitionKey, SharePosition | ErrorCode]:
        """The position in each partition that has a state, and in each of `partitions`."""
        found: dict[PartitionKey, SharePosition | ErrorCode] = {}
        stored: list[tuple[Uuid, int]] = [
            (topic_id, index) for topic_id, (_, indexes) in states.items() for index in indexes
        ]
        for first in range(0, len(stored), _PARTITIONS_PER_TURN):
            if first:
                await take_turn()
            asked = stored[first : first + _PARTITIONS_PER_TURN]
            summaries = await self._persister.summaries(group_id, asked)
            for (topic_id, index), summary in summaries.items():
                if isinstance(summary, ErrorCode):
                    found[states[topic_id][0], index] = summary
                elif summary.start_offset != NO_OFFSET:
                    found[states[topic_id][0], index] = _position(summary)
        unread = [key for key in partitions if key not in found]
        return found | await self._first_positions(group_id, unread)

    async def _first_positions(
        self, group_id: str, unread: list[PartitionKey]
    ) -> dict[PartitionKey, SharePosition | ErrorCode]:
        """Where the group would start that has not read there yet."""
        settings = self._settings_of(group_id)
        if settings.begins_earliest:
            return dict.fromkeys(unread, SharePosition(NO_OFFSET))
        if settings.begins_before_ms is None:
            return dict.fromkeys(unread, SharePosition(BEYOND_END))
        since_ms = self._now_ms() - settings.begins_before_ms
        offsets = await self._offset_lookup.offsets_for_times(
            dict.fromkeys(unread, since_ms), isolation_level=0
        )
        return {
            key: offset
            if isinstance(offset, ErrorCode)
            else SharePosition(BEYOND_END if offset is None else offset)
            for key, offset in offsets.items()
        }


def _position(summary: ShareStateSummary) -> SharePosition:
    return SharePosition(summary.start_offset, summary.delivery_complete_count)
