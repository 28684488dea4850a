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
from typing import Final, cast, get_args

from odradek.protocol.messages import (
    acls,
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
    share,
    share_state,
    streams,
    telemetry,
    tokens,
    topics,
    transactions,
)


class ApiKey(IntEnum):
    """The first field of every request header."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94
    REWIND_GROUP = 20_001
    EXPLAIN_GROUP = 20_002
    EXPLAIN_TOPIC = 20_003
    DESCRIBE_LAG = 20_004
    DESCRIBE_REWINDS = 20_005
    ALTER_SNAPSHOT = 20_006
    RELOAD_SHARE_STATE = 20_007


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


# One row for each API: the versions served, the first flexible one, and the request.
# fmt: off
_TABLE: Final = (
    Api(ApiKey.PRODUCE, 0, 13, 9, produce.ProduceRequest),
    Api(ApiKey.FETCH, 0, 18, 12, fetch.FetchRequest),
    Api(ApiKey.LIST_OFFSETS, 0, 11, 6, offsets.ListOffsetsRequest),
    Api(ApiKey.METADATA, 0, 13, 9, metadata.MetadataRequest),
    Api(ApiKey.OFFSET_COMMIT, 0, 10, 8, group_offsets.OffsetCommitRequest),
    Api(ApiKey.OFFSET_FETCH, 0, 10, 6, group_offsets.OffsetFetchRequest),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, 3, groups.FindCoordinatorRequest),
    Api(ApiKey.JOIN_GROUP, 0, 9, 6, groups.JoinGroupRequest),
    Api(ApiKey.HEARTBEAT, 0, 4, 4, groups.HeartbeatRequest),
    Api(ApiKey.LEAVE_GROUP, 0, 5, 4, groups.LeaveGroupRequest),
    Api(ApiKey.SYNC_GROUP, 0, 5, 4, groups.SyncGroupRequest),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5, groups.DescribeGroupsRequest),
    Api(ApiKey.LIST_GROUPS, 0, 5, 3, groups.ListGroupsRequest),
    Api(ApiKey.SASL_HANDSHAKE, 0, 1, None, sasl.SaslHandshakeRequest),
    Api(ApiKey.API_VERSIONS, 0, 5, 3, metadata.ApiVersionsRequest),
    Api(ApiKey.CREATE_TOPICS, 0, 7, 5, topics.CreateTopicsRequest),
    Api(ApiKey.DELETE_TOPICS, 0, 6, 4, topics.DeleteTopicsRequest),
    Api(ApiKey.DELETE_RECORDS, 0, 2, 2, offsets.DeleteRecordsRequest),
    Api(ApiKey.INIT_PRODUCER_ID, 0, 5, 2, transactions.InitProducerIdRequest),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, 4, offsets.OffsetForLeaderEpochRequest),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3, transactions.AddPartitionsToTxnRequest),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, transactions.AddOffsetsToTxnRequest),
    Api(ApiKey.END_TXN, 0, 5, 3, transactions.EndTxnRequest),
    Api(ApiKey.WRITE_TXN_MARKERS, 0, 2, 1, transactions.WriteTxnMarkersRequest),
    Api(ApiKey.TXN_OFFSET_COMMIT, 0, 6, 3, transactions.TxnOffsetCommitRequest),
    Api(ApiKey.DESCRIBE_ACLS, 0, 3, 2, acls.DescribeAclsRequest),
    Api(ApiKey.CREATE_ACLS, 0, 3, 2, acls.CreateAclsRequest),
    Api(ApiKey.DELETE_ACLS, 0, 3, 2, acls.DeleteAclsRequest),
    Api(ApiKey.DESCRIBE_CONFIGS, 0, 4, 4, configs.DescribeConfigsRequest),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, 2, configs.AlterConfigsRequest),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2, 2, cluster.AlterReplicaLogDirsRequest),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 0, 5, 2, cluster.DescribeLogDirsRequest),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2, sasl.SaslAuthenticateRequest),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, 2, topics.CreatePartitionsRequest),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, 0, 3, 2, tokens.CreateDelegationTokenRequest),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, 0, 2, 2, tokens.RenewDelegationTokenRequest),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 0, 2, 2, tokens.ExpireDelegationTokenRequest),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 0, 3, 2, tokens.DescribeDelegationTokenRequest),
    Api(ApiKey.DELETE_GROUPS, 0, 3, 2, groups.DeleteGroupsRequest),
    Api(ApiKey.ELECT_LEADERS, 0, 2, 2, cluster.ElectLeadersRequest),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1, configs.IncrementalAlterConfigsRequest),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0, cluster.AlterPartitionReassignmentsRequest),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0, cluster.ListPartitionReassignmentsRequest),
    Api(ApiKey.OFFSET_DELETE, 0, 0, None, group_offsets.OffsetDeleteRequest),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1, quotas.DescribeClientQuotasRequest),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1, quotas.AlterClientQuotasRequest),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0,
        quotas.DescribeUserScramCredentialsRequest),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0, quotas.AlterUserScramCredentialsRequest),
    Api(ApiKey.DESCRIBE_QUORUM, 0, 2, 0, cluster.DescribeQuorumRequest),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, 0, cluster.UpdateFeaturesRequest),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0, metadata.DescribeClusterRequest),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0, transactions.DescribeProducersRequest),
    Api(ApiKey.UNREGISTER_BROKER, 0, 0, 0, cluster.UnregisterBrokerRequest),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0, transactions.DescribeTransactionsRequest),
    Api(ApiKey.LIST_TRANSACTIONS, 0, 2, 0, transactions.ListTransactionsRequest),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0, groups.ConsumerGroupHeartbeatRequest),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0, groups.ConsumerGroupDescribeRequest),
    Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, 0, telemetry.GetTelemetrySubscriptionsRequest),
    Api(ApiKey.PUSH_TELEMETRY, 0, 0, 0, telemetry.PushTelemetryRequest),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0, configs.ListConfigResourcesRequest),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0, metadata.DescribeTopicPartitionsRequest),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 0, share.ShareGroupHeartbeatRequest),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, 0, share.ShareGroupDescribeRequest),
    Api(ApiKey.SHARE_FETCH, 1, 2, 0, share.ShareFetchRequest),
    Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, 0, share.ShareAcknowledgeRequest),
    Api(ApiKey.ADD_RAFT_VOTER, 0, 1, 0, cluster.AddRaftVoterRequest),
    Api(ApiKey.REMOVE_RAFT_VOTER, 0, 0, 0, cluster.RemoveRaftVoterRequest),
    Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, 0, share_state.InitializeShareGroupStateRequest),
    Api(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, 0, share_state.ReadShareGroupStateRequest),
    Api(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, 0, share_state.WriteShareGroupStateRequest),
    Api(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, 0, share_state.DeleteShareGroupStateRequest),
    Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, 0,
        share_state.ReadShareGroupStateSummaryRequest),
    Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, 0, streams.StreamsGroupHeartbeatRequest),
    Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 1, 0, streams.StreamsGroupDescribeRequest),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, 0, share.DescribeShareGroupOffsetsRequest),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, 0, share.AlterShareGroupOffsetsRequest),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, 0, share.DeleteShareGroupOffsetsRequest),
    Api(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, 0, 0,
        streams.StreamsGroupTopologyDescriptionUpdateRequest),
    Api(ApiKey.UNREGISTER_CONTROLLER, 0, 0, 0, cluster.UnregisterControllerRequest),
    Api(ApiKey.REWIND_GROUP, 0, 0, 0, rewinds.RewindGroupRequest),
    Api(ApiKey.EXPLAIN_GROUP, 1, 1, 0, diagnostics.ExplainGroupRequest),
    Api(ApiKey.EXPLAIN_TOPIC, 0, 0, 0, diagnostics.ExplainTopicRequest),
    Api(ApiKey.DESCRIBE_LAG, 0, 0, 0, diagnostics.DescribeLagRequest),
    Api(ApiKey.DESCRIBE_REWINDS, 0, 0, 0, rewinds.DescribeRewindsRequest),
    Api(ApiKey.ALTER_SNAPSHOT, 0, 0, 0, rewinds.AlterSnapshotRequest),
    Api(ApiKey.RELOAD_SHARE_STATE, 0, 0, 0, rewinds.ReloadShareStateRequest),
)
# fmt: on

APIS: Final[Mapping[int, Api]] = MappingProxyType({int(api.key): api for api in _TABLE})
