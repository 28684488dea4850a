"""The offsets of a stream, as Spark keeps them in the checkpoint.

`{"orders": {"id": "GUJ9...", "partitions": {"0": 42, "1": 7}}}`: by topic its id and the offsets to
be read next. The id tells a recreated topic from the one that was read (KIP-516). Spark compares
offsets as text, so topics and partitions stand in ascending order. The stock connector's form
without ids, `{"orders": {"0": 42}}`, is understood too: its checkpoints can be carried on. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from odradek.pipeline.errors import PipelineError, TopicRecreated
from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.source.subscription import TopicSubscription


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """An offset for each partition, and the ids of their topics."""

    offsets: Mapping[PartitionName, int]
    topic_ids: Mapping[str, str]
    """Empty texts where the cluster has no ids, or the stock connector wrote the offsets."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have offsets."""
        return frozenset(name.topic for name in self.offsets)

    def topic_id(self, topic: str) -> str:
        """Its id, or an empty text."""
        return self.topic_ids.get(topic, "")

    def is_same_topic(self, other: "SourceOffsets", topic: str) -> bool:
        """Whether both mean the same topic by this name; without an id that is assumed."""
        here, there = self.topic_id(topic), other.topic_id(topic)
        return not here or not there or here == there

    def is_before(self, later: "SourceOffsets") -> bool:
        """Whether each partition is in `later`, with an offset that is not lower."""
        return all(
            offset <= later.offsets.get(name, -1)
            for name, offset in self.offsets.items()
            if self.is_same_topic(later, name.topic)
        )

    def with_offsets(self, changed: Mapping[PartitionName, int]) -> "SourceOffsets":
        """The same with these offsets in place of those of their partitions."""
        return SourceOffsets({**self.offsets, **changed}, self.topic_ids)

    def as_json(self) -> dict[str, dict[str, object]]:
        """For the checkpoint."""
        return {
            topic: {
                "id": self.topic_id(topic),
                "partitions": {
                    str(name.partition): self.offsets[name]
                    for name in sorted(self.offsets)
                    if name.topic == topic
                },
            }
            for topic in sorted(self.topics)
        }


def offsets_from_json(text: Mapping[str, object]) -> SourceOffsets:
    """The offsets of a checkpoint, ours or the stock connector's."""
    offsets: dict[PartitionName, int] = {}
    topic_ids: dict[str, str] = {}
    for topic, value in text.items():
        entry = value if isinstance(value, Mapping) else {}
        # A partition's name is a number, so the stock connector has no "partitions".
        partitions = entry.get("partitions", entry)
        topic_ids[topic] = str(entry["id"]) if "id" in entry else ""
        try:
            for partition, offset in partitions.items():
                offsets[PartitionName(topic, int(partition))] = int(offset)
        except (ValueError, TypeError, AttributeError) as error:
            raise PipelineError(
                f"the checkpoint has offsets of topic {topic} that are not Kafka's: {value!r};"
                " give this query a checkpoint location of its own"
            ) from error
    return SourceOffsets(offsets, topic_ids)


def check_continuation(
    start: SourceOffsets, latest: SourceOffsets, subscription: TopicSubscription
) -> None:
    """Whether the offsets of a checkpoint can be carried on with what the cluster has now.

    Raises TopicRecreated for a topic with another id, and PipelineError for topics and partitions
    that are no longer there or that this query does not read, and for logs that became shorter.
    """
    strange = sorted(topic for topic in start.topics if not subscription.has_topic(topic))
    if strange:
        raise PipelineError(
            f"the checkpoint is of topic {', '.join(strange)}, which this query with {subscription}"
            " does not read: give the query a checkpoint location of its own, or set"
            " failOnDataLoss=false to go on without it"
        )
    for topic in sorted(start.topics & latest.topics):
        if not start.is_same_topic(latest, topic):
            raise TopicRecreated(
                f"topic {topic} was deleted and created again: the checkpoint has id"
                f" {start.topic_id(topic)}, the cluster {latest.topic_id(topic)}. Its offsets mean"
                " other records now: start with a new checkpoint location, or set"
                " failOnDataLoss=false to read the new topic from its start"
            )
    gone = sorted(set(start.offsets) - set(latest.offsets))
    if gone:
        raise PipelineError(
            f"{', '.join(map(str, gone))} of the checkpoint is no longer there or no longer read:"
            " start with a new checkpoint location, or set failOnDataLoss=false to go on without"
            " it"
        )
    for name, offset in sorted(start.offsets.items()):
        if offset > latest.offsets[name]:
            raise PipelineError(
                f"the log of {name} ends at offset {latest.offsets[name]}, but the checkpoint is at"
                f" {offset}: records were lost or the topic was created again; start with a new"
                " checkpoint location, or set failOnDataLoss=false to go on from its end"
            )


def known_offsets(start: SourceOffsets, end: SourceOffsets) -> dict[PartitionName, int]:
    """The offsets of `start` that count in `end`: of its partitions, and of the same topics."""
    return {
        name: offset
        for name, offset in start.offsets.items()
        if name in end.offsets and start.is_same_topic(end, name.topic)
    }


def first_offsets(start: SourceOffsets, end: SourceOffsets) -> dict[PartitionName, int]:
    """Where reading up to `end` begins, for each of its partitions.

    A partition that `start` does not have, and one of a recreated topic, is read from offset 0, as
    the stock connector does: a log that starts later has lost records.
    """
    return {**dict.fromkeys(end.offsets, 0), **known_offsets(start, end)}


def up_to(target: SourceOffsets, start: SourceOffsets, latest: SourceOffsets) -> SourceOffsets:
    """The latest offsets, but none above the target, and of its partitions and those of `start`.

    None is below where reading begins: what `start` already has stays.
    """
    begins = first_offsets(start, latest)
    targets = known_offsets(target, latest)
    ends = {
        name: max(begins[name], min(targets.get(name, 0), offset))
        for name, offset in latest.offsets.items()
        if name in targets or name in start.offsets
    }
    return SourceOffsets(ends, latest.topic_ids)


def ranges_between(start: SourceOffsets, end: SourceOffsets) -> Iterator[PartitionRange]:
    """The ranges that are not empty, in ascending order: the same for the same offsets."""
    begins = first_offsets(start, end)
    for name in sorted(end.offsets):
        if begins[name] < end.offsets[name]:
            yield PartitionRange(
                topic=name.topic,
                topic_id=end.topic_id(name.topic),
                partition=name.partition,
                start=begins[name],
                end=end.offsets[name],
            )
