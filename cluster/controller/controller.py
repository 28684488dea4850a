"""The controller: from a command and the metadata to the records that carry the command out.

    command ──handle──> records + reply        records ──replay──> next state
    time    ──tick────> records

                        (decides, changes nothing)           (changes, decides nothing)

The driver writes the records as one entry of the metadata log, replays them here, and sends the
reply when the entry is committed. It replays before it hands in the next command, so that every
command is decided upon the state the one before it left. Pure: fresh ids come with the command, the
time is an argument. Called by the controller's process and by nothing else.

A controller of several nodes also needs `activate` when it becomes the active one, and from then on
`tick` by `next_deadline_ms`: silent brokers are fenced, preferred leaders get the lead back. What
it knows of who is alive is soft state, see `sessions`: it is in no image and in no log.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, assert_never

from odradek.cluster.controller.brokers import (
    allocate_producer_ids,
    fence_stale_brokers,
    heartbeat,
    register_broker,
    unregister_broker,
)
from odradek.cluster.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartition,
    AlterPartitionReassignments,
    BrokerHeartbeat,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    IncrementalAlterConfigs,
    MetadataCommand,
    RegisterBroker,
    ResignReplicas,
    UnregisterBroker,
    UpdateFeatures,
)
from odradek.cluster.controller.configs import alter_configs, incremental_alter_configs
from odradek.cluster.controller.elections import (
    REBALANCED_PARTITIONS_MAX,
    elect_leaders,
    preferred_elections,
)
from odradek.cluster.controller.features import update_features
from odradek.cluster.controller.in_sync_replicas import alter_partition, resign_replicas
from odradek.cluster.controller.reassignment import alter_reassignments
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.controller.topics import create_partitions, create_topics, delete_topics
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import Record

_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})


class Controller:
    """The decisions on one image. `node_id` and `static` are those of the node it runs on."""

    def __init__(
        self, image: MetadataImage, *, node_id: int = 0, static: Mapping[str, str] = _NO_CONFIGS
    ) -> None:
        self._state = ControllerState(image, node_id=node_id, static=static)
        self._next_rebalance_ms: int | None = None

    @property
    def image(self) -> MetadataImage:
        """The state that the next command will be decided upon."""
        return self._state.image

    def handle(self, command: MetadataCommand, now_ms: int) -> ControllerResult:
        """Decide a command. Raises ApiError if it fails as a whole; the state stays as it is."""
        state = self._state
        match command:
            case CreateTopics():
                return create_topics(state, command)
            case DeleteTopics():
                return delete_topics(state, command)
            case CreatePartitions():
                return create_partitions(state, command)
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
            case ElectLeaders():
                return elect_leaders(state, command)
            case AlterPartitionReassignments():
                return alter_reassignments(state, command)
            case UpdateFeatures():
                return update_features(state, command)
            case _:
                assert_never(command)

    def activate(self, now_ms: int) -> None:
        """This has become the active controller: every broker that serves is given time anew.

        Fenced brokers are heard of when they send their next heartbeat. To be called for every
        new `Controller` that decides, also for one that was built because records that had been
        replayed were never written: what the last one had heard is not in this one.
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
        # Built now, the index does not make the first death take longer than the others.
        state.index.leaderless()

    def suspect(self, broker_id: int, since_ms: int) -> None:
        """A broker has probably died then: it is waited for half as long as one that is silent."""
        state = self._state
        timeout_ms = state.broker_settings.broker_session_timeout_ms
        state.sessions.suspect(broker_id, since_ms, timeout_ms)

    def tick(self, now_ms: int) -> tuple[Record, ...]:
        """What is to be done because time has passed; to be written as one entry, if anything.

        To be called by `next_deadline_ms` at the latest, after the commands that have arrived.
        """
        state = self._state
        records = fence_stale_brokers(state, now_ms)
        if records:
            # What else is due is decided upon what these records make of the state.
            return tuple(records)
        if self._next_rebalance_ms is not None and now_ms >= self._next_rebalance_ms:
            if state.broker_settings.auto_leader_rebalance_enable:
                records = preferred_elections(state)
            if len(records) < REBALANCED_PARTITIONS_MAX:
                self._next_rebalance_ms = now_ms + self._rebalance_interval_ms
        return tuple(records)

    def next_deadline_ms(self) -> int | None:
        """When `tick` is to be called next, or None if this controller has never led."""
        check_ms = self._state.sessions.next_check_ms(
            self._state.broker_settings.broker_session_timeout_ms
        )
        deadlines = [due for due in (check_ms, self._next_rebalance_ms) if due is not None]
        return min(deadlines, default=None)

    @property
    def _rebalance_interval_ms(self) -> int:
        return 1000 * self._state.broker_settings.leader_imbalance_check_interval_seconds

    def replay(self, records: Iterable[Record], offset: int) -> None:
        """Take in the entry of the log at `offset`."""
        self._state.replay(records, offset)
