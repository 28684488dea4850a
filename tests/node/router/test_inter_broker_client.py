"""Two nodes' routers over a worker's socket, with the cluster's keys."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest
import zmq

from odradek.cluster.metadata.image import MetadataImage
from odradek.node.bus.curve import cluster_keys
from odradek.node.bus.endpoint import descriptor
from odradek.node.bus.replica_link import ReplicaListener, requests, send_relayed
from odradek.node.router.inter_broker_client import ZmqInterBrokerClient
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

DEADLINE_S = 10.0
KEYS = cluster_keys(["secret"])
REQUEST = WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=9)])
Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"


class Stage:
    """A router that sends requests to node 1, and that node's worker, which relays them."""

    def __init__(self, context: Context) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = context
        self.listener = ReplicaListener(context, "tcp://127.0.0.1:*", KEYS)
        self.socket = self.listener.socket
        assert self.listener.authenticator is not None
        self.loop.add_reader(descriptor(self.listener.authenticator), self.listener.tick)
        address = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(address, bytes)
        self.address: str | None = address.rstrip(b"\0").decode()
        self.is_answering = True
        self.asked: list[object] = []
        self.inter_broker_client = ZmqInterBrokerClient(
            self.loop,
            context,
            identity=b"router-0",
            keys=KEYS,
            node_id=0,
            address_of=lambda node_id: self.address if node_id == 1 else None,
            handler=self.handle,
        )
        self.loop.add_reader(descriptor(self.socket), self.pass_on)

    def pass_on(self) -> None:
        def relay(identity: bytes, payload: bytes) -> None:
            def send_relayed_response(answer: bytes) -> None:
                send_relayed(self.socket, identity, answer)
                self.loop.call_soon(self.pass_on)

            self.inter_broker_client.answer(payload, send_relayed_response)

        assert list(requests(self.socket, on_relay=relay)) == []

    async def handle(self, api_key: int, version: int, request: object) -> object:
        assert (api_key, version) == (ApiKey.WRITE_TXN_MARKERS, 2)
        self.asked.append(request)
        if not self.is_answering:
            await self.loop.create_future()
        return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=9)])

    async def send(self, node_id: int = 1) -> object:
        return await asyncio.wait_for(self.future(node_id), DEADLINE_S)

    def future(self, node_id: int = 1) -> "asyncio.Future[object]":
        reply = self.inter_broker_client.send(node_id, REQUEST)
        future: asyncio.Future[object] = self.loop.create_future()

        def settle() -> None:
            try:
                future.set_result(reply.result())
            except ApiError as error:
                future.set_exception(error)

        reply.on_done(settle)
        return future

    def close(self) -> None:
        assert self.listener.authenticator is not None
        self.loop.remove_reader(descriptor(self.socket))
        self.loop.remove_reader(descriptor(self.listener.authenticator))
        self.inter_broker_client.close()
        self.listener.close()


def run(test: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def on_loop() -> None:
        context: Context = zmq.Context()
        stage = Stage(context)
        try:
            await test(stage)
        finally:
            stage.close()
            context.term()

    asyncio.run(on_loop())


def test_requests_are_answered_including_the_first_one() -> None:
    async def test(stage: Stage) -> None:
        for _ in range(3):
            answer = await stage.send()
            assert isinstance(answer, WriteTxnMarkersResponse)
            assert answer.markers[0].producer_id == 9
        assert stage.asked == [REQUEST] * 3

    run(test)


def test_a_request_to_an_unknown_node_fails_at_once() -> None:
    async def test(stage: Stage) -> None:
        with pytest.raises(ApiError) as caught:
            await stage.send(2)
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(test)


def test_pending_requests_to_a_fenced_node_fail() -> None:
    async def test(stage: Stage) -> None:
        await stage.send()
        stage.is_answering = False
        waiting = stage.future()
        stage.inter_broker_client.on_image(MetadataImage.empty())
        with pytest.raises(ApiError):
            await asyncio.wait_for(waiting, DEADLINE_S)

    run(test)


def test_requests_go_to_the_new_address_of_a_node() -> None:
    async def test(stage: Stage) -> None:
        await stage.send()
        address, stage.address = stage.address, None
        stage.inter_broker_client.on_image(MetadataImage.empty())
        with pytest.raises(ApiError):
            await stage.send()
        stage.address = address
        assert isinstance(await stage.send(), WriteTxnMarkersResponse)

    run(test)


def test_requests_of_other_apis_are_not_handled() -> None:
    async def test(stage: Stage) -> None:
        answers: list[bytes] = []
        for payload in (b"nonsense", b"\x94\x01\x13\x00\xc4\x00"):
            stage.inter_broker_client.answer(payload, answers.append)
        assert answers == []
        assert stage.asked == []

    run(test)
