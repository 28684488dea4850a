"""Log lines about topics that clients or this node create and delete."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from odradek.cluster.controller.commands import TopicResult
from odradek.node.structured_log import get_logger

log = get_logger(__name__)


class Caller(Protocol):
    """Who has sent a request. RequestContext has these attributes."""

    principal: str
    client_id: str | None
    client_host: str
    client_port: int
    listener_name: str


def caller_fields(caller: Caller) -> dict[str, object]:
    """Who has sent a request and from where, as fields of a line."""
    return {
        "principal": caller.principal,
        "client_id": caller.client_id,
        "client_address": caller.client_host,
        "client_port": caller.client_port,
        "listener": caller.listener_name,
    }


def log_created_topic(result: TopicResult, who: Mapping[str, object]) -> None:
    """Log a topic if it was created. Once per topic, in the loop that writes its response."""
    if not result.error_code:
        log.info(
            "a topic was created",
            **who,
            topic=result.name,
            partitions=result.partition_count,
            replication_factor=result.replication_factor,
        )


def log_created_topics(results: Iterable[TopicResult], who: Mapping[str, object]) -> None:
    """Log those of a few topics that were created."""
    for result in results:
        log_created_topic(result, who)


def log_deleted_topic(result: TopicResult, who: Mapping[str, object]) -> None:
    """Log a topic if it was deleted."""
    if not result.error_code:
        log.info("a topic was deleted", **who, topic=result.name)
