"""A query's progress becomes its group's offsets. tests/e2e/spark plays it with Spark."""

import json
import logging
from typing import Any
from uuid import uuid4

import pytest

from odradek.node.embedded import EmbeddedBroker
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.group_offsets import committed_offsets
from odradek.pipeline.jobs.query_listener import KafkaProgressListener, connector_offsets
from odradek.pipeline.kafka_types import PartitionName
from tests.support.ports import free_port

pyspark_listener = pytest.importorskip("pyspark.sql.streaming.listener")


def _event(name: str | None, *sources: tuple[str, object]) -> Any:  # noqa: ANN401  # pyspark may not be installed
    """As Spark reports it, in the JSON that Spark Connect sends."""
    rows = {"numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    progress = {
        **rows,
        "id": str(uuid4()),
        "runId": str(uuid4()),
        "name": name,
        "timestamp": "2026-11-23T00:00:00.000Z",
        "batchId": 1,
        "batchDuration": 1,
        "durationMs": {},
        "stateOperators": [],
        "sources": [
            {
                **rows,
                "description": description,
                "startOffset": None,
                "endOffset": json.dumps(end),
                "latestOffset": None,
            }
            for description, end in sources
        ],
        "sink": {"description": "noop", "numOutputRows": 1},
    }
    return pyspark_listener.QueryProgressEvent.fromJson({"progress": progress})


def test_offsets_of_the_connector_are_read_and_those_of_others_are_not() -> None:
    assert connector_offsets("KafkaV2[Subscribe[a,b]]", '{"a":{"0":5,"1":0},"b":{"0":7}}') == {
        PartitionName("a", 0): 5,
        PartitionName("a", 1): 0,
        PartitionName("b", 0): 7,
    }
    assert connector_offsets("KafkaV2[Subscribe[a]]", None) == {}
    assert connector_offsets("RateStreamV2[rowsPerSecond=1]", "17") == {}


def test_progress_of_a_query_is_committed(kafka_broker: EmbeddedBroker) -> None:
    topic = f"listener-{uuid4().hex[:12]}"
    kafka_broker.create_topic(topic, partitions=2)
    properties = {"bootstrap.servers": kafka_broker.bootstrap_servers, "log_level": "0"}
    listener = KafkaProgressListener(
        {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "subscribe": topic}
    )

    source = f"KafkaV2[Subscribe[{topic}]]"
    listener.onQueryProgress(_event(topic, (source, {topic: {"0": 4, "1": 0}})))
    listener.onQueryProgress(
        _event(topic, (source, {topic: {"0": 9, "1": 0}}), ("RateStreamV2[]", 17))
    )
    listener.onQueryProgress(_event(None, (source, {topic: {"0": 99}})))

    names = [PartitionName(topic, 0), PartitionName(topic, 1)]
    assert committed_offsets(properties, f"pipe.{topic}", names, timeout_s=30) == {
        PartitionName(topic, 0): 9,
        PartitionName(topic, 1): 0,
    }


def test_a_commit_that_fails_is_logged_and_the_query_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = KafkaProgressListener(
        {"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}"}, timeout_s=0.5
    )

    with caplog.at_level(logging.WARNING):
        listener.onQueryProgress(_event("q", ("KafkaV2[Subscribe[t]]", {"t": {"0": 4}})))

    assert "cannot commit offsets of group pipe.q: no answer from" in caplog.text


def test_a_cluster_must_be_named() -> None:
    with pytest.raises(PipelineError, match=r"kafka\.bootstrap\.servers is not set"):
        KafkaProgressListener({"subscribe": "orders"})
