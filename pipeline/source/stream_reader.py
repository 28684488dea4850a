"""Reads a stream: what the next trigger reads, its tasks, and the commit to a consumer group.

Spark keeps one reader for a query on the driver, which asks the cluster and remembers the target
of Trigger.AvailableNow; others are pickled for tasks and only read. The ranges of a trigger follow
from its two offsets alone, so that a trigger that is played again after a restart reads the same.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import commit_offsets
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.librdkafka import client_properties
from odradek.pipeline.source.cluster_offsets import ClusterOffsets, open_cluster
from odradek.pipeline.source.offsets import (
    SourceOffsets,
    check_continuation,
    first_offsets,
    known_offsets,
    offsets_from_json,
    ranges_between,
    up_to,
)
from odradek.pipeline.source.options import SourceOptions
from odradek.pipeline.source.planning import (
    is_worth_a_trigger,
    limit_bytes,
    limit_rows,
    split_ranges,
)
from odradek.pipeline.source.range_partition import KafkaRangePartition, read_range_partition
from odradek.pipeline.wire.cluster import KafkaCluster

GROUP_TIMEOUT_S: Final = 10.0
"""Of a commit to the group, for which no trigger waits longer."""

_log = logging.getLogger(__name__)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics of a streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        if options.commit_to_group:
            _group_properties(options)  # What is wrong with them is told at the start.
        self._options = options
        self._cluster: KafkaCluster | None = None
        self._target: SourceOffsets | None = None
        """Where Trigger.AvailableNow ends."""
        self._latest: SourceOffsets | None = None
        self._last_read_s: float | None = None
        self._shown: SourceOffsets | None = None
        """What the consumer group has."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        return self._offsets().starting().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the options' limits. latestOffset applies all of them where Spark gives any."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the latest offsets: the query ends there."""
        self._target = self._offsets().latest(is_complete=False)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next trigger ends; `start` itself if there is nothing to read yet."""
        checkpoint = offsets_from_json(start)
        latest = self._latest_after(checkpoint)
        self._latest = latest
        # Spark commits a trigger when it begins the next one that has records. That the trigger
        # which ended at `start` is finished is known here already.
        self._show_to_group(checkpoint)
        if isinstance(limit, ReadAllAvailable):
            return latest.as_json()
        begins = self._begins(checkpoint, latest)
        if not self._is_time_to_read(begins, latest):
            return start
        return self._limited(begins, latest, limit).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The latest offsets that were seen, for the query's progress."""
        return None if self._latest is None else self._latest.as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a trigger."""
        ranges = list(ranges_between(offsets_from_json(start), offsets_from_json(end)))
        pieces = split_ranges(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )
        return [KafkaRangePartition(each) for each in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task."""
        return read_range_partition(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Show the offsets of a finished trigger to the consumer group that the options name."""
        self._show_to_group(offsets_from_json(end))

    def stop(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _show_to_group(self, finished: SourceOffsets) -> None:
        """Commit offsets for the group.

        The checkpoint is what counts, so a failure is only logged; the next commit makes it good.
        """
        options = self._options
        if not options.commit_to_group or finished == self._shown:
            return
        try:
            commit_offsets(
                _group_properties(options),
                options.commit_to_group,
                finished.offsets,
                timeout_s=min(options.timeout_s, GROUP_TIMEOUT_S),
            )
        except PipelineError as error:
            _log.warning("commitToGroup: %s", error)
        else:
            self._shown = finished

    def _offsets(self) -> ClusterOffsets:
        if self._cluster is None:
            self._cluster = open_cluster(self._options)
        return ClusterOffsets(self._cluster, self._options)

    def _latest_after(self, checkpoint: SourceOffsets) -> SourceOffsets:
        """The latest offsets that go on from the checkpoint, up to the target if there is one.

        Lost offsets raise PipelineError if the options do not allow them.
        """
        offsets = self._offsets()
        found = offsets.settled_latest(checkpoint.is_before)
        known = known_offsets(checkpoint, found)
        behind = {name: each for name, each in known.items() if found.offsets[name] < each}
        if behind:
            ends = offsets.log_ends(behind)
            # What is in an open transaction is waited for.
            waiting = {name: each for name, each in behind.items() if each <= ends[name]}
            found = found.with_offsets(waiting)
        if self._options.fail_on_data_loss:
            check_continuation(checkpoint, found, self._options.subscription)
        return found if self._target is None else up_to(self._target, checkpoint, found)

    def _begins(self, checkpoint: SourceOffsets, latest: SourceOffsets) -> dict[PartitionName, int]:
        """Where the next trigger begins, for its limits."""
        begins = first_offsets(checkpoint, latest)
        if self._options.fail_on_data_loss:
            return begins
        # A limit is for what is there, not for what was deleted.
        starts = self._offsets().log_starts(begins)
        return {name: max(each, starts[name]) for name, each in begins.items()}

    def _is_time_to_read(self, begins: Mapping[PartitionName, int], latest: SourceOffsets) -> bool:
        """Whether minOffsetsPerTrigger lets a trigger read. Trigger.AvailableNow waits for
        nothing."""
        options = self._options
        if options.min_offsets_per_trigger is None or self._target is not None:
            return True
        now_s = time.monotonic()
        waited_s = math.inf if self._last_read_s is None else now_s - self._last_read_s
        is_worth = is_worth_a_trigger(
            begins,
            latest.offsets,
            min_rows=options.min_offsets_per_trigger,
            waited_ms=waited_s * 1000,
            max_delay_ms=options.max_trigger_delay_ms,
        )
        if is_worth:
            self._last_read_s = now_s
        return is_worth

    def _limited(
        self, begins: Mapping[PartitionName, int], latest: SourceOffsets, limit: ReadLimit
    ) -> SourceOffsets:
        max_rows = self._options.max_offsets_per_trigger
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else max_rows
        max_bytes = self._options.max_bytes_per_trigger
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else max_bytes
        ends = dict(latest.offsets)
        if max_rows is not None:
            ends = limit_rows(begins, ends, max_rows)
        if max_bytes is not None:
            estimates = self._offsets().bytes_per_offset(begins, latest.with_offsets(ends))
            ends = limit_bytes(begins, ends, max_bytes, estimates)
        return latest.with_offsets(ends)


def _group_properties(options: SourceOptions) -> dict[str, str]:
    """What librdkafka needs to reach the cluster."""
    security = {
        name: value
        for name, value in options.kafka.items()
        if name.startswith(("security.", "sasl.", "ssl."))
    }
    return client_properties(security, bootstrap_servers=options.bootstrap_servers)
