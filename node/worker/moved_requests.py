"""Requests for a replica that was moved to another log directory after a router had looked it
up."""

from collections.abc import Iterable, Mapping

from odradek.node.bus.messages import (
    Append,
    AppendBytes,
    DeleteRecords,
    DescribeProducers,
    WriteMarker,
)
from odradek.node.worker.hosted_partitions import PartitionLocation

_BY_LOCATION = (Append, AppendBytes, DeleteRecords, DescribeProducers, WriteMarker)


def relocate(
    requests: Iterable[tuple[object, object]],
    moved: Mapping[PartitionLocation, PartitionLocation],
) -> bool:
    """Let the requests, which come with their routers, go to where their partitions are now.
    `moved` has the former locations. Whether there were any: then the turn must run in one thread,
    because batches of neighbouring stores may share bytes."""
    found = False
    for _, request in requests:
        if not isinstance(request, _BY_LOCATION):
            continue
        location = moved.get((request.store, request.number))
        if location is not None:
            found = True
            request.store, request.number = location
            if isinstance(request, Append):
                # The bytes before this batch may be those of a batch for another store.
                request.has_headroom = False
    return found
