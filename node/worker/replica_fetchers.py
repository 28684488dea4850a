"""Replica fetchers: fetch the partitions that other nodes lead, and append them here.

There is one link to each worker of another node that leads partitions of ours, and on it one fetch
session for each store (decided by cluster/replication/follower.py). Fetched batches are appended in
the worker's next turn with everything else; truncation happens between turns, for all partitions of
a response at once. The next request reports the new positions.

Order of duties: receive (truncate), the turn (append, commit), after_turn (report, watermarks),
send_requests.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import zmq

from odradek.cluster.metadata.image import NO_LEADER, MetadataImage
from odradek.cluster.replication.follower import (
    Divergence,
    FetchedPartition,
    FetchEffects,
    LeaderWatermarks,
    LogRestart,
    ReplicaFetchSession,
    truncation_offset,
)
from odradek.cluster.replication.leader import LAG_MAX_MS
from odradek.cluster.replication.messages import PAYLOAD_HEAD
from odradek.cluster.replication.throttle import TokenBudget
from odradek.node.bus.curve import KeyPair
from odradek.node.bus.replica_link import ReplicaLink
from odradek.node.structured_log import get_logger
from odradek.node.worker.hosted_partitions import HostedPartitions, PartitionLocation
from odradek.node.worker.turn_requests import ReplicaAppend
from odradek.protocol.types import NEVER
from odradek.storage.environment import StorageError
from odradek.storage.partition_log import PartitionLog

log = get_logger(__name__)

BATCHES_PER_TURN = 1_000
"""Fetched batches after which no more responses are received before a turn: about ten milliseconds,
however small they are."""

Addresses = Callable[[int, int], str | None]
"""Maps (node id, store) to the address of the worker with this store. None: not known."""


class ReplicaNetwork(NamedTuple):
    """A worker among the workers of other nodes. `listen` is its own address; with None it does not
    serve followers. Without keys nothing is encrypted: for tests."""

    cluster_id: str
    node_id: int
    identity: bytes
    listen: str | None
    addresses: Addresses
    keys: tuple[KeyPair, ...] = ()
    lag_max_ms: int = LAG_MAX_MS


@dataclass(slots=True, eq=False)
class _LeaderConnection:
    """The connection to one worker of another node."""

    link: ReplicaLink
    is_connected: bool = False
    sessions: dict[int, ReplicaFetchSession] = field(default_factory=dict)


class ReplicaFetchers:
    """The fetch sessions of one worker. `notify(store, numbers)` tells routers of new offsets;
    `watch(socket)` adds a socket to the worker's poller."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        partitions: HostedPartitions,
        network: ReplicaNetwork,
        *,
        notify: Callable[[int, Collection[int]], None],
        watch: "Callable[[zmq.Socket[bytes]], None]",
        budget: TokenBudget,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._network = network
        self._keys = network.keys
        self._node_id = network.node_id
        self._notify = notify
        self._watch = watch
        self._budget = budget
        self._broker_epoch = -1
        self._leaders: dict[str, _LeaderConnection] = {}
        self._followed: dict[PartitionLocation, tuple[ReplicaFetchSession, FetchedPartition]] = {}
        self._locations: dict[FetchedPartition, PartitionLocation] = {}
        self._appends: list[tuple[ReplicaFetchSession, FetchedPartition, ReplicaAppend]] = []
        self._watermarks: list[LeaderWatermarks] = []
        self.fetched_bytes = 0

    @property
    def lag(self) -> int:
        """Records by which the followers lag behind their leaders, as of the last responses."""
        return sum(max(0, f.leader_end - f.fetch_offset) for _, f in self._followed.values())

    def update(self, locations: Iterable[PartitionLocation], image: MetadataImage) -> None:
        """Fetch these partitions from their current leaders, or stop fetching them."""
        broker = image.brokers.get(self._node_id)
        self._broker_epoch = broker.broker_epoch if broker is not None else -1
        for leader in self._leaders.values():
            for session in leader.sessions.values():
                session.broker_epoch = self._broker_epoch
        for location in locations:
            replicated = self._partitions.replicated.get(location)
            current: ReplicaFetchSession | None = None
            if replicated is not None and replicated.image.leader not in (NO_LEADER, self._node_id):
                current = self._session(replicated.image.leader, location[0])
            former = self._followed.get(location)
            if former is not None and former[0] is not current:
                del self._followed[location]
                session, followed = former
                session.remove_partition(followed.topic_id, followed.partition)
                del self._locations[followed]
            if current is None or replicated is None:
                continue
            state = self._partitions.log(location)
            is_throttled = replicated.follower_throttle_rate is not None and (
                self._node_id not in replicated.image.in_sync_replicas
            )
            if is_throttled:
                self._budget.rate = replicated.follower_throttle_rate
            followed = current.add_partition(
                replicated.topic_id,
                replicated.partition,
                leader_epoch=replicated.image.leader_epoch,
                fetch_offset=state.log_end_offset,
                last_epoch=last_epoch(state),
                log_start_offset=state.log_start_offset,
                is_throttled=is_throttled,
            )
            before = self._followed.get(location)
            if before is not None and before[1] is not followed:
                del self._locations[before[1]]
            self._followed[location] = (current, followed)
            self._locations[followed] = location

    def misplaced(self) -> list[PartitionLocation]:
        """Partitions that are fetched from the wrong worker: the leader's node has other
        workers."""
        misplaced = []
        for location, (session, _) in self._followed.items():
            replicated = self._partitions.replicated.get(location)
            if replicated is None:
                continue
            address = self._network.addresses(replicated.image.leader, location[0])
            leader = self._leaders.get(address) if address is not None else None
            if leader is None or leader.sessions.get(location[0]) is not session:
                misplaced.append(location)
        return misplaced

    def receive(self, now_ms: int) -> list[ReplicaAppend]:
        """Receive responses, and truncate diverged logs. Returns the batches that the next turn
        must append. With many of them, not all responses are received yet."""
        batch_count = 0
        for address, leader in self._leaders.items():
            link = leader.link
            if link.take_connected():
                leader.is_connected = True
                for session in leader.sessions.values():
                    session.connected()
            for fetched, payload in link.responses():
                receiver = leader.sessions.get(fetched.store)
                if receiver is not None:
                    effects = receiver.handle_response(fetched, now_ms)
                    self._apply_effects(receiver, effects, payload, now_ms)
                batch_count += fetched.batch_count
                if batch_count >= BATCHES_PER_TURN:
                    # The other leaders come first the next time.
                    self._leaders[address] = self._leaders.pop(address)
                    return [append for _, _, append in self._appends]
        return [append for _, _, append in self._appends]

    def after_turn(self, now_ms: int) -> None:
        """The turn has appended the batches of `receive`."""
        if self._appends:
            appends, self._appends = self._appends, []
            for session, followed, append in appends:
                result = append.result
                if result is None or result.error_code:
                    if not followed.failures:
                        # A full disk fails all of them, many times a second.
                        log.warning(
                            "batches fetched from a leader cannot be appended", reason=str(result)
                        )
                    session.failed(followed, now_ms)
                    continue
                self.fetched_bytes += append.length
                self._report_position(session, followed)
        if self._watermarks:
            watermarks, self._watermarks = self._watermarks, []
            self._apply_watermarks(watermarks)

    def send_requests(self, now_ms: int) -> None:
        """Send the requests that are due."""
        for leader in self._leaders.values():
            for session in leader.sessions.values():
                request = session.next_request(now_ms)
                if request is not None and not leader.link.send(request):
                    leader.is_connected = False
                    session.disconnected()

    def next_ms(self, now_ms: int) -> int:
        """When `send_requests` must be called next."""
        return min(
            (
                session.next_ms(now_ms)
                for leader in self._leaders.values()
                for session in leader.sessions.values()
            ),
            default=NEVER,
        )

    def change_keys(self, keys: Sequence[KeyPair]) -> None:
        """Connect with these keys."""
        self._keys = tuple(keys)
        for leader in self._leaders.values():
            leader.link.change_keys(keys)

    def close(self) -> None:
        """Close the links."""
        for leader in self._leaders.values():
            leader.link.close()

    # -- answers -----------------------------------------------------------------------------------

    def _apply_effects(
        self,
        session: ReplicaFetchSession,
        effects: FetchEffects,
        payload: memoryview,
        now_ms: int,
    ) -> None:
        for followed, start, byte_count in effects.appends:
            store, number = self._locations[followed]
            append = ReplicaAppend(
                store, number, payload, start=PAYLOAD_HEAD + start, length=byte_count
            )
            self._appends.append((session, followed, append))
        if effects.divergences:
            self._truncate(session, effects.divergences, now_ms)
        for restart in effects.restarts:
            self._restart(session, restart, now_ms)
        self._watermarks += effects.watermarks

    def _truncate(
        self, session: ReplicaFetchSession, divergences: tuple[Divergence, ...], now_ms: int
    ) -> None:
        ends: dict[int, dict[int, int]] = {}
        for divergence in divergences:
            followed = divergence.followed
            store, number = self._locations[followed]
            state = self._partitions.log((store, number))
            own = state.epochs.end_offset(divergence.epoch, state.log_end_offset)
            end = truncation_offset(divergence, *own, state.log_end_offset)
            log.warning(
                "truncating a log: it diverges from its leader's",
                topic=state.topic_name,
                partition=state.partition,
                log_end_offset=state.log_end_offset,
                offset=end,
                leader_epoch=divergence.epoch,
                end_offset=divergence.end_offset,
            )
            ends.setdefault(store, {})[number] = end
        try:
            for store, numbers in ends.items():
                self._partitions.stores[store].truncate(numbers, now_ms)
        except StorageError as error:
            log.error("a log cannot be truncated", reason=str(error))
            for divergence in divergences:
                session.failed(divergence.followed, now_ms)
            return
        for divergence in divergences:
            self._report_position(session, divergence.followed)

    def _restart(self, session: ReplicaFetchSession, restart: LogRestart, now_ms: int) -> None:
        followed, start_offset = restart
        store, number = self._locations[followed]
        state = self._partitions.log((store, number))
        log.warning(
            "a log restarts at another offset: its leader has no record at the log end",
            topic=state.topic_name,
            partition=state.partition,
            offset=start_offset,
            log_end_offset=state.log_end_offset,
        )
        try:
            self._partitions.stores[store].truncate_fully_and_start_at(number, start_offset, now_ms)
        except StorageError as error:
            log.error(
                "a log cannot be restarted",
                topic=state.topic_name,
                partition=state.partition,
                reason=str(error),
            )
            session.failed(followed, now_ms)
            return
        self._report_position(session, followed)

    def _report_position(self, session: ReplicaFetchSession, followed: FetchedPartition) -> None:
        location = self._locations.get(followed)
        if location is not None:
            state = self._partitions.log(location)
            session.position_changed(followed, state.log_end_offset, last_epoch(state))
            session.log_start_changed(followed, state.log_start_offset)

    def _apply_watermarks(self, watermarks: list[LeaderWatermarks]) -> None:
        starts: dict[int, dict[int, int]] = {}
        moved: list[FetchedPartition] = []
        for followed, high_watermark, log_start_offset in watermarks:
            location = self._locations.get(followed)
            if location is None:
                continue
            state = self._partitions.log(location)
            store, number = location
            if min(high_watermark, state.log_end_offset) > state.high_watermark:
                self._partitions.stores[store].set_high_watermark(number, high_watermark)
                self._notify(store, (number,))
            start = min(log_start_offset, state.high_watermark)
            if start > state.log_start_offset:
                starts.setdefault(store, {})[number] = start
                moved.append(followed)
        for store, numbers in starts.items():
            try:
                self._partitions.stores[store].log_starts.move(numbers)
            except StorageError as error:
                log.warning(
                    "log start offsets cannot be moved to their leaders'", reason=str(error)
                )
        for followed in moved:
            location = self._locations[followed]
            self._followed[location][0].log_start_changed(
                followed, self._partitions.log(location).log_start_offset
            )

    # -- sessions -----------------------------------------------------------------------------

    def _session(self, node_id: int, store: int) -> ReplicaFetchSession | None:
        address = self._network.addresses(node_id, store)
        if address is None:
            log.warning("a node has not registered an address for replication", peer_node=node_id)
            return None
        leader = self._leaders.get(address)
        if leader is None:
            link = ReplicaLink(self._context, address, self._network.identity, self._keys)
            leader = self._leaders[address] = _LeaderConnection(link)
            self._watch(link.socket)
            self._watch(link.monitor)
        session = leader.sessions.get(store)
        if session is None:
            session = leader.sessions[store] = ReplicaFetchSession(
                cluster_id=self._network.cluster_id,
                broker_id=self._node_id,
                store=store,
                budget=self._budget,
            )
            session.broker_epoch = self._broker_epoch
            if leader.is_connected:
                session.connected()
        return session


def last_epoch(log: PartitionLog) -> int:
    """The leader epoch of a log's last record, -1 if the log is empty."""
    if log.log_end_offset <= log.log_start_offset:
        return -1
    return log.epochs.epoch_at(log.log_end_offset - 1)
