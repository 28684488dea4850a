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


class Part(NamedTuple):
    """The part a node has: its member id, and the voters for as long as the log names none."""

    own_id: int
    voter_ids: tuple[int, ...]


def part_of(metadata_log: MetadataLog, config: NodeConfig) -> Part:
    """As whom the node takes part; noted in a new log. MetadataLogError if the log was begun
    otherwise than the configuration says."""
    founders = _founders(metadata_log, config)
    if founders == _NOBODY:
        return Part(_replica(config), ())
    return Part(config.node_id, tuple(founders))


def become_joined(metadata_log: MetadataLog) -> None:
    """From its next start on this node takes part as a replica that names its data folder. Durable.

    Only for who has been told by the others that it is no founder any more.
    """
    metadata_log.save_founders(msgspec.msgpack.encode(_NOBODY))


def _founders(metadata_log: MetadataLog, config: NodeConfig) -> Sequence[int]:
    own_id = config.node_id
    wanted = sorted(peer.node_id for peer in config.peers) or [own_id]
    noted = metadata_log.founders
    if noted is not None:
        founders = msgspec.msgpack.decode(noted, type=list[int])
    elif metadata_log.last_index or metadata_log.hard_state.term:
        founders = [own_id]
    elif config.join:
        founders = _NOBODY
        metadata_log.save_founders(msgspec.msgpack.encode(founders))
    else:
        founders = wanted
        if wanted != [own_id]:
            metadata_log.save_founders(msgspec.msgpack.encode(wanted))
    if founders == _NOBODY:
        if not config.is_of_several:
            raise MetadataLogError(
                "this node is one of several, but neither join nor peers says where the others are:"
                " set join and peer.listen as they were"
            )
        return founders
    if founders == wanted and not config.join:
        return founders
    if founders == [own_id]:
        raise MetadataLogError(
            f"{_asked(config)}, but this node's metadata were decided by it alone: leave that out;"
            " it is joined by others once it has peer.listen and cluster.secret, and they have join"
        )
    raise MetadataLogError(
        f"{_asked(config)}, but this node's metadata were begun by the nodes {founders}: set peers"
        " to those again; who came later need not be named"
    )


def _asked(config: NodeConfig) -> str:
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
