"""Kafka's client options of a job, for our own wire client."""

from collections.abc import Mapping
from typing import Final

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.wire.cluster import KafkaCluster
from odradek.pipeline.wire.security import wire_security

TIMEOUT_MS: Final = 30_000
"""Of all that is tried again while leaders move, if `kafka.default.api.timeout.ms` says nothing."""


def timeout_s(kafka: Mapping[str, str]) -> float:
    """How long a cluster may fail to answer: Kafka's `default.api.timeout.ms`."""
    text = kafka.get("default.api.timeout.ms", str(TIMEOUT_MS))
    if not text.isdecimal() or int(text) == 0:
        raise PipelineError(
            f"kafka.default.api.timeout.ms is {text!r}: write milliseconds, such as 30000"
        )
    return int(text) / 1000


def open_cluster(bootstrap_servers: str, kafka: Mapping[str, str]) -> KafkaCluster:
    """Connections with the security, the rack and the name that the options say."""
    return KafkaCluster(
        bootstrap_servers,
        wire_security(kafka),
        client_id=kafka.get("client.id", "odradek-pipeline"),
        rack=kafka.get("client.rack", ""),
        timeout_s=timeout_s(kafka),
    )
