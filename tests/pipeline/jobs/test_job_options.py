"""Options of a job: defaults, and one line for each that is missing or wrong."""

import os

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.job_options import job_options, start_time
from odradek.pipeline.kafka_types import EARLIEST, LATEST

LEAST = {"name": "archive", "topics": "orders, bills,orders", "table": "lake/orders"}


def test_the_least_that_a_job_is_told() -> None:
    options = job_options(LEAST)
    assert options.topics == ("orders", "bills")
    assert options.table == os.path.abspath("lake/orders")
    assert (options.group, options.dead_letter_topic) == ("pipe.archive", "archive.dlq")
    assert (options.format, options.value_format) == ("parquet", "raw")
    assert (options.start_ms, options.time_partition) == (EARLIEST, "date")
    assert (options.rows_per_trigger, options.bytes_per_trigger) == (5_000_000, None)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2, 4]",
        "local-cluster[2,1,1]",
        "spark://a:1,b:1",
        "yarn",
        "k8s://a",
    ],
)
def test_every_master_of_spark_is_taken(master: str) -> None:
    assert job_options(LEAST | {"master": master}).master == master


def test_options_of_others_keep_their_names() -> None:
    options = job_options(
        LEAST
        | {
            "kafka.sasl.mechanism": "PLAIN",
            "spark.executor.memory": "2g",
            "storage.AWS_REGION": "eu",
            "catalog.uri": "http://catalog",
            "table": "s3://bucket/orders",
        }
    )
    assert options.kafka == {"sasl.mechanism": "PLAIN"}
    assert options.spark == {"spark.executor.memory": "2g"}
    assert options.table_options == {"storage.AWS_REGION": "eu", "catalog.uri": "http://catalog"}
    assert options.table == "s3://bucket/orders"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": ""}, "name is not set"),
        ({"table": ""}, "table is not set"),
        ({"name": "a/b"}, "name is 'a/b': take letters"),
        ({"topics": " , "}, "set either topics or topics.pattern"),
        ({"topics.pattern": "o.*"}, "set either topics or topics.pattern"),
        ({"topics": "", "topics.pattern": "("}, "topics.pattern is no regular expression"),
        ({"format": "orc"}, "format is 'orc': take one of parquet, delta, iceberg"),
        ({"value.format": "xml"}, "value.format is 'xml'"),
        ({"time.partition": "week"}, "time.partition is 'week'"),
        ({"start": "yesterday"}, "start is 'yesterday'"),
        ({"rows.per.trigger": "0"}, "rows.per.trigger is '0'"),
        ({"master": "loacl[2]"}, r"master is 'loacl\[2\]': take local\[N\], "),
        ({"master": "spark:/host:7077"}, "master is 'spark:/host:7077'"),
        ({"value.formt": "raw"}, "did you mean value.format?"),
    ],
)
def test_a_wrong_option_is_one_line(change: dict[str, str], complaint: str) -> None:
    with pytest.raises(PipelineError, match=complaint.replace("?", r"\?")):
        job_options(LEAST | change)


@pytest.mark.parametrize(
    ("text", "start_ms"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:00.5+01:00", 500),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_the_start_is_a_name_or_a_time_in_utc(text: str, start_ms: int) -> None:
    assert start_time(text) == start_ms
