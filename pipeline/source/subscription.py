"""What a query reads: topics by name, by a pattern, or single partitions.

Exactly one of the options `subscribe`, `subscribePattern` and `assign` says it, with the meaning
that they have for the stock Kafka connector. Pure: the cluster's topics are passed in.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.cluster import TopicView


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSubscription:
    """Exactly one of the three is not empty."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    """A topic is read if the whole of its name matches."""
    partitions: frozenset[PartitionName] = frozenset()

    def __str__(self) -> str:
        """As a sentence names it: `subscribe=orders`."""
        if self.topics:
            return f"subscribe={','.join(self.topics)}"
        if self.pattern:
            return f"subscribePattern={self.pattern}"
        return f"assign={','.join(map(str, sorted(self.partitions)))}"

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics to ask the cluster for; None stands for all of them."""
        if self.pattern:
            return None
        return self.topics or tuple(sorted({name.topic for name in self.partitions}))

    def has_topic(self, topic: str) -> bool:
        """Whether a topic of this name would be read if it existed."""
        names = self.names
        if names is None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in names

    def choose(self, topics: Iterable[TopicView]) -> dict[str, tuple[int, ...]]:
        """The partitions to read of each of these topics, in ascending order.

        A pattern chooses no internal topics, as Kafka's consumer does by default.
        """
        chosen = {}
        for view in sorted(topics, key=lambda each: each.name):
            if not self.has_topic(view.name) or (self.pattern and view.is_internal):
                continue
            chosen[view.name] = tuple(
                partition
                for partition in view.partition_ids
                if not self.partitions or (view.name, partition) in self.partitions
            )
        return chosen


def subscription_of(options: Mapping[str, str]) -> TopicSubscription:
    """The subscription of options with names in lower case."""
    given = {
        "subscribe": options.get("subscribe"),
        "subscribePattern": options.get("subscribepattern"),
        "assign": options.get("assign"),
    }
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        found = f"both {' and '.join(chosen)} are set" if chosen else "none of them is set"
        raise PipelineError(
            f"what to read is said by one of subscribe, subscribePattern and assign, but {found}"
        )
    (name,) = chosen
    value = (given[name] or "").strip()
    match name:
        case "subscribe":
            topics = tuple(sorted({each.strip() for each in value.split(",")} - {""}))
            if not topics:
                raise PipelineError("subscribe is empty: name topics, separated by commas")
            return TopicSubscription(topics=topics)
        case "subscribePattern":
            return TopicSubscription(pattern=_checked_pattern(value))
        case _:
            return TopicSubscription(partitions=_assigned(value))


def _checked_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise PipelineError(
            f"subscribePattern {value!r} is no regular expression: {error}"
        ) from error
    if not value:
        raise PipelineError("subscribePattern is empty: give a regular expression of topic names")
    return value


def _assigned(value: str) -> frozenset[PartitionName]:
    found: set[PartitionName] = set()
    try:
        for topic, partitions in json.loads(value).items():
            found.update(PartitionName(topic, _partition_id(each)) for each in partitions)
    except (ValueError, TypeError, AttributeError) as error:
        raise PipelineError(
            f'assign {value!r} is not of the form {{"topic":[0,1]}}: correct it'
        ) from error
    if not found:
        raise PipelineError('assign is empty: give partitions in the form {"topic":[0,1]}')
    return frozenset(found)


def _partition_id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no partition")
    return value
