"""Which groups a shard has, of whatever kind, and how they look to who lists and describes them.

A group exists if it has members or once had them, or if it has offsets, pending ones included. The
tables are the shard's; nothing is changed here. Called by `shard`.
"""

from collections.abc import Iterator

from odradek.coordinator.group.answers import described, described_unknown, no_consumer_group
from odradek.coordinator.group.classic.group import GroupState
from odradek.coordinator.group.classic.groups import GROUP_TYPE_CLASSIC, ClassicGroups
from odradek.coordinator.group.consumer.assigning import ConsumerStep
from odradek.coordinator.group.consumer.groups import ConsumerGroups
from odradek.coordinator.group.family import Family
from odradek.coordinator.group.offsets import Offsets
from odradek.coordinator.group.pending_offsets import PendingOffsets
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    DescribedGroup,
    ListedGroup,
)


class Directory:
    """See the module's docstring."""

    __slots__ = ("_classic", "_families", "_offsets", "_pending_offsets")

    def __init__(
        self,
        classic: ClassicGroups,
        families: tuple[Family, ...],
        offsets: Offsets,
        pending_offsets: PendingOffsets,
    ) -> None:
        self._classic = classic
        self._families = families
        self._offsets = offsets
        self._pending_offsets = pending_offsets

    def group_ids(self) -> set[str]:
        """Every group that exists, but those that have pending offsets only."""
        ids = set(self._classic.objects)
        ids.update(group_id for group_id, _ in self._classic.generations.items())
        for family in self._families:
            ids.update(family.group_ids())
        ids.update(
            group_id for group_id in self._offsets.group_ids() if self._offsets.has_any(group_id)
        )
        return ids

    def exists(self, group_id: str) -> bool:
        """Whether there is such a group, of whatever kind."""
        return (
            group_id in self._classic
            or self.family_of(group_id) is not None
            or self._offsets.has_any(group_id)
            or self._pending_offsets.has_any(group_id)
        )

    def family_of(self, group_id: str) -> Family | None:
        """The family that has the group; None if it is a classic one, or none at all."""
        return next((family for family in self._families if group_id in family), None)

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """A classic group, or one that has nothing but offsets."""
        if self.family_of(group_id) is not None:
            return described_unknown(group_id, version, f"Group {group_id} is not a classic group.")
        group = self._classic.objects.get(group_id)
        if group is not None:
            return described(group)
        if not self.exists(group_id):
            return described_unknown(group_id, version, f"Group {group_id} not found.")
        metadata = self._classic.generations.committed(group_id)
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.EMPTY,
            protocol_type="" if metadata is None else metadata.protocol_type,
        )

    def describe_consumers(
        self, consumers: ConsumerGroups, group_id: str, step: ConsumerStep
    ) -> ConsumerGroupDescribedGroup:
        """A consumer group."""
        group = consumers.get(group_id)
        if group is not None:
            return consumers.describe(group, step)
        return no_consumer_group(group_id, exists=self.exists(group_id))

    def listed(self) -> Iterator[ListedGroup]:
        """Every group with its kind and state."""
        for group_id in self.group_ids():
            family = self.family_of(group_id)
            if family is not None:
                yield family.listed(group_id)
                continue
            group = self._classic.objects.get(group_id)
            metadata = self._classic.generations.get(group_id)
            protocol_type = metadata.protocol_type if metadata is not None else ""
            if group is not None:
                protocol_type = group.protocol_type or ""
            yield ListedGroup(
                group_id=group_id,
                protocol_type=protocol_type,
                group_state=GroupState.EMPTY if group is None else group.state,
                group_type=GROUP_TYPE_CLASSIC,
            )
