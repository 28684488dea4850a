"""Groups of a mirror's source, with their offsets translated, written to the target.

An offset of the target only goes forward: a group that has moved there is not set back. A group
with members in the target, or whose offsets cannot be had, is skipped and told. Called by mirror.py
after records are committed; doing it again changes nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import commit_offsets, committed_offsets
from odradek.pipeline.jobs.mirrored_offsets import runs_in, translate
from odradek.pipeline.jobs.target_topics import TopicAdmin, wait_until_stable
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster

_OWN: str = "pipe."
"""Groups of jobs: their offsets are not those of readers."""


@dataclass(slots=True)
class TranslatedGroups:
    """What became of the source's groups."""

    written: dict[str, dict[PartitionName, int]] = field(default_factory=dict)
    """Group to the offsets of the target that are new."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Group to the reason."""


def translate_groups(
    source: Mapping[str, str],
    target: Mapping[str, str],
    target_cluster: KafkaCluster,
    topics: Mapping[PartitionName, PartitionName],
    *,
    map_topic: str,
    pattern: str,
    timeout_s: float,
) -> TranslatedGroups:
    """`source` and `target` are properties of librdkafka; `topics` are the mirrored partitions of
    the source, each with its target."""
    result = TranslatedGroups()
    chosen = re.compile(pattern)
    committed: dict[str, dict[PartitionName, int]] = {}
    for group in TopicAdmin(source, timeout_s=timeout_s).groups():
        if group.startswith(_OWN) or not chosen.fullmatch(group):
            continue
        try:
            found = committed_offsets(source, group, topics, timeout_s=timeout_s)
        except PipelineError as error:
            result.skipped[group] = str(error)
            continue
        if found:
            committed[group] = found
    if not committed:
        return result
    wanted: dict[PartitionName, set[int]] = {}
    for offsets in committed.values():
        for name, offset in offsets.items():
            wanted.setdefault(name, set()).add(offset)
    if map_topic in target_cluster.topics([map_topic]):
        # The mirror's last transaction is in it, and nobody else writes to it.
        wait_until_stable(target_cluster, PartitionName(map_topic, 0))
    places = translate(runs_in(target_cluster, map_topic), wanted)
    for group, offsets in committed.items():
        translated = {
            topics[name]: places[name][offset]
            for name, offset in offsets.items()
            if offset in places[name]
        }
        try:
            _write(result, target, group, translated, timeout_s)
        except PipelineError as error:
            result.skipped[group] = str(error)
    return result


def _write(
    result: TranslatedGroups,
    target: Mapping[str, str],
    group: str,
    translated: Mapping[PartitionName, int],
    timeout_s: float,
) -> None:
    names: Sequence[PartitionName] = [*translated]
    known = committed_offsets(target, group, names, timeout_s=timeout_s)
    ahead = {name: offset for name, offset in translated.items() if offset > known.get(name, -1)}
    if ahead:
        commit_offsets(target, group, ahead, timeout_s=timeout_s)
        result.written[group] = ahead
