"""Log lines about topics that clients or this node create and delete."""

import logging
from collections.abc import Iterable
from typing import Protocol

from odradek.cluster.controller.commands import TopicResult

log = logging.getLogger(__name__)


class Caller(Protocol):
    """Who has sent a request. RequestContext has these attributes."""

    principal: str
    client_id: str | None
    client_host: str


def caller_text(caller: Caller) -> str:
    """Principal, client id and address."""
    return f"{caller.principal} (client id {caller.client_id!r} at {caller.client_host})"


def log_created_topic(result: TopicResult, who: str) -> None:
    """Log a topic if it was created. Once per topic, in the loop that writes its response."""
    if not result.error_code:
        log.info(
            "%s created topic %s: %d partitions, replication factor %d",
            who,
            result.name,
            result.partition_count,
            result.replication_factor,
        )


def log_created_topics(results: Iterable[TopicResult], who: str) -> None:
    """Log those of a few topics that were created."""
    for result in results:
        log_created_topic(result, who)


def log_deleted_topic(result: TopicResult, who: str) -> None:
    """Log a topic if it was deleted."""
    if not result.error_code:
        log.info("%s deleted topic %s", who, result.name)
