"""Who votes: the quorum's configuration, and the steps in which it changes.

A configuration names voters and nobody else. It stands in the log as an entry of its own and
counts from the moment it is in a log, committed or not (thesis 4.1). It changes by one voter at a
time: then every majority of the old voters shares a member with every majority of the new ones, so
no joint phase is needed, and Kafka's AddRaftVoter and RemoveRaftVoter (KIP-853) ask for nothing
else. The price is that swapping a voter takes two steps. Two rules make single steps safe, both
held by `membership`: no step while the former one is uncommitted, and none before the leader has
committed an entry of its own term.

Learners are not in the configuration. Whoever follows without a vote is an observer, known to the
leader only for as long as it is heard (see `leadership`), so that a broker which comes or goes
writes nothing to the log; an observer that has caught up may be made a voter.

A member id names a replica, not a node: a node whose disk was wiped has forgotten what it voted
and acknowledged, and must come back as somebody else (KIP-853's directory id). The core compares
ids and nothing more; `member_id` makes them. Only the founders, who vote before there is a log,
have their node ids for member ids: what their directories are nobody knows before they have met.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

import msgspec

_DIRECTORY_BITS = 30
_NODE_ID_MAX = 2**31 - 1
_NAMES_DIRECTORY = 1 << 61


def member_id(node_id: int, directory_id: bytes) -> int:
    """The id of the replica that node `node_id` (0 to 2**31 - 1) keeps in the directory of this id.

    The directory's part is the first thirty bits of its random id: enough to tell a node before its
    disk was wiped from the node after it. No founder's id is made so; all are below 2**62.
    """
    directory = int.from_bytes(directory_id[:4], "big") >> 32 - _DIRECTORY_BITS
    return _NAMES_DIRECTORY | node_id << _DIRECTORY_BITS | directory


def is_bootstrap_voter(member: int) -> bool:
    """Whether it is a node's id and says nothing about a directory."""
    return 0 <= member <= _NODE_ID_MAX


def node_id_of(member: int) -> int:
    """The node whose replica it is: a founder's own id, or what `member_id` was made of."""
    return member if is_bootstrap_voter(member) else member >> _DIRECTORY_BITS & _NODE_ID_MAX


class Voter(msgspec.Struct, frozen=True, array_like=True):
    """One who votes. `context` is the driver's own: directory id, endpoints."""

    member_id: int
    context: bytes = b""


class Configuration(msgspec.Struct, frozen=True):
    """The voters, by ascending id, each once. Empty in a member that has not been told yet."""

    voters: tuple[Voter, ...] = ()

    @property
    def voter_ids(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(voter.member_id for voter in self.voters)

    def find(self, member: int) -> Voter | None:
        """The voter of this id."""
        return next((voter for voter in self.voters if voter.member_id == member), None)

    def is_voter(self, member: int) -> bool:
        """Whether it has a vote."""
        return any(voter.member_id == member for voter in self.voters)


def configuration_of(member_ids: Iterable[int]) -> Configuration:
    """A configuration of voters without contexts."""
    return Configuration(tuple(Voter(member) for member in sorted(member_ids)))


class AddVoter(msgspec.Struct, frozen=True):
    """Give an observer that has caught up a vote."""

    voter: Voter


class RemoveVoter(msgspec.Struct, frozen=True):
    """Take a vote away. The leader may remove itself: it leads until that is committed."""

    member_id: int


class UpdateVoter(msgspec.Struct, frozen=True):
    """Replace a voter's context. Majorities stay what they are."""

    voter: Voter


MembershipChange: TypeAlias = AddVoter | RemoveVoter | UpdateVoter


class ProposalRefusal(StrEnum):
    """Why a request to the core was not taken. Nothing has happened."""

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
    """The configuration after the change, or why there is none."""
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
    """The least number of voters that any other such number of them must overlap."""
    return voter_count // 2 + 1


def majority_value(values: Iterable[int]) -> int:
    """The greatest value that a majority of the voters, each with one of `values`, has reached.

    0 when nobody votes.
    """
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2] if ascending else 0


# A byte that begins no msgpack value, so that a configuration is told apart from what an
# application writes without putting anything in front of the latter.
CONFIGURATION_MARK = b"\xc1"


def encode_configuration(configuration: Configuration) -> bytes:
    """As the data of an entry and as the mark of a snapshot."""
    return CONFIGURATION_MARK + msgspec.msgpack.encode(configuration.voters)


def decode_configuration(data: bytes) -> Configuration:
    """The inverse. Raises ValueError when it is none, or has a voter twice or out of order."""
    if data[:1] != CONFIGURATION_MARK:
        raise ValueError("not a configuration")
    try:
        voters = msgspec.msgpack.decode(memoryview(data)[1:], type=tuple[Voter, ...])
    except msgspec.DecodeError as error:
        raise ValueError(f"not a configuration: {error}") from error
    ids = [voter.member_id for voter in voters]
    if not ids or ids != sorted(set(ids)):
        raise ValueError(f"a configuration of the voters {ids}")
    return Configuration(voters)
