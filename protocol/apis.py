"""The table of all APIs: keys, versions and messages.

Version ranges start at 0 and not at Kafka 4's minimum, because old clients exist. APIs between
Kafka's own brokers and controllers are missing: these nodes use their own bus. Private APIs, which
Kafka does not have, are served like all others, but ApiVersions does not list them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Self, cast, get_args

from odradek.protocol.messages import (
    acls,
    clients,
    cluster,
    configs,
    diagnostics,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    produce,
    quotas,
    rewinds,
    sasl,
    scram,
    share,
    share_state,
    streams,
    telemetry,
    tokens,
    topics,
    traces,
    transactions,
)


class ApiKey(IntEnum):
    """The API key of a request header.

    Each row has the key, the first and the last version served, the first flexible version, and the
    request.
    """

    row: tuple[int, int, int | None, type]

    def __new__(
        cls,
        key: int,
        min_version: int = 0,
        max_version: int = 0,
        flexible_since: int | None = None,
        request: type = object,
    ) -> Self:
        member = int.__new__(cls, key)
        member._value_ = key
        member.row = min_version, max_version, flexible_since, request
        return member

    PRODUCE = 0, 0, 13, 9, produce.ProduceRequest
    FETCH = 1, 0, 18, 12, fetch.FetchRequest
    LIST_OFFSETS = 2, 0, 11, 6, offsets.ListOffsetsRequest
    METADATA = 3, 0, 13, 9, metadata.MetadataRequest
    OFFSET_COMMIT = 8, 0, 10, 8, group_offsets.OffsetCommitRequest
    OFFSET_FETCH = 9, 0, 10, 6, group_offsets.OffsetFetchRequest
    FIND_COORDINATOR = 10, 0, 6, 3, groups.FindCoordinatorRequest
    JOIN_GROUP = 11, 0, 9, 6, groups.JoinGroupRequest
    HEARTBEAT = 12, 0, 4, 4, groups.HeartbeatRequest
    LEAVE_GROUP = 13, 0, 5, 4, groups.LeaveGroupRequest
    SYNC_GROUP = 14, 0, 5, 4, groups.SyncGroupRequest
    DESCRIBE_GROUPS = 15, 0, 6, 5, groups.DescribeGroupsRequest
    LIST_GROUPS = 16, 0, 5, 3, groups.ListGroupsRequest
    SASL_HANDSHAKE = 17, 0, 1, None, sasl.SaslHandshakeRequest
    API_VERSIONS = 18, 0, 5, 3, metadata.ApiVersionsRequest
    CREATE_TOPICS = 19, 0, 7, 5, topics.CreateTopicsRequest
    DELETE_TOPICS = 20, 0, 6, 4, topics.DeleteTopicsRequest
    DELETE_RECORDS = 21, 0, 2, 2, offsets.DeleteRecordsRequest
    INIT_PRODUCER_ID = 22, 0, 5, 2, transactions.InitProducerIdRequest
    OFFSET_FOR_LEADER_EPOCH = 23, 0, 4, 4, offsets.OffsetForLeaderEpochRequest
    ADD_PARTITIONS_TO_TXN = 24, 0, 5, 3, transactions.AddPartitionsToTxnRequest
    ADD_OFFSETS_TO_TXN = 25, 0, 4, 3, transactions.AddOffsetsToTxnRequest
    END_TXN = 26, 0, 5, 3, transactions.EndTxnRequest
    WRITE_TXN_MARKERS = 27, 0, 2, 1, transactions.WriteTxnMarkersRequest
    TXN_OFFSET_COMMIT = 28, 0, 6, 3, transactions.TxnOffsetCommitRequest
    DESCRIBE_ACLS = 29, 0, 3, 2, acls.DescribeAclsRequest
    CREATE_ACLS = 30, 0, 3, 2, acls.CreateAclsRequest
    DELETE_ACLS = 31, 0, 3, 2, acls.DeleteAclsRequest
    DESCRIBE_CONFIGS = 32, 0, 4, 4, configs.DescribeConfigsRequest
    ALTER_CONFIGS = 33, 0, 2, 2, configs.AlterConfigsRequest
    ALTER_REPLICA_LOG_DIRS = 34, 0, 2, 2, cluster.AlterReplicaLogDirsRequest
    DESCRIBE_LOG_DIRS = 35, 0, 5, 2, cluster.DescribeLogDirsRequest
    SASL_AUTHENTICATE = 36, 0, 2, 2, sasl.SaslAuthenticateRequest
    CREATE_PARTITIONS = 37, 0, 3, 2, topics.CreatePartitionsRequest
    CREATE_DELEGATION_TOKEN = 38, 0, 3, 2, tokens.CreateDelegationTokenRequest
    RENEW_DELEGATION_TOKEN = 39, 0, 2, 2, tokens.RenewDelegationTokenRequest
    EXPIRE_DELEGATION_TOKEN = 40, 0, 2, 2, tokens.ExpireDelegationTokenRequest
    DESCRIBE_DELEGATION_TOKEN = 41, 0, 3, 2, tokens.DescribeDelegationTokenRequest
    DELETE_GROUPS = 42, 0, 3, 2, groups.DeleteGroupsRequest
    ELECT_LEADERS = 43, 0, 2, 2, cluster.ElectLeadersRequest
    INCREMENTAL_ALTER_CONFIGS = 44, 0, 1, 1, configs.IncrementalAlterConfigsRequest
    ALTER_PARTITION_REASSIGNMENTS = 45, 0, 1, 0, cluster.AlterPartitionReassignmentsRequest
    LIST_PARTITION_REASSIGNMENTS = 46, 0, 0, 0, cluster.ListPartitionReassignmentsRequest
    OFFSET_DELETE = 47, 0, 0, None, group_offsets.OffsetDeleteRequest
    DESCRIBE_CLIENT_QUOTAS = 48, 0, 1, 1, quotas.DescribeClientQuotasRequest
    ALTER_CLIENT_QUOTAS = 49, 0, 1, 1, quotas.AlterClientQuotasRequest
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0, 0, 0, scram.DescribeUserScramCredentialsRequest
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0, 0, 0, scram.AlterUserScramCredentialsRequest
    DESCRIBE_QUORUM = 55, 0, 2, 0, cluster.DescribeQuorumRequest
    UPDATE_FEATURES = 57, 0, 2, 0, cluster.UpdateFeaturesRequest
    DESCRIBE_CLUSTER = 60, 0, 2, 0, metadata.DescribeClusterRequest
    DESCRIBE_PRODUCERS = 61, 0, 0, 0, transactions.DescribeProducersRequest
    UNREGISTER_BROKER = 64, 0, 0, 0, cluster.UnregisterBrokerRequest
    DESCRIBE_TRANSACTIONS = 65, 0, 0, 0, transactions.DescribeTransactionsRequest
    LIST_TRANSACTIONS = 66, 0, 2, 0, transactions.ListTransactionsRequest
    CONSUMER_GROUP_HEARTBEAT = 68, 0, 1, 0, groups.ConsumerGroupHeartbeatRequest
    CONSUMER_GROUP_DESCRIBE = 69, 0, 1, 0, groups.ConsumerGroupDescribeRequest
    GET_TELEMETRY_SUBSCRIPTIONS = 71, 0, 0, 0, telemetry.GetTelemetrySubscriptionsRequest
    PUSH_TELEMETRY = 72, 0, 0, 0, telemetry.PushTelemetryRequest
    LIST_CONFIG_RESOURCES = 74, 0, 1, 0, configs.ListConfigResourcesRequest
    DESCRIBE_TOPIC_PARTITIONS = 75, 0, 0, 0, metadata.DescribeTopicPartitionsRequest
    SHARE_GROUP_HEARTBEAT = 76, 1, 1, 0, share.ShareGroupHeartbeatRequest
    SHARE_GROUP_DESCRIBE = 77, 1, 1, 0, share.ShareGroupDescribeRequest
    SHARE_FETCH = 78, 1, 2, 0, share.ShareFetchRequest
    SHARE_ACKNOWLEDGE = 79, 1, 2, 0, share.ShareAcknowledgeRequest
    ADD_RAFT_VOTER = 80, 0, 1, 0, cluster.AddRaftVoterRequest
    REMOVE_RAFT_VOTER = 81, 0, 0, 0, cluster.RemoveRaftVoterRequest
    INITIALIZE_SHARE_GROUP_STATE = 83, 0, 0, 0, share_state.InitializeShareGroupStateRequest
    READ_SHARE_GROUP_STATE = 84, 0, 0, 0, share_state.ReadShareGroupStateRequest
    WRITE_SHARE_GROUP_STATE = 85, 0, 1, 0, share_state.WriteShareGroupStateRequest
    DELETE_SHARE_GROUP_STATE = 86, 0, 0, 0, share_state.DeleteShareGroupStateRequest
    READ_SHARE_GROUP_STATE_SUMMARY = 87, 0, 1, 0, share_state.ReadShareGroupStateSummaryRequest
    STREAMS_GROUP_HEARTBEAT = 88, 0, 1, 0, streams.StreamsGroupHeartbeatRequest
    STREAMS_GROUP_DESCRIBE = 89, 0, 1, 0, streams.StreamsGroupDescribeRequest
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, 0, 1, 0, share.DescribeShareGroupOffsetsRequest
    ALTER_SHARE_GROUP_OFFSETS = 91, 0, 0, 0, share.AlterShareGroupOffsetsRequest
    DELETE_SHARE_GROUP_OFFSETS = 92, 0, 0, 0, share.DeleteShareGroupOffsetsRequest
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = (
        93,
        0,
        0,
        0,
        streams.StreamsGroupTopologyDescriptionUpdateRequest,
    )
    UNREGISTER_CONTROLLER = 94, 0, 0, 0, cluster.UnregisterControllerRequest
    REWIND_GROUP = 20_001, 0, 0, 0, rewinds.RewindGroupRequest
    EXPLAIN_GROUP = 20_002, 1, 1, 0, diagnostics.ExplainGroupRequest
    EXPLAIN_TOPIC = 20_003, 0, 2, 0, diagnostics.ExplainTopicRequest
    DESCRIBE_LAG = 20_004, 0, 0, 0, diagnostics.DescribeLagRequest
    DESCRIBE_REWINDS = 20_005, 0, 0, 0, rewinds.DescribeRewindsRequest
    ALTER_SNAPSHOT = 20_006, 0, 0, 0, rewinds.AlterSnapshotRequest
    RELOAD_SHARE_STATE = 20_007, 0, 0, 0, rewinds.ReloadShareStateRequest
    DESCRIBE_CONFIG_SOURCES = 20_008, 0, 0, 0, configs.DescribeConfigSourcesRequest
    DESCRIBE_CLIENTS = 20_009, 0, 0, 0, clients.DescribeClientsRequest
    TRACE_REQUESTS = 20_010, 0, 0, 0, traces.TraceRequestsRequest


PRIVATE_KEY_MIN: Final = 20_001
"""The smallest key of a private API."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API, served in the versions `[min_version, max_version]`, both included.

    Versions from `flexible_since` on have compact lengths, tagged fields and newer headers
    (KIP-482); None if there is no such version.
    """

    key: ApiKey
    min_version: int
    max_version: int
    flexible_since: int | None
    request: type

    @property
    def response(self) -> type:
        """The class that the request names in its base: `Request["ProduceResponse"]`."""
        base = self.request.__dict__["__orig_bases__"][-1]
        [name] = get_args(base)
        return cast("type", getattr(sys.modules[self.request.__module__], name.__forward_arg__))

    @property
    def name(self) -> str:
        """Kafka's name of the API, as in `OffsetForLeaderEpoch`."""
        return self.request.__name__.removesuffix("Request")

    @property
    def is_private(self) -> bool:
        """Whether Kafka does not have this API."""
        return self.key >= PRIVATE_KEY_MIN

    def is_flexible(self, version: int) -> bool:
        """Whether `version` has compact lengths and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since

    def request_header_version(self, version: int) -> int:
        """2 for flexible versions, else 1. Newer versions than those served are flexible too."""
        return 2 if self.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """1 for flexible versions, else 0. For ApiVersions always 0: a client must be able to read
        the response before it knows the versions of the broker (KIP-511)."""
        return 1 if self.is_flexible(version) and self.key is not ApiKey.API_VERSIONS else 0


APIS: Final[Mapping[int, Api]] = MappingProxyType({int(key): Api(key, *key.row) for key in ApiKey})
