"""Who may take part in the quorum as whom, and the steps in which who votes changes (KIP-853).

A voter's context in the log says which data folder it votes with and where it listens. That of a
founder, of whose folder nobody knew at first, is written down by the leader when it has met it;
from then on another folder is somebody else. A replica that came later names its folder in its
member id.

    command          what is proposed   refused, or tried again, because
    ----------------------------------------------------------------------------------------------
    AddRaftVoter     AddVoter           the node votes: DUPLICATE_VOTER; it is not fed, or not near
                                        enough to the end: REQUEST_TIMED_OUT, at once as in Kafka
    RemoveRaftVoter  RemoveVoter        no such voter: VOTER_NOT_FOUND; the last: INVALID_REQUEST
    (the leader)     UpdateVoter        a voter says something else of itself than the log

While another step is not committed, or the leader's term has committed nothing, commands wait.

Pure: called by the active controller's decisions and by the process.
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
    ProposalRefusal.NOT_LEADER: "this node does not lead the quorum any more",
    ProposalRefusal.TRANSFER_IN_PROGRESS: "the quorum's leader is handing over",
    ProposalRefusal.TOO_MUCH_UNCOMMITTED: "a majority of the voters is behind",
    ProposalRefusal.CHANGE_IN_PROGRESS: "the last change of who votes is not committed yet",
    ProposalRefusal.TERM_NOT_COMMITTED: "the quorum's leader is new",
}


class VoterContext(msgspec.Struct, frozen=True, array_like=True):
    """A voter's context: the id of its data folder, and where it listens for the others."""

    directory_id: Uuid = ZERO_UUID
    host: str = ""
    port: int = 0


class PeerHeaderLookup(Protocol):
    """What members have said of themselves."""

    def header_of(self, member: int) -> PeerHeader | None: ...


def voter_context(voter: Voter) -> VoterContext | None:
    """What the log says of a voter; None if it says nothing."""
    if not voter.context:
        return None
    try:
        return msgspec.msgpack.decode(voter.context, type=VoterContext)
    except msgspec.DecodeError:
        return None


def header_context(header: PeerHeader) -> VoterContext:
    """What a member says of itself."""
    return VoterContext(directory_of(header), header.host, header.port)


def directory_of(header: PeerHeader) -> Uuid:
    """The id of its data folder; zero if the folder has none."""
    try:
        return uuid.UUID(header.directory_id).bytes
    except ValueError:
        return ZERO_UUID


def membership_change(
    command: AddRaftVoter | RemoveRaftVoter, configuration: Configuration, headers: PeerHeaderLookup
) -> MembershipChange:
    """The step that carries a command out. ApiError if there is none."""
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
            f"node {node_id} with the directory {_text(directory_id)} has no vote; these have:"
            f" {_named(configuration)}",
        )
    if any(node_id_of(voter) == node_id for voter in configuration.voter_ids):
        raise ApiError(
            ErrorCode.DUPLICATE_VOTER,
            f"node {node_id} has a vote already; these have: {_named(configuration)}",
        )
    member = member_id(node_id, directory_id)
    header, founder = headers.header_of(member), headers.header_of(node_id)
    if header is None and founder is not None and directory_of(founder) == directory_id:
        # A founder that lost its vote and kept its folder is known by its node's id, as long as it
        # has not come back as a replica that names its folder.
        member, header = node_id, founder
    place = VoterContext(directory_id) if header is None else header_context(header)
    return AddVoter(Voter(member, encode_context(place)))


def refusal_error(
    refusal: ProposalRefusal, command: AddRaftVoter | RemoveRaftVoter
) -> ApiError | str:
    """An error, or why the command has to be handed in again."""
    node_id = command.voter_id
    match refusal:
        case ProposalRefusal.NOT_CAUGHT_UP:
            return ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"node {node_id} with the directory {_text(command.voter_directory_id)} does not"
                " follow the metadata yet, or is too far behind: start it with join, and try again",
            )
        case ProposalRefusal.LAST_VOTER:
            return ApiError(
                ErrorCode.INVALID_REQUEST,
                f"node {node_id} has the only vote: give another node one before",
            )
        case ProposalRefusal.ALREADY_VOTER:
            return ApiError(ErrorCode.DUPLICATE_VOTER, f"node {node_id} has a vote already")
        case ProposalRefusal.NOT_A_VOTER:
            return ApiError(ErrorCode.VOTER_NOT_FOUND, f"node {node_id} has no vote")
        case _:
            return _NOT_NOW[refusal]


def pending_voter_update(
    configuration: Configuration, headers: Iterable[PeerHeader]
) -> UpdateVoter | None:
    """The first voter that says something else of itself than the log does."""
    for header in headers:
        voter = configuration.find(header.member)
        if voter is None:
            continue
        context = encode_context(header_context(header))
        if voter.context != context:
            return UpdateVoter(Voter(voter.member_id, context))
    return None


def encode_context(place: VoterContext) -> bytes:
    """As a voter's context."""
    return msgspec.msgpack.encode(place)


def peer_refusal(
    header: PeerHeader,
    configuration: Configuration,
    *,
    is_recorded: bool,
    brokers: Mapping[int, BrokerImage],
) -> PeerRejected | None:
    """Why a member is not listened to: it speaks as a founder that it is not.

    A node whose disk was wiped has forgotten how it voted and what it promised. `is_recorded`:
    whether the log names the voters, so that who is not among them has no vote.
    """
    directory, member, node_id = directory_of(header), header.member, header.node_id
    if not is_bootstrap_voter(member):
        if member == member_id(node_id, directory):
            return None
        return PeerRejected(f"node {node_id} says that it is the replica of another data folder")
    voter = configuration.find(member)
    known = set() if voter is None else {_directory_of_voter(voter)} - {ZERO_UUID}
    broker = brokers.get(node_id)
    if not known and broker is not None:
        known = set(broker.log_dirs)
    if directory in known or directory == ZERO_UUID or not is_recorded:
        return None
    if known:
        return PeerRejected(
            f"node {node_id} has come back with another data folder and cannot vote as what it"
            " was: bring its old folder back, or go on with the new one: the node follows without"
            f" a vote; odradek node remove {node_id} takes the old replica's vote, then odradek"
            f" node add {node_id} gives the new one a vote",
            is_replaced=True,
        )
    if voter is not None:
        return None
    return PeerRejected(
        f"node {node_id} was taken out of the cluster, and its data folder is of the time before:"
        f" it may follow without a vote; odradek node add {node_id} gives it one",
        is_replaced=True,
    )


def _directory_of_voter(voter: Voter) -> Uuid:
    place = voter_context(voter)
    return ZERO_UUID if place is None else place.directory_id


def _named(configuration: Configuration) -> str:
    return ", ".join(
        f"{node_id_of(voter.member_id)} ({_text(_directory_of_voter(voter))})"
        for voter in configuration.voters
    )


def _text(directory_id: Uuid) -> str:
    return "unknown" if directory_id == ZERO_UUID else uuid_to_text(directory_id)
