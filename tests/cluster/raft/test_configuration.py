"""Voters, changes and majorities; majorities also against a simple count."""

from itertools import combinations, product

import pytest

from odradek.cluster.raft.configuration import (
    AddVoter,
    Configuration,
    ProposalRefusal,
    RemoveVoter,
    UpdateVoter,
    Voter,
    apply_change,
    configuration_of,
    decode_configuration,
    encode_configuration,
    is_bootstrap_voter,
    majority_of,
    majority_value,
    member_id,
    node_id_of,
)
from odradek.cluster.raft.validation import NUMBER_MAX


def test_a_wiped_node_has_another_member_id() -> None:
    before = member_id(7, bytes(range(16)))
    after = member_id(7, bytes(range(1, 17)))
    assert before != after
    assert node_id_of(before) == node_id_of(after) == 7
    assert member_id(2**31 - 1, b"\xff" * 16) <= NUMBER_MAX


def test_a_bootstrap_voter_has_its_node_id_as_member_id() -> None:
    for node_id in (0, 5, 2**31 - 1):
        assert is_bootstrap_voter(node_id)
        assert node_id_of(node_id) == node_id
        for directory_id in (bytes(16), b"\xff" * 16):
            assert not is_bootstrap_voter(member_id(node_id, directory_id))
            assert node_id_of(member_id(node_id, directory_id)) == node_id


def test_a_voter_is_added_in_order_and_only_once() -> None:
    configuration = apply_change(configuration_of([1, 5]), AddVoter(Voter(3, b"here")))
    assert isinstance(configuration, Configuration)
    assert configuration.voter_ids == (1, 3, 5)
    assert configuration.find(3) == Voter(3, b"here")
    assert apply_change(configuration, AddVoter(Voter(3))) is ProposalRefusal.ALREADY_VOTER


def test_a_voter_is_removed_but_never_the_last() -> None:
    assert apply_change(configuration_of([1, 2]), RemoveVoter(1)) == configuration_of([2])
    assert apply_change(configuration_of([1, 2]), RemoveVoter(9)) is ProposalRefusal.NOT_A_VOTER
    assert apply_change(configuration_of([2]), RemoveVoter(2)) is ProposalRefusal.LAST_VOTER


def test_an_update_changes_only_the_context() -> None:
    configuration = apply_change(configuration_of([1, 2]), UpdateVoter(Voter(2, b"moved")))
    assert configuration == Configuration((Voter(1), Voter(2, b"moved")))
    assert apply_change(configuration_of([1]), UpdateVoter(Voter(2))) is ProposalRefusal.NOT_A_VOTER


def test_majorities_before_and_after_one_step_always_overlap() -> None:
    """Thesis 4.1: "any majority of the old cluster overlaps with any majority of the new"."""
    for size in range(1, 6):
        old = set(range(size))
        new = old | {size}
        for some in combinations(old, majority_of(len(old))):
            for others in combinations(new, majority_of(len(new))):
                assert set(some) & set(others)


def test_the_majority_value_equals_a_count() -> None:
    for size in range(1, 6):
        for values in product(range(4), repeat=size):
            reached = [
                value
                for value in range(4)
                if sum(other >= value for other in values) >= majority_of(size)
            ]
            assert majority_value(values) == max(reached)
    assert majority_value([]) == 0


def test_a_configuration_is_decoded_from_its_bytes() -> None:
    configuration = Configuration((Voter(1, b"a"), Voter(2**62, b"")))
    assert decode_configuration(encode_configuration(configuration)) == configuration


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x90",
        b"\xc1",
        b"\xc1\x90",
        b"\xc1garbage",
        encode_configuration(Configuration((Voter(2), Voter(1)))),
        encode_configuration(Configuration((Voter(1), Voter(1)))),
    ],
)
def test_bytes_that_are_no_configuration_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"configuration|invalid voters"):
        decode_configuration(data)
