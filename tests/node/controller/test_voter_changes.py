"""Which members are accepted, and the membership changes of commands (KIP-853)."""

import pytest

from odradek.cluster.controller.commands import AddRaftVoter, RemoveRaftVoter
from odradek.cluster.metadata.image import BrokerImage
from odradek.cluster.raft.configuration import (
    AddVoter,
    Configuration,
    ProposalRefusal,
    RemoveVoter,
    UpdateVoter,
    Voter,
    configuration_of,
    member_id,
)
from odradek.node.bus.peer_messages import PeerRejected
from odradek.node.controller.voter_changes import (
    VoterContext,
    encode_context,
    header_context,
    membership_change,
    peer_refusal,
    pending_voter_update,
    refusal_error,
    voter_context,
)
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import ZERO_UUID, uuid_to_text
from tests.support.raft_harness import PeerHeaders, header

OLD, NEW = 5 << 100, 6 << 100
"""Data folders."""


def folder(number: int) -> bytes:
    return number.to_bytes(16)


def voter(member: int, directory: int = 0, host: str = "a") -> Voter:
    return Voter(member, encode_context(VoterContext(folder(directory), host, 9192)))


def replica(node_id: int, directory: int) -> int:
    return member_id(node_id, folder(directory))


def broker(node_id: int, *directories: int) -> BrokerImage:
    return BrokerImage(
        broker_id=node_id,
        broker_epoch=1,
        incarnation_id=ZERO_UUID,
        listeners=(),
        rack=None,
        log_dirs=tuple(folder(directory) for directory in directories),
    )


VOTERS = Configuration((voter(0, OLD), voter(1, OLD), voter(replica(7, OLD), OLD)))


def refusal_of(error: ApiError | str) -> tuple[int, str]:
    assert isinstance(error, ApiError)
    return error.code, error.message or ""


# -- steps -----------------------------------------------------------------------------------------


def test_an_observer_becomes_a_voter_with_the_address_of_its_header() -> None:
    member = replica(3, NEW)
    heard = PeerHeaders(header(member, NEW, host="c", port=9))
    change = membership_change(AddRaftVoter(3, folder(NEW)), VOTERS, heard)
    assert change == AddVoter(Voter(member, encode_context(VoterContext(folder(NEW), "c", 9))))
    unheard = membership_change(AddRaftVoter(3, folder(NEW)), VOTERS, PeerHeaders())
    assert isinstance(unheard, AddVoter)
    assert unheard.voter.member_id == member


def test_a_bootstrap_voter_can_be_added_again_with_its_old_or_a_new_folder() -> None:
    left = configuration_of([1, 2])
    heard = PeerHeaders(header(0, OLD))
    back = membership_change(AddRaftVoter(0, folder(OLD)), left, heard)
    other = membership_change(AddRaftVoter(0, folder(NEW)), left, heard)
    assert isinstance(back, AddVoter)
    assert isinstance(other, AddVoter)
    assert (back.voter.member_id, other.voter.member_id) == (0, replica(0, NEW))
    returned = PeerHeaders(header(0, OLD), header(replica(0, OLD), OLD))
    as_replica = membership_change(AddRaftVoter(0, folder(OLD)), left, returned)
    assert isinstance(as_replica, AddVoter)
    assert as_replica.voter.member_id == replica(0, OLD)


@pytest.mark.parametrize(("node_id", "directory"), [(0, OLD), (0, NEW), (7, NEW)])
def test_a_node_has_one_vote(node_id: int, directory: int) -> None:
    with pytest.raises(ApiError) as refused:
        membership_change(AddRaftVoter(node_id, folder(directory)), VOTERS, PeerHeaders())
    assert refused.value.code == ErrorCode.DUPLICATE_VOTER
    assert uuid_to_text(folder(OLD)) in str(refused.value)


def test_a_voter_is_removed_by_node_and_folder() -> None:
    for node_id, member in ((1, 1), (7, replica(7, OLD))):
        change = membership_change(RemoveRaftVoter(node_id, folder(OLD)), VOTERS, PeerHeaders())
        assert change == RemoveVoter(member)


@pytest.mark.parametrize(("node_id", "directory"), [(1, NEW), (9, OLD), (1, 0)])
def test_removing_an_unknown_voter_is_an_error(node_id: int, directory: int) -> None:
    with pytest.raises(ApiError) as refused:
        membership_change(RemoveRaftVoter(node_id, folder(directory)), VOTERS, PeerHeaders())
    assert refused.value.code == ErrorCode.VOTER_NOT_FOUND


def test_a_bootstrap_voter_without_a_known_folder_can_be_removed() -> None:
    change = membership_change(
        RemoveRaftVoter(2, ZERO_UUID), configuration_of([1, 2]), PeerHeaders()
    )
    assert change == RemoveVoter(2)
    heard = PeerHeaders(header(2, OLD))
    change = membership_change(RemoveRaftVoter(2, folder(OLD)), configuration_of([1, 2]), heard)
    assert change == RemoveVoter(2)


@pytest.mark.parametrize("refusal", list(ProposalRefusal))
def test_every_refusal_is_an_error_or_retriable(refusal: ProposalRefusal) -> None:
    found = refusal_error(refusal, AddRaftVoter(3, folder(NEW)))
    assert found if isinstance(found, str) else found.code


def test_a_member_that_is_behind_is_refused_at_once() -> None:
    code, text = refusal_of(
        refusal_error(ProposalRefusal.NOT_CAUGHT_UP, AddRaftVoter(3, folder(NEW)))
    )
    assert code == ErrorCode.REQUEST_TIMED_OUT
    assert "Start it with join" in text


def test_the_last_voter_is_not_removed() -> None:
    code, text = refusal_of(
        refusal_error(ProposalRefusal.LAST_VOTER, RemoveRaftVoter(3, folder(NEW)))
    )
    assert code == ErrorCode.INVALID_REQUEST
    assert "Add another voter first" in text


# -- what the log says of voters -------------------------------------------------------------------


def test_a_voter_context_round_trips() -> None:
    assert voter_context(voter(3, NEW, "host")) == VoterContext(folder(NEW), "host", 9192)
    assert voter_context(Voter(3)) is None
    assert voter_context(Voter(3, b"\xff")) is None


def test_voter_contexts_are_updated_one_at_a_time() -> None:
    voters = configuration_of([0, 1, 2])
    heard = [header(1, OLD), header(2, OLD), header(9, OLD)]
    assert pending_voter_update(voters, heard) == UpdateVoter(
        Voter(1, encode_context(header_context(heard[0])))
    )
    known = Configuration((voter(1, OLD), voter(2, OLD, "b")))
    assert pending_voter_update(known, heard) == UpdateVoter(voter(2, OLD, "a"))
    assert pending_voter_update(Configuration((voter(1, OLD), voter(2, OLD))), heard) is None


# -- who is listened to ----------------------------------------------------------------------------


def refused(
    member: int, directory: int, configuration: Configuration = VOTERS, *brokers: BrokerImage
) -> PeerRejected | None:
    return peer_refusal(
        header(member, directory),
        configuration,
        is_recorded=True,
        brokers={each.broker_id: each for each in brokers},
    )


def test_members_with_the_right_folders_are_accepted() -> None:
    assert refused(0, OLD) is None
    assert refused(replica(7, OLD), OLD) is None
    assert refused(replica(7, NEW), NEW) is None, "it may follow"


def test_a_bootstrap_voter_with_another_folder_is_rejected() -> None:
    found = refused(0, NEW)
    assert found is not None
    assert found.is_replaced
    assert "has another data folder" in found.reason
    assert "odradek node remove 0" in found.reason


def test_the_brokers_registration_gives_a_missing_directory_id() -> None:
    voters = configuration_of([0, 1])
    assert refused(0, NEW, voters) is None
    assert refused(0, OLD, voters, broker(0, OLD)) is None
    assert refused(0, NEW, voters, broker(0, OLD)) is not None


def test_a_removed_bootstrap_voter_is_rejected() -> None:
    left = configuration_of([1, 2])
    found = refused(0, OLD, left)
    assert found is not None
    assert found.is_replaced
    assert "was removed from the voters" in found.reason
    assert refused(0, OLD, left, broker(0, OLD)) is None, "it lost its vote and is a broker still"


def test_before_the_log_names_voters_every_bootstrap_voter_is_accepted() -> None:
    found = peer_refusal(header(0, NEW), configuration_of([1]), is_recorded=False, brokers={})
    assert found is None


def test_a_member_id_must_match_the_data_folder() -> None:
    found = refused(replica(3, OLD), NEW)
    assert found is not None
    assert not found.is_replaced
