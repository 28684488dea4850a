"""Which groups a shard has, of whatever kind, and how they look to who lists and describes them.

A group exists if it has members or once had them, or if it has offsets, pending ones included. The
tables are the shard's; nothing is changed here. Called by `shard`.
"""

from collections.abc import Iterator

from odradek.coordinator.group.administration.responses import (
    described,
    described_dead,
    no_consumer_group,
)
from odradek.coordinator.group.classic.group import GroupState
from odradek.coordinator.group.classic.groups import GROUP_TYPE_CLASSIC, ClassicGroups
from odradek.coordinator.group.consumer.groups import ConsumerGroups
from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.offsets.committed_offsets import CommittedOffsets
from odradek.coordinator.group.offsets.pending_offsets import PendingTransactionalOffsets
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    DescribedGroup,
    ListedGroup,
)


class GroupDirectory:
    """See the module's docstring."""

    __slots__ = ("_classic", "_group_types", "_offsets", "_pending_offsets")

    def __init__(
        self,
        classic: ClassicGroups,
        group_types: tuple[GroupType, ...],
        offsets: CommittedOffsets,
        pending_offsets: PendingTransactionalOffsets,
    ) -> None:
        self._classic = classic
        self._group_types = group_types
        self._offsets = offsets
        self._pending_offsets = pending_offsets

    def group_ids(self) -> set[str]:
        """Every group that exists, but those that have pending offsets only."""
        ids = set(self._classic.live_groups)
        ids.update(group_id for group_id, _ in self._classic.generations.items())
        for family in self._group_types:
            ids.update(family.group_ids())
        ids.update(
            group_id for group_id in self._offsets.group_ids() if self._offsets.has_any(group_id)
        )
        return ids

    def exists(self, group_id: str) -> bool:
        """Whether there is such a group, of whatever kind."""
        return (
            group_id in self._classic
            or self.modern_type_of(group_id) is not None
            or self._offsets.has_any(group_id)
            or self._pending_offsets.has_any(group_id)
        )

    def modern_type_of(self, group_id: str) -> GroupType | None:
        """The family that has the group; None if it is a classic one, or none at all."""
        return next((family for family in self._group_types if group_id in family), None)

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """A classic group, or one that has nothing but offsets."""
        if self.modern_type_of(group_id) is not None:
            return described_dead(group_id, version, f"Group {group_id} is not a classic group.")
        group = self._classic.live_groups.get(group_id)
        if group is not None:
            return described(group)
        if not self.exists(group_id):
            return described_dead(group_id, version, f"Group {group_id} not found.")
        metadata = self._classic.generations.committed(group_id)
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.EMPTY,
            protocol_type="" if metadata is None else metadata.protocol_type,
        )

    def describe_consumers(
        self, consumers: ConsumerGroups, group_id: str, step: GroupStep
    ) -> ConsumerGroupDescribedGroup:
        """A consumer group."""
        group = consumers.get(group_id)
        if group is not None:
            return consumers.describe(group, step)
        return no_consumer_group(group_id, exists=self.exists(group_id))

    def listed(self) -> Iterator[ListedGroup]:
        """Every group with its kind and state."""
        for group_id in self.group_ids():
            family = self.modern_type_of(group_id)
            if family is not None:
                yield family.listed(group_id)
                continue
            group = self._classic.live_groups.get(group_id)
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
