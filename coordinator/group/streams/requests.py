"""Requests about streams groups that are not Kafka's, and results of those that are.

Sent by node/router/handlers/streams.py and handled by `groups`.
"""

import msgspec

from odradek.coordinator.group.streams.records import InternalTopic
from odradek.protocol.messages.streams import (
    StreamsGroupDescribedGroup,
    StreamsGroupHeartbeatResponse,
)
from odradek.protocol.types import Request


class StreamsHeartbeatResult(msgspec.Struct, frozen=True):
    """The result of StreamsGroupHeartbeat. The handler creates the topics of `missing` if the
    member is allowed to; the response reports them as missing until they exist."""

    response: StreamsGroupHeartbeatResponse
    missing: tuple[InternalTopic, ...] = ()


class DescribeStreamsGroup(msgspec.Struct, Request[StreamsGroupDescribedGroup], frozen=True):
    """One group of StreamsGroupDescribe."""

    group_id: str
    with_description: bool = False
