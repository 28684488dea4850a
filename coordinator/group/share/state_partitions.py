"""The partitions of a share group that have a share state, and how they change.

| Event | initializing | initialized | deleting |
|---|---|---|---|
| a member subscribes to a partition without a state | + | | |
| its state has been initialized | - | + | |
| the start offset is altered | - (when initialized) | + (when initialized) | |
| the states of a topic are to be deleted | - | - | + |
| they have been deleted | | | - |
| the topic has been deleted | - | - | - |

States of a topic are initialized again only after their deletion. Pure functions. Called by
`share.groups` and `share.target_assignment`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from odradek.coordinator.group.share.records import NamedPartitions, StatePartitions, TopicStates
from odradek.coordinator.group.share.requests import Outcomes
from odradek.coordinator.group.topics import TopicCatalog, TopicDigest
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import ZERO_UUID, Uuid

SUCCESS_CODES: Final = frozenset(
    {
        ErrorCode.NONE,
        # There is a state of a later state epoch, so this one is not needed.
        ErrorCode.FENCED_STATE_EPOCH,
    }
)
ALL_FAILED: Final[Outcomes] = {ZERO_UUID: {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}}
"""Of requests whose records could not be written: nothing was done."""


def missing(states: StatePartitions, topics: Iterable[TopicDigest]) -> TopicStates:
    """The partitions of these topics whose state is neither initialized nor being initialized."""
    found = {}
    for topic in topics:
        if topic.topic_id in states.deleting:
            continue
        known = indexes_of(states.initializing, topic.topic_id)
        known |= indexes_of(states.initialized, topic.topic_id)
        if len(known) < topic.partition_count:
            indexes = frozenset(range(topic.partition_count)) - known
            found[topic.topic_id] = NamedPartitions(topic.name, indexes)
    return found


def indexes_of(topics: TopicStates, topic_id: Uuid) -> frozenset[int]:
    """The partitions of one topic."""
    found = topics.get(topic_id)
    return frozenset() if found is None else found.indexes


def initializing(states: StatePartitions, topics: TopicStates) -> StatePartitions:
    """With these partitions being initialized."""
    return msgspec.structs.replace(states, initializing=union(states.initializing, topics))


def initialized(states: StatePartitions, topics: TopicStates) -> StatePartitions:
    """With these partitions initialized, whether they were being initialized or not."""
    return StatePartitions(
        _without(states.initializing, topics),
        union(states.initialized, topics),
        states.deleting,
    )


def deleting(states: StatePartitions, topics: Mapping[Uuid, str]) -> StatePartitions:
    """With all states of these topics being deleted."""
    gone = without_topics(states, topics)
    return msgspec.structs.replace(gone, deleting={**states.deleting, **topics})


def without_topics(states: StatePartitions, topic_ids: Collection[Uuid]) -> StatePartitions:
    """Without these topics."""

    def kept(topics: TopicStates) -> TopicStates:
        return {topic_id: found for topic_id, found in topics.items() if topic_id not in topic_ids}

    left = {
        topic_id: name for topic_id, name in states.deleting.items() if topic_id not in topic_ids
    }
    return StatePartitions(kept(states.initializing), kept(states.initialized), left)


def has_any_topic(states: StatePartitions, topic_ids: Collection[Uuid]) -> bool:
    """Whether one of these topics has states."""
    return any(
        topic_id in topics
        for topics in (states.initializing, states.initialized, states.deleting)
        for topic_id in topic_ids
    )


def intersection(first: TopicStates, second: TopicStates) -> TopicStates:
    """The partitions that are in both."""
    found = {}
    for topic_id, (name, indexes) in first.items():
        shared = indexes & indexes_of(second, topic_id)
        if shared:
            found[topic_id] = NamedPartitions(name, shared)
    return found


def union(known: TopicStates, added: TopicStates) -> TopicStates:
    """The partitions that are in one of the two."""
    merged = dict(known)
    for topic_id, (name, indexes) in added.items():
        merged[topic_id] = NamedPartitions(name, indexes_of(known, topic_id) | indexes)
    return merged


# -- outcomes -------------------------------------------------------------------------------------


def first_error(outcomes: Outcomes) -> ErrorCode:
    """The first error, NONE if there is none."""
    for partitions in outcomes.values():
        for code in partitions.values():
            if code not in SUCCESS_CODES:
                return code
    return ErrorCode.NONE


def split_outcomes(outcomes: Outcomes, topics: TopicCatalog) -> tuple[TopicStates, TopicStates]:
    """The partitions that have a state now, and those that still have none, of topics that
    exist."""
    made, failed = {}, {}
    for topic_id, partitions in outcomes.items():
        name = topics.name_of(topic_id)
        if name is None:
            continue
        settled = frozenset(index for index, code in partitions.items() if code in SUCCESS_CODES)
        if settled:
            made[topic_id] = NamedPartitions(name, settled)
        if len(settled) < len(partitions):
            failed[topic_id] = NamedPartitions(name, frozenset(partitions) - settled)
    return made, failed


def names_of(states: StatePartitions) -> dict[Uuid, str]:
    """The names of all topics with states."""
    names = dict(states.deleting)
    for known in (states.initializing, states.initialized):
        names |= {topic_id: name for topic_id, (name, _) in known.items()}
    return names


def all_partitions(
    deleting: Mapping[Uuid, str], topics: TopicCatalog
) -> dict[Uuid, frozenset[int]]:
    """All partitions of these topics: which of them had a state is no longer known."""
    found = {}
    for topic_id, name in deleting.items():
        digest = topics.topic(name)
        count = 0 if digest is None or digest.topic_id != topic_id else digest.partition_count
        found[topic_id] = frozenset(range(count))
    return found


def _without(known: TopicStates, gone: TopicStates) -> TopicStates:
    left = {}
    for topic_id, (name, indexes) in known.items():
        rest = indexes - indexes_of(gone, topic_id)
        if rest:
            left[topic_id] = NamedPartitions(name, rest)
    return left
