"""Partitions as what members of consumer groups own, for `modern.reconciliation`.

A member holds each partition with the member epoch in which it was given to it (KIP-1251).
"""

from collections.abc import Mapping
from typing import Final

from odradek.coordinator.group.consumer.records import NO_PARTITION_EPOCHS, PartitionEpochs
from odradek.coordinator.group.modern.reconciliation import IsFree
from odradek.coordinator.group.topics import Partitions
from odradek.protocol.types import Uuid


class PartitionUnit:
    """See AssignmentUnit."""

    nothing = NO_PARTITION_EPOCHS

    def split(
        self, assigned: PartitionEpochs, target: Partitions
    ) -> tuple[PartitionEpochs, PartitionEpochs]:
        """See AssignmentUnit."""
        kept: dict[Uuid, Mapping[int, int]] = {}
        lost: dict[Uuid, Mapping[int, int]] = {}
        for topic_id, epochs in assigned.items():
            wanted = target.get(topic_id, frozenset())
            if wanted.issuperset(epochs):
                kept[topic_id] = epochs
                continue
            stay = {index: since for index, since in epochs.items() if index in wanted}
            if stay:
                kept[topic_id] = stay
            lost[topic_id] = {index: epochs[index] for index in epochs if index not in wanted}
        return kept, lost

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
        assigned = dict(kept)
        is_complete = True
        for topic_id, wanted in target.items():
            mine = assigned.get(topic_id, {})
            if len(wanted) == len(mine):
                continue
            free = {
                index: target_epoch
                for index in wanted
                if index not in mine and is_free(topic_id, index)
            }
            is_complete = is_complete and len(mine) + len(free) == len(wanted)
            if free:
                assigned[topic_id] = {**mine, **free}
        return assigned, is_complete


PARTITIONS: Final = PartitionUnit()
