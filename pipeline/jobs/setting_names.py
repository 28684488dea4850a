"""The settings of a job that fills a table: names, defaults, help.

It imports nothing of Arrow or Spark, so `--help` is quick.
"""

from collections.abc import Mapping
from typing import Final

FORMATS: Final = ("parquet", "delta", "iceberg")
VALUE_FORMATS: Final = ("raw", "json", "avro", "protobuf")
TIME_PARTITIONS: Final = ("date", "hour", "none")
UPSERT_VALUES: Final = "upsert "
"""Before the format of values in what a table of `upsert` says of its job: it has a row for each
key, and not for each record."""

SETTINGS: Final[Mapping[str, tuple[str | None, str]]] = {
    "name": (None, "Name of the job: its group is pipe.NAME."),
    "bootstrap.servers": ("127.0.0.1:9092", "Any broker of the cluster."),
    "topics": (None, "Topics, separated by commas."),
    "topics.pattern": (None, "Regular expression of the names of topics, instead of topics."),
    "table": (None, "Folder of the table, or a URI of Arrow (s3://bucket/path)."),
    "format": ("parquet", f"Format of the table: {', '.join(FORMATS)}."),
    "value.format": ("raw", f"Format of values: {', '.join(VALUE_FORMATS)}."),
    "value.schema": (None, "Schema of values: a file, or its text."),
    "value.message": (None, "Name of the Protobuf message."),
    "value.registry": (None, "URL of a schema registry."),
    "value.subject": (None, "Subject in the registry; TOPIC-value by default."),
    "time.partition": ("date", f"Folders by time: {', '.join(TIME_PARTITIONS)}."),
    "start": ("earliest", "Where a new table begins: earliest, latest, or a time (ISO 8601)."),
    "dead.letter.topic": (None, "Topic of records that do not fit; NAME.dlq by default."),
    "fail.on.data.loss": ("true", "Whether to stop if records were deleted before they moved."),
    "rows.per.trigger": ("5M", "Records of a plan at most."),
    "bytes.per.trigger": (None, "Bytes of a plan, about, by the size of records so far."),
    "master": ("local[*]", "Spark's master."),
}
"""Name to default and help. A setting without default is left out, or it is an error to."""
PREFIXES: Final = ("kafka.", "spark.", "storage.", "catalog.")
"""`storage.` is for Delta's storage options and `catalog.` for Iceberg's catalog."""
