"""A router with its share coordinators, and another node's persister, which sends it requests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from odradek.coordinator.share.shard import ShareStateShard
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.context import inter_broker_context
from odradek.node.router.dispatch import HANDLERS
from odradek.node.router.handlers.groups import KEY_TYPE_SHARE, handle_find_coordinator
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.shards.coordinator_service import CoordinatorService
from odradek.node.router.share.persister import SharePersister
from odradek.protocol.apis import APIS
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest
from tests.support.group_harness import GroupHarness

T = TypeVar("T")

TOPIC = "t"
GROUP = "g"
OTHER_NODE = 7


class LossyRouterLink:
    """The link to this harness's router. It loses the next `lost_requests` requests, and then the
    next `lost_answers` responses."""

    def __init__(self, harness: "ShareHarness") -> None:
        self._harness = harness
        self.asked: list[object] = []
        self.lost_requests = 0
        self.lost_answers = 0

    def send(self, node_id: int, request: object) -> Reply[Any]:
        reply: Reply[object] = Reply()
        self.asked.append(request)
        if self.lost_requests:
            self.lost_requests -= 1
            reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return reply
        [api] = [api for api in APIS.values() if api.request is type(request)]
        version = api.max_version
        body = b"".join(encode_request(api.key, version, request))

        def finish(response: object, error: BaseException | None) -> None:
            assert error is None, error
            if self.lost_answers:
                self.lost_answers -= 1
                reply.fail(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return
            answered = b"".join(encode_response(api.key, version, response))
            reply.resolve(decode_response(api.key, version, memoryview(answered)))

        arrived = decode_request(api.key, version, memoryview(body))
        context = inter_broker_context(api.key, version)
        drive(HANDLERS[api.key](arrived, context, self._harness.services), finish)
        return reply


class _CurrentCoordinator:
    """The share coordinator of the harness, also after a restart."""

    def __init__(self, harness: "ShareHarness") -> None:
        self._harness = harness

    def __getattr__(self, name: str) -> object:
        return getattr(self._harness.shares, name)


class ShareHarness(GroupHarness):
    """A topic of three partitions. `here` and `there` are the share states of two nodes."""

    def __init__(
        self, folder: Path, *, static: Mapping[str, str] | None = None, has_states: bool = True
    ) -> None:
        super().__init__(folder, static=static)
        self.topic_id = self.have_topic(TOPIC, 1, 3)
        self.remote_link = LossyRouterLink(self)
        self._metadata_there = MetadataCache(OTHER_NODE, {}, self.image)
        coordinator = cast("CoordinatorService[ShareStateShard]", _CurrentCoordinator(self))
        self.there = SharePersister(self._metadata_there, coordinator, self.remote_link, self.loop)
        if has_states:
            request = FindCoordinatorRequest(
                key_type=KEY_TYPE_SHARE, coordinator_keys=["g:AAAAAAAAAAEAAAAAAAAAAg:0"]
            )
            [found] = self.call(handle_find_coordinator, request, 6).coordinators
            assert found.error_code == ErrorCode.NONE

    def follow(self) -> None:
        super().follow()
        if hasattr(self, "_metadata_there"):
            self._metadata_there.image = self.image

    @property
    def here(self) -> SharePersister:
        return self.services.share_persister

    def shards(self) -> list[ShareStateShard]:
        found = [host.runtime.shard for host in self.shares._hosts.values()]
        assert all(isinstance(shard, ShareStateShard) for shard in found)
        return found  # type: ignore[return-value]  # just asserted
