"""Replication in a worker (Kafka's ReplicaManager): leaders, followers, and delayed answers.

Called by the loop of process.py between turns, for partitions with more than one replica. The rules
are in cluster/replication. This module connects them to stores and sockets.

    receive      messages of other nodes; returns the batches that the turn appends
    after_turn   after appends: high watermarks, delayed answers, followers
    tick         timeouts, lagging replicas
    apply_image  a new image: leaders and leader epochs

A replica's high watermark moves in this order: LeaderPartition, status table, routers that watch,
answers to producers, followers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns

import zmq

from odradek.cluster.metadata.image import BrokerImage, MetadataImage, PartitionImage
from odradek.cluster.replication.delayed_deletes import CompletedDelete, DelayedDeletes
from odradek.cluster.replication.leader import (
    CompletedAppend,
    IsrProposal,
    LeaderEffects,
    LeaderPartition,
    possible_isr,
)
from odradek.cluster.replication.partition import PartitionReplica
from odradek.cluster.replication.throttle import TokenBudget
from odradek.node.bus.curve import KeyPair
from odradek.node.bus.messages import RecordsDeleted, RequestFailed
from odradek.node.bus.replica_link import ReplicaListener
from odradek.node.metrics.histogram import DurationHistogram
from odradek.node.structured_log import get_logger
from odradek.node.worker.hosted_partitions import (
    HostedPartitions,
    PartitionLocation,
    ReplicatedPartition,
)
from odradek.node.worker.replica_fetch_server import ReplicaFetchServer
from odradek.node.worker.replica_fetchers import ReplicaFetchers, ReplicaNetwork
from odradek.node.worker.turn_requests import (
    DelayedDeleteRecords,
    DelayedProduce,
    Request,
    RouterState,
)
from odradek.node.worker.turns import TurnExecutor
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NEVER
from odradek.storage.environment import StorageError
from odradek.storage.layout import store_folder
from odradek.storage.reader import StoreReader

log = get_logger(__name__)

TICK_MS = 100


class Replication:
    """See the module's docstring. `propose(proposals)` sends ISR changes to the controller; their
    results come to `on_proposal_result`. `relay(identity, payload)` passes requests of another
    node's router to this node's router; the responses come to `server.send_relayed_response`."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        partitions: HostedPartitions,
        turns: TurnExecutor,
        network: ReplicaNetwork,
        *,
        stores_folders: Sequence[Path],
        watch: "Callable[[zmq.Socket[bytes]], None]",
        propose: Callable[[Sequence[IsrProposal]], None],
        relay: Callable[[bytes, bytes], None] = lambda _identity, _payload: None,
        now_ms: int,
        open_reader: Callable[[Path], StoreReader] = StoreReader,
    ) -> None:
        self._partitions = partitions
        self._turns = turns
        self._node_id = network.node_id
        self._lag_max_ms = network.lag_max_ms
        self._propose = propose
        self._proposals: list[IsrProposal] = []
        self._delayed_since_ns: dict[int, int] = {}
        """By the identity of the appends that wait for followers."""
        self.wait_times = DurationHistogram()
        """How long they have waited."""
        self.isr_shrink_count = self.isr_expand_count = 0
        """Changes of the ISRs of partitions that were led here before and after."""
        self._leaders: dict[PartitionLocation, LeaderPartition[DelayedProduce]] = {}
        self._known_locations: set[PartitionLocation] = set()
        """Partitions that this process has led or followed: it knows their proposals."""
        self._waiting: set[PartitionLocation] = set()
        """Partitions with delayed answers."""
        self._deletions: dict[PartitionLocation, DelayedDeletes[DelayedDeleteRecords]] = {}
        self._alive: frozenset[int] = frozenset()
        """The brokers that are not fenced."""
        self._ineligible: set[int] = set()
        """The brokers that are fenced or shutting down: they may not join an ISR (KIP-903)."""
        self._now_ms = self._tick_ms = self._lag_check_ms = now_ms
        self._leader_budget = TokenBudget(now_ms)
        self._no_router = RouterState()
        self._brokers: Mapping[int, BrokerImage] = {}
        listener = None
        if network.listen is not None:
            listener = ReplicaListener(context, network.listen, network.keys)
            watch(listener.socket)
        self._keys = network.keys
        self.server = ReplicaFetchServer(
            listener,
            partitions,
            self._leaders,
            cluster_id=network.cluster_id,
            node_id=network.node_id,
            on_outcome=self._apply_outcome,
            on_log_start=self._on_follower_start,
            on_relay=relay,
            open_reader=lambda store: open_reader(store_folder(stores_folders, store)),
            budget=self._leader_budget,
        )
        self.fetchers = ReplicaFetchers(
            context,
            partitions,
            network,
            notify=turns.notify,
            watch=watch,
            budget=TokenBudget(now_ms),
        )

    @property
    def is_active(self) -> bool:
        """Whether any partition here has another replica."""
        return bool(self._partitions.replicated)

    @property
    def under_replicated_count(self) -> int:
        """Partitions led here with fewer in-sync replicas than replicas."""
        images = [leader.replica.image for leader in self._leaders.values()]
        return sum(len(image.in_sync_replicas) < len(image.replicas) for image in images)

    @property
    def under_min_isr_count(self) -> int:
        """Partitions led here with fewer in-sync replicas than min.insync.replicas."""
        replicas = [leader.replica for leader in self._leaders.values()]
        return sum(not each.has_enough_in_sync for each in replicas)

    def apply_image(self, image: MetadataImage, now_ms: int) -> None:
        """Apply what `HostedPartitions.apply_image` has changed."""
        self._alive = frozenset(
            broker.broker_id for broker in image.brokers.values() if not broker.is_fenced
        )
        self._update_ineligible(image, now_ms)
        changed = self._partitions.changed
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            changed.update(self.fetchers.misplaced())
        if not changed:
            return
        self._now_ms = now_ms
        for location in changed:
            replicated = self._partitions.replicated.get(location)
            if replicated is not None and replicated.image.leader == self._node_id:
                self._lead(location, replicated, now_ms)
            else:
                self._resign(location)
            self._known_locations.add(location)
            self.server.recheck_early_followers(location, now_ms)
        self.fetchers.update(changed, image)
        changed.clear()
        self._send_messages(now_ms)

    def _update_ineligible(self, image: MetadataImage, now_ms: int) -> None:
        ineligible = {
            broker.broker_id
            for broker in image.brokers.values()
            if broker.is_fenced or broker.is_in_controlled_shutdown
        }
        if self._ineligible - ineligible:
            # A broker that is eligible again may have caught up already.
            self._lag_check_ms = now_ms
        self._ineligible.clear()
        self._ineligible |= ineligible

    def relocate(self, old: PartitionLocation, new: PartitionLocation) -> None:
        """A replica has been moved to another log directory. `apply_image` must follow. Answers
        that wait for followers go on waiting; followers subscribe again."""
        leader, deletions = self._leaders.pop(old, None), self._deletions.pop(old, None)
        if leader is not None:
            self._leaders[new] = leader
        if deletions is not None:
            self._deletions[new] = deletions
        for locations in (self._waiting, self._known_locations):
            if old in locations:
                locations.remove(old)
                locations.add(new)
        self.server.stop_leading(old)

    def receive(self, now_ms: int) -> list[tuple[RouterState, Request]]:
        """Receive from other nodes. Returns the batches that the next turn must append.
        `after_turn` must follow, even if there are none."""
        self._now_ms = now_ms
        self.server.receive(now_ms)
        return [(self._no_router, append) for append in self.fetchers.receive(now_ms)]

    def after_turn(self, now_ms: int) -> None:
        """A turn has ended."""
        self._now_ms = now_ms
        turns = self._turns
        if turns.grown:
            grown, turns.grown = turns.grown, set()
            for location in grown:
                leader = self._leaders.get(location)
                if leader is not None:
                    end = self._partitions.log(location).log_end_offset
                    self._apply_outcome(location, leader.log_appended(end))
            self.server.grown(grown)
        for delayed in turns.delayed_produces:
            self._delay(delayed, now_ms)
        turns.delayed_produces.clear()
        self._send_log_starts(now_ms)
        for deletion in turns.delayed_deletes:
            self._wait_for_followers(deletion, now_ms)
        turns.delayed_deletes.clear()
        self.fetchers.after_turn(now_ms)
        self._send_messages(now_ms)

    def tick(self, now_ms: int) -> None:
        """Run what is due."""
        if now_ms < min(self._tick_ms, self._lag_check_ms):
            return
        self._now_ms = now_ms
        self._tick_ms = now_ms + TICK_MS
        locations: Iterable[PartitionLocation] = list(self._waiting)
        if now_ms >= self._lag_check_ms:
            self._lag_check_ms = now_ms + min(self._lag_max_ms // 2, 1_000)
            locations = list(self._leaders)
            self.server.release_dropped_segments()
        for location in locations:
            leader = self._leaders[location]
            self._apply_outcome(location, leader.tick(now_ms))
        for location, deletions in list(self._deletions.items()):
            # The last replica that was waited for may be fenced now.
            self._settle_deletions(location)
            self._answer_deletions(
                location, deletions.expired(now_ms, self._low_watermark(location))
            )
        self._send_proposals()

    def next_ms(self, now_ms: int) -> int:
        """When `tick` must be called next."""
        if not self.is_active:
            return NEVER
        is_waited_for = self._waiting or self._deletions
        due = self._tick_ms if is_waited_for else self._lag_check_ms
        return min(due, self.fetchers.next_ms(now_ms), self.server.next_ms(now_ms))

    def on_proposal_result(self, proposal: IsrProposal, code: ErrorCode, now_ms: int) -> None:
        """The controller's result for a proposal, or REQUEST_TIMED_OUT."""
        for leader in self._leaders.values():
            if leader.pending == proposal:
                leader.on_proposal_response(proposal, code, now_ms)

    def change_keys(
        self, keys: tuple[KeyPair, ...]
    ) -> tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"] | None:
        """Use these keys between nodes. If another socket listens now: the former one, which is
        closed, and the new one."""
        if keys == self._keys:
            return None
        self._keys = keys
        self.fetchers.change_keys(keys)
        return self.server.change_keys(keys)

    def set_lag_max_ms(self, lag_max_ms: int) -> None:
        """Use this value of replica.lag.time.max.ms."""
        if lag_max_ms != self._lag_max_ms:
            self._lag_max_ms = lag_max_ms
            self._lag_check_ms = self._now_ms
            for leader in self._leaders.values():
                leader.lag_max_ms = lag_max_ms

    def close(self) -> None:
        """Close the sockets."""
        self.server.close()
        self.fetchers.close()

    # -- leading -----------------------------------------------------------------------------------

    def _lead(
        self, location: PartitionLocation, replicated: ReplicatedPartition, now_ms: int
    ) -> None:
        state = self._partitions.log(location)
        epoch = replicated.image.leader_epoch
        epoch_start = next(
            (start for known, start in state.epochs.entries if known == epoch), state.log_end_offset
        )
        if replicated.leader_throttle_rate is not None:
            self._leader_budget.rate = replicated.leader_throttle_rate
        leader = self._leaders.get(location)
        if leader is not None:
            has_new_epoch = leader.replica.image.leader_epoch != epoch
            self._count_isr_change(leader.replica.image, replicated.image)
            outcome = leader.update(
                replicated.image,
                min_insync_replicas=replicated.min_insync_replicas,
                epoch_start_offset=epoch_start,
                now_ms=now_ms,
            )
            self._apply_outcome(location, outcome)
            if has_new_epoch:
                self.server.stop_leading(location)
            return
        replica = PartitionReplica(
            self._node_id,
            replicated.image,
            min_insync_replicas=replicated.min_insync_replicas,
            log_end_offset=state.log_end_offset,
            high_watermark=state.high_watermark,
            proposed=() if location in self._known_locations else possible_isr(replicated.image),
        )
        self._leaders[location] = LeaderPartition(
            replica,
            replicated.topic_id,
            replicated.partition,
            epoch_start_offset=epoch_start,
            now_ms=now_ms,
            lag_max_ms=self._lag_max_ms,
            ineligible=self._ineligible,
        )
        self._apply_outcome(location, self._leaders[location].tick(now_ms))
        if replica.high_watermark > state.high_watermark:
            self._apply_outcome(location, LeaderEffects(has_high_watermark_moved=True))

    def _count_isr_change(self, old: PartitionImage, new: PartitionImage) -> None:
        before, after = set(old.in_sync_replicas), set(new.in_sync_replicas)
        self.isr_shrink_count += bool(before - after)
        self.isr_expand_count += bool(after - before)

    def _resign(self, location: PartitionLocation) -> None:
        leader = self._leaders.pop(location, None)
        if leader is not None:
            self._waiting.discard(location)
            self._release(leader.resign())
            deletions = self._deletions.get(location)
            if deletions is not None:
                self._answer_deletions(location, deletions.resigned())
            self.server.stop_leading(location)

    def _apply_outcome(
        self, location: PartitionLocation, outcome: LeaderEffects[DelayedProduce]
    ) -> None:
        """Apply the outcome of an event to a partition led here."""
        leader = self._leaders[location]
        if self._turns.traces.open:
            self._turns.traces.note_followers(location, leader.replica.end_of)
        if outcome.has_high_watermark_moved:
            store, number = location
            self._partitions.stores[store].set_high_watermark(number, leader.high_watermark)
            self._turns.notify(store, (number,))
        if outcome.released:
            self._release(outcome.released)
            if not leader.has_delayed:
                self._waiting.discard(location)
        if outcome.has_high_watermark_moved:
            self.server.moved(location, self._now_ms)
        if outcome.proposal is not None:
            self._proposals.append(outcome.proposal)

    def _delay(self, delayed: DelayedProduce, now_ms: int) -> None:
        location = delayed.store, delayed.number
        leader = self._leaders.get(location)
        if leader is None:
            code: ErrorCode | None = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            code = leader.delay(delayed, delayed.end_offset, now_ms + delayed.timeout_ms)
        if code is None:
            self._waiting.add(location)
            self._delayed_since_ns[id(delayed)] = perf_counter_ns()
            if leader is not None and self._turns.traces.open:
                followers = set(leader.replica.image.in_sync_replicas) - {self._node_id}
                self._turns.traces.wait_for_followers(
                    delayed.router,
                    delayed.reply.request_id,
                    location,
                    delayed.end_offset,
                    followers,
                )
        else:
            self._release((CompletedAppend(delayed, code),))

    def _release(self, released: Iterable[CompletedAppend[DelayedProduce]]) -> None:
        now_ns = perf_counter_ns()
        for delayed, code in released:
            since_ns = self._delayed_since_ns.pop(id(delayed), 0)
            if since_ns:
                self.wait_times.observe(now_ns - since_ns)
            reply = delayed.reply
            delayed.router.replies.append(
                reply if not code else RequestFailed(reply.request_id, code)
            )

    # -- deleting ----------------------------------------------------------------------------------

    def _send_log_starts(self, now_ms: int) -> None:
        """Send followers the log starts that deletion or retention moved."""
        for index, store in self._partitions.stores.items():
            for number in store.log_starts.take_moved():
                if (index, number) in self._leaders:
                    self.server.moved((index, number), now_ms)

    def _wait_for_followers(self, deletion: DelayedDeleteRecords, now_ms: int) -> None:
        request = deletion.request
        location = request.store, request.number
        deletions = self._deletions.setdefault(location, DelayedDeletes())
        deletions.park(deletion, deletion.offset, now_ms + max(0, request.timeout_ms))
        if location in self._leaders:
            self._settle_deletions(location)
        else:
            self._answer_deletions(location, deletions.resigned())

    def _on_follower_start(
        self, location: PartitionLocation, broker_id: int, log_start_offset: int
    ) -> None:
        """A follower reported its log start. If it is in sync and its log start is larger, it is
        that of an earlier leader. Then it is taken over."""
        leader = self._leaders[location]
        leader.log_start_changed(broker_id, log_start_offset)
        store, number = location
        start = min(log_start_offset, leader.high_watermark)
        is_ahead = start > self._partitions.log(location).log_start_offset
        if is_ahead and broker_id in leader.replica.image.in_sync_replicas:
            try:
                self._partitions.stores[store].log_starts.move({number: start})
            except StorageError as error:
                log.warning(
                    "a log start offset cannot be moved to a former leader's", reason=str(error)
                )
        if location in self._deletions:
            self._settle_deletions(location)

    def _low_watermark(self, location: PartitionLocation) -> int:
        state = self._partitions.log(location)
        return self._leaders[location].low_watermark(state.log_start_offset, self._alive)

    def _settle_deletions(self, location: PartitionLocation) -> None:
        self._answer_deletions(
            location, self._deletions[location].reached(self._low_watermark(location))
        )

    def _answer_deletions(
        self, location: PartitionLocation, done: Iterable[CompletedDelete[DelayedDeleteRecords]]
    ) -> None:
        for deletion, code, low_watermark in done:
            answer = RecordsDeleted(
                deletion.request.request_id, code, low_watermark, deletion.work_ns
            )
            deletion.router.replies.append(answer)
        if location in self._deletions and not self._deletions[location]:
            del self._deletions[location]

    def _send_messages(self, now_ms: int) -> None:
        """Send what is due: responses to followers, fetches to leaders, proposals."""
        self.server.answer(now_ms)
        self.fetchers.send_requests(now_ms)
        self._send_proposals()

    def _send_proposals(self) -> None:
        if self._proposals:
            proposals, self._proposals = self._proposals, []
            self._propose(proposals)
