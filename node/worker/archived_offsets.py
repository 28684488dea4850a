"""What groups have committed comes to the logs that wait for them (storage/archive_gate.py).

A router tells it regularly for the replicas of this node. What is about another group than the
topic's configs name by now is not used: the configs have changed meanwhile.
"""

from odradek.node.bus.messages import ArchivedOffsetsSet, SetArchivedOffsets
from odradek.node.worker.hosted_partitions import HostedPartitions


def set_archived_offsets(
    partitions: HostedPartitions, request: SetArchivedOffsets
) -> ArchivedOffsetsSet:
    """Note what the group has committed, and answer what is held back for it."""
    held_bytes = []
    for topic_id, partition, offset in request.offsets:
        location = partitions.location_of(topic_id, partition)
        archive = None if location is None else partitions.log(location).archive
        if archive is None or archive.group != request.group:
            held_bytes.append(0)
            continue
        archive.archived_offset = offset
        held_bytes.append(archive.held_bytes)
    return ArchivedOffsetsSet(request.request_id, tuple(held_bytes))
