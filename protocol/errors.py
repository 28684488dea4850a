"""What can go wrong on the wire: Kafka's error codes, and the two exceptions that carry them.

The numbers and names are Kafka's (4.4.0) and are fixed for ever. Whether a client may simply try
again is a property of the code, kept here and nowhere else; it follows the Java client's view,
since that decides what real clients do. The texts say what to look at or change.

`ApiError` ends a whole request with one code. `ProtocolError` means that bytes make no sense: the
connection that sent them is closed, because nothing after them can be trusted either.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

_RETRIABLE: Final = True


class ErrorCode(IntEnum):
    """An error code as it stands in an `error_code` field, with its text and whether to retry."""

    message: str
    is_retriable: bool

    def __new__(cls, code: int, message: str, is_retriable: bool = False) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.is_retriable = is_retriable
        return member

    UNKNOWN_SERVER_ERROR = -1, "The broker failed in a way it did not foresee; see its log."
    NONE = 0, ""
    OFFSET_OUT_OF_RANGE = 1, "The offset lies outside what this log holds."
    CORRUPT_MESSAGE = 2, "A record batch fails its checksum or is malformed.", _RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "No such topic or partition here.", _RETRIABLE
    INVALID_FETCH_SIZE = 4, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader just now.", _RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "This broker does not serve that partition.", _RETRIABLE
    REQUEST_TIMED_OUT = 7, "The request was not completed in its time.", _RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, "This broker has no replica of that partition.", _RETRIABLE
    MESSAGE_TOO_LARGE = 10, "A record batch is larger than max.message.bytes allows."
    STALE_CONTROLLER_EPOCH = 11, "The controller has moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata text committed with an offset is too long."
    NETWORK_EXCEPTION = 13, "The connection was lost before the answer came.", _RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still loading.", _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "There is no coordinator just now.", _RETRIABLE
    NOT_COORDINATOR = 16, "Another broker coordinates this id.", _RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "The topic name is not valid or not allowed."
    RECORD_LIST_TOO_LARGE = 18, "The record batches are larger than a segment."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than min.insync.replicas.", _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "The records were written, but to fewer in-sync replicas than required.",
        _RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The group is in another generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member shares no protocol with the rest of the group."
    INVALID_GROUP_ID = 24, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, "The group does not know this member."
    INVALID_SESSION_TIMEOUT = (
        26,
        "The session timeout lies outside group.min.session.timeout.ms and "
        "group.max.session.timeout.ms.",
    )
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing; join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The offset commit is too large to be stored."
    TOPIC_AUTHORIZATION_FAILED = 29, "The principal lacks a permission on the topic."
    GROUP_AUTHORIZATION_FAILED = 30, "The principal lacks a permission on the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "The principal lacks a permission on the cluster."
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
    INVALID_REQUEST = 42, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The record format in use cannot serve this request."
    POLICY_VIOLATION = 44, "A policy of this cluster forbids that."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "A batch of this producer is missing before this one."
    DUPLICATE_SEQUENCE_NUMBER = 46, "This batch of the producer was written before."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch has been superseded."
    INVALID_TXN_STATE = 48, "The transaction's state does not allow that."
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
        "The principal lacks a permission on the transactional id.",
    )
    SECURITY_DISABLED = 54, "No authorizer is configured; there are no ACLs to work on."
    OPERATION_NOT_ATTEMPTED = 55, "Skipped, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, "The disk of this broker failed or is full.", _RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "There is no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, "The credentials were not accepted."
    UNKNOWN_PRODUCER_ID = 59, "The producer's state has expired or was deleted."
    REASSIGNMENT_IN_PROGRESS = 60, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal neither owns nor may renew the token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        "Tokens are only handed out over an authenticated connection that used no token itself.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "The principal may not see this token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "Only principals of type User are supported here."
    NON_EMPTY_GROUP = 68, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, "The fetch session is gone; open a new one.", _RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "The fetch session is at another epoch.", _RETRIABLE
    LISTENER_NOT_FOUND = 72, "The leader has no listener of the name asked for.", _RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "delete.topic.enable is false."
    FENCED_LEADER_EPOCH = 74, "The leader epoch is older than the broker's.", _RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "The leader epoch is newer than the broker's.", _RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "This version of the request cannot carry that compression."
    STALE_BROKER_EPOCH = 77, "The broker has registered anew since."
    OFFSET_NOT_AVAILABLE = 78, "A new leader does not know its high watermark yet.", _RETRIABLE
    MEMBER_ID_REQUIRED = 79, "Join again with the member id given in this answer."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not in sync.", _RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "The group has as many members as it may have."
    FENCED_INSTANCE_ID = 82, "A newer member has taken over this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No replica may become leader just now.", _RETRIABLE
    ELECTION_NOT_NEEDED = 84, "The partition already has the leader asked for.", _RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group still reads the topic."
    INVALID_RECORD = 87, "A record was refused."
    UNSTABLE_OFFSET_COMMIT = 88, "A transaction on this offset is not finished.", _RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "The quota is used up; wait before the next try.", _RETRIABLE
    PRODUCER_FENCED = 90, "A newer producer uses this transactional id."
    RESOURCE_NOT_FOUND = 91, "There is no such resource."
    DUPLICATE_RESOURCE = 92, "The request names one resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, "Sender or receiver is not among the voters."
    INVALID_UPDATE_VERSION = 95, "The version given is not valid."
    FEATURE_UPDATE_FAILED = 96, "The feature level could not be changed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "A forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, "No topic of this id here.", _RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "Another live broker uses this id."
    BROKER_ID_NOT_REGISTERED = 102, "No broker of this id is registered."
    INCONSISTENT_TOPIC_ID = 103, "The topic id is not the one of this log.", _RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        "The fetch session mixes requests with and without topic ids.",
        _RETRIABLE,
    )
    INELIGIBLE_REPLICA = 107, "A replica of the new ISR may not join it."
    NEW_LEADER_ELECTED = 108, "The change was made, and the leader changed with it."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset is only in tiered storage."
    FENCED_MEMBER_EPOCH = 110, "The member was fenced; give up all partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, "A live member still holds this group.instance.id."
    UNSUPPORTED_ASSIGNOR = 112, "The group does not know this assignor."
    STALE_MEMBER_EPOCH = 113, "The member's epoch is old; heartbeat, then try again."
    MISMATCHED_ENDPOINT_TYPE = 114, "This endpoint is of another type than the one asked for."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "This endpoint type is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "There is no such controller."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription has changed; ask for it again."
    TELEMETRY_TOO_LARGE = 118, "The metrics pushed are larger than the broker accepts."
    INVALID_REGISTRATION = 119, "The controller refused this registration."
    TRANSACTION_ABORTABLE = 120, "The transaction failed; abort it and go on."
    INVALID_RECORD_STATE = 121, "The records are not held by this member in the state required."
    SHARE_SESSION_NOT_FOUND = 122, "The share session is gone; open a new one.", _RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "The share session is at another epoch.", _RETRIABLE
    FENCED_STATE_EPOCH = 124, "The state epoch is not the current one."
    INVALID_VOTER_KEY = 125, "The voter's directory id is another one."
    DUPLICATE_VOTER = 126, "This voter is in the set already."
    VOTER_NOT_FOUND = 127, "This voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, "The client's view is too old; start from the bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The topology epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, "The topology epoch has been superseded."
    SHARE_SESSION_LIMIT_REACHED = (
        133,
        "This broker holds all the share sessions it may.",
        _RETRIABLE,
    )
    GROUP_DELETION_FAILED = 134, "The group could not be deleted."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "The topology description was not taken."
    CONTROLLER_ID_NOT_REGISTERED = 136, "No controller of this id is registered."


class ApiError(Exception):
    """A request that fails as a whole: `code` goes into the answer, `message` where it has room.

    Raised by deep code and caught in one place, where the answer is built. Without a message of
    its own the error carries the code's.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = code.message if message is None else message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class ProtocolError(ValueError):
    """Bytes that are no valid message, or a message that has no form in the version asked for."""
