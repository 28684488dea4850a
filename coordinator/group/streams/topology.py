"""Validation of a topology (KIP-1071) and of its topics: missing topics, partitions and tasks.

A subtopology has as many tasks as the largest of its source topics has partitions. A repartition
topic gets as many partitions as the largest source topic of the subtopology that writes to it. That
source may be a repartition topic itself, so this is repeated until all are known. Copartitioned
topics must have the same number of partitions: open numbers are set to it, fixed ones must match. A
changelog topic has one partition for every task.

A topology is validated once, when a member sends it; `configure` then validates the topics as they
are now. Pure. Called by `streams.groups` and `streams.heartbeats`.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final

import msgspec

from odradek.cluster.metadata.topic_names import INTERNAL_TOPICS, topic_name_error
from odradek.coordinator.group.streams.records import (
    InternalTopic,
    StoredCopartitionGroup,
    Subtopology,
    Topology,
)
from odradek.coordinator.group.topics import TopicCatalog, metadata_hash
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import StreamsGroupHeartbeatTopology, TopologyDescription

_NAMED_MAX: Final = 3
"""The number of topics that a message names; of further ones it has the number."""

_NODE_TYPES: Final = frozenset({1, 2, 3})
"""Sources, processors and sinks."""


class StatusCode(IntEnum):
    """The status codes of StreamsGroupHeartbeat."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class ConfiguredTopology(msgspec.Struct, frozen=True, kw_only=True):
    """A topology, configured for the existing topics.

    `task_counts` has all subtopologies, `topics` all internal topics with their numbers of
    partitions, and `missing` those of them that do not exist. All three are empty if an error
    prevents the count. `topology_error` is None if the topics match the topology.
    """

    metadata_hash: int
    task_counts: Mapping[str, int] = {}
    stateful: frozenset[str] = frozenset()
    topics: Mapping[str, InternalTopic] = {}
    missing: tuple[InternalTopic, ...] = ()
    topology_error: tuple[StatusCode, str] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its tasks can run."""
        return self.topology_error is None


class _TopicConfigurationError(Exception):
    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = (code, detail)


# -- the topology of a request --------------------------------------------------------------------


def topology_of(requested: StreamsGroupHeartbeatTopology) -> Topology:
    """The topology of a request. ApiError(STREAMS_INVALID_TOPOLOGY, STREAMS_INVALID_TOPOLOGY_EPOCH,
    INVALID_REQUEST) if it is invalid, independently of the existing topics."""
    if requested.epoch < 0:
        raise ApiError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH,
            f"The topology epoch {requested.epoch} must not be negative.",
        )
    # Their order has no meaning.
    requested.subtopologies.sort(key=lambda part: part.subtopology_id)
    for part in requested.subtopologies:
        for topic in (*part.state_changelog_topics, *part.repartition_source_topics):
            topic.topic_configs.sort(key=lambda pair: (pair.key, pair.value))
    topology = msgspec.convert(requested, Topology, from_attributes=True)
    _check(topology)
    return topology


def _invalid(why: str) -> ApiError:
    return ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)


def _check(topology: Topology) -> None:
    parts = topology.subtopologies
    ids = [part.subtopology_id for part in parts]
    if len(set(ids)) < len(ids):
        raise _invalid("Two subtopologies have the same id.")
    if any(len(name) > TEXT_LENGTH_MAX for name in ids):
        raise _invalid(f"A subtopology's id has at most {TEXT_LENGTH_MAX} characters.")
    if any(part.source_topic_regex for part in parts):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Regular expressions for source topics are not supported yet.",
        )
    for part in parts:
        _check_topics(part)
        for group in part.copartition_groups:
            _check_indexes(part, group)
    # Every source topic counts as one partition here: this only finds loops and missing sources.
    _count_repartition_topics(topology, lambda _name: 1)


def _check_topics(part: Subtopology) -> None:
    names = [
        *part.sources(),
        *part.repartition_sink_topics,
        *(topic.name for topic in part.state_changelog_topics),
    ]
    internal = sorted(INTERNAL_TOPICS.intersection(names))
    if internal:
        raise _invalid(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is"
            " prohibited."
        )
    for name in names:
        why = topic_name_error(name)
        if why is not None:
            raise _invalid(f"Topic names {name} are not valid topic names: {why}.")
    if not part.sources():
        raise _invalid(f"No source topics found for subtopology {part.subtopology_id}.")
    for topic in part.state_changelog_topics:
        if topic.partitions:
            raise _invalid(
                f"Changelog topic {topic.name} must have an undefined partition count, but it is"
                f" set to {topic.partitions}."
            )
    for topic in part.repartition_source_topics:
        if topic.partitions < 0:
            raise _invalid(f"Topic {topic.name} cannot have {topic.partitions} partitions.")


def _check_indexes(part: Subtopology, group: StoredCopartitionGroup) -> None:
    for indexes, length in (
        (group.source_topics, len(part.source_topics)),
        (group.source_topic_regex, len(part.source_topic_regex)),
        (group.repartition_source_topics, len(part.repartition_source_topics)),
    ):
        if any(not 0 <= index < length for index in indexes):
            raise _invalid(
                f"A copartition group of subtopology {part.subtopology_id} names a topic that the"
                " subtopology does not have."
            )


def check_description(description: TopologyDescription) -> None:
    """Whether the types of all nodes are known (KIP-1331); else ApiError(INVALID_REQUEST)."""
    nodes = [node for part in description.subtopologies for node in part.nodes]
    for store in description.global_stores:
        nodes += (store.source, store.processor)
    for node in nodes:
        if node.node_type not in _NODE_TYPES:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Unknown topology node type: {node.node_type}"
            )


def topic_names(topology: Topology) -> set[str]:
    """The source topics and changelog topics of the topology."""
    names: set[str] = set()
    for part in topology.subtopologies:
        names.update(part.sources())
        names.update(topic.name for topic in part.state_changelog_topics)
    return names


# -- the existing topics --------------------------------------------------------------------------


def configure(topology: Topology, topics: TopicCatalog) -> ConfiguredTopology:
    """The tasks and internal topics of the topology, and what is wrong with the existing topics."""
    present = topics.existing(topic_names(topology))
    digest = metadata_hash(present.values(), with_racks=False)
    try:
        counts = _decide_partition_counts(topology, topics)
        internal = _internal_topics(topology, counts)
        _check_existing(internal, topics)
    except _TopicConfigurationError as topology_error:
        return ConfiguredTopology(metadata_hash=digest, topology_error=topology_error.status)
    count_of = _partition_counter(topics, counts)
    missing = tuple(topic for name, topic in internal.items() if topics.topic(name) is None)
    error = None
    if missing:
        named = summary(topic.name for topic in missing)
        error = (StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {named}")
    return ConfiguredTopology(
        metadata_hash=digest,
        task_counts={
            part.subtopology_id: max(map(count_of, part.sources()))
            for part in topology.subtopologies
        },
        stateful=frozenset(
            part.subtopology_id for part in topology.subtopologies if part.state_changelog_topics
        ),
        topics=internal,
        missing=missing,
        topology_error=error,
    )


def summary(names: Iterable[str]) -> str:
    """The first of the names, sorted, and the number of the others."""
    found = sorted(names)
    more = len(found) - _NAMED_MAX
    return ", ".join(found[:_NAMED_MAX]) + (f" and {more} additional topics" if more > 0 else "")


def _partition_counter(topics: TopicCatalog, decided: Mapping[str, int]) -> Callable[[str], int]:
    """A function that returns a topic's number of partitions: the decided one if it is missing."""

    def count_of(name: str) -> int:
        topic = topics.topic(name)
        return decided.get(name, 0) if topic is None else topic.partition_count

    return count_of


def _decide_partition_counts(topology: Topology, topics: TopicCatalog) -> dict[str, int]:
    """The numbers of partitions of all internal topics. Raises _TopicConfigurationError."""
    parts = topology.subtopologies
    missing = {name for part in parts for name in part.source_topics if topics.topic(name) is None}
    if missing:
        raise _TopicConfigurationError(
            StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {summary(missing)} are missing."
        )
    counts: dict[str, int] = {}
    count_of = _partition_counter(topics, counts)
    counts.update(_count_repartition_topics(topology, count_of))
    fixed = {t.name for part in parts for t in part.repartition_source_topics if t.partitions}
    flexible = {t.name for part in parts for t in part.repartition_source_topics} - fixed
    for part in parts:
        for group in part.copartition_groups:
            counts.update(_enforce_copartitioning(part, group, fixed, flexible, count_of))
    for part in parts:
        largest = max(map(count_of, part.sources()))
        counts.update((topic.name, largest) for topic in part.state_changelog_topics)
    return counts


def _count_repartition_topics(topology: Topology, count_of: Callable[[str], int]) -> dict[str, int]:
    """The numbers of partitions of repartition topics, by the sources of the subtopologies that
    write to them. ApiError(STREAMS_INVALID_TOPOLOGY) if topics form a loop, or no subtopology
    writes to one."""
    parts = topology.subtopologies
    counts = {
        topic.name: topic.partitions
        for part in parts
        for topic in part.repartition_source_topics
        if topic.partitions
    }
    is_open = True
    while is_open:
        is_open, has_progress = False, False
        for part in parts:
            sinks = [name for name in part.repartition_sink_topics if name not in counts]
            if not sinks:
                continue
            known = [counts[t.name] for t in part.repartition_source_topics if t.name in counts]
            known += map(count_of, part.source_topics)
            if known:
                counts.update(dict.fromkeys(sinks, max(known)))
                has_progress = True
            else:
                is_open = True
        if is_open and not has_progress:
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics. There may be"
                " loops in the topology that cannot be resolved."
            )
    for part in parts:
        if any(topic.name not in counts for topic in part.repartition_source_topics):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a"
                " repartition source topic is never used as a sink topic."
            )
    return counts


def _enforce_copartitioning(
    part: Subtopology,
    group: StoredCopartitionGroup,
    fixed: set[str],
    flexible: set[str],
    count_of: Callable[[str], int],
) -> dict[str, int]:
    """The numbers of partitions that make the topics of the group copartitioned. Raises
    _TopicConfigurationError if that is impossible."""
    names = [part.source_topics[index] for index in group.source_topics]
    names += (
        part.repartition_source_topics[index].name for index in group.repartition_source_topics
    )
    internal = [name for name in names if name in fixed or name in flexible]
    # Source topics cannot be changed, nor topics whose partition count the application has set.
    given = [name for name in names if name not in internal]
    given = given or [name for name in internal if name in fixed]
    counts = {name: count_of(name) for name in given}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}={count}" for name, count in sorted(counts.items()))
        raise _TopicConfigurationError(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{listed}]",
        )
    if not names:
        return {}
    wanted = next(iter(counts.values())) if counts else max(map(count_of, internal))
    for name in internal:
        if name in fixed and count_of(name) != wanted:
            raise _TopicConfigurationError(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{count_of(name)}] of repartition topic [{name}] doesn't"
                f" match number of partitions [{wanted}] of the source topic.",
            )
    return dict.fromkeys(internal, wanted)


def _internal_topics(topology: Topology, counts: Mapping[str, int]) -> dict[str, InternalTopic]:
    """All repartition topics and changelogs, with their numbers of partitions."""
    return {
        topic.name: msgspec.structs.replace(
            topic, partitions=topic.partitions or counts[topic.name]
        )
        for part in topology.subtopologies
        for topic in (*part.repartition_source_topics, *part.state_changelog_topics)
    }


def _check_existing(internal: Mapping[str, InternalTopic], topics: TopicCatalog) -> None:
    for name in sorted(internal):
        wanted, topic = internal[name].partitions, topics.topic(name)
        if topic is not None and topic.partition_count != wanted:
            raise _TopicConfigurationError(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {wanted},"
                f" found {topic.partition_count}",
            )
