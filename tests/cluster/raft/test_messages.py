"""Entries, and the encoding of messages."""

import msgspec
import pytest

from odradek.cluster.raft.configuration import configuration_of, encode_configuration
from odradek.cluster.raft.messages import (
    ALL_MEMBERS,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    FollowRequest,
    LeaderHint,
    Message,
    SnapshotChunk,
    SnapshotMetadata,
    SnapshotReceived,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

MARK = SnapshotMetadata(9, 2, 10, 77, configuration_of([1, 2, 3]))


def test_the_type_of_an_entry_is_its_first_byte() -> None:
    no_op = Entry(1, 1, b"")
    configuration = Entry(2, 1, encode_configuration(configuration_of([1])))
    command = Entry(3, 1, msgspec.msgpack.encode([1, 2]))
    assert [entry.is_command for entry in (no_op, configuration, command)] == [False, False, True]
    assert [entry.is_configuration for entry in (no_op, configuration, command)] == [
        False,
        True,
        False,
    ]


def test_an_entry_without_data_has_a_size() -> None:
    assert Entry(1, 1, b"").size > 0
    assert Entry(1, 1, b"abc").size == Entry(1, 1, b"").size + 3


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(1, 2, 3, 4, 2, True, False),
        VoteResponse(1, 2, 3, True),
        AppendRequest(1, 2, 3, 4, 2, (Entry(5, 3, b"x"),), 4, 8),
        AppendAccepted(1, 2, 3, 4, 5),
        AppendRejected(1, 2, 3, 4, 3, 2, 5),
        SnapshotChunk(1, 2, 3, MARK, 0, 4, b"abcd"),
        SnapshotReceived(1, 2, 3, 9, 2, 4),
        TimeoutNow(1, 2, 3),
        FollowRequest(1, ALL_MEMBERS, 3, 4),
        LeaderHint(1, 2, 3, 4),
    ],
)
def test_a_message_is_decoded_from_its_bytes(message: Message) -> None:
    decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
    assert decoder.decode(msgspec.msgpack.encode(message)) == message
