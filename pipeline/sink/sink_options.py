"""The options of the sink, as `df.write.format("odradek").option(...)` gives them.

They are the stock connector's, and two of its own: `transactionalIdPrefix` and `keepTimestamp`.
Spark hands them over with names in lower case. Called by writers.py; Kafka's own options
(`kafka.*`) are those of librdkafka.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.librdkafka import client_properties
from odradek.pipeline.option_files import with_absolute_paths

_KAFKA: Final = "kafka."
# Spark's own, which it gives to every sink, and one of the connector's that only reading needs.
_NOT_OURS: Final = frozenset({"checkpointlocation", "includeheaders", "path", "queryname"})

PRODUCER_DEFAULTS: Final[Mapping[str, str]] = {
    # As Java's producer: a key stays in its partition when a job changes its sink.
    "partitioner": "murmur2_random",
    # Kafka's default of 60 s is for short transactions; here one lasts as long as a task.
    "transaction.timeout.ms": "300000",
    # librdkafka's default is 1 GiB for each producer, and an executor has several.
    "queue.buffering.max.kbytes": "65536",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a task needs to write, checked on the driver."""

    properties: Mapping[str, str] = field(repr=False)
    """librdkafka's, without a transactional.id. Some are passwords."""
    topic: str | None = None
    """Of all records; None if the column `topic` says it for each."""
    prefix: str | None = None
    """Of transactional ids and groups."""
    keeps_timestamp: bool = False
    """Whether the column `timestamp` becomes the records' timestamp."""
    timeout_s: float = 60.0
    """For each request of a transaction; Kafka's max.block.ms and its default."""

    @property
    def producer_properties(self) -> dict[str, str]:
        """librdkafka's for a producer; what the user sets wins over what is usual here."""
        return {**PRODUCER_DEFAULTS, **self.properties}


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """PipelineError if an option is unknown, missing or has a wrong value."""
    given = {name.lower(): value for name, value in options.items()}
    kafka = {
        name.removeprefix(_KAFKA): given.pop(name)
        for name in list(given)
        if name.startswith(_KAFKA)
    }
    topic = given.pop("topic", None)
    prefix = given.pop("transactionalidprefix", None)
    keeps = given.pop("keeptimestamp", "false").lower()
    for name in given.keys() - _NOT_OURS:
        raise PipelineError(
            f"option {name} is unknown to the sink: it has topic, transactionalIdPrefix,"
            " keepTimestamp and kafka.*"
        )
    if topic is not None and not topic.strip():
        raise PipelineError("option topic is empty: name the topic, or remove it and add a column")
    if prefix is not None and not prefix.strip():
        raise PipelineError("option transactionalIdPrefix is empty: give it a text, or remove it")
    if keeps not in ("true", "false"):
        raise PipelineError(f"option keepTimestamp is {keeps}: it is true or false")
    block_ms = kafka.pop("max.block.ms", "60000")
    if not block_ms.isdecimal():
        raise PipelineError(f"option kafka.max.block.ms is {block_ms}: it is a number")
    return SinkOptions(
        properties=client_properties(
            with_absolute_paths(kafka), bootstrap_servers=kafka.get("bootstrap.servers", "")
        ),
        topic=topic,
        prefix=prefix,
        keeps_timestamp=keeps == "true",
        timeout_s=int(block_ms) / 1000,
    )
