"""The reconciliation of a member, row by row of the table."""

import pytest

from odradek.coordinator.group.consumer.reconciliation import PARTITIONS
from odradek.coordinator.group.consumer.records import ConsumerCurrentAssignment
from odradek.coordinator.group.modern.reconciliation import FencedMember, reconcile
from odradek.coordinator.group.modern.records import MemberState
from odradek.coordinator.group.topics import Partitions
from odradek.protocol.types import Uuid

T = b"t" * 16
U = b"u" * 16
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED,
    MemberState.UNRELEASED,
)


def step(
    current: ConsumerCurrentAssignment,
    target: Partitions,
    *,
    epoch: int = 7,
    owned: Partitions | None = None,
    taken: set[tuple[Uuid, int]] | None = None,
) -> ConsumerCurrentAssignment:
    def is_free(topic: Uuid, index: int) -> bool:
        return (topic, index) not in (taken or ())

    return reconcile(
        current, PARTITIONS, target_epoch=epoch, target=target, owned=owned, is_free=is_free
    )


def at(
    epoch: int,
    state: MemberState = STABLE,
    assigned: dict[Uuid, dict[int, int]] | None = None,
    pending: dict[Uuid, dict[int, int]] | None = None,
    previous: int = 4,
) -> ConsumerCurrentAssignment:
    return ConsumerCurrentAssignment(epoch, previous, state, assigned or {}, pending or {})


def test_stable_at_the_targets_epoch_stays() -> None:
    current = at(7, assigned={T: {0: 5}})
    assert step(current, {T: frozenset({0, 1})}) is current


def test_a_new_member_gets_what_is_free() -> None:
    after = step(at(0, previous=0), {T: frozenset({0, 1})}, owned={})
    assert after == at(7, assigned={T: {0: 7, 1: 7}}, previous=0)


def test_kept_partitions_keep_their_epochs() -> None:
    after = step(at(6, assigned={T: {0: 5}}), {T: frozenset({0, 1})})
    assert after == at(7, assigned={T: {0: 5, 1: 7}}, previous=6)


@pytest.mark.parametrize("owned", [None, {T: frozenset({0, 1})}, {T: frozenset({1})}])
def test_partitions_are_revoked_at_the_old_epoch_first(owned: Partitions | None) -> None:
    after = step(
        at(6, assigned={T: {0: 5, 1: 6}}), {T: frozenset({0}), U: frozenset({3})}, owned=owned
    )
    assert after == at(6, UNREVOKED, {T: {0: 5}}, {T: {1: 6}})


def test_partitions_that_the_member_does_not_own_need_no_revocation() -> None:
    """The member has rejoined without partitions."""
    after = step(at(6, assigned={T: {0: 5, 1: 6}}), {U: frozenset({3})}, owned={})
    assert after == at(7, assigned={U: {3: 7}}, previous=6)


@pytest.mark.parametrize("owned", [None, {T: frozenset({1})}])
def test_unrevoked_stays_until_the_revocation(owned: Partitions | None) -> None:
    current = at(6, UNREVOKED, {T: {0: 5}}, {T: {1: 6}})
    assert step(current, {T: frozenset({0})}, owned=owned) is current


def test_unrevoked_goes_to_the_target_after_the_revocation() -> None:
    current = at(6, UNREVOKED, {T: {0: 5}}, {T: {1: 6}})
    after = step(current, {T: frozenset({0}), U: frozenset({3})}, owned={T: frozenset({0})})
    assert after == at(7, assigned={T: {0: 5}, U: {3: 7}}, previous=6)


def test_unrevoked_revokes_more_for_a_newer_target_one_epoch_further() -> None:
    current = at(4, UNREVOKED, {T: {0: 3}}, {T: {1: 3}}, previous=3)
    after = step(current, {}, owned={T: frozenset({0})})
    assert after == at(5, UNREVOKED, {}, {T: {0: 3}}, previous=4)


def test_partitions_of_others_make_a_member_unreleased_at_the_target_epoch() -> None:
    after = step(at(6), {T: frozenset({0, 1})}, taken={(T, 1)})
    assert after == at(7, UNRELEASED, {T: {0: 7}}, previous=6)


def test_unreleased_stays_while_partitions_are_not_free() -> None:
    current = at(7, UNRELEASED, {T: {0: 7}}, previous=6)
    assert step(current, {T: frozenset({0, 1})}, taken={(T, 1)}) is current


def test_unreleased_gets_free_partitions() -> None:
    current = at(7, UNRELEASED, {T: {0: 7}}, previous=6)
    after = step(current, {T: frozenset({0, 1})})
    assert after == at(7, STABLE, {T: {0: 7, 1: 7}}, previous=6)


def test_unreleased_revokes_what_a_newer_target_lacks() -> None:
    current = at(6, UNRELEASED, {T: {0: 6}})
    after = step(current, {U: frozenset({1})}, owned={T: frozenset({0})})
    assert after == at(6, UNREVOKED, {}, {T: {0: 6}})


def test_a_member_in_an_unknown_state_must_own_nothing() -> None:
    current = at(6, MemberState.UNKNOWN, {T: {0: 6}})
    for owned in (None, {T: frozenset({0})}):
        with pytest.raises(FencedMember):
            step(current, {T: frozenset({0})}, owned=owned)
    assert step(current, {T: frozenset({0})}, owned={}).state is STABLE
