"""Changes of the quorum's voters (KIP-853), and which peers are accepted.

A voter's context in the log holds its directory id and the address at which it listens. The leader
records that of a bootstrap voter with its first message; from then on another directory is
another replica. The member id of a node that joined later contains its directory.

    command          proposed      error
    ----------------------------------------------------------------------------------------------
    AddRaftVoter     AddVoter      DUPLICATE_VOTER if the node votes; REQUEST_TIMED_OUT, at once as
                                   in Kafka, if it does not follow or is too far behind
    RemoveRaftVoter  RemoveVoter   VOTER_NOT_FOUND; INVALID_REQUEST for the last voter
    (the leader)     UpdateVoter   -: a voter's header differs from its context

While another change is not committed, or the leader has committed nothing in its term, commands
wait. Pure. Called by the active controller and by the process.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from odradek.cluster.controller.commands import AddRaftVoter, RemoveRaftVoter
from odradek.cluster.metadata.image import BrokerImage
from odradek.cluster.raft.configuration import (
    AddVoter,
    Configuration,
    MembershipChange,
    ProposalRefusal,
    RemoveVoter,
    UpdateVoter,
    Voter,
    is_bootstrap_voter,
    member_id,
    node_id_of,
)
from odradek.node.bus.peer_messages import PeerHeader, PeerRejected
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.types import ZERO_UUID, Uuid, uuid_to_text

_NOT_NOW: Mapping[ProposalRefusal, str] = {
    ProposalRefusal.NOT_LEADER: "This node no longer leads the quorum.",
    ProposalRefusal.TRANSFER_IN_PROGRESS: "The leader of the quorum is transferring leadership.",
    ProposalRefusal.TOO_MUCH_UNCOMMITTED: "A majority of the voters is behind.",
    ProposalRefusal.CHANGE_IN_PROGRESS: "The last change of the voters is not committed yet.",
    ProposalRefusal.TERM_NOT_COMMITTED: "The new leader has committed nothing in its term yet.",
}


class VoterContext(msgspec.Struct, frozen=True, array_like=True):
    """A voter's context: its directory id, and the address at which it listens for peers."""

    directory_id: Uuid = ZERO_UUID
    host: str = ""
    port: int = 0


class PeerHeaderLookup(Protocol):
    """The newest header of each member."""

    def header_of(self, member: int) -> PeerHeader | None: ...


def voter_context(voter: Voter) -> VoterContext | None:
    """A voter's context in the log; None if there is none."""
    if not voter.context:
        return None
    try:
        return msgspec.msgpack.decode(voter.context, type=VoterContext)
    except msgspec.DecodeError:
        return None


def header_context(header: PeerHeader) -> VoterContext:
    """A member's context according to its own header."""
    return VoterContext(directory_of(header), header.host, header.port)


def directory_of(header: PeerHeader) -> Uuid:
    """The directory id in a header; zero if the data folder has none."""
    try:
        return uuid.UUID(header.directory_id).bytes
    except ValueError:
        return ZERO_UUID


def membership_change(
    command: AddRaftVoter | RemoveRaftVoter, configuration: Configuration, headers: PeerHeaderLookup
) -> MembershipChange:
    """The membership change of a command. Raises ApiError if there is none."""
    node_id, directory_id = command.voter_id, command.voter_directory_id
    if isinstance(command, RemoveRaftVoter):
        for voter in configuration.voters:
            member, directory = voter.member_id, _directory_of_voter(voter)
            header = headers.header_of(member)
            if directory == ZERO_UUID and header is not None:
                directory = directory_of(header)
            if (node_id_of(member), directory) == (node_id, directory_id):
                return RemoveVoter(member)
        raise ApiError(
            ErrorCode.VOTER_NOT_FOUND,
            f"Node {node_id} with directory id {_text(directory_id)} is not a voter. The voters are"
            f" {_named(configuration)}.",
        )
    if any(node_id_of(voter) == node_id for voter in configuration.voter_ids):
        raise ApiError(
            ErrorCode.DUPLICATE_VOTER,
            f"Node {node_id} is already a voter. The voters are {_named(configuration)}.",
        )
    member = member_id(node_id, directory_id)
    header, bootstrap_header = headers.header_of(member), headers.header_of(node_id)
    if (
        header is None
        and bootstrap_header is not None
        and directory_of(bootstrap_header) == directory_id
    ):
        # A bootstrap voter that was removed and kept its data folder has its node id as member id
        # until it restarts as an observer.
        member, header = node_id, bootstrap_header
    context = VoterContext(directory_id) if header is None else header_context(header)
    return AddVoter(Voter(member, encode_context(context)))


def refusal_error(
    refusal: ProposalRefusal, command: AddRaftVoter | RemoveRaftVoter
) -> ApiError | str:
    """The error for a refused change, or the reason why to submit the command again."""
    node_id = command.voter_id
    match refusal:
        case ProposalRefusal.NOT_CAUGHT_UP:
            return ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Node {node_id} with directory id {_text(command.voter_directory_id)} does not"
                " follow the metadata, or is too far behind. Start it with join and try again.",
            )
        case ProposalRefusal.LAST_VOTER:
            return ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Node {node_id} is the only voter. Add another voter first.",
            )
        case ProposalRefusal.ALREADY_VOTER:
            return ApiError(ErrorCode.DUPLICATE_VOTER, f"Node {node_id} is already a voter.")
        case ProposalRefusal.NOT_A_VOTER:
            return ApiError(ErrorCode.VOTER_NOT_FOUND, f"Node {node_id} is not a voter.")
        case _:
            return _NOT_NOW[refusal]


def pending_voter_update(
    configuration: Configuration, headers: Iterable[PeerHeader]
) -> UpdateVoter | None:
    """The update of the first voter whose header differs from its context in the log."""
    for header in headers:
        voter = configuration.find(header.member)
        if voter is None:
            continue
        context = encode_context(header_context(header))
        if voter.context != context:
            return UpdateVoter(Voter(voter.member_id, context))
    return None


def encode_context(context: VoterContext) -> bytes:
    """The bytes of `Voter.context`."""
    return msgspec.msgpack.encode(context)


def peer_refusal(
    header: PeerHeader,
    configuration: Configuration,
    *,
    is_recorded: bool,
    brokers: Mapping[int, BrokerImage],
) -> PeerRejected | None:
    """Why a peer's messages are rejected: its data folder is not the one that the voter had.

    A node whose disk was wiped has lost its vote and what it acknowledged. `is_recorded`:
    whether the log names the voters, so that others are none.
    """
    directory, member, node_id = directory_of(header), header.member, header.node_id
    if not is_bootstrap_voter(member):
        if member == member_id(node_id, directory):
            return None
        return PeerRejected(f"The member id of node {node_id} belongs to another data folder.")
    voter = configuration.find(member)
    known = set() if voter is None else {_directory_of_voter(voter)} - {ZERO_UUID}
    broker = brokers.get(node_id)
    if not known and broker is not None:
        known = set(broker.log_dirs)
    if directory in known or directory == ZERO_UUID or not is_recorded:
        return None
    if known:
        return PeerRejected(
            f"Node {node_id} has another data folder than when it was a voter, so it cannot vote."
            " Restore its old folder, or continue with the new one as an observer: remove the old"
            f" voter with odradek node remove {node_id}, then add the new one with odradek node add"
            f" {node_id}.",
            is_replaced=True,
        )
    if voter is not None:
        return None
    return PeerRejected(
        f"Node {node_id} was removed from the voters and may follow as an observer. To make it a"
        f" voter again: odradek node add {node_id}.",
        is_replaced=True,
    )


def _directory_of_voter(voter: Voter) -> Uuid:
    context = voter_context(voter)
    return ZERO_UUID if context is None else context.directory_id


def _named(configuration: Configuration) -> str:
    return ", ".join(
        f"{node_id_of(voter.member_id)} ({_text(_directory_of_voter(voter))})"
        for voter in configuration.voters
    )


def _text(directory_id: Uuid) -> str:
    return "unknown" if directory_id == ZERO_UUID else uuid_to_text(directory_id)
