"""This node's member id in the quorum, and the voters that bootstrapped its log.

    the log is                configured with   this node is
    ---------------------------------------------------------------------------------------------
    new                       peers             a bootstrap voter: it votes from the first entry on
    new                       join              an observer; its member id names its data folder
    new                       neither           the only voter of a new single-node cluster
    bootstrapped by peers     the same peers    unchanged
    bootstrapped alone        no peers          unchanged; the log names voters that joined later
    of a node that joined     anything          unchanged

As long as a log names no voters, the bootstrap voters count. They must not change: with other
voters at the next start, two majorities could commit without knowing of each other. So they are
stored when the log is new, and compared with `peers` at every later start. Called when the
controller starts, before anything else is done with the log.
"""

import uuid
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from odradek.cluster.raft.configuration import member_id
from odradek.node.config import NodeConfig
from odradek.storage.metadata_log import MetadataLog, MetadataLogError

_JOINED: list[int] = []
"""Stored by a node that has joined: the log names its voters."""


class QuorumIdentity(NamedTuple):
    """A node's member id, and the voters as long as the log names none."""

    own_id: int
    voter_ids: tuple[int, ...]


def quorum_identity(metadata_log: MetadataLog, config: NodeConfig) -> QuorumIdentity:
    """The node's identity, stored in a new log. MetadataLogError if the configuration contradicts
    a log that is not new."""
    bootstrap_voters = _bootstrap_voters(metadata_log, config)
    if bootstrap_voters == _JOINED:
        return QuorumIdentity(_member_id(config), ())
    return QuorumIdentity(config.node_id, tuple(bootstrap_voters))


def drop_bootstrap_voters(metadata_log: MetadataLog) -> None:
    """Make this node an observer whose member id names its data folder, from its next start on.
    Durable. Only for a node that the quorum has rejected as bootstrap voter."""
    metadata_log.save_bootstrap_voters(msgspec.msgpack.encode(_JOINED))


def _bootstrap_voters(metadata_log: MetadataLog, config: NodeConfig) -> Sequence[int]:
    own_id = config.node_id
    wanted = sorted(peer.node_id for peer in config.peers) or [own_id]
    stored = metadata_log.bootstrap_voters
    if stored is not None:
        bootstrap_voters = msgspec.msgpack.decode(stored, type=list[int])
    elif metadata_log.last_index or metadata_log.hard_state.term:
        bootstrap_voters = [own_id]
    elif config.join:
        bootstrap_voters = _JOINED
        metadata_log.save_bootstrap_voters(msgspec.msgpack.encode(bootstrap_voters))
    else:
        bootstrap_voters = wanted
        if wanted != [own_id]:
            metadata_log.save_bootstrap_voters(msgspec.msgpack.encode(wanted))
    if bootstrap_voters == _JOINED:
        if not config.is_clustered:
            raise MetadataLogError(
                "This node has joined a cluster, but neither join nor peers is set. Set join and"
                " peer.listen as before."
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


def _member_id(config: NodeConfig) -> int:
    if not config.directory_id:
        raise MetadataLogError(
            f"The data folder {config.data} has no directory id: an old release formatted it. To"
            " join a cluster, start with a new data folder."
        )
    return member_id(config.node_id, uuid.UUID(config.directory_id).bytes)
