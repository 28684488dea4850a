"""As whom this node takes part in the quorum, and who was to vote when its log was begun.

    the log is       configured with   this node is
    ---------------------------------------------------------------------------------------------
    new              peers             a founder: it votes from the first entry on
    new              join              an observer, whose replica names its data folder
    new              neither           the founder of a cluster of its own
    a founder's      the same peers    what it was
    its own          no peers          what it was; the log says who else votes meanwhile
    a joined one's   anything          what it was

The voters that a log does not name are those of the configuration. Were they others at the next
start, two majorities could decide without knowing of each other: a node that has decided on its own
must not be one of three by a line in a file, nor one of three on its own. Called at the
controller's start, before anything else is done with the log.
"""

import uuid
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from odradek.cluster.raft.configuration import member_id
from odradek.node.config import NodeConfig
from odradek.storage.metadata_log import MetadataLog, MetadataLogError

_NOBODY: list[int] = []
"""The founders that a node notes which has joined: it is told by the log."""


class QuorumIdentity(NamedTuple):
    """The part a node has: its member id, and the voters for as long as the log names none."""

    own_id: int
    voter_ids: tuple[int, ...]


def quorum_identity(metadata_log: MetadataLog, config: NodeConfig) -> QuorumIdentity:
    """As whom the node takes part; noted in a new log. MetadataLogError if the log was begun
    otherwise than the configuration says."""
    bootstrap_voters = _founders(metadata_log, config)
    if bootstrap_voters == _NOBODY:
        return QuorumIdentity(_replica(config), ())
    return QuorumIdentity(config.node_id, tuple(bootstrap_voters))


def drop_bootstrap_voters(metadata_log: MetadataLog) -> None:
    """From its next start on this node takes part as a replica that names its data folder. Durable.

    Only for who has been told by the others that it is no founder any more.
    """
    metadata_log.save_bootstrap_voters(msgspec.msgpack.encode(_NOBODY))


def _founders(metadata_log: MetadataLog, config: NodeConfig) -> Sequence[int]:
    own_id = config.node_id
    wanted = sorted(peer.node_id for peer in config.peers) or [own_id]
    noted = metadata_log.bootstrap_voters
    if noted is not None:
        bootstrap_voters = msgspec.msgpack.decode(noted, type=list[int])
    elif metadata_log.last_index or metadata_log.hard_state.term:
        bootstrap_voters = [own_id]
    elif config.join:
        bootstrap_voters = _NOBODY
        metadata_log.save_bootstrap_voters(msgspec.msgpack.encode(bootstrap_voters))
    else:
        bootstrap_voters = wanted
        if wanted != [own_id]:
            metadata_log.save_bootstrap_voters(msgspec.msgpack.encode(wanted))
    if bootstrap_voters == _NOBODY:
        if not config.is_clustered:
            raise MetadataLogError(
                "this node is one of several, but neither join nor peers says where the others are:"
                " set join and peer.listen as they were"
            )
        return bootstrap_voters
    if bootstrap_voters == wanted and not config.join:
        return bootstrap_voters
    if bootstrap_voters == [own_id]:
        raise MetadataLogError(
            f"{_configured_by(config)}, but this node bootstrapped a single-node cluster. Remove"
            " that setting. Other nodes can join once this node has peer.listen and cluster.secret"
            " and they have join."
        )
    raise MetadataLogError(
        f"{_configured_by(config)}, but this cluster was bootstrapped by the nodes"
        f" {bootstrap_voters}. Set peers to those nodes; nodes that joined later need no entry."
    )


def _configured_by(config: NodeConfig) -> str:
    if config.join:
        return "join is set"
    if config.peers:
        return f"peers names the nodes {[peer.node_id for peer in config.peers]}"
    return "peers is not set"


def _replica(config: NodeConfig) -> int:
    if not config.directory_id:
        raise MetadataLogError(
            f"the data folder {config.data} was formatted before folders had ids, so that it cannot"
            " be told from another: begin with a new data folder to join a cluster"
        )
    return member_id(config.node_id, uuid.UUID(config.directory_id).bytes)
