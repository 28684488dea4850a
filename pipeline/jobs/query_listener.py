"""Makes the progress of queries with the stock Kafka connector visible to Kafka's own tools.

Spark keeps the offsets of a query in its checkpoint only. This listener commits them to a group
`pipe.<name of the query>` after each batch, so `odradek pipe lag` and kafka-consumer-groups show
its lag. The checkpoint stays the truth: nothing reads the group's offsets.
"""

import json
import logging
from collections.abc import Mapping
from typing import Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import commit_offsets
from odradek.pipeline.jobs.lag import GROUP_PREFIX
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.librdkafka import client_properties

_PREFIX: Final = "kafka."
_logger = logging.getLogger(__name__)


class KafkaProgressListener(StreamingQueryListener):
    """`spark.streams.addListener(KafkaProgressListener({"kafka.bootstrap.servers": ...}))`.

    Queries need a name (`queryName`). What cannot be committed is logged, and the query goes on.
    """

    def __init__(self, options: Mapping[str, str], *, timeout_s: float = 30.0) -> None:
        """The connector's options: `kafka.bootstrap.servers`, `kafka.security.protocol`, ..."""
        kafka = {
            name.removeprefix(_PREFIX): value
            for name, value in options.items()
            if name.startswith(_PREFIX)
        }
        self._properties = client_properties(
            kafka, bootstrap_servers=kafka.get("bootstrap.servers", "")
        )
        self._timeout_s = timeout_s
        self._committed: dict[tuple[str, PartitionName], int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Say it if the query has no name: it has no group then."""
        if not event.name:
            _logger.warning("query %s has no queryName: its lag is not shown", event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Commit the end of the batch."""
        progress = event.progress
        if not progress.name:
            return
        ends: dict[PartitionName, int] = {}
        for source in progress.sources:
            ends |= connector_offsets(source.description, source.endOffset)
        group = f"{GROUP_PREFIX}{progress.name}"
        changed = {
            name: end for name, end in ends.items() if self._committed.get((group, name)) != end
        }
        try:
            commit_offsets(self._properties, group, changed, timeout_s=self._timeout_s)
        except PipelineError as error:
            _logger.warning("%s", error)
            return
        self._committed |= {(group, name): end for name, end in changed.items()}

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The group keeps its offsets, as those of a stopped consumer."""


def connector_offsets(description: str, end_offset: str | None) -> dict[PartitionName, int]:
    """The offsets in a progress of the stock connector; empty for other sources.

    They are JSON: `{"orders":{"0":17}}`.
    """
    if not description.startswith("KafkaV2[") or not end_offset:
        return {}
    return {
        PartitionName(topic, int(partition)): offset
        for topic, partitions in json.loads(end_offset).items()
        for partition, offset in partitions.items()
    }
