"""The quorum's configuration: its voters, and single-server changes of them.

A configuration is an entry of the log and effective as soon as it is in a log, committed or not
(thesis 4.1). It changes by one voter at a time: every majority of the old voters then shares a
member with every majority of the new ones, so no joint consensus is needed. Kafka's AddRaftVoter
and RemoveRaftVoter (KIP-853) need no more. Replacing a voter takes two steps. The conditions of a
step are in `Leadership.next_configuration`.

Observers (learners) are not in the configuration. The leader knows them as long as they respond
(see `leadership`), so that a broker that comes or goes writes nothing to the log. An observer that
has caught up can be made a voter.

A member id names a replica, not a node: a node whose disk was wiped has lost its vote and what it
acknowledged, and must return under another id (KIP-853's directory id). The core only compares ids;
`member_id` creates them. Bootstrap voters have their node ids as member ids, since their directory
ids are not known before the first contact.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

import msgspec

_DIRECTORY_BITS = 30
_NODE_ID_MAX = 2**31 - 1
_NAMES_DIRECTORY = 1 << 61


def member_id(node_id: int, directory_id: bytes) -> int:
    """The member id of node `node_id` (0 to 2**31 - 1) with this directory.

    It contains the first thirty bits of the random directory id: enough to distinguish a node
    before and after its disk was wiped. Never equal to a bootstrap voter's id; below 2**62.
    """
    directory = int.from_bytes(directory_id[:4], "big") >> 32 - _DIRECTORY_BITS
    return _NAMES_DIRECTORY | node_id << _DIRECTORY_BITS | directory


def is_bootstrap_voter(member: int) -> bool:
    """Whether it is a plain node id, without a directory."""
    return 0 <= member <= _NODE_ID_MAX


def node_id_of(member: int) -> int:
    return member if is_bootstrap_voter(member) else member >> _DIRECTORY_BITS & _NODE_ID_MAX


class Voter(msgspec.Struct, frozen=True, array_like=True):
    """A voter. `context` belongs to the driver: directory id, endpoint."""

    member_id: int
    context: bytes = b""


class Configuration(msgspec.Struct, frozen=True):
    """The voters, by ascending id, each once. Empty in a member that does not know them yet."""

    voters: tuple[Voter, ...] = ()

    @property
    def voter_ids(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(voter.member_id for voter in self.voters)

    def find(self, member: int) -> Voter | None:
        """The voter of this id."""
        return next((voter for voter in self.voters if voter.member_id == member), None)

    def is_voter(self, member: int) -> bool:
        return any(voter.member_id == member for voter in self.voters)


def configuration_of(member_ids: Iterable[int]) -> Configuration:
    """A configuration of voters without contexts."""
    return Configuration(tuple(Voter(member) for member in sorted(member_ids)))


class AddVoter(msgspec.Struct, frozen=True):
    """Make an observer that has caught up a voter."""

    voter: Voter


class RemoveVoter(msgspec.Struct, frozen=True):
    """Remove a voter. The leader may remove itself: it leads until that is committed."""

    member_id: int


class UpdateVoter(msgspec.Struct, frozen=True):
    """Replace a voter's context."""

    voter: Voter


MembershipChange: TypeAlias = AddVoter | RemoveVoter | UpdateVoter


class ProposalRefusal(StrEnum):
    """Why the core refused a request, without effect."""

    NOT_LEADER = "not_leader"
    TRANSFER_IN_PROGRESS = "transfer_in_progress"
    TOO_MUCH_UNCOMMITTED = "too_much_uncommitted"
    CHANGE_IN_PROGRESS = "change_in_progress"
    TERM_NOT_COMMITTED = "term_not_committed"
    ALREADY_VOTER = "already_voter"
    NOT_A_VOTER = "not_a_voter"
    NOT_CAUGHT_UP = "not_caught_up"
    LAST_VOTER = "last_voter"


def apply_change(
    configuration: Configuration, change: MembershipChange
) -> Configuration | ProposalRefusal:
    """The configuration after the change, or why it is refused."""
    if isinstance(change, AddVoter):
        if configuration.is_voter(change.voter.member_id):
            return ProposalRefusal.ALREADY_VOTER
        voters = (*configuration.voters, change.voter)
        return Configuration(tuple(sorted(voters, key=lambda voter: voter.member_id)))
    if isinstance(change, RemoveVoter):
        if not configuration.is_voter(change.member_id):
            return ProposalRefusal.NOT_A_VOTER
        if len(configuration.voters) == 1:
            return ProposalRefusal.LAST_VOTER
        left = (voter for voter in configuration.voters if voter.member_id != change.member_id)
        return Configuration(tuple(left))
    if not configuration.is_voter(change.voter.member_id):
        return ProposalRefusal.NOT_A_VOTER
    return Configuration(
        tuple(
            change.voter if voter.member_id == change.voter.member_id else voter
            for voter in configuration.voters
        )
    )


def majority_of(voter_count: int) -> int:
    """The size of a majority."""
    return voter_count // 2 + 1


def majority_value(values: Iterable[int]) -> int:
    """The greatest value that a majority of `values`, one for each voter, has reached; 0 without
    voters."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2] if ascending else 0


# No msgpack value begins with this byte, so commands need no prefix to differ from a
# configuration.
CONFIGURATION_MARK = b"\xc1"


def encode_configuration(configuration: Configuration) -> bytes:
    """The data of a configuration entry, and the configuration of a stored snapshot."""
    return CONFIGURATION_MARK + msgspec.msgpack.encode(configuration.voters)


def decode_configuration(data: bytes) -> Configuration:
    """The inverse. Raises ValueError if malformed, or if voters are not strictly ascending."""
    if data[:1] != CONFIGURATION_MARK:
        raise ValueError("not a configuration")
    try:
        voters = msgspec.msgpack.decode(memoryview(data)[1:], type=tuple[Voter, ...])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a configuration: {error}") from error
    ids = [voter.member_id for voter in voters]
    if not ids or ids != sorted(set(ids)):
        raise ValueError(f"invalid voters {ids}")
    return Configuration(voters)
