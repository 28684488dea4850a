"""Where a job stands in its topics: what the table has against what the cluster has.

Ends are last stable offsets, so a plan never has records of a transaction that may be aborted.
"""

import re
from collections.abc import Mapping

from odradek.pipeline.errors import OffsetsLost, PipelineError, TopicRecreated
from odradek.pipeline.jobs.job_options import JobOptions
from odradek.pipeline.jobs.offload_plan import PartitionProgress
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName, PartitionRange
from odradek.pipeline.tables.job_plan import JobCommit
from odradek.pipeline.wire.cluster import KafkaCluster, TopicView


def topic_progress(
    cluster: KafkaCluster, options: JobOptions, last: JobCommit | None
) -> dict[PartitionName, PartitionProgress]:
    """Every partition of the job's topics.

    Partitions that came after the table's first plan begin at their first record. PipelineError if
    a topic is missing or was created again, or if records that the table lacks are deleted.
    """
    topics = _topics_of(cluster, options, last)
    names = [
        PartitionName(topic.name, partition)
        for topic in topics.values()
        for partition in topic.partition_ids
    ]
    first = _offsets(cluster, names, EARLIEST)
    ends = _offsets(cluster, names, LATEST)
    known = {} if last is None else last.ends
    starts = first if last is not None else _starts(cluster, options, names, first, ends)
    found = {}
    for name in names:
        position = known.get(name, starts[name])
        if position < first[name]:
            position = _lost(options, name, position, first[name])
        if position > ends[name]:
            _check_not_truncated(cluster, name, position)
        found[name] = PartitionProgress(topics[name.topic].topic_id, position, ends[name])
    return found


def without_lost(
    cluster: KafkaCluster, options: JobOptions, ranges: tuple[PartitionRange, ...]
) -> tuple[PartitionRange, ...]:
    """The ranges of a plan that runs again, from the first records that there still are."""
    first = _offsets(cluster, [each.name for each in ranges], EARLIEST)
    kept = []
    for each in ranges:
        start = each.start
        if start < min(first[each.name], each.end):
            start = min(_lost(options, each.name, start, first[each.name]), each.end)
        kept.append(PartitionRange(each.topic, each.topic_id, each.partition, start, each.end))
    return tuple(kept)


def _topics_of(
    cluster: KafkaCluster, options: JobOptions, last: JobCommit | None
) -> Mapping[str, TopicView]:
    if options.topics:
        found = cluster.topics(options.topics)
        missing = [name for name in options.topics if name not in found]
        if missing:
            raise PipelineError(
                f"topic {missing[0]} does not exist on {options.bootstrap_servers}: create it, or"
                " correct topics"
            )
    else:
        pattern = re.compile(options.topic_pattern)
        found = {
            name: each
            for name, each in cluster.topics().items()
            # The job would move its own dead letters for ever.
            if pattern.fullmatch(name)
            and not each.is_internal
            and name != options.dead_letter_topic
        }
        if not found and last is None:
            raise PipelineError(
                f"no topic on {options.bootstrap_servers} matches {options.topic_pattern}: create"
                " one, or correct topics.pattern"
            )
    for name, at in (last.topics if last is not None else {}).items():
        topic_id = found[name].topic_id if name in found else at.topic_id
        # A cluster that is upgraded gives ids to its topics.
        if at.topic_id and topic_id != at.topic_id:
            raise TopicRecreated(
                f"topic {name} was deleted and created again (its id was {at.topic_id} and is"
                f" {topic_id}): its new records belong into a new table, by a job with a new name"
            )
    return found


def _starts(
    cluster: KafkaCluster,
    options: JobOptions,
    names: list[PartitionName],
    first: Mapping[PartitionName, int],
    ends: Mapping[PartitionName, int],
) -> dict[PartitionName, int]:
    """Where a new table begins."""
    if options.start_ms == EARLIEST:
        return dict(first)
    if options.start_ms == LATEST:
        return dict(ends)
    at = _offsets(cluster, names, options.start_ms)
    # None is at or after the time, or it belongs to a transaction that is not complete.
    return {name: ends[name] if at[name] < 0 else min(at[name], ends[name]) for name in names}


def _offsets(
    cluster: KafkaCluster, names: list[PartitionName], at: int
) -> dict[PartitionName, int]:
    if not names:
        return {}
    found = cluster.list_offsets(dict.fromkeys(names, at), read_committed=True)
    return {name: each.offset for name, each in found.items()}


def _lost(options: JobOptions, name: PartitionName, position: int, first: int) -> int:
    if options.fails_on_data_loss:
        raise OffsetsLost(
            f"{name}: offsets {position} to {first - 1} were deleted before the job moved them; to"
            " go on without them, set fail.on.data.loss to false"
        )
    return first


def _check_not_truncated(cluster: KafkaCluster, name: PartitionName, position: int) -> None:
    """A last stable offset may lag behind for a moment after a change of leaders; an end of the log
    below what was committed is another log."""
    found = cluster.list_offsets({name: LATEST}, read_committed=False)
    if found[name].offset < position:
        raise PipelineError(
            f"{name} ends at offset {found[name].offset}, and the table has its records up to"
            f" {position}: the topic was created again or its log was cut; fill a new table by a"
            " job with a new name"
        )
