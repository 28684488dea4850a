"""The messages between followers and leaders, also of newer releases."""

import msgspec

from odradek.cluster.replication.messages import (
    ReplicaFetchPartition,
    ReplicaFetchPosition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPartitionData,
)
from odradek.protocol.errors import ErrorCode

FETCH = ReplicaFetchRequest(
    7,
    "cluster",
    2,
    11,
    3,
    True,
    (ReplicaFetchPartition(1, bytes(16), 0, 5, 100, 4),),
    (ReplicaFetchPosition(2, 9, 4),),
    (3,),
)
FETCHED = ReplicaFetchResponse(
    7, 3, ErrorCode.NONE, (ReplicaPartitionData(1, ErrorCode.NONE, 90, 0, 120, 4_096),)
)


def test_messages_are_decoded_from_their_bytes() -> None:
    for message in (FETCH, FETCHED):
        payload = msgspec.msgpack.encode(message)
        assert msgspec.msgpack.decode(payload, type=type(message)) == message


def test_a_caught_up_followers_request_does_not_grow_with_its_partitions() -> None:
    idle = ReplicaFetchRequest(8, "cluster", 2, 11, 3, False)
    assert len(msgspec.msgpack.encode(idle)) < 50


def test_fields_of_a_newer_release_are_skipped() -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(FETCHED))
    assert (
        msgspec.msgpack.decode(msgspec.msgpack.encode([*fields, "new"]), type=ReplicaFetchResponse)
        == FETCHED
    )
