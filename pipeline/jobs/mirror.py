"""`mirror`: topics and groups of one cluster, copied to another, exactly once.

Keys, values, headers, timestamps, partitions and the order within them are kept; committed records
only, aborted ones are left out. Offsets are new, so the map of offsets (mirrored_offsets.py) is
written with the records, and the offsets of groups are translated by it. Where a mirror goes on is
committed in its transactions. No Spark: the order of a partition allows one producer only, and
reading and writing are librdkafka's and our decoder's work, not Python's.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event
from typing import Final

import pyarrow as pa

from odradek.pipeline.errors import PipelineError, TopicRecreated
from odradek.pipeline.jobs.copy_options import MirrorOptions
from odradek.pipeline.jobs.copy_progress import CopyPosition, read_positions
from odradek.pipeline.jobs.group_translation import TranslatedGroups, translate_groups
from odradek.pipeline.jobs.mirrored_offsets import is_map_topic, map_topic, run_record
from odradek.pipeline.jobs.target_topics import TopicAdmin, check_empty, partition_ends
from odradek.pipeline.jobs.transactional_copy import CopyFenced, TransactionalCopy
from odradek.pipeline.jobs.wire_options import open_cluster, timeout_s
from odradek.pipeline.kafka_types import EARLIEST, LATEST, PartitionName, PartitionRange
from odradek.pipeline.librdkafka import client_properties
from odradek.pipeline.wire.cluster import KafkaCluster, TopicView
from odradek.pipeline.wire.partition_reader import read_partition

_TRANSACTION_S: Final = 10.0
"""Well below transaction.timeout.ms, also when the source is slow."""


@dataclass(slots=True)
class MirrorRound:
    """What a round did."""

    rows: int = 0
    transactions: int = 0
    topics: int = 0
    zero_timestamps: int = 0
    """Records whose time 0 (1970) became 1 ms."""
    lost: dict[PartitionName, tuple[int, int]] = field(default_factory=dict)
    """Offsets [from, to) of the source that were deleted before they were read."""
    groups: TranslatedGroups = field(default_factory=TranslatedGroups)


@dataclass(slots=True)
class _Partition:
    """A partition of the source, and how far its copy is."""

    source: PartitionName
    target: PartitionName
    topic_id: str
    position: CopyPosition
    end: int
    """The source's last stable offset when the round began."""


class Mirror:
    """One mirror, round by round. Each round opens its connections anew and fences others."""

    def __init__(self, options: MirrorOptions) -> None:
        self._options = options
        self._source = client_properties(
            options.source.kafka, bootstrap_servers=options.source.bootstrap_servers
        )
        self._target = client_properties(
            options.target.kafka, bootstrap_servers=options.target.bootstrap_servers
        )
        self._patience = timeout_s(options.target.kafka)
        self._checked: dict[str, int] = {}
        """Topics of the target that were made or checked, with their partitions."""

    def run_once(self, stop: Event | None = None) -> MirrorRound:
        """Copy what the source has committed by now, then translate groups. `stop` ends it after
        the current transaction."""
        options = self._options
        result = MirrorRound()
        with ExitStack() as stack:
            source = stack.enter_context(
                open_cluster(options.source.bootstrap_servers, options.source.kafka)
            )
            target = stack.enter_context(
                open_cluster(options.target.bootstrap_servers, options.target.kafka)
            )
            topics = self._topics(source)
            result.topics = len(topics)
            self._prepare(target, topics)
            copy = stack.enter_context(
                TransactionalCopy(self._target, options.name, timeout_s=self._patience)
            )
            partitions = self._partitions(source, target, copy, topics, result)
            self._copy(source, copy, partitions, result, stop or Event())
            result.zero_timestamps = copy.zero_timestamps
            result.groups = translate_groups(
                self._source,
                self._target,
                target,
                {each.source: each.target for each in partitions},
                map_topic=map_topic(options.name),
                pattern=options.group_pattern,
                timeout_s=self._patience,
            )
        return result

    def run_every(
        self,
        pause_s: float,
        stop: Event,
        on_round: Callable[[MirrorRound], None],
        on_failure: Callable[[PipelineError], None],
    ) -> None:
        """Rounds until `stop`. After a first good one a failure is told and tried again: nothing
        is lost or doubled by it. PipelineError if the first fails, or another process mirrors."""
        has_worked = False
        while not stop.is_set():
            try:
                on_round(self.run_once(stop))
                has_worked = True
            except CopyFenced:
                raise
            except PipelineError as error:
                if not has_worked:
                    raise
                on_failure(error)
            stop.wait(pause_s)

    def _topics(self, source: KafkaCluster) -> dict[str, TopicView]:
        options = self._options
        if options.topics:
            found = source.topics(options.topics)
            missing = [name for name in options.topics if name not in found]
            if missing:
                raise PipelineError(
                    f"topic {missing[0]} is not at {options.source.bootstrap_servers}"
                )
            return found
        chosen = re.compile(options.topic_pattern)
        return {
            name: view
            for name, view in source.topics().items()
            if chosen.fullmatch(name) and not view.is_internal and not is_map_topic(name)
        }

    def _prepare(self, target: KafkaCluster, topics: Mapping[str, TopicView]) -> None:
        """Make the target's topics, and let them grow with the source's."""
        options = self._options
        own = map_topic(options.name)
        counts = {name: max(view.partition_ids) + 1 for name, view in topics.items()}
        wanted = {options.prefix + name: name for name in topics}
        new = [name for name, of in wanted.items() if self._checked.get(name) != counts[of]]
        if not new and own in self._checked:
            return
        source_admin = TopicAdmin(self._source, timeout_s=self._patience)
        target_admin = TopicAdmin(self._target, timeout_s=self._patience)
        if not options.prefix and source_admin.cluster_id() == target_admin.cluster_id():
            raise PipelineError(
                "source and target are one cluster, and a topic cannot be copied to itself:"
                " set topics.prefix, or another target"
            )
        existing = target.topics([*new, own])
        configs = source_admin.configs([wanted[name] for name in new])
        for name in new:
            there = existing.get(name)
            target_admin.ensure(
                name,
                counts[wanted[name]],
                None if there is None else len(there.partition_ids),
                configs={
                    key: value
                    for key, value in configs[wanted[name]].items()
                    if key in options.topic_configs
                },
                replication_factor=options.replication_factor,
                grow=True,
            )
            self._checked[name] = counts[wanted[name]]
        if own not in existing:
            target_admin.ensure(
                own,
                1,
                None,
                configs={"cleanup.policy": "compact"},
                replication_factor=options.replication_factor,
            )
        self._checked[own] = 1

    def _partitions(
        self,
        source: KafkaCluster,
        target: KafkaCluster,
        copy: TransactionalCopy,
        topics: Mapping[str, TopicView],
        result: MirrorRound,
    ) -> list[_Partition]:
        """All partitions with where they go on; those that are new begin at their first record."""
        names = [
            PartitionName(name, partition)
            for name, view in topics.items()
            for partition in view.partition_ids
        ]
        targets = {
            name: PartitionName(self._options.prefix + name.topic, name.partition) for name in names
        }
        starts = source.list_offsets(dict.fromkeys(names, EARLIEST), read_committed=True)
        ends = source.list_offsets(dict.fromkeys(names, LATEST), read_committed=True)
        words = f"mirror {self._options.name}"
        positions = read_positions(
            self._target, copy.group, [*targets.values()], source=words, timeout_s=self._patience
        )
        fresh = [name for name in names if targets[name] not in positions]
        if fresh:
            begun = [targets[name] for name in fresh]
            if not self._options.append:
                check_empty(target, begun)
            target_ends = partition_ends(target, begun)
            for name in fresh:
                positions[targets[name]] = CopyPosition(
                    source=words,
                    topic_id=topics[name.topic].topic_id,
                    next_offset=starts[name].offset,
                    target_end=target_ends[targets[name]],
                )
            # Written down at once: from here on the target is ours, whatever a kill leaves in it.
            copy.begin()
            copy.flush()
            copy.commit({each: positions[each] for each in begun})
        found = []
        for name in names:
            each = _Partition(
                name,
                targets[name],
                topics[name.topic].topic_id,
                positions[targets[name]],
                ends[name].offset,
            )
            self._check(each, starts[name].offset, result)
            found.append(each)
        return found

    def _check(self, partition: _Partition, start: int, result: MirrorRound) -> None:
        """PipelineError if the source is not the log that was begun, or has lost a part of it."""
        position = partition.position
        if position.topic_id != partition.topic_id:
            raise TopicRecreated(
                f"topic {partition.source.topic} was deleted and made again at"
                f" {self._options.source.bootstrap_servers}: mirror it under another name, with a"
                " topics.prefix"
            )
        if position.next_offset >= start:
            return
        if self._options.fail_on_data_loss:
            raise PipelineError(
                f"{partition.source} has lost the offsets {position.next_offset} to {start - 1}"
                " before they were mirrored: raise its retention.ms; set fail.on.data.loss to false"
                " to go on with what is left"
            )
        result.lost[partition.source] = (position.next_offset, start)
        partition.position = _moved(position, start, position.target_end)

    def _copy(
        self,
        source: KafkaCluster,
        copy: TransactionalCopy,
        partitions: list[_Partition],
        result: MirrorRound,
        stop: Event,
    ) -> None:
        transaction = _Transaction(copy, map_topic(self._options.name), result)
        for partition in partitions:
            for _ in _read(source, partition, transaction):
                if transaction.is_full(self._options.rows_per_transaction):
                    transaction.commit()
                    if stop.is_set():
                        return
        transaction.commit()


class _Transaction:
    """Begins with the first record, and ends with the map of what it has and the positions."""

    def __init__(self, copy: TransactionalCopy, topic: str, result: MirrorRound) -> None:
        self._copy = copy
        self._map_topic = topic
        self._result = result
        self._touched: dict[PartitionName, _Partition] = {}
        """By target, with the positions after the commit."""
        self._rows = 0
        self._begun_s = 0.0

    def send(self, partition: _Partition, rows: pa.RecordBatch | None, next_offset: int) -> None:
        """Records of a partition, after which it goes on at `next_offset`."""
        if not self._touched:
            self._copy.begin()
            self._begun_s = time.monotonic()
            self._rows = 0
        if rows is not None:
            self._copy.send(partition.target, rows)
            self._rows += rows.num_rows
        position = partition.position
        partition.position = _moved(position, next_offset, position.target_end)
        self._touched[partition.target] = partition

    def is_full(self, rows_max: int) -> bool:
        """Whether it is time to commit."""
        return self._rows >= rows_max or (
            bool(self._touched) and time.monotonic() - self._begun_s > _TRANSACTION_S
        )

    def commit(self) -> None:
        """Nothing to commit is no transaction."""
        if not self._touched:
            return
        for target, runs in self._copy.flush().items():
            partition = self._touched[target]
            for run in runs:
                self._copy.send_note(self._map_topic, *run_record(partition.source, run))
            position, last = partition.position, runs[-1]
            end = last.target_offset + last.records
            partition.position = _moved(position, position.next_offset, end)
        self._copy.commit({name: each.position for name, each in self._touched.items()})
        self._result.rows += self._rows
        self._result.transactions += 1
        self._touched = {}


def _read(
    source: KafkaCluster, partition: _Partition, transaction: "_Transaction"
) -> Iterator[None]:
    """Send what a partition has; yields where a transaction may end."""
    position = partition.position
    if position.next_offset >= partition.end:
        return
    wanted = PartitionRange(
        partition.source.topic,
        partition.topic_id,
        partition.source.partition,
        position.next_offset,
        partition.end,
    )
    for batch in read_partition(source, wanted):
        last = batch.column("offset")[-1].as_py()
        transaction.send(partition, batch, last + 1)
        yield
    # Behind the last record there may be markers and aborted ones.
    transaction.send(partition, None, partition.end)
    yield


def _moved(position: CopyPosition, next_offset: int, target_end: int) -> CopyPosition:
    return CopyPosition(
        source=position.source,
        topic_id=position.topic_id,
        next_offset=next_offset,
        target_end=target_end,
    )
