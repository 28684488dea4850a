"""Share groups on the router of a simulated node: what they durably know, and who holds what.

Real are the shards of `__share_group_state` with their hosts and runtimes, the handlers of the APIs
between nodes, `ShareStates` and the machine of a share-partition. This module is what
node/router/share_partitions.py and the handlers of ShareFetch and ShareAcknowledge are to it:
machines for partitions that are led here, one write at a time, deadlines, and answers when what
they rest on is durable. Nodes ask each other over a network that loses, doubles and delays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from cluster.metadata.image import MetadataImage
from coordinator.share.acquisition import AcquiredRange, LogBatch, Wish
from coordinator.share.partition import SharePartition
from coordinator.share.requests import Checkpoint, DropLog, MeasureLog, StateRead
from coordinator.share.settings import ShareStateSettings
from coordinator.share.shard import ShareStateShard
from coordinator.share.terms import Terms
from node.bus.reply import Reply, drive
from node.router.authorizer import Authorizer
from node.router.context import Services, context_of_cluster
from node.router.dispatch import Handler
from node.router.handlers import share_states as handlers
from node.router.share_states import ShareStates
from protocol.apis import ApiKey
from protocol.errors import ApiError, ErrorCode
from protocol.messages import share_state as messages
from tests.simulation.shards import Loop, Router, SimulatedShards
from tests.simulation.store import Identity

if TYPE_CHECKING:
    import asyncio

SHARE_TOPIC = "__share_group_state"
GROUP = "shares"
TERMS = Terms(lock_duration_ms=400, delivery_count_limit=4, record_locks_max=40)
SETTINGS = ShareStateSettings(updates_per_snapshot=5, log_records_max=12)
RECORDS_MAX = 6
ASK_TIMEOUT_S = 0.6
"""Instead of three seconds: simulated nodes are away for a second at most."""
RETRY_S = 0.1
LATE_SHARE = 0.15
LATE_MS_MAX = 600
"""Some of what is asked arrives once more, and late."""

_HANDLERS: dict[type, tuple[ApiKey, Handler]] = {
    messages.InitializeShareGroupStateRequest: (
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        handlers.handle_initialize_share_group_state,
    ),
    messages.ReadShareGroupStateRequest: (
        ApiKey.READ_SHARE_GROUP_STATE,
        handlers.handle_read_share_group_state,
    ),
    messages.WriteShareGroupStateRequest: (
        ApiKey.WRITE_SHARE_GROUP_STATE,
        handlers.handle_write_share_group_state,
    ),
}


class ShareAsk(NamedTuple):
    """A router asks another one."""

    sender: int
    incarnation: int
    number: int
    request: object


class ShareAnswer(NamedTuple):
    """And is answered; `incarnation` is that of who asked."""

    incarnation: int
    number: int
    response: object


class ShareFetched(NamedTuple):
    """What a member has got; in the leader's epoch."""

    error_code: ErrorCode
    leader_epoch: int = -1
    acquired: tuple[AcquiredRange, ...] = ()


class ShareAcknowledged(NamedTuple):
    """What became of a member's acknowledgements, in the epoch of the leader that took them."""

    error_code: ErrorCode
    leader_epoch: int = -1


@dataclass(slots=True)
class Acknowledgement:
    """As the wire has it: both offsets included."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class ShareWatcher(Protocol):
    """Who sees what share-partitions do. It must not change anything."""

    def share_acquired(
        self, machine: "Machine", member: str, taken: AcquiredRange, now_ms: int, until_ms: int
    ) -> None: ...

    def share_answered(self, machine: "Machine", batches: "Sequence[Acknowledgement]") -> None: ...

    def share_left(self, machine: "Machine", member: str) -> None: ...


class Machine:
    """A share-partition that is led here; `core` is there once its state is read."""

    def __init__(self, identity: Identity, leader_epoch: int) -> None:
        self.identity = identity
        self.leader_epoch = leader_epoch
        self.state_epoch = -1
        self.core: SharePartition | None = None
        self.is_dropped = False
        self.is_paused = False
        self.waiting: dict[int, list[Callable[[ErrorCode], None]]] = {}


class ShareHost:
    """See the module's docstring. Made at every start of the router's process."""

    def __init__(self, router: Router, loop: Loop, watcher: ShareWatcher) -> None:
        self.node_id = router.node.own_id
        self._router = router
        self._loop = loop
        self._watcher = watcher
        self._machines: dict[Identity, Machine] = {}
        self._asked: dict[int, Reply[object]] = {}
        self._next_id = 0
        self.shards = SimulatedShards(
            router,
            SHARE_TOPIC,
            lambda: ShareStateShard(SETTINGS, router.image.topics_by_id),
            loop,
            self._carry_out,
        )
        self.states = ShareStates(self, self, cast("asyncio.AbstractEventLoop", loop))
        self.authorizer = Authorizer()

    # -- what share states need of their router ----------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self._router.image

    @image.setter
    def image(self, image: MetadataImage) -> None:
        raise AssertionError("the router has it")

    @property
    def share_coordinators(self) -> "ShareHost":
        return self

    def call(self, key: str, request: object, _asker: object) -> Reply[object]:
        return self.shards.call(key, request)

    def shard_of(self, key: str) -> int:
        return self.shards.shard_of(key)

    def coordinator_of(self, key: str) -> int:
        return self.shards.coordinator_of(key)

    async def ensure_topic(self) -> None:
        if self.shards.topic() is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def ask(self, node_id: int, request: object) -> Reply[object]:
        """As `Neighbours.ask`."""
        self._next_id = number = self._next_id + 1
        reply = self._asked[number] = Reply()
        node = self._router.node
        message = ShareAsk(node.own_id, node.incarnation, number, request)
        node.simulation.send(node.own_id, node_id, message)
        random = node.simulation.random
        if random.random() < LATE_SHARE:
            # As when a connection breaks, and what was in its buffers arrives all the same.
            delay_s = random.randrange(LATE_MS_MAX) / 1_000
            self._loop.call_later(delay_s, node.simulation.send, node.own_id, node_id, message)
        self._loop.call_later(ASK_TIMEOUT_S, self._give_up, number)
        return reply

    def _give_up(self, number: int) -> None:
        reply = self._asked.pop(number, None)
        if reply is not None:
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def receive(self, message: ShareAsk | ShareAnswer) -> None:
        """Another node's router asks, or answers."""
        node = self._router.node
        if isinstance(message, ShareAnswer):
            reply = self._asked.pop(message.number, None)
            if reply is not None and message.incarnation == node.incarnation:
                reply.resolve(message.response)
            return
        key, handler = _HANDLERS[type(message.request)]
        context = context_of_cluster(key, 1)

        def finish(response: object, error: BaseException | None) -> None:
            assert error is None, error
            answer = ShareAnswer(message.incarnation, message.number, response)
            node.simulation.send(node.own_id, message.sender, answer)

        drive(handler(message.request, context, cast("Services", self)), finish)

    def _carry_out(self, shard: int, instruction: object) -> None:
        """As `ShareKind.carry_out`."""
        topic = self.shards.topic()
        assert topic is not None
        disk, identity = self._router.node.store_disk, (topic.topic_id, shard)
        if isinstance(instruction, MeasureLog):
            self.shards.call_shard(shard, Checkpoint(disk.logs[identity].log_end_offset))
        else:
            assert isinstance(instruction, DropLog)
            disk.dropped[identity] = max(instruction.end_offset, disk.dropped.get(identity, 0))

    def active_shards(self) -> list[ShareStateShard]:
        """Those that serve."""
        shards = [host.runtime.shard for host in self.shards.hosts.values() if host.is_active]
        return [shard for shard in shards if isinstance(shard, ShareStateShard)]

    # -- metadata ----------------------------------------------------------------------------------

    def follow(self) -> None:
        """The router has a new image."""
        self.shards.follow()
        for host in self.shards.hosts.values():
            shard = host.runtime.shard
            assert isinstance(shard, ShareStateShard)
            shard.topics = self.image.topics_by_id
        for identity, machine in list(self._machines.items()):
            if self._leads(identity) != machine.leader_epoch:
                self._drop(machine, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _leads(self, identity: Identity) -> int | None:
        """The epoch in which this node leads the partition, as far as it knows."""
        state = self.image.partition(*identity)
        is_led = state is not None and state.leader == self.node_id
        return state.leader_epoch if state is not None and is_led else None

    def _drop(self, machine: Machine, code: ErrorCode) -> None:
        machine.is_dropped = True
        self._machines.pop(machine.identity, None)
        waiting, machine.waiting = machine.waiting, {}
        for answers in waiting.values():
            for answer in answers:
                answer(code)

    # -- members -----------------------------------------------------------------------------------

    def fetch(self, identity: Identity, member: str) -> ShareFetched:
        """As the handler of ShareFetch, without waiting."""
        machine = self._machine(identity)
        if machine is None:
            return ShareFetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        core = machine.core
        log = self._router.node.store_disk.logs.get(identity)
        if core is None or log is None:
            return ShareFetched(ErrorCode.NONE, machine.leader_epoch)
        now_ms = self._now_ms()
        position = core.position(now_ms, RECORDS_MAX, TERMS)
        if position is None:
            return ShareFetched(ErrorCode.NONE, machine.leader_epoch)
        limit = high_watermark = self._router.high_watermark(identity)
        if position.end_offset is not None:
            limit = min(limit, position.end_offset)
        batches = [
            LogBatch(batch.base_offset, batch.end_offset)
            for batch in log.batches[log.index_of(position.offset) :]
            if batch.base_offset < limit and batch.end_offset <= high_watermark
        ]
        wish = Wish(records_max=RECORDS_MAX)
        acquired = core.acquire(member, position.offset, batches, wish, now_ms=now_ms, terms=TERMS)
        for taken in acquired:
            until_ms = now_ms + TERMS.lock_duration_ms
            self._watcher.share_acquired(machine, member, taken, now_ms, until_ms)
        self._go_on(machine)
        return ShareFetched(ErrorCode.NONE, machine.leader_epoch, tuple(acquired))

    def acknowledge(
        self,
        identity: Identity,
        member: str,
        batches: Sequence[Acknowledgement],
        answer: Callable[[ShareAcknowledged], None],
    ) -> None:
        """As the handler of ShareAcknowledge."""
        machine = self._machine(identity)
        if machine is None or machine.core is None:
            answer(ShareAcknowledged(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        epoch = machine.leader_epoch

        def settle(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._watcher.share_answered(machine, batches)
            answer(ShareAcknowledged(code, epoch))

        taken = machine.core.acknowledge(member, batches, now_ms=self._now_ms(), terms=TERMS)
        if taken.error_code or not taken.write_id:
            settle(taken.error_code)
        else:
            machine.waiting.setdefault(taken.write_id, []).append(settle)
        self._go_on(machine)

    def release(self, identity: Identity, member: str) -> None:
        """The member has gone."""
        machine = self._machines.get(identity)
        if machine is not None and machine.core is not None:
            machine.core.release_member(
                member, was_delivered=True, now_ms=self._now_ms(), terms=TERMS
            )
            self._watcher.share_left(machine, member)
            self._go_on(machine)

    # -- inside ------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._router.node.clock_ms()

    def _machine(self, identity: Identity) -> Machine | None:
        epoch = self._leads(identity)
        if epoch is None:
            return None
        machine = self._machines.get(identity)
        if machine is None:
            machine = self._machines[identity] = Machine(identity, epoch)
            reply = self.states.read(GROUP, *identity, epoch)
            reply.on_done(partial(self._on_read, machine, reply))
        return machine

    def _on_read(self, machine: Machine, reply: Reply[StateRead]) -> None:
        if machine.is_dropped:
            return
        try:
            found = reply.result()
        except ApiError as error:
            self._drop(machine, error.code)
            return
        machine.state_epoch = found.state_epoch
        machine.core = SharePartition(
            found.start_offset,
            found.batches,
            now_ms=self._now_ms(),
            terms=TERMS,
        )
        self._go_on(machine)

    def _go_on(self, machine: Machine) -> None:
        """Write what is to be written, and come back when something is due."""
        core = machine.core
        if core is None or machine.is_dropped or machine.is_paused:
            return
        write = core.next_write()
        if write is not None:
            reply = self.states.write(
                GROUP,
                *machine.identity,
                machine.state_epoch,
                machine.leader_epoch,
                write.start_offset,
                write.delivery_complete_count,
                write.batches,
            )
            reply.on_done(partial(self._on_written, machine, write.write_id, reply))
        deadline_ms = core.next_deadline_ms()
        if deadline_ms is not None:
            delay_s = max(deadline_ms - self._now_ms(), 1) / 1_000
            self._loop.call_later(delay_s, self._on_time, machine)

    def _on_written(self, machine: Machine, write_id: int, reply: Reply[None]) -> None:
        core = machine.core
        if machine.is_dropped or core is None:
            return
        code = ErrorCode.NONE
        try:
            reply.result()
        except ApiError as error:
            code = error.code
        is_done = code is ErrorCode.NONE
        waiting = machine.waiting.pop(write_id, [])
        core.on_written(is_done=is_done, now_ms=self._now_ms(), terms=TERMS)
        for answer in waiting:
            answer(code)
        if code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH):
            self._drop(machine, code)
        elif not is_done:
            machine.is_paused = True
            self._loop.call_later(RETRY_S, self._resume, machine)
        self._go_on(machine)

    def _resume(self, machine: Machine) -> None:
        machine.is_paused = False
        self._go_on(machine)

    def _on_time(self, machine: Machine) -> None:
        core = machine.core
        if machine.is_dropped or core is None:
            return
        core.on_time(self._now_ms(), TERMS)
        self._go_on(machine)
