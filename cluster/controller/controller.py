"""The controller: from a command and the metadata to the records that carry the command out.

    command ──handle──> records + reply        records ──replay──> next state
    time    ──tick────> records

                        (decides, changes nothing)           (changes, decides nothing)

The driver writes the records as one entry of the metadata log, replays them here, and sends the
reply when the entry is committed. It replays them before it hands in the next command, which
therefore sees their effect. Pure: fresh ids come with the command, the time is an argument. Called
by the controller process only.

A controller of a cluster also needs `activate` when it becomes the active one, and from then on
`tick` by `next_deadline_ms`: it fences brokers whose sessions have expired, rebalances preferred
leaders, adds the replicas that internal topics lack, and removes expired delegation tokens. The
sessions are soft state, in no image and no log (`broker_sessions`).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, assert_never

from odradek.cluster.controller.acls import create_acls, delete_acls
from odradek.cluster.controller.brokers import (
    allocate_producer_ids,
    check_broker_epoch,
    fence_stale_brokers,
    heartbeat,
    register_broker,
    unregister_broker,
)
from odradek.cluster.controller.client_quotas import alter_client_quotas
from odradek.cluster.controller.commands import (
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    AlterPartition,
    AlterPartitionReassignments,
    AlterScramCredentials,
    AssignReplicasToDirs,
    BrokerHeartbeat,
    CreateAcls,
    CreateDelegationToken,
    CreatePartitions,
    CreateTopics,
    DeleteAcls,
    DeleteTopics,
    ElectLeaders,
    ExpireDelegationToken,
    IncrementalAlterConfigs,
    MetadataCommand,
    RegisterBroker,
    RenewDelegationToken,
    ResignReplicas,
    UnregisterBroker,
    UpdateFeatures,
)
from odradek.cluster.controller.configs import alter_configs, incremental_alter_configs
from odradek.cluster.controller.delegation_tokens import (
    REMOVALS_MAX,
    check_interval_ms,
    create_delegation_token,
    expire_delegation_token,
    remove_expired_tokens,
    renew_delegation_token,
)
from odradek.cluster.controller.elections import (
    REBALANCED_PARTITIONS_MAX,
    elect_leaders,
    preferred_elections,
)
from odradek.cluster.controller.features import finalize_security, update_features
from odradek.cluster.controller.in_sync_replicas import alter_partition, resign_replicas
from odradek.cluster.controller.internal_topics import CHECK_INTERVAL_MS as INTERNAL_TOPICS_CHECK_MS
from odradek.cluster.controller.internal_topics import raise_replication_factors
from odradek.cluster.controller.log_directories import assign_replicas, place_in_directories
from odradek.cluster.controller.mutation_quotas import MutationBuckets, MutationQuota
from odradek.cluster.controller.reassignment import alter_reassignments
from odradek.cluster.controller.scram_credentials import alter_scram_credentials
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.controller.topics import create_partitions, create_topics, delete_topics
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import Record

_CREATING: Final = (CreateTopics, CreatePartitions, AlterPartitionReassignments, AlterPartition)
"""The commands that create and remove replicas."""
_SECURING: Final = (
    *(CreateAcls, DeleteAcls, AlterClientQuotas, AlterScramCredentials),
    *(CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken),
)
"""The commands whose records a release without security does not know."""
_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


class Controller:
    """Carries out commands on one image. `node_id` and `static` are those of its node."""

    def __init__(
        self, image: MetadataImage, *, node_id: int = 0, static: Mapping[str, str] = _NO_CONFIGS
    ) -> None:
        self._state = ControllerState(image, node_id=node_id, static=static)
        self._mutation_buckets = MutationBuckets()
        self._next_rebalance_ms: int | None = None
        self._next_internal_topics_ms: int | None = None
        self._token_check_ms: int | None = None

    def set_static(self, static: Mapping[str, str]) -> None:
        """The configuration of this controller's own node has changed."""
        self._state.static = static

    @property
    def image(self) -> MetadataImage:
        """The state that the next command will see."""
        return self._state.image

    def handle(self, command: MetadataCommand, now_ms: int) -> ControllerResult:
        """The records and the reply of a command; the state does not change. ApiError if it fails
        as a whole."""
        result = self._decide(command, now_ms)
        if isinstance(command, _CREATING):
            records = place_in_directories(self._state, result.records)
        elif isinstance(command, _SECURING):
            records = tuple(finalize_security(self._state, result.records))
        else:
            return result
        return ControllerResult(records, result.reply)

    def _decide(self, command: MetadataCommand, now_ms: int) -> ControllerResult:
        state = self._state
        match command:
            case CreateTopics():
                return create_topics(state, command, self._quota(command, now_ms))
            case DeleteTopics():
                return delete_topics(state, command, self._quota(command, now_ms))
            case CreatePartitions():
                return create_partitions(state, command, self._quota(command, now_ms))
            case AlterConfigs():
                return alter_configs(state, command)
            case IncrementalAlterConfigs():
                return incremental_alter_configs(state, command)
            case AllocateProducerIds():
                return allocate_producer_ids(state, command)
            case RegisterBroker():
                return register_broker(state, command, now_ms)
            case BrokerHeartbeat():
                return heartbeat(state, command, now_ms)
            case UnregisterBroker():
                return unregister_broker(state, command)
            case AlterPartition():
                return alter_partition(state, command)
            case ResignReplicas():
                return resign_replicas(state, command)
            case AssignReplicasToDirs():
                broker = check_broker_epoch(state, command.broker_id, command.broker_epoch)
                return assign_replicas(state, broker, command)
            case ElectLeaders():
                return elect_leaders(state, command)
            case AlterPartitionReassignments():
                return alter_reassignments(state, command)
            case UpdateFeatures():
                return update_features(state, command)
            case AlterScramCredentials():
                return alter_scram_credentials(state, command)
            case AlterClientQuotas():
                return alter_client_quotas(state, command)
            case CreateAcls():
                return create_acls(state, command)
            case DeleteAcls():
                return delete_acls(state, command)
            case CreateDelegationToken():
                return create_delegation_token(state, command)
            case RenewDelegationToken():
                return renew_delegation_token(state, command)
            case ExpireDelegationToken():
                return expire_delegation_token(state, command)
            case _:
                assert_never(command)

    def _quota(
        self, command: CreateTopics | DeleteTopics | CreatePartitions, now_ms: int
    ) -> MutationQuota:
        return MutationQuota(self._state, self._mutation_buckets, command.client, now_ms)

    def activate(self, now_ms: int) -> None:
        """This has become the active controller: every active broker gets a new session.

        Fenced brokers get one with their next heartbeat. To be called for every new `Controller`
        that carries out commands, also for one that replaces another because replayed records
        were never written: the sessions of that one are lost.
        """
        state = self._state
        state.sessions.reset(
            (
                (broker.broker_id, broker.broker_epoch)
                for broker in state.image.brokers.values()
                if not broker.is_fenced
            ),
            now_ms,
        )
        self._next_rebalance_ms = now_ms + self._rebalance_interval_ms
        self._token_check_ms = now_ms
        if state.broker_settings.internal_topics_replication_adaptive:
            self._next_internal_topics_ms = now_ms + INTERNAL_TOPICS_CHECK_MS
        # Build the index now, so that the first death of a broker does not take longer.
        state.index.leaderless()

    def suspect(self, broker_id: int, since_ms: int) -> None:
        """A broker has probably died then: its session lasts half as long as without a
        heartbeat."""
        state = self._state
        timeout_ms = state.broker_settings.broker_session_timeout_ms
        state.sessions.suspect(broker_id, since_ms=since_ms, timeout_ms=timeout_ms)

    def tick(self, now_ms: int, wall_ms: int) -> tuple[Record, ...]:
        """The records that are due by now; to be written as one entry, if there are any. `wall_ms`
        is the time since the epoch, by which tokens expire.

        To be called by `next_deadline_ms` at the latest, after the commands that have arrived.
        """
        state = self._state
        records = fence_stale_brokers(state, now_ms)
        if records:
            # What else is due has to see the effect of these records first.
            return tuple(records)
        if self._next_internal_topics_ms is not None and now_ms >= self._next_internal_topics_ms:
            self._next_internal_topics_ms = now_ms + INTERNAL_TOPICS_CHECK_MS
            records = raise_replication_factors(state)
            if records:
                return place_in_directories(state, records)
        removals = self._expired_tokens(now_ms, wall_ms)
        if removals:
            return removals
        if self._next_rebalance_ms is not None and now_ms >= self._next_rebalance_ms:
            if state.broker_settings.auto_leader_rebalance_enable:
                records = preferred_elections(state)
            if len(records) < REBALANCED_PARTITIONS_MAX:
                self._next_rebalance_ms = now_ms + self._rebalance_interval_ms
        return tuple(records)

    def next_deadline_ms(self) -> int | None:
        """When `tick` is to be called next, or None if this controller was never active."""
        check_ms = self._state.sessions.next_check_ms(
            self._state.broker_settings.broker_session_timeout_ms
        )
        deadlines = (
            check_ms,
            self._next_rebalance_ms,
            self._next_internal_topics_ms,
            self._next_token_check_ms,
        )
        return min((due for due in deadlines if due is not None), default=None)

    def _expired_tokens(self, now_ms: int, wall_ms: int) -> tuple[Record, ...]:
        due_ms = self._next_token_check_ms
        if due_ms is None or now_ms < due_ms:
            return ()
        removals = remove_expired_tokens(self._state, wall_ms)
        if len(removals) < REMOVALS_MAX:
            self._token_check_ms = now_ms
        return tuple(removals)

    @property
    def _next_token_check_ms(self) -> int | None:
        """None if there is nothing to check."""
        if self._token_check_ms is None or not self._state.image.delegation_tokens:
            return None
        return self._token_check_ms + check_interval_ms(self._state)

    @property
    def _rebalance_interval_ms(self) -> int:
        return 1000 * self._state.broker_settings.leader_imbalance_check_interval_seconds

    def replay(self, records: Iterable[Record], offset: int) -> None:
        """Apply the entry of the log at `offset`."""
        self._state.replay(records, offset)
