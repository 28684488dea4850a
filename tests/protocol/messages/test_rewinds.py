"""The bytes of private messages. No other codec has them."""

from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.messages.rewinds import (
    RewindGroupRequest,
    RewindGroupRequestPartition,
    RewindGroupRequestTopic,
    RewindGroupResponse,
    RewindGroupResponsePartition,
    RewindGroupResponseTopic,
)
from tests.support.message_samples import decode, encode

REWIND = APIS[ApiKey.REWIND_GROUP]


def test_a_rewind_has_these_bytes() -> None:
    position = RewindGroupRequestPartition(partition_index=2, position_kind=1, position=-2)
    request = RewindGroupRequest(
        group_id="g",
        rewind_id=bytes(range(16)),
        topics=[RewindGroupRequestTopic(name="t", partitions=[position])],
        is_dry_run=True,
    )
    body = b"".join(
        (
            b"\x02g",
            bytes(range(16)),
            b"\0\0",  # to positions, no snapshot
            b"\x02\x02t\x02",
            b"\0\0\0\x02" + b"\x01" + b"\xff" * 7 + b"\xfe" + b"\0",
            b"\0",  # tagged fields of the topic
            b"\0\x01",
            (30_000).to_bytes(4, "big"),
            b"\0",
        )
    )
    assert encode(REWIND, "Request", 0, request) == body
    assert decode(REWIND, "Request", 0, body) == request


def test_its_answer_has_these_bytes() -> None:
    partition = RewindGroupResponsePartition(
        partition_index=2, previous_offset=7, actual_offset=5, error_code=0
    )
    response = RewindGroupResponse(
        topics=[RewindGroupResponseTopic(name="t", partitions=[partition])]
    )
    body = b"".join(
        (
            b"\0\0\0\0" + b"\0\0" + b"\0",
            b"\x02\x02t\x02",
            b"\0\0\0\x02" + b"\0\0" + (7).to_bytes(8, "big") + (5).to_bytes(8, "big") + b"\0",
            b"\0",
            b"\0",
        )
    )
    assert encode(REWIND, "Response", 0, response) == body
    assert decode(REWIND, "Response", 0, body) == response


def test_everything_is_rewound_unless_topics_are_named() -> None:
    assert RewindGroupRequest().topics is None
    assert RewindGroupRequestPartition().partition_index == -1
