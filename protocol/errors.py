"""Kafka's error codes, and the two exceptions of this package.

Numbers and names are those of Kafka 4.4.0 and never change. A code is retriable if the Java client
retries it. The messages say what to check or to change.

`ApiError` fails a whole request with one code. `ProtocolError` means malformed bytes: the
connection is closed, because the bytes that follow cannot be trusted either.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

_RETRIABLE: Final = True


class ErrorCode(IntEnum):
    """An error code as in an `error_code` field: number, message, and whether it is retriable."""

    message: str
    is_retriable: bool
    """Whether the same request may succeed later without any other change."""

    def __new__(cls, number: int, message: str = "", is_retriable: bool = False) -> Self:
        code = int.__new__(cls, number)
        code._value_ = number
        code.message = message
        code.is_retriable = is_retriable
        return code

    UNKNOWN_SERVER_ERROR = -1, "The broker failed with an unexpected error; see its log."
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1, "The offset is outside the range of the log."
    CORRUPT_MESSAGE = 2, "A record batch fails its checksum or is malformed.", _RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = (
        3,
        "The topic or partition does not exist on this broker.",
        _RETRIABLE,
    )
    INVALID_FETCH_SIZE = 4, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader at the moment.", _RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "This broker is not the leader of the partition.", _RETRIABLE
    REQUEST_TIMED_OUT = 7, "The request did not complete within its timeout.", _RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, "This broker has no replica of that partition.", _RETRIABLE
    MESSAGE_TOO_LARGE = 10, "A record batch is larger than max.message.bytes allows."
    STALE_CONTROLLER_EPOCH = 11, "The controller has moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata text committed with an offset is too long."
    NETWORK_EXCEPTION = 13, "The connection was lost before the response.", _RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still loading.", _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "No coordinator is available at the moment.", _RETRIABLE
    NOT_COORDINATOR = 16, "Another broker is the coordinator of this id.", _RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "The topic name is not valid or not allowed."
    RECORD_LIST_TOO_LARGE = 18, "The record batches are larger than a segment."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than min.insync.replicas.", _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "The records were written, but to fewer in-sync replicas than required.",
        _RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The generation id is not that of the group."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member has no protocol in common with the group."
    INVALID_GROUP_ID = 24, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, "The member is not in the group."
    INVALID_SESSION_TIMEOUT = (
        26,
        "The session timeout is outside of group.min.session.timeout.ms and "
        "group.max.session.timeout.ms.",
    )
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing; join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The offset commit is too large to be stored."
    TOPIC_AUTHORIZATION_FAILED = 29, "The principal is not authorized for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, "The principal is not authorized for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "The principal is not authorized for the cluster."
    INVALID_TIMESTAMP = 32, "A record's timestamp is outside the allowed range."
    UNSUPPORTED_SASL_MECHANISM = 33, "This SASL mechanism is not enabled here."
    ILLEGAL_SASL_STATE = 34, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, "This version of the request is not supported."
    TOPIC_ALREADY_EXISTS = 36, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = 38, "There must be 1 to as many replicas as brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The replica assignment is not valid."
    INVALID_CONFIG = 40, "A configuration key or value is not valid."
    NOT_CONTROLLER = 41, "This node is not the active controller.", _RETRIABLE
    INVALID_REQUEST = 42, "The request violates the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The record format in use cannot serve this request."
    POLICY_VIOLATION = 44, "A policy of this cluster forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "A batch of this producer before this one is missing."
    DUPLICATE_SEQUENCE_NUMBER = 46, "This batch of the producer was already written."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch has been superseded."
    INVALID_TXN_STATE = 48, "The state of the transaction does not allow the request."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The timeout exceeds transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = (
        51,
        "The previous step of this transactional id is not finished.",
        _RETRIABLE,
    )
    TRANSACTION_COORDINATOR_FENCED = 52, "A newer transaction coordinator has taken over."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = (
        53,
        "The principal is not authorized for the transactional id.",
    )
    SECURITY_DISABLED = 54, "No authorizer is configured."
    OPERATION_NOT_ATTEMPTED = 55, "Not attempted, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, "The disk of this broker has failed or is full.", _RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "There is no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, "The credentials were not accepted."
    UNKNOWN_PRODUCER_ID = 59, "The producer's state has expired or was deleted."
    REASSIGNMENT_IN_PROGRESS = 60, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal neither owns nor may renew the token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        "A token requires a connection that was authenticated without a token.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "The principal may not see this token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "Only principals of type User are supported here."
    NON_EMPTY_GROUP = 68, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, "The fetch session does not exist; open a new one.", _RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "The fetch session has another epoch.", _RETRIABLE
    LISTENER_NOT_FOUND = 72, "The leader has no listener of the requested name.", _RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "delete.topic.enable is false."
    FENCED_LEADER_EPOCH = 74, "The leader epoch is older than the broker's.", _RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "The leader epoch is newer than the broker's.", _RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "This version of the request cannot carry that compression."
    STALE_BROKER_EPOCH = 77, "The broker has registered again with a newer epoch."
    OFFSET_NOT_AVAILABLE = 78, "A new leader does not know its high watermark yet.", _RETRIABLE
    MEMBER_ID_REQUIRED = 79, "Join again with the member id of this response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not in sync.", _RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "The group has reached its maximum size."
    FENCED_INSTANCE_ID = 82, "A newer member has taken over this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No eligible leader is available.", _RETRIABLE
    ELECTION_NOT_NEEDED = 84, "The partition already has the requested leader.", _RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group is subscribed to the topic."
    INVALID_RECORD = 87, "A record failed the validation."
    UNSTABLE_OFFSET_COMMIT = 88, "A transaction on this offset is not finished.", _RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "The quota is exhausted; retry later.", _RETRIABLE
    PRODUCER_FENCED = 90, "A newer producer uses this transactional id."
    RESOURCE_NOT_FOUND = 91, "There is no such resource."
    DUPLICATE_RESOURCE = 92, "The request contains a resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, "The sender or the receiver is not a voter."
    INVALID_UPDATE_VERSION = 95, "The requested version is not valid."
    FEATURE_UPDATE_FAILED = 96, "The feature level could not be changed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "A forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, "The position is outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, "No topic with this id exists on this broker.", _RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "Another live broker uses this id."
    BROKER_ID_NOT_REGISTERED = 102, "No broker of this id is registered."
    INCONSISTENT_TOPIC_ID = 103, "The topic id is not the one of this log.", _RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "The request has the id of another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        "The fetch session mixes requests with and without topic ids.",
        _RETRIABLE,
    )
    INELIGIBLE_REPLICA = 107, "A replica of the new ISR is not eligible."
    NEW_LEADER_ELECTED = 108, "The change was made and elected a new leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset is only in tiered storage."
    FENCED_MEMBER_EPOCH = 110, "The member was fenced; revoke all partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, "A live member still holds this group.instance.id."
    UNSUPPORTED_ASSIGNOR = 112, "The group does not support this assignor."
    STALE_MEMBER_EPOCH = 113, "The member's epoch is old; heartbeat, then try again."
    MISMATCHED_ENDPOINT_TYPE = 114, "This endpoint is not of the requested type."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "This endpoint type is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "There is no such controller."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription has changed; get it again."
    TELEMETRY_TOO_LARGE = 118, "The metrics are larger than the broker accepts."
    INVALID_REGISTRATION = 119, "The controller refused this registration."
    TRANSACTION_ABORTABLE = 120, "The transaction failed; abort it."
    INVALID_RECORD_STATE = 121, "The member has not acquired the records."
    SHARE_SESSION_NOT_FOUND = 122, "The share session does not exist; open a new one.", _RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "The share session has another epoch.", _RETRIABLE
    FENCED_STATE_EPOCH = 124, "The state epoch is not the current one."
    INVALID_VOTER_KEY = 125, "The voter has another directory id."
    DUPLICATE_VOTER = 126, "The voter set already contains this voter."
    VOTER_NOT_FOUND = 127, "The voter set does not contain this voter."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, "The client must rebootstrap from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The topology epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, "The topology epoch has been superseded."
    SHARE_SESSION_LIMIT_REACHED = (
        133,
        "The broker has reached its maximum of share sessions.",
        _RETRIABLE,
    )
    GROUP_DELETION_FAILED = 134, "The group could not be deleted."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "The topology description was not stored."
    CONTROLLER_ID_NOT_REGISTERED = 136, "No controller of this id is registered."


class ApiError(Exception):
    """A request that fails as a whole, with a code and a message (by default that of the code)."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = code.message if message is None else message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class ProtocolError(ValueError):
    """Malformed bytes, or a message that the requested version cannot represent."""
