"""Which groups a shard has, of whatever kind, and how they look to who lists and describes them.

A group exists if it has members or once had them, or if it has offsets, pending ones included. The
tables are the shard's; nothing is changed here. Called by `shard`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from coordinator.group.answers import described, described_unknown, no_consumer_group
from coordinator.group.assigning import ConsumerStep
from coordinator.group.classic import ClassicGroup, GroupState
from coordinator.group.consumer_groups import GROUP_TYPE_CONSUMER, ConsumerGroups
from coordinator.group.offsets import Offsets
from coordinator.group.pending_offsets import PendingOffsets
from coordinator.group.records import GroupMetadata
from coordinator.timeline import TimelineTable
from protocol.embedded import CONSUMER_PROTOCOL_TYPE
from protocol.messages.groups import ConsumerGroupDescribedGroup, DescribedGroup, ListedGroup

GROUP_TYPE_CLASSIC: Final = "classic"


class Directory:
    """See the module's docstring."""

    __slots__ = ("_classic", "_consumers", "_generations", "_offsets", "_pending_offsets")

    def __init__(
        self,
        classic: Mapping[str, ClassicGroup],
        generations: TimelineTable[str, GroupMetadata],
        consumers: ConsumerGroups,
        offsets: Offsets,
        pending_offsets: PendingOffsets,
    ) -> None:
        self._classic = classic
        self._generations = generations
        self._consumers = consumers
        self._offsets = offsets
        self._pending_offsets = pending_offsets

    def group_ids(self) -> set[str]:
        """Every group that exists, but those that have pending offsets only."""
        ids = set(self._classic)
        ids.update(group_id for group_id, _ in self._generations.items())
        ids.update(group.group_id for group in self._consumers)
        ids.update(
            group_id for group_id in self._offsets.group_ids() if self._offsets.has_any(group_id)
        )
        return ids

    def exists(self, group_id: str) -> bool:
        """Whether there is such a group, of whatever kind."""
        return (
            group_id in self._classic
            or group_id in self._generations
            or group_id in self._consumers
            or self._offsets.has_any(group_id)
            or self._pending_offsets.has_any(group_id)
        )

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """A classic group, or one that has nothing but offsets."""
        if group_id in self._consumers:
            return described_unknown(group_id, version, f"Group {group_id} is not a classic group.")
        group = self._classic.get(group_id)
        if group is not None:
            return described(group)
        if not self.exists(group_id):
            return described_unknown(group_id, version, f"Group {group_id} not found.")
        metadata = self._generations.committed(group_id)
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.EMPTY,
            protocol_type="" if metadata is None else metadata.protocol_type,
        )

    def describe_consumers(self, group_id: str, step: ConsumerStep) -> ConsumerGroupDescribedGroup:
        """A consumer group."""
        group = self._consumers.get(group_id)
        if group is not None:
            return self._consumers.describe(group, step)
        return no_consumer_group(group_id, exists=self.exists(group_id))

    def listed(self) -> Iterator[ListedGroup]:
        """Every group with its kind and state."""
        for group_id in self.group_ids():
            consumers = self._consumers.get(group_id)
            if consumers is not None:
                yield ListedGroup(
                    group_id=group_id,
                    protocol_type=CONSUMER_PROTOCOL_TYPE,
                    group_state=consumers.state,
                    group_type=GROUP_TYPE_CONSUMER,
                )
                continue
            group = self._classic.get(group_id)
            metadata = self._generations.get(group_id)
            protocol_type = metadata.protocol_type if metadata is not None else ""
            if group is not None:
                protocol_type = group.protocol_type or ""
            yield ListedGroup(
                group_id=group_id,
                protocol_type=protocol_type,
                group_state=GroupState.EMPTY if group is None else group.state,
                group_type=GROUP_TYPE_CLASSIC,
            )
