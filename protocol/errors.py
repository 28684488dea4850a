"""What can go wrong on the wire: Kafka's error codes, and the two exceptions that carry them.

The numbers and names are Kafka's (4.4.0) and are fixed for ever. Whether a client may simply try
again is a property of the code, kept here and nowhere else; it follows the Java client's view,
since that decides what real clients do. The texts say what to look at or change.

`ApiError` ends a whole request with one code. `ProtocolError` means that bytes make no sense: the
connection that sent them is closed, because nothing after them can be trusted either.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class ErrorCode(IntEnum):
    """An error code as it stands in an `error_code` field."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136

    @property
    def message(self) -> str:
        """What to tell a person; empty for NONE."""
        return _MESSAGES[self]

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later, without anybody changing anything else."""
        return self in _RETRIABLE


_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)

_MESSAGES: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR: (
            "The broker failed in a way it did not foresee; see its log."
        ),
        ErrorCode.NONE: "",
        ErrorCode.OFFSET_OUT_OF_RANGE: "The offset lies outside what this log holds.",
        ErrorCode.CORRUPT_MESSAGE: "A record batch fails its checksum or is malformed.",
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "No such topic or partition here.",
        ErrorCode.INVALID_FETCH_SIZE: "The fetch size is not valid.",
        ErrorCode.LEADER_NOT_AVAILABLE: "The partition has no leader just now.",
        ErrorCode.NOT_LEADER_OR_FOLLOWER: "This broker does not serve that partition.",
        ErrorCode.REQUEST_TIMED_OUT: "The request was not completed in its time.",
        ErrorCode.BROKER_NOT_AVAILABLE: "The broker is not available.",
        ErrorCode.REPLICA_NOT_AVAILABLE: "This broker has no replica of that partition.",
        ErrorCode.MESSAGE_TOO_LARGE: "A record batch is larger than max.message.bytes allows.",
        ErrorCode.STALE_CONTROLLER_EPOCH: "The controller has moved to another broker.",
        ErrorCode.OFFSET_METADATA_TOO_LARGE: (
            "The metadata text committed with an offset is too long."
        ),
        ErrorCode.NETWORK_EXCEPTION: "The connection was lost before the answer came.",
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "The coordinator is still loading.",
        ErrorCode.COORDINATOR_NOT_AVAILABLE: "There is no coordinator just now.",
        ErrorCode.NOT_COORDINATOR: "Another broker coordinates this id.",
        ErrorCode.INVALID_TOPIC_EXCEPTION: "The topic name is not valid or not allowed.",
        ErrorCode.RECORD_LIST_TOO_LARGE: "The record batches are larger than a segment.",
        ErrorCode.NOT_ENOUGH_REPLICAS: "Fewer replicas are in sync than min.insync.replicas.",
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
            "The records were written, but to fewer in-sync replicas than required."
        ),
        ErrorCode.INVALID_REQUIRED_ACKS: "acks must be -1, 0 or 1.",
        ErrorCode.ILLEGAL_GENERATION: "The group is in another generation.",
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
            "The member shares no protocol with the rest of the group."
        ),
        ErrorCode.INVALID_GROUP_ID: "The group id is not valid.",
        ErrorCode.UNKNOWN_MEMBER_ID: "The group does not know this member.",
        ErrorCode.INVALID_SESSION_TIMEOUT: (
            "The session timeout lies outside group.min.session.timeout.ms and "
            "group.max.session.timeout.ms."
        ),
        ErrorCode.REBALANCE_IN_PROGRESS: "The group is rebalancing; join again.",
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "The offset commit is too large to be stored.",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "The principal lacks a permission on the topic.",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "The principal lacks a permission on the group.",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "The principal lacks a permission on the cluster.",
        ErrorCode.INVALID_TIMESTAMP: "A record's timestamp is outside the allowed range.",
        ErrorCode.UNSUPPORTED_SASL_MECHANISM: "This SASL mechanism is not enabled here.",
        ErrorCode.ILLEGAL_SASL_STATE: "The request does not fit the state of the SASL exchange.",
        ErrorCode.UNSUPPORTED_VERSION: "This version of the request is not supported.",
        ErrorCode.TOPIC_ALREADY_EXISTS: "A topic of this name exists already.",
        ErrorCode.INVALID_PARTITIONS: "The number of partitions is not valid.",
        ErrorCode.INVALID_REPLICATION_FACTOR: "There must be 1 to as many replicas as brokers.",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT: "The replica assignment is not valid.",
        ErrorCode.INVALID_CONFIG: "A configuration key or value is not valid.",
        ErrorCode.NOT_CONTROLLER: "This node is not the active controller.",
        ErrorCode.INVALID_REQUEST: "The request contradicts itself or the protocol.",
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: (
            "The record format in use cannot serve this request."
        ),
        ErrorCode.POLICY_VIOLATION: "A policy of this cluster forbids that.",
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
            "A batch of this producer is missing before this one."
        ),
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "This batch of the producer was written before.",
        ErrorCode.INVALID_PRODUCER_EPOCH: "The producer's epoch has been superseded.",
        ErrorCode.INVALID_TXN_STATE: "The transaction's state does not allow that.",
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: (
            "The producer id does not belong to this transactional id."
        ),
        ErrorCode.INVALID_TRANSACTION_TIMEOUT: "The timeout exceeds transaction.max.timeout.ms.",
        ErrorCode.CONCURRENT_TRANSACTIONS: (
            "The previous step of this transactional id is not finished."
        ),
        ErrorCode.TRANSACTION_COORDINATOR_FENCED: "A newer transaction coordinator has taken over.",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
            "The principal lacks a permission on the transactional id."
        ),
        ErrorCode.SECURITY_DISABLED: "No authorizer is configured; there are no ACLs to work on.",
        ErrorCode.OPERATION_NOT_ATTEMPTED: "Skipped, because another part of the request failed.",
        ErrorCode.KAFKA_STORAGE_ERROR: "The disk of this broker failed or is full.",
        ErrorCode.LOG_DIR_NOT_FOUND: "There is no such log directory.",
        ErrorCode.SASL_AUTHENTICATION_FAILED: "The credentials were not accepted.",
        ErrorCode.UNKNOWN_PRODUCER_ID: "The producer's state has expired or was deleted.",
        ErrorCode.REASSIGNMENT_IN_PROGRESS: "The partition is being reassigned.",
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "Delegation tokens are not enabled.",
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "There is no such delegation token.",
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: (
            "The principal neither owns nor may renew the token."
        ),
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
            "Tokens are only handed out over an authenticated connection that used no token itself."
        ),
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "The principal may not see this token.",
        ErrorCode.DELEGATION_TOKEN_EXPIRED: "The delegation token has expired.",
        ErrorCode.INVALID_PRINCIPAL_TYPE: "Only principals of type User are supported here.",
        ErrorCode.NON_EMPTY_GROUP: "The group still has members.",
        ErrorCode.GROUP_ID_NOT_FOUND: "There is no such group.",
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "The fetch session is gone; open a new one.",
        ErrorCode.INVALID_FETCH_SESSION_EPOCH: "The fetch session is at another epoch.",
        ErrorCode.LISTENER_NOT_FOUND: "The leader has no listener of the name asked for.",
        ErrorCode.TOPIC_DELETION_DISABLED: "delete.topic.enable is false.",
        ErrorCode.FENCED_LEADER_EPOCH: "The leader epoch is older than the broker's.",
        ErrorCode.UNKNOWN_LEADER_EPOCH: "The leader epoch is newer than the broker's.",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: (
            "This version of the request cannot carry that compression."
        ),
        ErrorCode.STALE_BROKER_EPOCH: "The broker has registered anew since.",
        ErrorCode.OFFSET_NOT_AVAILABLE: "A new leader does not know its high watermark yet.",
        ErrorCode.MEMBER_ID_REQUIRED: "Join again with the member id given in this answer.",
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader is not in sync.",
        ErrorCode.GROUP_MAX_SIZE_REACHED: "The group has as many members as it may have.",
        ErrorCode.FENCED_INSTANCE_ID: "A newer member has taken over this group.instance.id.",
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "No replica may become leader just now.",
        ErrorCode.ELECTION_NOT_NEEDED: "The partition already has the leader asked for.",
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "The partition is not being reassigned.",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "The group still reads the topic.",
        ErrorCode.INVALID_RECORD: "A record was refused.",
        ErrorCode.UNSTABLE_OFFSET_COMMIT: "A transaction on this offset is not finished.",
        ErrorCode.THROTTLING_QUOTA_EXCEEDED: "The quota is used up; wait before the next try.",
        ErrorCode.PRODUCER_FENCED: "A newer producer uses this transactional id.",
        ErrorCode.RESOURCE_NOT_FOUND: "There is no such resource.",
        ErrorCode.DUPLICATE_RESOURCE: "The request names one resource twice.",
        ErrorCode.UNACCEPTABLE_CREDENTIAL: "The credential does not meet the requirements.",
        ErrorCode.INCONSISTENT_VOTER_SET: "Sender or receiver is not among the voters.",
        ErrorCode.INVALID_UPDATE_VERSION: "The version given is not valid.",
        ErrorCode.FEATURE_UPDATE_FAILED: "The feature level could not be changed.",
        ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: "A forwarded principal could not be read.",
        ErrorCode.SNAPSHOT_NOT_FOUND: "There is no such snapshot.",
        ErrorCode.POSITION_OUT_OF_RANGE: "The position lies outside the snapshot.",
        ErrorCode.UNKNOWN_TOPIC_ID: "No topic of this id here.",
        ErrorCode.DUPLICATE_BROKER_REGISTRATION: "Another live broker uses this id.",
        ErrorCode.BROKER_ID_NOT_REGISTERED: "No broker of this id is registered.",
        ErrorCode.INCONSISTENT_TOPIC_ID: "The topic id is not the one of this log.",
        ErrorCode.INCONSISTENT_CLUSTER_ID: "The request is meant for another cluster.",
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "There is no such transactional id.",
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: (
            "The fetch session mixes requests with and without topic ids."
        ),
        ErrorCode.INELIGIBLE_REPLICA: "A replica of the new ISR may not join it.",
        ErrorCode.NEW_LEADER_ELECTED: "The change was made, and the leader changed with it.",
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: "The offset is only in tiered storage.",
        ErrorCode.FENCED_MEMBER_EPOCH: (
            "The member was fenced; give up all partitions and join again."
        ),
        ErrorCode.UNRELEASED_INSTANCE_ID: "A live member still holds this group.instance.id.",
        ErrorCode.UNSUPPORTED_ASSIGNOR: "The group does not know this assignor.",
        ErrorCode.STALE_MEMBER_EPOCH: "The member's epoch is old; heartbeat, then try again.",
        ErrorCode.MISMATCHED_ENDPOINT_TYPE: (
            "This endpoint is of another type than the one asked for."
        ),
        ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: "This endpoint type is not supported.",
        ErrorCode.UNKNOWN_CONTROLLER_ID: "There is no such controller.",
        ErrorCode.UNKNOWN_SUBSCRIPTION_ID: (
            "The telemetry subscription has changed; ask for it again."
        ),
        ErrorCode.TELEMETRY_TOO_LARGE: "The metrics pushed are larger than the broker accepts.",
        ErrorCode.INVALID_REGISTRATION: "The controller refused this registration.",
        ErrorCode.TRANSACTION_ABORTABLE: "The transaction failed; abort it and go on.",
        ErrorCode.INVALID_RECORD_STATE: (
            "The records are not held by this member in the state required."
        ),
        ErrorCode.SHARE_SESSION_NOT_FOUND: "The share session is gone; open a new one.",
        ErrorCode.INVALID_SHARE_SESSION_EPOCH: "The share session is at another epoch.",
        ErrorCode.FENCED_STATE_EPOCH: "The state epoch is not the current one.",
        ErrorCode.INVALID_VOTER_KEY: "The voter's directory id is another one.",
        ErrorCode.DUPLICATE_VOTER: "This voter is in the set already.",
        ErrorCode.VOTER_NOT_FOUND: "This voter is not in the set.",
        ErrorCode.INVALID_REGULAR_EXPRESSION: "The regular expression is not valid.",
        ErrorCode.REBOOTSTRAP_REQUIRED: (
            "The client's view is too old; start from the bootstrap servers."
        ),
        ErrorCode.STREAMS_INVALID_TOPOLOGY: "The topology is not valid.",
        ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: "The topology epoch is not valid.",
        ErrorCode.STREAMS_TOPOLOGY_FENCED: "The topology epoch has been superseded.",
        ErrorCode.SHARE_SESSION_LIMIT_REACHED: "This broker holds all the share sessions it may.",
        ErrorCode.GROUP_DELETION_FAILED: "The group could not be deleted.",
        ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED: (
            "The topology description was not taken."
        ),
        ErrorCode.CONTROLLER_ID_NOT_REGISTERED: "No controller of this id is registered.",
    }
)


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
