"""A router's services without sockets: the real controller, stores, worker turns and codec.

Requests and responses are encoded and decoded in their version. The links to the controller and to
the worker call them directly. Requests that wait (long polls, appends that a test holds back) are
started with `begin_request`; the harness then needs an event loop.
"""

import asyncio
import ctypes
import itertools
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from odradek.cluster.controller.commands import (
    AddRaftVoter,
    Command,
    CommandReply,
    RemoveRaftVoter,
    VoterChangeCommand,
    VotersReply,
)
from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import PartitionChanged
from odradek.cluster.metadata.settings import broker_settings
from odradek.node.bus.messages import (
    AppendBytes,
    Appended,
    AppendReply,
    ArchivedOffsetsSet,
    PartitionsAdvanced,
    ProducersDescribed,
    QuorumReplica,
    QuorumState,
    RecordsDeleted,
    RequestFailed,
    ToRouter,
    WorkerRequest,
)
from odradek.node.bus.reply import Reply, drive, start_coroutine
from odradek.node.config import NodeConfig
from odradek.node.observability import SupervisorLink
from odradek.node.router.authorizer import AuthorizableRequestContext, Authorizer
from odradek.node.router.context import RequestContext, Services, inter_broker_context
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.dispatch import HANDLERS
from odradek.node.router.fetch_sessions import FetchSessionCache
from odradek.node.router.logs import Logs
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.node_control import NodeControl
from odradek.node.router.worker_client import AnswerReceiver, WorkerClient
from odradek.node.worker.hosted_partitions import HostedPartitions
from odradek.node.worker.turn_requests import Request, RouterState
from odradek.node.worker.turns import TurnExecutor
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.storage.settings import StoreOptions
from tests.support.controller_harness import ControllerHarness
from tests.support.stores import NOW_MS

R = TypeVar("R")
Response = TypeVar("Response")
Denial = tuple[AclOperation, ResourceType, str]

NODE_ID = 0
STORE_COUNT = 2
LOCAL_HOST, LOCAL_PORT = "reached.example", 19092
ARENA_BYTES = 4 << 20
FRAME_GAP = 32
_TURNS_S = 5.0
DEADLINE_S = 10.0


class DenyingAuthorizer(Authorizer):
    """Denies what is in `denied`, and records all checks in `asked`."""

    def __init__(self) -> None:
        super().__init__()
        self.denied: set[Denial] = set()
        self.asked: set[Denial] = set()

    @property
    def rules(self) -> object:
        return frozenset(self.denied) or None

    def is_allowed(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
    ) -> bool:
        self.asked.add((operation, resource, name))
        return (operation, resource, name) not in self.denied

    def is_any_allowed(
        self, context: AuthorizableRequestContext, operation: AclOperation, resource: ResourceType
    ) -> bool:
        return (operation, resource, "*") not in self.denied


class DirectController:
    """The link to the controller: executes a command at once, or raises `failure`."""

    def __init__(self, harness: "RouterHarness") -> None:
        self._harness = harness
        self.failure: ApiError | None = None
        self.timeouts_ms: list[int] = []
        self.has_quorum = True
        self.unreachable: frozenset[int] = frozenset()
        self.quorum: QuorumState | None = None
        """The state to return; None: this node is the only voter."""
        self.voter_changes: list[VoterChangeCommand] = []
        """Voter changes are only recorded: voters are not in the metadata."""

    async def describe_quorum(self, timeout_ms: int) -> QuorumState | None:
        self.timeouts_ms.append(timeout_ms)
        if self.quorum is not None:
            return self.quorum
        offset, now_ms = self._harness.image.offset, self._harness.services.now_ms()
        voter = QuorumReplica(NODE_ID, offset, now_ms, now_ms)
        return QuorumState(NODE_ID, 7, offset, (voter,)) if self.has_quorum else None

    async def submit(self, command: Command, timeout_ms: int) -> CommandReply:
        self.timeouts_ms.append(timeout_ms)
        if self.failure is not None:
            raise self.failure
        if isinstance(command, AddRaftVoter | RemoveRaftVoter):
            self.voter_changes.append(command)
            return VotersReply(command.voter_id)
        reply = self._harness.controller.do(command)
        self._harness.follow()
        return reply


class DirectWorkerClient:
    """The client of one worker, which executes each request in a turn of its own, in order.

    With `holds_back` the turns wait for `release_oldest`; with `is_away` the worker is gone.
    """

    def __init__(self, harness: "RouterHarness") -> None:
        self._harness = harness
        self._next_id = 0
        self._held: list[tuple[Request, Reply[Any]]] = []
        self.worker = 0
        """Which one it says that owns the stores."""
        self.holds_back = False
        self.is_away = False
        self.requests: list[Request] = []

    def worker_of(self, _store: int) -> int:
        return self.worker

    def append_bytes(self, request: AppendBytes) -> Reply[AppendReply]:
        return self.send(request)

    def send(self, request: WorkerRequest[R]) -> Reply[R]:
        self._next_id = request.request_id = self._next_id + 1
        self.requests.append(request)
        reply: Reply[Any] = Reply()
        if self.is_away:
            reply.resolve(RequestFailed(request.request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif self.holds_back:
            self._held.append((request, reply))
        else:
            self._carry_out(request, reply)
        return reply

    def submit(self, request: WorkerRequest[R], receiver: AnswerReceiver[R]) -> None:
        reply = self.send(request)
        reply.on_done(lambda: receiver.resolve(reply.result()))

    def release_oldest(self) -> None:
        """Execute the oldest request that is held back."""
        self._carry_out(*self._held.pop(0))

    def _carry_out(self, request: Request, reply: Reply[Any]) -> None:
        router = RouterState(self._harness.arena)
        self._harness.turns.run([(router, request)], NOW_MS)
        (answer,) = router.replies
        assert isinstance(
            answer,
            Appended | ArchivedOffsetsSet | RecordsDeleted | ProducersDescribed | RequestFailed,
        )
        reply.resolve(answer)


class PendingRequest(Generic[Response]):
    """A request that was started. `context` is the handler's."""

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self.is_done = False
        self.is_closed = False
        self.retain_count = 0
        self._read: Callable[[], Response] | None = None
        self._on_done: Callable[[], None] = lambda: None

    def response(self) -> Response:
        """The response as the client decodes it; raises the handler's exception."""
        assert self._read is not None, "the handler still waits"
        return self._read()

    def on_done(self, call: Callable[[], None]) -> None:
        self._on_done = call
        if self.is_done:
            call()

    def finish(self, read: Callable[[], Response]) -> None:
        self._read = read
        self.is_done = True
        self._on_done()


class LocalInterBrokerClient:
    """Handles requests to this broker itself; no other broker can be reached."""

    def __init__(self, harness: "RouterHarness") -> None:
        self._harness = harness

    def send(self, node_id: int, request: object) -> Reply[Any]:
        services = self._harness.services
        if node_id == services.node_id:
            [api] = [api for api in APIS.values() if api.request is type(request)]
            context = inter_broker_context(api.key, api.max_version)
            return start_coroutine(HANDLERS[api.key](request, context, services))
        reply: Reply[object] = Reply()
        reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return reply


class RouterHarness:
    """One node with a controller and a worker, seen from its router; `call` is a request."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        static: Mapping[str, str] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop` is for requests that wait; the caller closes it. Without one, requests that wait
        cannot be finished."""
        self.static = {"internal.topics.replication.adaptive": "true", **(static or {})}
        self.now_ms = 1_000_000
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self._arena_used = FRAME_GAP
        self._owns_loop = loop is None
        self.loop = asyncio.new_event_loop() if loop is None else loop
        self.controller = ControllerHarness(brokers=brokers, static=self.static, node_id=NODE_ID)
        self.partitions = HostedPartitions(
            folders=(folder,),
            worker=0,
            worker_count=1,
            store_count=STORE_COUNT,
            node_id=NODE_ID,
            static_configs=self.static,
            options=StoreOptions(segment_map_bytes=64 << 20, status_slots=1 << 12),
            now_ms=0,
        )
        self.turns = TurnExecutor(self.partitions, self._on_broadcast)
        self.authorizer = DenyingAuthorizer()
        self.principal = "User:ANONYMOUS"
        """Whose requests `call` and `begin` send."""
        self.link = DirectController(self)
        self.worker_client = DirectWorkerClient(self)
        self.client = LocalInterBrokerClient(self)
        self._metadata = MetadataCache(NODE_ID, self.static, self.controller.image)
        self._logs = Logs((folder,), STORE_COUNT)
        self.services = self.build_services()
        self.follow()

    def build_services(self) -> Services:
        """The services of a router that has just started."""
        services = Services(
            cluster_id="cluster",
            served_apis=tuple(ApiKey),
            metadata=self._metadata,
            controller=cast("ControllerLink", self.link),
            worker_client=cast("WorkerClient", self._link_to_worker()),
            inter_broker_client=self.client,
            logs=self._logs,
            node_control=NodeControl(
                SupervisorLink(None, "router-0"),
                NodeConfig(node_id=NODE_ID, data="data", run="run", listeners=()),
            ),
            now_ms=self.clock_ms,
            loop=self.loop,
        )
        services.authorizer = self.authorizer
        services.fetch_sessions = FetchSessionCache(
            new_id=itertools.count(1).__next__, slots_max=self._session_slots
        )
        return services

    def _link_to_worker(self) -> object:
        return self.worker_client

    def clock_ms(self) -> int:
        """The time of day."""
        return self.now_ms

    def follow(self) -> None:
        """Apply what the controller has committed."""
        self.services.metadata.image = self.controller.image
        self.partitions.apply_image(self.controller.image)
        while self.partitions.is_outdated:
            self.partitions.update_outdated()

    @property
    def image(self) -> MetadataImage:
        return self.services.image

    def deny(self, operation: AclOperation, resource: ResourceType, name: str) -> None:
        self.authorizer.denied.add((operation, resource, name))

    def place(self, name: str, partition: int = 0) -> tuple[int, int]:
        """Store and number of a partition that exists."""
        topic = self.image.topics_by_name[name]
        place = self.services.logs.locate(topic.topic_id, partition)
        assert place is not None
        return place

    def lead(self, name: str, epoch: int, leader: int = NODE_ID, partition: int = 0) -> None:
        """A partition of the topic has been elected a leader in that epoch."""
        topic = self.image.topics_by_name[name]
        before = topic.partitions[partition]
        after = msgspec.structs.replace(
            before, leader=leader, leader_epoch=epoch, partition_epoch=before.partition_epoch + 1
        )
        self.controller.write(PartitionChanged(topic.topic_id, partition, after))
        self.follow()

    def append(
        self, name: str, *batches: bytes, partition: int = 0, is_client: bool = True
    ) -> list[int]:
        """Append batches without the router, each in its own turn; returns their base offsets."""
        store, number = self.place(name, partition)
        offsets = []
        for batch in batches:
            router = RouterState()
            request = AppendBytes(1, store, number, batch, is_client, acks=1)
            self.turns.run([(router, request)], NOW_MS)
            (answer,) = router.replies
            assert isinstance(answer, Appended), answer
            assert answer.error_code == ErrorCode.NONE, answer
            offsets.append(answer.base_offset)
        return offsets

    def call(
        self,
        handler: Callable[[Any, RequestContext, Services], Coroutine[Any, Any, Response]],
        request: object,
        version: int | None = None,
        *,
        listener: str = "PLAINTEXT",
    ) -> Response:
        """The response as the client decodes it. Without a version the newest one is used."""

        async def ask() -> Response:
            pending = self.begin_request(handler, request, version, listener=listener)
            done: asyncio.Future[None] = self.loop.create_future()
            pending.on_done(lambda: done.set_result(None))
            # Without a loop of the caller nothing else runs: what waits has a few turns at most.
            deadline_s = _TURNS_S if self._owns_loop else DEADLINE_S
            await asyncio.wait_for(done, deadline_s)
            return pending.response()

        return self.loop.run_until_complete(ask())

    def answer_to(self, pending: PendingRequest[Response]) -> Response:
        """The response to a request that was started; runs the loop until it comes."""
        if not pending.is_done:
            assert not self._owns_loop, "the request waits: give the harness a loop"
            done: asyncio.Future[None] = self.loop.create_future()
            pending.on_done(lambda: done.set_result(None))
            self.loop.run_until_complete(asyncio.wait_for(done, DEADLINE_S))
        return pending.response()

    def call_in_turns(
        self,
        handler: Callable[[Any, RequestContext, Services], Coroutine[Any, Any, Response]],
        request: object,
        loop: asyncio.AbstractEventLoop,
        version: int | None = None,
    ) -> Response:
        """The response to a request that is so long that it must yield to the loop."""

        async def ask() -> Response:
            pending = self.begin_request(handler, request, version)
            assert not pending.is_done, "the loop was held for the whole request"
            done: asyncio.Future[None] = loop.create_future()
            pending.on_done(lambda: done.set_result(None))
            await asyncio.wait_for(done, DEADLINE_S)
            return pending.response()

        return loop.run_until_complete(ask())

    def begin_request(
        self,
        handler: Callable[[Any, RequestContext, Services], Coroutine[Any, Any, Response]],
        request: object,
        version: int | None = None,
        *,
        listener: str = "PLAINTEXT",
    ) -> PendingRequest[Response]:
        """Start a request, which may be answered later. Without a response the result is None."""
        api = next(api for api in APIS.values() if api.request is type(request))
        version = api.max_version if version is None else version
        frame = self.write_frame(b"".join(encode_request(api.key, version, request)))
        context = RequestContext(
            api_key=api.key,
            api_version=version,
            correlation_id=1,
            client_id="test",
            client_host="127.0.0.1",
            client_port=50_000,
            local_host=LOCAL_HOST,
            local_port=LOCAL_PORT,
            listener_name=listener,
            principal=self.principal,
            frame=frame,
            arena_offset=self.offset_of(frame) if len(frame) else 0,
            offset_of=self.offset_of,
        )
        pending: PendingRequest[Response] = PendingRequest(context)

        def retain() -> None:
            pending.retain_count += 1

        def close() -> None:
            pending.is_closed = True

        def finish(response: Response | None, error: BaseException | None) -> None:
            def read() -> Response:
                if error is not None:
                    raise error
                if response is None:
                    return cast("Response", None)
                sent = memoryview(b"".join(encode_response(api.key, version, response)))
                return cast("Response", decode_response(api.key, version, sent))

            pending.finish(read)

        context.retain, context.close = retain, close
        drive(handler(decode_request(api.key, version, frame), context, self.services), finish)
        return pending

    def write_frame(self, sent: bytes) -> memoryview:
        """Write a frame into the arena, as a client's."""
        if self._arena_used + len(sent) > ARENA_BYTES:
            self._arena_used = FRAME_GAP
        start, self._arena_used = self._arena_used, self._arena_used + len(sent) + FRAME_GAP
        frame = self.arena[start : start + len(sent)]
        frame[:] = sent
        return frame

    def offset_of(self, view: memoryview) -> int:
        """The position of a view of a frame in the arena."""
        return _address_of(view) - _address_of(self.arena)

    def _session_slots(self) -> int:
        settings = broker_settings(self.image, NODE_ID, self.static)
        return settings.max_incremental_fetch_session_cache_slots

    def _on_broadcast(self, message: ToRouter) -> None:
        assert isinstance(message, PartitionsAdvanced)
        self.services.fetch_purgatory.on_advanced(message.store, message.numbers)

    def close(self) -> None:
        self._logs.close()
        self.partitions.close()
        if self._owns_loop:
            self.loop.close()


def _address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
