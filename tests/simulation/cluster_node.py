"""A whole node as a host of the simulation: controller, worker and router, each with its own
delays.

The controller is assembled as in node/controller: the Raft host persists, sends and applies; the
real `ActiveController` decides on the leader, and the real `CommandForwarding` carries commands
there and results back. This module replaces process.py: it carries out what follows from an event,
and keeps the node registered. Worker and router are in `broker`; the three exchange messages in
order and a little later, sometimes much later. The node has its own clock, which may be faster or
slower than others, and may jump ahead, as after a virtual machine was suspended.
"""

from collections.abc import Callable
from typing import cast

from odradek.cluster.controller.commands import (
    BrokerHeartbeat,
    BrokerReply,
    Command,
    HeartbeatReply,
    RegisterBroker,
    decode_reply,
    encode_command,
)
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from odradek.cluster.metadata.image import BrokerImage, MetadataImage
from odradek.cluster.metadata.records import (
    ClusterCreated,
    FeatureLevelChanged,
    Record,
    decode_records,
    encode_records,
)
from odradek.cluster.metadata.snapshot import image_records
from odradek.cluster.raft.configuration import Configuration, ProposalRefusal
from odradek.cluster.raft.messages import Entry
from odradek.cluster.raft.ready import Proposal, Ready, Role, SoftState
from odradek.node.bus.messages import CommandSubmitted, SubmitCommand
from odradek.node.bus.peer_messages import (
    ControlMessage,
    ForwardRequest,
    ForwardResponse,
    PeerHeader,
)
from odradek.node.controller.active_controller import ActiveController, NotProposedError
from odradek.node.controller.command_forwarding import CommandForwarding
from odradek.node.controller.raft_driver import RaftDriver
from odradek.protocol.errors import ErrorCode
from tests.simulation.broker import SimulatedRouter, SimulatedWorker, Watcher
from tests.simulation.node_parts import Channel, NodeSettings
from tests.simulation.raft_host import STATE_BYTES, Observer, RaftHost
from tests.simulation.share_host import ShareAnswer, ShareAsk
from tests.simulation.simulation import Simulation
from tests.simulation.store import Identity, SimulatedBatch, StoreDisk
from tests.simulation.transaction_ends import Asked, TransactionResponse
from tests.simulation.wires import Wires

CLUSTER_ID = "simulated"
RETRY_MS = 200
REGISTRATION_TIMEOUT_MS = 5_000
FIRST_HEARTBEAT_MS = 50
_NEVER = 2**62


class _NobodyMet:
    """Versions that members have announced; needed before a change of the voters."""

    def header_of(self, member: int) -> PeerHeader | None:
        return None


class Control:
    """A message between the controllers of two nodes."""

    __slots__ = ("incarnation", "message", "sender")

    def __init__(self, sender: int, incarnation: int, message: ControlMessage) -> None:
        self.sender = sender
        self.incarnation = incarnation
        self.message = message


class _Driver:
    """The Raft driver as `ActiveController` needs it."""

    def __init__(self, node: "ClusterNode") -> None:
        self._node = node

    def propose(self, data: bytes) -> Proposal | ProposalRefusal:
        self._node.is_asked = True
        return self._node.node.propose(data)


class ClusterNode(RaftHost):
    """One node, running or not."""

    def __init__(
        self,
        simulation: Simulation,
        own_id: int,
        bootstrap: Configuration,
        settings: NodeSettings,
        observer: Observer,
        *,
        wires: Wires,
        watcher: Watcher,
    ) -> None:
        super().__init__(simulation, own_id, bootstrap, settings.raft, observer, core=settings.core)
        self.simulation = simulation
        self.settings = settings
        self.wires = wires
        self.watcher = watcher
        self.store_disk = StoreDisk(simulation.random)
        self.clock_rate = 1.0
        self.clock_lead_ms = 0
        self.slow_share = 0.0
        self.incarnation = 0
        self.previous_broker_epoch: int | None = None
        """The result of the last run (node/controller/clean_shutdown.py): its broker epoch, or
        -1 after a power loss, when logs may have lost their ends."""
        self.wants_shut_down = False
        self.should_shut_down = False
        self.is_asked = False
        self.worker: SimulatedWorker
        self.router: SimulatedRouter
        self._entries: list[Entry | MetadataImage | SoftState] = []

    # -- the life of a node ------------------------------------------------------------------------

    def start(self) -> None:
        self.incarnation += 1
        self.wants_shut_down = self.should_shut_down = False
        self.image = MetadataImage.empty()
        self.active: ActiveController | None = None
        self.broker_epoch: int | None = None
        self._published = -1
        self._is_asking = False
        self._due_ms = 0
        self._reached: dict[str, int] = {}
        self._is_serving = False
        self._entries = []
        self.forwarding = CommandForwarding(
            own_id=self.own_id,
            send=self._send_control,
            respond=lambda identity, submitted: self.to_worker.put(
                lambda: self._answer_worker(identity, submitted)
            ),
        )
        self.router = SimulatedRouter(self)
        self.to_router = Channel(self.simulation, self.own_id, self.slow_share)
        self.to_controller = Channel(self.simulation, self.own_id, self.slow_share)
        self.start_worker()
        super().start()

    def start_worker(self) -> None:
        """A worker without state besides its store."""
        self.to_worker = Channel(self.simulation, self.own_id, self.slow_share)
        self._reached.pop("worker", None)
        self.worker = SimulatedWorker(self)
        if self._is_serving:
            self._tell_worker()

    def kill_worker(self) -> None:
        """The worker's process ends; the supervisor starts a new one."""
        self.to_worker.is_closed = True
        self.worker.end(is_silent=False)
        self.router.worker_lost()
        self._reached.pop("worker", None)

    def crash(self) -> None:
        super().crash()
        self.worker.end(is_silent=False)
        self.router.end()

    def lose_power(self) -> list[tuple[Identity, SimulatedBatch]]:
        """Call it before the crash; returns the lost batches."""
        self.worker.end(is_silent=True)
        if self.previous_broker_epoch is not None:
            self.previous_broker_epoch = -1
        return self.store_disk.lose_power(self.clock_ms())

    def clock_ms(self) -> int:
        return int(self.simulation.now_ms * self.clock_rate) + self.clock_lead_ms

    def next_deadline_ms(self) -> int:
        due = [self.node.next_deadline_ms(), self.worker.next_ms()]
        forwarding_ms = self.forwarding.next_deadline_ms()
        if forwarding_ms is not None:
            due.append(forwarding_ms)
        if not self._is_asking:
            due.append(self._due_ms)
        if self.active is not None:
            decision_ms = self.active.controller.next_deadline_ms()
            if decision_ms is not None:
                due.append(decision_ms)
        first = min(due)
        if first >= _NEVER:
            return _NEVER
        return int((first - self.clock_lead_ms) / self.clock_rate) + 1

    def receive(self, message: object) -> None:
        if isinstance(message, Asked | TransactionResponse):
            self.router.ends.receive(message)
            return
        if isinstance(message, ShareAsk | ShareAnswer):
            self.router.shares.receive(message)
            return
        if not isinstance(message, Control):
            super().receive(message)
            return
        now_ms = self.clock_ms()
        if isinstance(message.message, ForwardRequest):
            self.forwarding.submit_forwarded(
                message.sender, message.incarnation, message.message, now_ms
            )
        elif isinstance(message.message, ForwardResponse):
            self.forwarding.on_response(message.message, now_ms)
        self._settle()

    def wake(self) -> None:
        self.node.tick(self.clock_ms())
        self._tick_active()
        self._settle()
        self.worker.tick()

    def submit(
        self, command: Command, answer: Callable[[ForwardResponse], None], timeout_ms: int
    ) -> None:
        """Submit a command, as a router does."""
        now_ms = self.clock_ms()
        self.forwarding.submit_internal(
            encode_command(command), now_ms + timeout_ms, answer, now_ms
        )
        self._settle()

    def _answer_worker(self, identity: bytes, submitted: CommandSubmitted) -> None:
        if self.worker.identity == identity:
            self.worker.on_response(submitted)

    def submit_of_worker(self, identity: bytes, message: SubmitCommand) -> None:
        """Submit a command of a worker."""
        self.forwarding.submit(identity, message, self.clock_ms())
        self._settle()

    def applied(self, process: str, offset: int) -> None:
        """A process of this node has applied the metadata up to this index."""
        self._reached[process] = max(offset, self._reached.get(process, 0))
        self._settle()

    def state_content(self) -> bytes:
        assert self.image.offset == self.applied_index
        return encode_records(image_records(self.image))

    # -- the controller's turn ---------------------------------------------------------------------

    def _settle(self) -> None:
        has_news = True
        while has_news:
            self.is_asked = False
            super()._settle()
            events, self._entries = self._entries, []
            for event in events:
                self._on_event(event)
            self._present()
            self.forwarding.answer(
                self.clock_ms(), committed=self.image.offset, applied=self._everybody_reached()
            )
            has_news = bool(events) or self.is_asked
        if self.image.offset != self._published:
            self._publish()

    def _finish(self, ready: Ready) -> None:
        super()._finish(ready)
        if ready.soft_state is not None:
            self._entries.append(ready.soft_state)

    def _apply(self, entry: Entry) -> None:
        super()._apply(entry)
        self._entries.append(entry)

    def _load_state_machine(self) -> None:
        super()._load_state_machine()
        disk = self.disk.state
        if disk.snapshot is not None:
            delta = MetadataDelta(MetadataImage.empty())
            for record in decode_records(disk.content[STATE_BYTES:]):
                delta.replay(record)
            self._entries.append(delta.apply(disk.snapshot.index))

    def _on_event(self, event: Entry | MetadataImage | SoftState) -> None:
        if isinstance(event, SoftState):
            self._stand(event)
        elif isinstance(event, MetadataImage):
            self.image = event
        elif event.index > self.image.offset:
            self._take(event)

    def _take(self, entry: Entry) -> None:
        image = None if self.active is None else self.active.committed(entry)
        if image is None:
            delta = MetadataDelta(self.image)
            if entry.is_command:
                for record in decode_records(entry.data):
                    delta.replay(record)
            image = delta.apply(entry.index)
        self.image = image
        if self.active is None and entry.term == self.node.term:
            self._lead_if_due()

    def _stand(self, soft_state: SoftState) -> None:
        active = self.active
        if active is not None and (
            soft_state.role is not Role.LEADER or soft_state.term != active.term
        ):
            self.active = None
        self.forwarding.set_leader(soft_state.leader_id, self.active, self.clock_ms())

    def _lead_if_due(self) -> None:
        node = self.node
        if node.role is not Role.LEADER or node.log.last_index != self.image.offset:
            return
        active = ActiveController(
            cast("RaftDriver", _Driver(self)),
            self.image,
            term=node.term,
            node_id=self.own_id,
            static=self.settings.static,
            has_space=lambda _: True,
            headers=_NobodyMet(),
        )
        if not self.image.cluster_id:
            first: list[Record] = [ClusterCreated(CLUSTER_ID)]
            if self.settings.has_elr:
                first.append(FeatureLevelChanged(ELIGIBLE_LEADER_REPLICAS_VERSION, 1))
            active.propose(first, frees_space=True)
        active.controller.activate(self.clock_ms())
        self.active = active
        self.forwarding.set_leader(self.own_id, active, self.clock_ms())

    def _tick_active(self) -> None:
        if self.active is not None:
            try:
                self.active.tick(self.clock_ms(), self.clock_ms())
            except NotProposedError:
                self.active.controller.activate(self.clock_ms())

    def _send_control(self, node_id: int, message: ControlMessage) -> None:
        self.simulation.send(self.own_id, node_id, Control(self.own_id, self.incarnation, message))

    # -- this node's processes ---------------------------------------------------------------------

    @property
    def incarnation_id(self) -> bytes:
        return bytes([self.own_id]) + self.incarnation.to_bytes(15, "big")

    def _everybody_reached(self) -> int:
        return min(self._reached.values(), default=self.image.offset)

    def _publish(self) -> None:
        self._published = self.image.offset
        if not self._is_serving:
            broker = self.registration
            self._is_serving = broker is not None
        if self._is_serving:
            self._tell_worker()
            image = self.image
            self._reached.setdefault("router", 0)
            self.to_router.put(lambda: self.router.follow(image))

    def _tell_worker(self) -> None:
        image = self.image
        self._reached.setdefault("worker", 0)
        self.to_worker.put(lambda: self.worker.follow(image))

    # -- presence ----------------------------------------------------------------------------------

    @property
    def registration(self) -> BrokerImage | None:
        """The registration of this start, once it is committed."""
        broker = self.image.brokers.get(self.own_id)
        if broker is None or broker.incarnation_id != self.incarnation_id:
            return None
        return broker

    def _present(self) -> None:
        now_ms = self.clock_ms()
        if self._is_asking or now_ms < self._due_ms:
            return
        self._is_asking = True
        command: Command
        if self.broker_epoch is None:
            has_elr = self.settings.has_elr
            command = RegisterBroker(
                broker_id=self.own_id,
                incarnation_id=self.incarnation_id,
                cluster_id=CLUSTER_ID,
                starts_fenced=True,
                previous_broker_epoch=self.previous_broker_epoch if has_elr else None,
            )
            timeout_ms = REGISTRATION_TIMEOUT_MS
        else:
            command = BrokerHeartbeat(
                broker_id=self.own_id,
                broker_epoch=self.broker_epoch,
                metadata_offset=self._everybody_reached(),
                wants_fence="worker" not in self._reached,
                wants_shut_down=self.wants_shut_down,
            )
            timeout_ms = RETRY_MS * 2
        self.forwarding.submit_internal(
            encode_command(command), now_ms + timeout_ms, self._on_answer, now_ms
        )

    def _on_answer(self, carried: ForwardResponse) -> None:
        self._is_asking = False
        now_ms = self.clock_ms()
        self._due_ms = now_ms + RETRY_MS
        code = carried.error_code
        if code == ErrorCode.NONE:
            reply = decode_reply(carried.reply)
            if isinstance(reply, BrokerReply):
                self.broker_epoch = reply.broker_epoch
                self.previous_broker_epoch = reply.broker_epoch
                self._due_ms = now_ms + FIRST_HEARTBEAT_MS
            elif isinstance(reply, HeartbeatReply):
                self.should_shut_down |= reply.should_shut_down
                self._due_ms = now_ms + (
                    FIRST_HEARTBEAT_MS if reply.is_fenced else reply.next_heartbeat_ms
                )
        elif self.broker_epoch is not None and code in (
            ErrorCode.STALE_BROKER_EPOCH,
            ErrorCode.BROKER_ID_NOT_REGISTERED,
        ):
            self.broker_epoch = None
            self._due_ms = now_ms
