"""A worker: the process that owns stores and writes them. The composition root of the write path.

One thread, one loop, no event loop library: wait for requests, execute all that have arrived in
one turn (turns.py), send the replies, and between turns run a slice of the stores' tasks. Order of
steps in a turn: write, commit, publish in the status table, reply. Started as `python -m
node.worker.process CONFIG INDEX`.
"""

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from odradek.cluster.metadata.client_quotas import QuotaKey
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.settings import broker_settings
from odradek.cluster.replication.leader import IsrProposal
from odradek.node.bus.connection_handover import handover_path
from odradek.node.bus.curve import cluster_keys
from odradek.node.bus.endpoint import DealerLink, descriptor, drain, encode, ipc_address
from odradek.node.bus.messages import (
    CommandSubmitted,
    FromController,
    LivenessCheck,
    LivenessReply,
    MetadataApplied,
    MetadataRecords,
    MetadataSnapshot,
    ReplicaMoveBegun,
    SubscribeMetadata,
    ToController,
    WorkerLeaving,
)
from odradek.node.bus.metadata_feed import apply_metadata
from odradek.node.bus.replica_link import tcp_address, worker_address
from odradek.node.config import NodeConfig
from odradek.node.machine_defaults import compaction_keys_max, usable_processors
from odradek.node.metrics.histogram import DurationHistogram
from odradek.node.observability import ProcessReady, SupervisorLink
from odradek.node.storage_health import StorageHealth
from odradek.node.structured_log import configure_logging, finish_logging, get_logger
from odradek.node.worker.alter_partition_sender import AlterPartitionSender
from odradek.node.worker.handed_connections import EVENTS_MAX, HandedConnections
from odradek.node.worker.handed_fetches import HandedFetches
from odradek.node.worker.hosted_partitions import HostedPartitions, PartitionLocation
from odradek.node.worker.interpreter_settings import report_compilation, settle_interpreter
from odradek.node.worker.large_requests import room_bytes
from odradek.node.worker.moving_workers import MovingWorkers
from odradek.node.worker.partition_metrics import PartitionMetrics, register_disk_metrics
from odradek.node.worker.processor_settings import settle_processors
from odradek.node.worker.replica_fetchers import ReplicaNetwork
from odradek.node.worker.replica_moves import ReplicaMoves
from odradek.node.worker.replication import Replication
from odradek.node.worker.router_links import RouterLinks
from odradek.node.worker.storage_monitor import StorageMonitor
from odradek.node.worker.store_scheduler import StoreScheduler
from odradek.node.worker.turn_requests import Request, RouterState
from odradek.node.worker.turnaround_spin import TurnaroundSpin
from odradek.node.worker.turns import TurnExecutor
from odradek.node.worker.worker_metrics import (
    register_replication_metrics,
    register_storage_metrics,
)
from odradek.protocol.types import NEVER
from odradek.storage.container_limits import memory_limit_bytes
from odradek.storage.environment import StorageError
from odradek.storage.layout import store_folder
from odradek.storage.reader import StoreReader
from odradek.storage.settings import StoreOptions

# Its __name__ is "__main__".
log = get_logger("odradek.node.worker.process")

_IDLE_POLL_MS = 1_000
_RETRY_MS = 1_000
_MOVED_MS = 60_000
"""So long after a move requests for the former location may come."""
_FINISH_S = 0.05
"""How long a stopping worker still answers, until the routers know that it stops."""
_PREPARATION_S = 2.0
"""How long it waits in addition for batches whose records are being checked."""
_DUTIES_INTERVAL_S = 0.005
"""How often a busy worker looks for messages of the controller and of the supervisor, and runs a
slice of its stores' tasks, while one is due."""
_DUTIES_INTERVAL_MAX_S = 0.02
"""The same while no task is due."""


class WorkerProcess:
    """See the module's docstring."""

    def __init__(
        self,
        config: NodeConfig,
        index: int,
        supervisor: SupervisorLink,
        pin_offload_thread: Callable[[], None] | None,
        processors: int,
    ) -> None:
        self._config = config
        self._index = index
        self._supervisor = supervisor
        self._incarnation = time.time_ns()
        # Replication uses the wall clock at the start plus the monotonic clock, so that setting the
        # wall clock does not make replicas lag.
        self._clock_offset_ms = _now_ms() - _steady_ms()
        self._name = f"worker-{index}"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._decode_metadata = msgspec.msgpack.Decoder(list[FromController]).decode
        self._image = MetadataImage.empty()
        self._is_stopping = self._has_applied_image = self._is_ready = False
        self._retry_ms = NEVER
        self._moved_until_ms = 0
        settings = broker_settings(self._image, config.node_id, config.broker_configs)
        self._partitions = HostedPartitions(
            folders=config.stores_folders,
            directory_ids=[each.uuid for each in config.log_dirs],
            offline=[place for place, each in enumerate(config.log_dirs) if each.problem],
            worker=index,
            worker_count=config.worker_count,
            store_count=config.store_count,
            node_id=config.node_id,
            static_configs=config.broker_configs,
            options=StoreOptions(
                durability=config.durability,
                producer_id_expiration_ms=settings.producer_id_expiration_ms,
                retention_check_interval_ms=settings.log_retention_check_interval_ms,
                compaction_keys_max=compaction_keys_max(worker_count=config.worker_count),
            ),
            now_ms=_now_ms(),
        )
        self._store_scheduler = StoreScheduler(
            self._partitions.stores, _now_ms(), self._take_failure
        )
        self._routers = RouterLinks(
            self._context,
            config.run_folder,
            router_count=config.router_count,
            worker=index,
            incarnation=self._incarnation,
            worker_count=config.worker_count,
            processors=processors,
        )
        self._turns = TurnExecutor(self._partitions, self._routers.broadcast, pin_offload_thread)
        self._controller = DealerLink(
            self._context, ipc_address(config.run_folder, "controller"), self._name.encode()
        )
        self._health = StorageHealth(supervisor.send)
        self._monitor = StorageMonitor(self._partitions.stores, self._health, self._take_failure)
        self._proposals = AlterPartitionSender(config.node_id, self._send_to_controller)
        supervisor.on_configuration = self._on_configuration
        self._poller = zmq.Poller()
        self._descriptors = select.epoll()
        """Those of the poller's sockets. One that is readable means that the poller has to look: it
        is exact, and takes several times as long."""
        self._spin = TurnaroundSpin(self._routers.has_requests, processors)
        self._handed = HandedConnections(
            handover_path(config.run_folder, index),
            self._partitions.has_transaction,
            HandedFetches(self._open_reader, self._turns.awaited, self._turns.advanced),
            self._descriptors,
            self._spin.working_s,
            room=room_bytes(memory_limit_bytes(), worker_count=config.worker_count),
        )
        self._handed_events: list[tuple[int, int]] | None = None
        self._wakeup_descriptor = self._routers.wakeup_pipe.fileno()
        self._data_sockets: set[object] = {self._wakeup_descriptor}
        """The sockets that only wake for data: the wakeup pipe, and other nodes."""
        self._has_peer_requests = False
        self._replication = self._make_replication(settings.replica_lag_time_max_ms)
        self._moves = ReplicaMoves(
            self._partitions,
            self._open_reader,
            self._on_moved,
            self._turns.preparation.is_preparing,
            workers=MovingWorkers(config.run_folder, index, config.worker_count),
            now_ms=_steady_ms(),
        )
        self._routers.on_relayed = self._replication.server.send_relayed_response
        self._routers.traces = self._turns.traces
        self._register_sockets()
        self._duties_due = 0.0
        self._turn_times = DurationHistogram()
        self._register_metrics()

    def _make_replication(self, lag_max_ms: int) -> Replication:
        config = self._config
        listen = None
        if config.is_clustered:
            listen = tcp_address(config.peer_host, config.worker_port(self._index))
        return Replication(
            self._context,
            self._partitions,
            self._turns,
            ReplicaNetwork(
                config.cluster_id,
                config.node_id,
                f"{config.node_id}-{self._index}-{self._incarnation}".encode(),
                listen,
                lambda node_id, store: worker_address(self._image, node_id, store),
                cluster_keys(config.cluster_secrets),
                lag_max_ms,
            ),
            stores_folders=config.stores_folders,
            watch=self._watch,
            propose=self._propose,
            relay=self._routers.relay,
            now_ms=self._replication_ms(),
        )

    def _open_reader(self, store: int) -> StoreReader:
        return StoreReader(store_folder(self._config.stores_folders, store))

    def _register_sockets(self) -> None:
        for link in (*self._routers.sockets, self._controller.socket, self._controller.monitor):
            self._poll(link)
        for each in self._supervisor.sockets:
            self._poll(each)
        authenticator = self._replication.server.authenticator
        if authenticator is not None:
            self._poll(authenticator)
        self._poll(self._wakeup_descriptor)
        self._poller.register(self._handed.fileno(), zmq.POLLIN)
        self._poll(self._turns.preparation.thread.fileno())
        self._data_sockets.add(self._turns.preparation.thread.fileno())

    def run(self) -> None:
        """Serve until the supervisor stops this process. Then sync and close the stores."""
        self._report_failed_log_dirs()
        try:
            while not self._is_stopping:
                self._serve_while_busy()
                self._run_duties()
            self._finish()
        finally:
            self._handed.close()
            self._replication.close()
            self._partitions.close()
            log.info("the stores are closed")

    def _finish(self) -> None:
        """Answer the requests that routers have sent. Later ones wait in the routers for the next
        owner of the stores, so that an orderly stop fails no request."""
        self._handed.hand_back_all()
        self._routers.broadcast(WorkerLeaving())
        self._send_replies()
        until = time.perf_counter() + _FINISH_S
        while time.perf_counter() < until or (
            self._turns.preparation.thread.count and time.perf_counter() < until + _PREPARATION_S
        ):
            self._serve_while_busy()
            time.sleep(_FINISH_S / 50)

    def _replication_ms(self) -> int:
        return self._clock_offset_ms + _steady_ms()

    def _poll(self, polled: "zmq.Socket[bytes] | socket.socket | int") -> None:
        self._poller.register(polled, zmq.POLLIN)
        file = descriptor(polled) if isinstance(polled, zmq.Socket) else polled
        self._descriptors.register(file, select.EPOLLIN)

    def _watch(self, watched: "zmq.Socket[bytes]") -> None:
        self._poll(watched)
        self._data_sockets.add(watched)

    def _register_metrics(self) -> None:
        metrics = self._supervisor.metrics
        turns, times = self._turns, self._turn_times
        register_storage_metrics(metrics, self._partitions, turns, times, self._spin)
        PartitionMetrics(self._partitions).register(metrics)
        if self._index == 0:
            register_disk_metrics(metrics, [Path(each.path) for each in self._config.log_dirs])
        register_replication_metrics(metrics, self._replication, self._moves)

    def _serve_while_busy(self) -> None:
        """Run turns until there are no requests, or other tasks are due."""
        until = (began_s := time.perf_counter()) + _DUTIES_INTERVAL_S
        count = ring_count = 0
        replication = self._replication
        while True:
            # After a connection's event: the rings are looked at before the next sleep.
            requests = [] if self._handed_events else self._routers.read_or_spin(ring_count)
            ring_count = len(requests)
            if self._handed_events is not None or (count > 1 and self._handed.count):
                requests += self._handed.receive(self._handed_events)
                self._handed_events = None
            if self._turns.preparation.thread.count:
                requests = self._turns.preparation.take() + requests
            count = len(requests)
            if replication.is_active or self._has_peer_requests:
                self._has_peer_requests = False
                # Requests of other nodes run in the same turn.
                replication_ms = self._replication_ms()
                requests += replication.receive(replication_ms)
                if requests:
                    self._run_turn(requests)
                replication.after_turn(replication_ms)
                self._send_replies()
            elif requests:
                self._run_turn(requests)
                self._send_replies()
            if not requests or (now_s := time.perf_counter()) > until:
                return
            if count == 1 and not ring_count:
                # A lone request of a client that is served here, and may send the next one soon.
                if not replication.is_active:
                    self._handed_events = self._spin.run(self._handed.look, now_s - began_s)
                if self._handed_events is None:
                    return
            began_s = time.perf_counter()

    def _send_replies(self) -> None:
        self._routers.send_replies()
        self._handed.send_replies()

    def _run_turn(self, requests: Sequence[tuple[RouterState, Request]]) -> None:
        began_ns = time.perf_counter_ns()
        self._turns.run(requests, _now_ms())
        self._turn_times.observe(time.perf_counter_ns() - began_ns)

    def _sleep_between_duties(self) -> bool:
        """Wait for requests until the duties are due. True if there are some, and nothing else."""
        left_s = self._duties_due - time.monotonic()
        if (
            left_s <= 0
            or self._replication.is_active
            or self._has_peer_requests
            or self._moves.count
            or self._supervisor.is_busy
        ):
            return False
        if not self._routers.fall_asleep():
            self._routers.wake_up()
            return True
        woken = self._descriptors.poll(left_s, EVENTS_MAX)
        self._routers.wake_up()
        for file, _ in woken:
            if file == self._wakeup_descriptor:
                self._routers.wakeup_pipe.clear()
            elif self._handed.owns(file):
                self._handed_events = woken
            else:
                return False
        return bool(woken)

    def _run_duties(self) -> None:
        """Run everything but requests. Sleeps if nothing is due."""
        if self._sleep_between_duties():
            return
        now_ms, replication_ms = _now_ms(), self._replication_ms()
        self._store_scheduler.run_slice(now_ms)
        self._run_moves(now_ms)
        self._replication.tick(replication_ms)
        wait_ms = min(self._store_scheduler.next_ms(now_ms) - now_ms, _IDLE_POLL_MS)
        wait_ms = min(
            wait_ms, self._retry_ms - replication_ms, self._handed.next_ms() - _steady_ms()
        )
        if self._moves.count:
            wait_ms = min(wait_ms, self._moves.next_ms() - _steady_ms())
        if self._replication.is_active:
            wait_ms = min(wait_ms, self._replication.next_ms(replication_ms) - replication_ms)
        if self._supervisor.is_busy:
            wait_ms = min(wait_ms, 1)
        interval_s = min(max(_DUTIES_INTERVAL_S, wait_ms / 1_000), _DUTIES_INTERVAL_MAX_S)
        if not self._routers.fall_asleep():
            wait_ms = 0
        ready = self._poller.poll(max(0, wait_ms))
        self._routers.wake_up()
        peer_count = message_count = 0
        for at, _ in ready:
            if at == self._wakeup_descriptor:
                self._routers.wakeup_pipe.clear()
            elif at == self._handed.fileno():
                self._handed_events = []
            elif at in self._data_sockets:
                peer_count += 1
            else:
                message_count += 1
        if not self._replication.is_active:
            # An early follower must be answered, or it would wake this worker again and again.
            self._has_peer_requests = peer_count > 0
        steady_s = time.monotonic()
        if steady_s < self._duties_due and ready and not message_count:
            return  # only requests: run them at once
        self._duties_due = steady_s + interval_s
        if message_count:
            self._receive_messages()
        self._handed.tick(steady_s)
        self._report_ready()
        if self._turns.failed_stores:
            self._monitor.record_failures(self._turns.failed_stores)
        self._monitor.tick(_steady_ms(), now_ms)
        self._resign_failed_replicas(_steady_ms())
        if self._partitions.misplaced:
            self._proposals.assign(self._partitions.misplaced, self._image, _steady_ms())
        for proposal, code in self._proposals.expired(_steady_ms()):
            self._replication.on_proposal_result(proposal, code, replication_ms)
        if replication_ms >= self._retry_ms:
            self._apply_image()
        if self._supervisor.poll():
            self._is_stopping = True

    def _receive_messages(self) -> None:
        """A socket that is not for data is readable. The poller is exact, so that nothing is missed
        by reading none of them while it says that there is nothing."""
        self._routers.receive()
        self._replication.server.authenticate()
        if self._controller.take_connected():
            self._subscribe()
        self._receive_metadata()

    # -- moves between log directories -------------------------------------------------------------

    def _run_moves(self, now_ms: int) -> None:
        requests, self._turns.requested_moves = self._turns.requested_moves, []
        for router, request in requests:
            code = self._moves.begin(request.topic_id, request.partition, request.directory)
            router.replies.append(ReplicaMoveBegun(request.request_id, code))
        if requests:
            self._send_replies()
        if self._moves.count:
            self._moves.run_slice(_steady_ms(), now_ms)
            self._report_failed_log_dirs()
        elif self._partitions.moved and _steady_ms() >= self._moved_until_ms:
            self._partitions.moved = {}

    def _on_moved(self, old: PartitionLocation, new: PartitionLocation) -> None:
        """A replica is in another log directory now."""
        self._moved_until_ms = _steady_ms() + _MOVED_MS
        self._replication.relocate(old, new)
        self._replication.apply_image(self._image, self._replication_ms())
        # Those that wait for records look up where the partition is.
        self._turns.notify(old[0], (old[1],))
        self._send_replies()

    # -- metadata ----------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        self._send_to_controller(
            SubscribeMetadata(
                self._name, self._incarnation, self._image.offset, self._config.cluster_id
            )
        )

    def _propose(self, proposals: Sequence[IsrProposal]) -> None:
        self._proposals.send(proposals, self._image, _steady_ms())

    def _resign_failed_replicas(self, now_ms: int) -> None:
        """Remove replicas from their ISRs whose records cannot be written to this node's disk."""
        failed_partitions = self._turns.failed_partitions
        known = self._partitions.replicated
        refused = [known[location] for location in failed_partitions if location in known]
        failed_partitions.clear()
        locations = [(replica.topic_id, replica.partition) for replica in refused]
        self._proposals.resign(locations, self._image, now_ms)

    def _take_failure(self, store: int, error: StorageError) -> bool:
        """Whether the log directory of a store has failed, and is offline."""
        if not self._partitions.take_failure(store, error):
            return False
        self._report_failed_log_dirs()
        return True

    def _report_failed_log_dirs(self) -> None:
        """Tell the supervisor which log directories have failed, and stop their replication."""
        failed, self._partitions.failed = self._partitions.failed, {}
        for place, problem in failed.items():
            self._health.fail_log_dir(self._config.log_dirs[place].path, problem)
        if failed:
            self._forget_offline_stores()

    def _forget_offline_stores(self) -> None:
        self._monitor.keep(self._partitions.stores)
        if self._has_applied_image:
            self._replication.apply_image(self._image, self._replication_ms())
            self._send_replies()

    def _send_to_controller(self, message: "ToController") -> None:
        try:
            self._controller.socket.send(encode([message]), zmq.NOBLOCK)
        except zmq.Again:
            log.info("the controller process is not connected; a message is dropped")

    def _receive_metadata(self) -> None:
        image = self._image
        for payload in drain(self._controller.socket):
            for message in self._decode_metadata(payload):
                if isinstance(message, MetadataRecords | MetadataSnapshot):
                    applied = apply_metadata(image, message)
                    if applied is None:
                        self._subscribe()
                    else:
                        image = applied
                elif isinstance(message, CommandSubmitted):
                    for proposal, code in self._proposals.on_response(message):
                        self._replication.on_proposal_result(proposal, code, self._replication_ms())
                elif isinstance(message, LivenessCheck):
                    self._send_to_controller(LivenessReply(self._name))
        if image is not self._image:
            self._image = image
            self._apply_image()

    def _apply_image(self) -> None:
        """Apply the newest image to the stores, or a slice of it: then it is called again soon. On
        a full disk it is retried after a second."""
        try:
            vanished = self._partitions.apply_image(self._image)
        except StorageError as error:
            log.info(
                "the metadata cannot be applied to the stores and is tried again",
                delay_ms=_RETRY_MS,
                reason=str(error),
            )
            self._health.set_problem("metadata", str(error))
            self._retry_ms = self._replication_ms() + _RETRY_MS
            return
        is_outdated = self._partitions.is_outdated
        self._retry_ms = self._replication_ms() if is_outdated else NEVER
        self._health.set_problem("metadata", None)
        self._has_applied_image = True
        limited = self._image.client_quotas.keys_of_clients
        self._turns.measure(is_on=QuotaKey.REQUEST_PERCENTAGE in limited)
        self._moves.apply_image(self._image)
        self._report_failed_log_dirs()
        settings = self._partitions.broker_settings()
        self._supervisor.metrics.follow(settings)
        self._replication.set_lag_max_ms(settings.replica_lag_time_max_ms)
        self._replication.apply_image(self._image, self._replication_ms())
        for store, number in vanished:
            self._turns.notify(store, (number,))
        self._send_replies()
        if not is_outdated:
            self._send_to_controller(MetadataApplied(self._name, self._image.offset))
        self._report_ready()

    def _on_configuration(self, config: NodeConfig) -> None:
        """The node's configuration has changed while it runs."""
        replaced = self._replication.change_keys(cluster_keys(config.cluster_secrets))
        if replaced is not None:
            former, listening = replaced
            self._poller.unregister(former)
            self._data_sockets.discard(former)
            self._watch(listening)
        self._config = config
        self._partitions.set_static_configs(config.broker_configs)
        for place, directory in enumerate(config.log_dirs):
            if directory.problem and place not in self._partitions.offline:
                # Another process has found out.
                self._partitions.take_offline(place)
                self._forget_offline_stores()
        if self._has_applied_image:
            self._apply_image()

    def _report_ready(self) -> None:
        """Report to the supervisor once that the stores are open and all routers are connected."""
        if not self._is_ready and self._has_applied_image and self._routers.are_open:
            self._is_ready = True
            self._health.report()
            self._supervisor.send(ProcessReady())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def main() -> None:
    """Entry point of the process."""
    path, index = Path(sys.argv[1]), int(sys.argv[2])
    configure_logging(NodeConfig.load_json(path), f"worker-{index}")
    link = SupervisorLink.connect(f"worker-{index}", path)
    link.wait_for_turn()
    config = NodeConfig.load_json(path)
    processors = usable_processors()
    pin_offload_thread = settle_processors(config.placement())
    settle_interpreter()
    exit_code = 0
    report_compilation()
    with link as supervisor:
        try:
            WorkerProcess(config, index, supervisor, pin_offload_thread, processors).run()
        except StorageError as error:
            # Only opening the stores again can help. The supervisor logs the reason.
            StorageHealth(supervisor.send).set_problem("stores", str(error))
            exit_code = 1
    finish_logging()
    os._exit(exit_code)


if __name__ == "__main__":
    main()
