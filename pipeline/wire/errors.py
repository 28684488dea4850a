"""The error codes that brokers answer with: their names, and which of them pass."""

from enum import IntEnum
from typing import Final


class BrokerError(IntEnum):
    """Those that Metadata, ListOffsets, Fetch and SASL know (Kafka's protocol guide)."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    NETWORK_EXCEPTION = 13
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103


PASSING: Final = frozenset(
    {
        BrokerError.CORRUPT_MESSAGE,
        BrokerError.UNKNOWN_TOPIC_OR_PARTITION,
        BrokerError.LEADER_NOT_AVAILABLE,
        BrokerError.NOT_LEADER_OR_FOLLOWER,
        BrokerError.REQUEST_TIMED_OUT,
        BrokerError.BROKER_NOT_AVAILABLE,
        BrokerError.REPLICA_NOT_AVAILABLE,
        BrokerError.NETWORK_EXCEPTION,
        BrokerError.KAFKA_STORAGE_ERROR,
        BrokerError.FENCED_LEADER_EPOCH,
        BrokerError.UNKNOWN_LEADER_EPOCH,
        BrokerError.OFFSET_NOT_AVAILABLE,
        BrokerError.UNKNOWN_TOPIC_ID,
        BrokerError.INCONSISTENT_TOPIC_ID,
    }
)
"""Those that a moving leader, a restarting node or a new topic causes: ask again, with newer
metadata."""


def error_name(code: int) -> str:
    """Kafka's name of the code, or its number."""
    try:
        return BrokerError(code).name
    except ValueError:
        return f"error {code}"
