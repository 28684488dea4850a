"""Partitions as the AssignmentUnit of consumer groups, for `modern.reconciliation`.

Each assigned partition has the member epoch in which it was assigned to the member (KIP-1251).
"""

from typing import Final

from odradek.coordinator.group.consumer.records import NO_PARTITION_EPOCHS, PartitionEpochs
from odradek.coordinator.group.modern.reconciliation import IsFree, add_free_epochs, split_epochs
from odradek.coordinator.group.topics import Partitions


class PartitionUnit:
    """See AssignmentUnit."""

    nothing = NO_PARTITION_EPOCHS

    def split(
        self, assigned: PartitionEpochs, target: Partitions
    ) -> tuple[PartitionEpochs, PartitionEpochs]:
        """See AssignmentUnit."""
        return split_epochs(assigned, target)

    def owns_any(self, owned: Partitions | None, held: PartitionEpochs) -> bool:
        """See AssignmentUnit."""
        if owned is None:
            return True
        return any(
            not owned.get(topic_id, frozenset()).isdisjoint(epochs)
            for topic_id, epochs in held.items()
        )

    def is_within(self, owned: Partitions, *held: PartitionEpochs) -> bool:
        """See AssignmentUnit."""
        return all(
            any(index in partitions.get(topic_id, ()) for partitions in held)
            for topic_id, indexes in owned.items()
            for index in indexes
        )

    def add_free(
        self, kept: PartitionEpochs, target: Partitions, target_epoch: int, is_free: IsFree
    ) -> tuple[PartitionEpochs, bool]:
        """See AssignmentUnit."""
        return add_free_epochs(kept, target, target_epoch, is_free)


PARTITIONS: Final = PartitionUnit()
