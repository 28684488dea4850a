"""What a shard is asked about share groups beside Kafka's own requests, and what it asks for.

Where a share group begins to read a partition, and what it has acknowledged, is kept by the share
coordinator, in shards of another topic (KIP-932). A group's shard has share states made and deleted
there by sending an instruction, and is told by a command how that went; `request_id` is whoever
waits for it, and comes back as it is. Called by the handlers and
node/router/share/state_effects.py, and understood by `share.groups`.
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
"""How it went, by topic and partition."""


class InitializeStates(msgspec.Struct, frozen=True):
    """Make the share states of these partitions, with where to begin (-1: not known yet).

    To be answered with StatesInitialized, whatever comes of it. A state that is there in an earlier
    epoch is replaced.
    """

    group_id: str
    state_epoch: int
    topics: Mapping[Uuid, Mapping[int, int]]
    request_id: int = NO_REQUEST


class StatesInitialized(msgspec.Struct, Request[None], frozen=True):
    """What came of InitializeStates. Answered with None."""

    group_id: str
    outcomes: Outcomes
    request_id: int = NO_REQUEST


class RestartStates(msgspec.Struct, frozen=True):
    """Begin anew with these partitions, there, and have their leaders know it: what members have
    locked is locked no more. To be answered with StatesRestarted, whatever comes of it."""

    group_id: str
    state_epoch: int
    topics: Mapping[Uuid, Mapping[int, int]]


class StatesRestarted(msgspec.Struct, Request[None], frozen=True):
    """What came of RestartStates. Answered with None."""

    group_id: str
    state_epoch: int
    outcomes: Outcomes


class DeleteStates(msgspec.Struct, frozen=True):
    """Delete the share states of these partitions, as far as there are any.

    To be answered with StatesDeleted, whatever comes of it.
    """

    group_id: str
    topics: Mapping[Uuid, frozenset[int]]
    request_id: int = NO_REQUEST


class StatesDeleted(msgspec.Struct, Request[None], frozen=True):
    """What came of DeleteStates. Answered with None."""

    group_id: str
    outcomes: Outcomes
    request_id: int = NO_REQUEST


class DescribeShareGroup(msgspec.Struct, Request[ShareGroupDescribedGroup], frozen=True):
    """One group of ShareGroupDescribe. Answered with a share.DescribedGroup."""

    group_id: str


class FindShareStates(msgspec.Struct, Request[TopicStates | None], frozen=True):
    """The partitions of which a share group has a state. Answered with TopicStates, or None if
    there is no such group."""

    group_id: str
