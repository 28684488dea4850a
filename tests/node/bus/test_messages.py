"""Bus messages: encoding of unions, and compatibility with older and newer releases."""

import msgspec

from odradek.node.bus.messages import (
    Append,
    Appended,
    CommandSubmitted,
    FromController,
    MetadataRecords,
    RequestFailed,
    ToController,
    ToRouter,
    ToWorker,
    WorkerGreeting,
)
from odradek.protocol.errors import ErrorCode


def test_a_frame_of_several_message_types_is_decoded() -> None:
    sent: list[ToRouter] = [
        WorkerGreeting(3, 12345678901234567, "pipe"),
        Appended(1, 0, 42, -1, 7, ((0, "no key"),), "bad"),
        RequestFailed(2, ErrorCode.KAFKA_STORAGE_ERROR),
    ]
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=list[ToRouter])
    assert decoded == sent


def test_field_added_at_the_end_is_skipped_by_an_older_reader() -> None:
    newer = msgspec.msgpack.encode(
        [[3, 9, 1, 2, 4096, 80, -1, -1, 13, False, True, 30_000, -1, "more"]]
    )
    assert msgspec.msgpack.decode(newer, type=list[ToWorker]) == [
        Append(request_id=9, store=1, number=2, arena_offset=4096, length=80)
    ]


def test_field_missing_at_the_end_takes_its_default() -> None:
    older = msgspec.msgpack.encode([[6, 5]])
    (decoded,) = msgspec.msgpack.decode(older, type=list[ToRouter])
    assert isinstance(decoded, Appended)
    assert decoded.base_offset == -1


def test_every_tag_is_used_once() -> None:
    tags = [
        kind.__struct_config__.tag
        for union in (ToWorker, ToRouter, ToController, FromController)
        for kind in union.__args__
    ]
    assert len(tags) == len(set(tags))


def test_binary_payloads_are_not_text() -> None:
    sent: list[FromController] = [
        MetadataRecords(4, (b"\xff\x00",)),
        CommandSubmitted(1, 0, b"\x80"),
    ]
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=list[FromController])
    assert decoded == sent
