"""The fields that lines of the log may have, and what they mean. docs/logs.md has them, too; a test
reads every call of a logger and refuses other names.
"""

from collections.abc import Mapping
from typing import Final

STANDARD_FIELDS: Final[Mapping[str, str]] = {
    "time": "UTC, RFC 3339 with milliseconds; in text the local time of day",
    "level": "`debug`, `info`, `warning`, `error` or `critical`; in text `WARN` and `FATAL`",
    "node": "the id of this node; only in JSON, and not before it is known",
    "process": "`supervisor`, `controller`, `router-0` or `worker-0`",
    "logger": "the module, whose level can be set; only in JSON",
    "event": "what has happened, a sentence without values: the same words each time",
    "exception": "the traceback of a failure",
}
"""The fields of every line, in their order."""

FIELDS: Final[Mapping[str, str]] = {
    # Who.
    "client_address": "the address of a client",
    "client_port": "its port",
    "client_id": "the client id of its request",
    "principal": "who it is logged in as, for example `User:alice`",
    "mechanism": "the SASL mechanism",
    "peer_node": "the id of another node",
    "peer_address": "the address of another node, or the one at which it was rejected",
    "child": "a process of this node, by its name",
    "owner": "the principal that a delegation token is of",
    "cause": "what of this node asked for it, and not a client itself",
    # Where.
    "topic": "a topic",
    "topic_id": "a topic's id",
    "partition": "a partition's number in its topic",
    "partition_number": "a partition's number in its store",
    "group": "a group's id",
    "shard": "a shard of a coordinator",
    "transactional_id": "a transactional id",
    "producer_id": "a producer id",
    "producer_epoch": "its epoch",
    "listener": "the name of a listener",
    "security_protocol": "its security protocol",
    "host": "a host name or address of this node, or of a quota",
    "port": "a port of this node",
    "address": "the address at which clients reach this node",
    "url": "a URL without its secrets",
    "store": "a store's number",
    "log_dir": "a log directory's place in log.dirs",
    "path": "a file or folder",
    "key": "the names of settings",
    "metric": "a metric",
    "subscription": "a client metrics subscription",
    "entity": "the first of the entities of a client quota",
    "names": "what an administrative request or a trace names, shortened",
    "token_id": "a delegation token's id",
    "changed_logger": "the logger whose level has changed",
    "dead_letter_topic": "the topic of a dead-letter queue",
    "cluster_id": "the id of this cluster",
    "peer_cluster_id": "the id of the cluster that another process belongs to",
    # What.
    "api": "the API of a request",
    "api_version": "its version",
    "reason": "why, as the program that failed says it",
    "kind": "the kind of the reason",
    "error_code": "the name of Kafka's error code",
    "errors": "the names of the error codes in a response",
    "action": "what the reader can do",
    "status": "how a process has ended",
    "signal": "a signal's name",
    "duration_ms": "how long it took, or was waited for",
    "delay_ms": "when it is tried again",
    "count": "how many there are now",
    "former_count": "how many there were",
    "expected": "how many there should be",
    "partitions": "how many partitions a topic has",
    "replication_factor": "how many replicas each of them has",
    "offset": "an offset: the first that is concerned, or the new end of a log",
    "end_offset": "the end of the offsets that are concerned, exclusive",
    "log_end_offset": "the log end offset before",
    "leader_epoch": "a leader epoch",
    "role": "the role of this node in the quorum",
    "term": "the quorum's term",
    "leader": "the leader of the quorum",
    "new_level": "a log level",
    "certificate": "the subject of a certificate",
    # How often.
    "repeated": "so often the same complaint about the same peer came since the line before",
    "suppressed": "so many further lines of this event were left out in ten seconds",
}
"""The fields that a line may have besides."""


def table(fields: Mapping[str, str]) -> str:
    """The fields as a table in Markdown."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in fields.items()]
    return "\n".join(["| Field | Meaning |", "| --- | --- |", *rows])
