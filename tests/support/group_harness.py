"""A router with its group coordinators: real stores, turns, controller, image and loop, no sockets.

`call` waits for the response as the client decodes it; `begin` does not wait.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from odradek.cluster.controller.commands import DeleteTopics, TopicReference
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.share.shard import ShareStateShard
from odradek.coordinator.transaction.shard import TransactionShard
from odradek.node.bus.messages import (
    AppendBytes,
    AppendReply,
    WorkerRequest,
    WriteMarker,
)
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.dispatch import error_response
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.worker_client import AnswerReceiver
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.apis import APIS
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.errors import ApiError
from tests.support.controller_harness import topic_id
from tests.support.router_harness import LOCAL_HOST, LOCAL_PORT, RouterHarness
from tests.support.stores import NOW_MS

R = TypeVar("R")
T = TypeVar("T")
Response = TypeVar("Response")
Handler = Callable[[Any, RequestContext, Services], Coroutine[Any, Any, Response]]

DEADLINE_S = 5.0


class TurnWorkerClient:
    """The client of one worker, which runs its turns in the event loop unless `is_away`."""

    def __init__(self, harness: RouterHarness) -> None:
        self._harness = harness
        self._next_id = 0
        self._queue: list[tuple[WorkerRequest[Any], Reply[Any]]] = []
        self.is_away = False
        self.append_count = 0
        self.marker_count = 0

    def worker_of(self, _store: int) -> int:
        return 0

    def append_bytes(self, request: AppendBytes) -> Reply[AppendReply]:
        return self.send(request)

    def send(self, request: WorkerRequest[R]) -> Reply[R]:
        self._next_id = request.request_id = self._next_id + 1
        self.append_count += isinstance(request, AppendBytes)
        self.marker_count += isinstance(request, WriteMarker)
        reply: Reply[Any] = Reply()
        self._queue.append((request, reply))
        self._harness.loop.call_soon(self.turn)
        return reply

    def submit(self, request: WorkerRequest[R], receiver: AnswerReceiver[R]) -> None:
        reply = self.send(request)
        reply.on_done(lambda: receiver.resolve(reply.result()))

    def come_back(self) -> None:
        """The worker is back and executes the requests that have come meanwhile."""
        self.is_away = False
        self._harness.loop.call_soon(self.turn)

    def turn(self) -> None:
        if self.is_away:
            return
        queue, self._queue = self._queue, []
        router = RouterState(self._harness.arena)
        self._harness.turns.run([(router, request) for request, _ in queue], NOW_MS)
        replies = {request.request_id: reply for request, reply in queue}
        for answer in router.replies:
            replies[answer.request_id].resolve(answer)  # type: ignore[union-attr]  # only answers


class GroupHarness(RouterHarness):
    """See the module's docstring. Use it in a `with`."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        static: Mapping[str, str] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        settings = {
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.num.partitions": "3",
            "share.coordinator.state.topic.num.partitions": "3",
            "group.initial.rebalance.delay.ms": "0",
            **(static or {}),
        }
        self.bus = TurnWorkerClient(self)
        super().__init__(folder, brokers=brokers, static=settings, loop=loop)

    def _link_to_worker(self) -> object:
        return self.bus

    @property
    def coordinators(self) -> CoordinatorService[GroupShard]:
        return self.services.group_coordinator

    @property
    def transactions(self) -> CoordinatorService[TransactionShard]:
        return self.services.transaction_coordinator

    @property
    def shares(self) -> CoordinatorService[ShareStateShard]:
        return self.services.share_coordinator

    def follow(self) -> None:
        old = self.image
        super().follow()
        self.services.on_image(old, self.image)

    def restart_router(self) -> None:
        """Replace the router by a new one."""
        self.services.close()
        self.turn_loop()
        self.services = self.build_services()

    def begin(
        self,
        handler: Handler[Response],
        request: object,
        version: int | None = None,
        *,
        client_id: str = "test",
    ) -> "asyncio.Future[Response]":
        """Send a request without waiting for the response."""
        api = next(api for api in APIS.values() if api.request is type(request))
        version = api.max_version if version is None else version
        sent = self.write_frame(b"".join(encode_request(api.key, version, request)))
        context = RequestContext(
            api_key=api.key,
            api_version=version,
            correlation_id=1,
            client_id=client_id,
            client_host="127.0.0.1",
            client_port=50_000,
            local_host=LOCAL_HOST,
            local_port=LOCAL_PORT,
            listener_name="PLAINTEXT",
            principal=self.principal,
            offset_of=self.offset_of,
        )
        future: asyncio.Future[Response] = self.loop.create_future()

        def finish(response: Response | None, error: BaseException | None) -> None:
            if isinstance(error, ApiError):
                response = error_response(api, version, error) or response
            if error is not None and response is None:
                future.set_exception(error)
                return
            buffers = encode_response(api.key, version, response)
            read = decode_response(api.key, version, memoryview(b"".join(buffers)))
            future.set_result(cast("Response", read))

        async def start() -> None:
            decoded = decode_request(api.key, version, sent)
            drive(handler(decoded, context, self.services), finish)

        self.loop.run_until_complete(start())
        return future

    def wait(self, future: "asyncio.Future[Response]") -> Response:
        """Run the loop until the response comes."""

        async def bounded() -> Response:
            return await asyncio.wait_for(future, DEADLINE_S)

        return self.loop.run_until_complete(bounded())

    def call(
        self,
        handler: Handler[Response],
        request: object,
        version: int | None = None,
        *,
        listener: str = "PLAINTEXT",
    ) -> Response:
        assert listener == "PLAINTEXT"
        return self.wait(self.begin(handler, request, version))

    def result(self, reply: Reply[T]) -> T:
        """The result of a reply, or its ApiError."""
        arrived: asyncio.Future[None] = self.loop.create_future()
        reply.on_done(lambda: arrived.set_result(None))
        self.wait(arrived)
        return reply.result()

    def turn_loop(self, seconds: float = 0.0) -> None:
        """Run the loop once, or for some seconds."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def have_topic(self, name: str, number: int, partitions: int = 1) -> bytes:
        """Create a topic; returns its id."""
        self.controller.has(name, number, partitions)
        self.follow()
        return topic_id(number)

    def drop_topic(self, name: str) -> None:
        result = self.controller.topics(DeleteTopics((TopicReference(name),)))[name]
        assert not result.error_code
        self.follow()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.services.close()
        self.turn_loop()
        super().close()
