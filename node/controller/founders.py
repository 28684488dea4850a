"""Who was to vote when a metadata log was begun, so that a changed configuration is noticed.

The voters that a log does not name are those of the configuration. Were they others at the next
start, two majorities could decide without knowing of each other: a node that has decided on its own
must not be one of three by a line in a file, nor one of three on its own. Called at the
controller's start, before anything else is done with the log.
"""

from collections.abc import Sequence

import msgspec

from storage.metadata_log import MetadataLog, MetadataLogError


def check_founders(metadata_log: MetadataLog, voter_ids: Sequence[int], *, own_id: int) -> None:
    """Note the voters in a new log; MetadataLogError if the log was begun by others."""
    wanted = sorted(voter_ids)
    noted = metadata_log.founders
    if noted is not None:
        founders = msgspec.msgpack.decode(noted, type=list[int])
    elif metadata_log.last_index or metadata_log.hard_state.term:
        founders = [own_id]
    else:
        founders = wanted
        if wanted != [own_id]:
            metadata_log.save_founders(msgspec.msgpack.encode(wanted))
    if founders == wanted:
        return
    if founders == [own_id]:
        raise MetadataLogError(
            f"peers names the nodes {wanted}, but this node's metadata were decided by it alone:"
            " leave peers out, or begin the cluster with data folders that are new on every node"
        )
    raise MetadataLogError(
        f"peers names the nodes {wanted}, but this node's metadata were begun by the nodes"
        f" {founders}: set peers to those again"
    )
