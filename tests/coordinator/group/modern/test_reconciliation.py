"""Reconciliation, with partitions as the unit. The tests of streams groups use tasks."""

from odradek.coordinator.group.consumer.reconciliation import PARTITIONS
from odradek.coordinator.group.consumer.records import ConsumerCurrentAssignment
from odradek.coordinator.group.modern.reconciliation import is_reconciled_to, reconcile
from odradek.coordinator.group.modern.records import MemberState

T = b"t" * 16


def test_a_member_is_reconciled_at_the_targets_epoch_and_stable() -> None:
    assert is_reconciled_to(ConsumerCurrentAssignment(3), 3)
    assert not is_reconciled_to(ConsumerCurrentAssignment(2), 3)
    assert not is_reconciled_to(ConsumerCurrentAssignment(3, 2, MemberState.UNRELEASED), 3)


def test_the_acknowledged_epoch_becomes_the_previous_one() -> None:
    before = ConsumerCurrentAssignment(2, 1)
    after = reconcile(
        before,
        PARTITIONS,
        target_epoch=5,
        target={T: frozenset({0})},
        owned={},
        is_free=lambda _topic, _index: True,
    )
    assert (after.member_epoch, after.previous_member_epoch) == (5, 2)
    assert after.assigned == {T: {0: 5}}
