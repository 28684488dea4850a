"""A router's services without sockets: the real controller, stores, worker turns and codec.

What a request would cross on its way, it crosses here in memory: it is encoded and decoded in
its version, handled, and the response goes through the codec as well. What stands in for the
links to the controller and to the workers calls them directly.
"""

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from cluster.controller.commands import (
    AllocateProducerIds,
    Command,
    CommandReply,
    ProducerIdsReply,
)
from cluster.metadata.image import MetadataImage
from node.bus.messages import DeleteRecords, Failed, RecordsDeleted
from node.bus.reply import Reply, drive
from node.router.authorizer import Asker, Authorizer, Operation, ResourceType
from node.router.context import RequestContext, Services
from node.router.controller_link import ControllerLink
from node.router.fanout import Fanout
from node.router.fetch_sessions import FetchSessions
from node.router.fetch_waits import FetchWaits
from node.router.logs import Logs
from node.router.producer_ids import ProducerIds
from node.worker.partitions import Partitions
from node.worker.turns import RouterState, Turns
from protocol.apis import APIS, ApiKey
from protocol.codec import decode_request, decode_response, encode_request, encode_response
from protocol.errors import ApiError
from storage.settings import StoreOptions
from tests.support.controller_room import ControllerRoom

Response = TypeVar("Response")
Denial = tuple[Operation, ResourceType, str]

NODE_ID = 0
STORE_COUNT = 2
LOCAL_HOST, LOCAL_PORT = "reached.example", 19092


class DenyingAuthorizer(Authorizer):
    """Denies what it is told to, and remembers all that was asked."""

    def __init__(self) -> None:
        self.denied: set[Denial] = set()
        self.asked: set[Denial] = set()

    def check(
        self, context: Asker, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        self.asked.add((operation, resource, name))
        return (operation, resource, name) not in self.denied


class DirectController:
    """The link to the controller: carries a command out at once, or fails as it is told to."""

    def __init__(self, room: "RouterRoom") -> None:
        self._room = room
        self.failure: ApiError | None = None
        self.timeouts_ms: list[int] = []

    async def submit(self, command: Command, timeout_ms: int) -> CommandReply:
        self.timeouts_ms.append(timeout_ms)
        if self.failure is not None:
            raise self.failure
        reply = self._room.controller.do(command)
        self._room.follow()
        return reply


class DirectFanout:
    """The bus to the workers: one worker's turn per request."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._next_id = 0

    def delete_records(
        self, *, store: int, number: int, offset: int
    ) -> Reply[RecordsDeleted | Failed]:
        self._next_id += 1
        router = RouterState()
        self._turns.run([(router, DeleteRecords(self._next_id, store, number, offset))], 0)
        reply: Reply[RecordsDeleted | Failed] = Reply()
        (answer,) = router.replies
        assert isinstance(answer, RecordsDeleted | Failed)
        reply.resolve(answer)
        return reply


class RouterRoom:
    """One node with a controller and a worker, seen from its router; `call` is a request."""

    def __init__(
        self, folder: Path, *, brokers: int = 1, static: Mapping[str, str] | None = None
    ) -> None:
        self.static = dict(static or {})
        self.controller = ControllerRoom(brokers=brokers, static=self.static, node_id=NODE_ID)
        self.partitions = Partitions(
            folder=folder,
            worker=0,
            worker_count=1,
            store_count=STORE_COUNT,
            node_id=NODE_ID,
            static_configs=self.static,
            options=StoreOptions(segment_map_bytes=64 << 20, status_slots=1 << 12),
            now_ms=0,
        )
        self.turns = Turns(self.partitions, lambda _message: None)
        self.authorizer = DenyingAuthorizer()
        self.link = DirectController(self)
        self.services = Services(
            node_id=NODE_ID,
            cluster_id="cluster",
            image=self.controller.image,
            static_configs=self.static,
            now_ms=lambda: 1_000_000,
            controller=cast("ControllerLink", self.link),
            fanout=cast("Fanout", DirectFanout(self.turns)),
            logs=Logs(folder, STORE_COUNT),
            authorizer=self.authorizer,
            fetch_sessions=cast("FetchSessions", None),
            fetch_waits=cast("FetchWaits", None),
            producer_ids=ProducerIds(self.allocate_producer_ids),
            served_apis=tuple(ApiKey),
        )
        self.follow()

    async def allocate_producer_ids(self) -> tuple[int, int]:
        broker = self.image.brokers[NODE_ID]
        reply = await self.link.submit(AllocateProducerIds(NODE_ID, broker.broker_epoch), 5_000)
        assert isinstance(reply, ProducerIdsReply)
        return reply.first, reply.count

    def follow(self) -> None:
        """Everybody has carried out what the controller committed."""
        self.services.image = self.controller.image
        self.partitions.follow(self.controller.image)

    @property
    def image(self) -> MetadataImage:
        return self.services.image

    def deny(self, operation: Operation, resource: ResourceType, name: str) -> None:
        self.authorizer.denied.add((operation, resource, name))

    def call(
        self,
        handler: Callable[[Any, RequestContext, Services], Coroutine[Any, Any, Response]],
        request: object,
        version: int | None = None,
        *,
        listener: str = "PLAINTEXT",
    ) -> Response:
        """The response as the client reads it; the newest version if none is named."""
        api = next(api for api in APIS.values() if api.request is type(request))
        version = api.max_version if version is None else version
        sent = b"".join(encode_request(api.key, version, request))
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
        )
        response = run(
            handler(decode_request(api.key, version, memoryview(sent)), context, self.services)
        )
        buffers = encode_response(api.key, version, response)
        return cast("Response", decode_response(api.key, version, memoryview(b"".join(buffers))))

    def close(self) -> None:
        self.services.logs.close()
        self.partitions.close()


def run(coroutine: Coroutine[Any, Any, Response]) -> Response:
    """Drive a coroutine that waits for nothing but what is there already."""
    ended: list[tuple[Response | None, BaseException | None]] = []
    drive(coroutine, lambda value, error: ended.append((value, error)))
    ((value, error),) = ended
    if error is not None:
        raise error
    return cast("Response", value)
