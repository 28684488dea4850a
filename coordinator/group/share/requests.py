"""Requests about share groups that are not Kafka's, and the effects that a shard of groups sends.

The share coordinator stores the start offset and the acknowledgements of a partition of a share
group, in the shards of another topic (KIP-932). A shard of groups sends it effects that initialize
and delete share states, and receives the outcome as a command. `request_id` is that of a waiting
request; the command returns it unchanged. Sent by the handlers and
node/router/share/state_effects.py, and handled by `share.groups`.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from odradek.coordinator.group.share.records import TopicStates
from odradek.coordinator.outcome import NO_REQUEST
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.share import ShareGroupDescribedGroup
from odradek.protocol.types import Request, Uuid

UNKNOWN_OFFSET: Final = -1
"""A start offset that the first fetch determines (share.auto.offset.reset)."""
Outcomes: TypeAlias = Mapping[Uuid, Mapping[int, ErrorCode]]
"""The error codes by topic and partition."""


class InitializeStates(msgspec.Struct, frozen=True):
    """Initialize the share states of these partitions with start offsets (-1: not known yet).

    Answered with StatesInitialized in any case. A state of an earlier state epoch is replaced.
    """

    group_id: str
    state_epoch: int
    topics: Mapping[Uuid, Mapping[int, int]]
    request_id: int = NO_REQUEST


class StatesInitialized(msgspec.Struct, Request[None], frozen=True):
    """The outcome of InitializeStates. Answered with None."""

    group_id: str
    outcomes: Outcomes
    request_id: int = NO_REQUEST


class RestartStates(msgspec.Struct, frozen=True):
    """Restart these partitions at the given offsets, and notify their leaders, which release the
    acquired records. Answered with StatesRestarted in any case."""

    group_id: str
    state_epoch: int
    topics: Mapping[Uuid, Mapping[int, int]]


class StatesRestarted(msgspec.Struct, Request[None], frozen=True):
    """The outcome of RestartStates. Answered with None."""

    group_id: str
    state_epoch: int
    outcomes: Outcomes


class DeleteStates(msgspec.Struct, frozen=True):
    """Delete the share states of these partitions, if there are any.

    Answered with StatesDeleted in any case.
    """

    group_id: str
    topics: Mapping[Uuid, frozenset[int]]
    request_id: int = NO_REQUEST


class StatesDeleted(msgspec.Struct, Request[None], frozen=True):
    """The outcome of DeleteStates. Answered with None."""

    group_id: str
    outcomes: Outcomes
    request_id: int = NO_REQUEST


class DescribeShareGroup(msgspec.Struct, Request[ShareGroupDescribedGroup], frozen=True):
    """One group of ShareGroupDescribe."""

    group_id: str


class FindShareStates(msgspec.Struct, Request[TopicStates | None], frozen=True):
    """The partitions of a share group that have a state; None if there is no such group."""

    group_id: str
