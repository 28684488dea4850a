"""Members of share groups that fetch and acknowledge, for tests with a router's harness.

Everything is real but the sockets: the log, the workers' turns, and the shards that keep the state.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from odradek.cluster.controller.commands import (
    ConfigOperation,
    ConfigsReply,
    IncrementalAlterConfigs,
    ResourceOperations,
)
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.coordinator.share.requests import InitializeShareState, ShareKey
from odradek.node.bus.reply import drive
from odradek.node.router.context import RequestContext
from odradek.node.router.dispatch import HANDLERS
from odradek.node.router.share.dead_letter_queue import DeadLetterQueue
from odradek.node.router.share.partitions import SharePartitions
from odradek.node.router.share.sessions import TopicIdPartition
from odradek.protocol.apis import APIS
from odradek.protocol.codec import decode_request, decode_response, encode_request, encode_response
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.messages.share import (
    AcknowledgementBatch,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareRequestPartition,
    ShareRequestTopic,
)
from odradek.protocol.records import iter_batches
from tests.support.router_harness import LOCAL_HOST, LOCAL_PORT
from tests.support.share_harness import GROUP, ShareHarness

Response = TypeVar("Response")
Pending = "asyncio.Future[Response]"

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def batch(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


def ranges(data: ShareFetchPartitionData) -> list[tuple[int, int, int]]:
    """What was acquired: first and last offset, delivery count."""
    return [
        (found.first_offset, found.last_offset, found.delivery_count)
        for found in data.acquired_records
    ]


def base_offsets(data: ShareFetchPartitionData) -> list[int]:
    """The base offsets of the batches in a response."""
    assert isinstance(data.records, bytes | memoryview)
    return [header.base_offset for _, header in iter_batches(data.records)]


class ShareFetchHarness(ShareHarness):
    """A topic of three partitions, whose state is initialised for the group from the earliest."""

    def __init__(
        self,
        folder: Path,
        *,
        static: Mapping[str, str] | None = None,
        group: Mapping[str, str] | None = None,
        is_initialised: bool = True,
    ) -> None:
        self._started = time.monotonic()
        super().__init__(folder, static=static)
        self.configure(GROUP, {"share.auto.offset.reset": "earliest", **(group or {})})
        if is_initialised:
            for partition in range(3):
                self.initialise(partition)

    def clock_ms(self) -> int:
        """It advances like the loop's clock, so that long polls end."""
        return self.now_ms + int((time.monotonic() - self._started) * 1000)

    @property
    def led(self) -> SharePartitions:
        return self.services.share_partitions

    @property
    def letters(self) -> DeadLetterQueue:
        return self.services.dead_letter_queue

    def initialise(self, partition: int, *, group: str = GROUP, epoch: int = 1) -> None:
        states = self.services.share_persister
        self.result(
            states.call(
                InitializeShareState(
                    ShareKey(group, self.topic_id, partition), state_epoch=epoch, start_offset=-1
                )
            )
        )

    def configure(
        self,
        name: str,
        configs: Mapping[str, str],
        kind: ConfigResourceType = ConfigResourceType.GROUP,
    ) -> None:
        changes = tuple(ConfigOperation(key, 0, value) for key, value in configs.items())
        reply = self.controller.do(
            IncrementalAlterConfigs((ResourceOperations(kind, name, changes),))
        )
        assert isinstance(reply, ConfigsReply)
        assert not reply.results[0].error_code, reply
        self.follow()

    def member(
        self, name: str = "a", *, connection: int = 1, group: str = GROUP
    ) -> "ShareFetchMember":
        return ShareFetchMember(self, name, connection, group)

    def topic_partition(self, partition: int = 0) -> TopicIdPartition:
        """A partition of the topic."""
        return TopicIdPartition(self.topic_id, partition)

    def disconnect(self, connection: int) -> None:
        self.services.on_disconnected(connection)

    def ask(self, request: object, version: int, connection: int) -> "asyncio.Future[object]":
        """Send a client's request without waiting for the response."""
        [api] = [api for api in APIS.values() if api.request is type(request)]
        sent = memoryview(b"".join(encode_request(api.key, version, request)))
        context = RequestContext(
            api_key=api.key,
            api_version=version,
            correlation_id=1,
            client_id="test",
            client_host="127.0.0.1",
            client_port=50_000,
            local_host=LOCAL_HOST,
            local_port=LOCAL_PORT,
            listener_name="PLAINTEXT",
            connection_id=connection,
        )
        future: asyncio.Future[object] = self.loop.create_future()

        def finish(response: object, error: BaseException | None) -> None:
            if isinstance(error, ApiError):
                # As the dispatcher says it.
                future.set_result(api.response(error_code=error.code, error_message=error.message))
            elif error is not None:
                future.set_exception(error)
            else:
                buffers = encode_response(api.key, version, response)
                future.set_result(decode_response(api.key, version, memoryview(b"".join(buffers))))

        async def start() -> None:
            handler = HANDLERS[api.key]
            drive(handler(decode_request(api.key, version, sent), context, self.services), finish)

        self.loop.run_until_complete(start())
        return future


class ShareFetchMember:
    """One member with its share session; it counts epochs as clients do."""

    def __init__(self, harness: ShareFetchHarness, name: str, connection: int, group: str) -> None:
        self.harness = harness
        self.name = name
        self.connection = connection
        self.group = group
        self.epoch = 0

    def begin_fetch(
        self,
        *partitions: int,
        acknowledge: Mapping[int, Sequence[AcknowledgementBatch]] | None = None,
        forget: Sequence[int] = (),
        epoch: int | None = None,
        version: int = 2,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        max_records: int = 500,
        batch_size: int = 500,
        mode: int = 0,
        is_renewal: bool = False,
        topic_id: bytes | None = None,
    ) -> "asyncio.Future[object]":
        named = dict.fromkeys(partitions, ())
        asked: dict[int, Sequence[AcknowledgementBatch]] = {**named, **(acknowledge or {})}
        own_id = self.harness.topic_id if topic_id is None else topic_id
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=batch_size,
            share_acquire_mode=mode,
            is_renew_ack=is_renewal,
            topics=[
                ShareRequestTopic(
                    topic_id=own_id,
                    partitions=[
                        ShareRequestPartition(
                            partition_index=index, acknowledgement_batches=list(batches)
                        )
                        for index, batches in asked.items()
                    ],
                )
            ]
            if asked
            else [],
            forgotten_topics_data=[TopicIdPartitions(topic_id=own_id, partitions=list(forget))]
            if forget
            else [],
        )
        self.epoch += 1
        return self.harness.ask(request, version, self.connection)

    def end_fetch(self, pending: "asyncio.Future[object]") -> ShareFetchResponse:
        return cast("ShareFetchResponse", self.harness.wait(pending))

    def respond(self, *partitions: int, **options: object) -> ShareFetchResponse:
        """The whole response."""
        return self.end_fetch(self.begin_fetch(*partitions, **options))  # type: ignore[arg-type]  # as begin_fetch has them

    def fetch(self, *partitions: int, **options: object) -> dict[int, ShareFetchPartitionData]:
        """The fetched data by partition; waits for records by default."""
        response = self.respond(*partitions, **{"max_wait_ms": 2_000, **options})
        assert response.error_code == ErrorCode.NONE, response
        return {
            data.partition_index: data for topic in response.responses for data in topic.partitions
        }

    def acknowledge(
        self,
        *batches: AcknowledgementBatch,
        partition: int = 0,
        epoch: int | None = None,
        version: int = 2,
        is_renewal: bool = False,
        topic_id: bytes | None = None,
    ) -> ShareAcknowledgeResponse:
        partitions = [
            ShareRequestPartition(partition_index=partition, acknowledgement_batches=list(batches))
        ]
        own_id = self.harness.topic_id if topic_id is None else topic_id
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=is_renewal,
            topics=[ShareRequestTopic(topic_id=own_id, partitions=partitions)] if batches else [],
        )
        self.epoch += 1
        pending = self.harness.ask(request, version, self.connection)
        return cast("ShareAcknowledgeResponse", self.harness.wait(pending))

    def acknowledge_partition(
        self, *batches: AcknowledgementBatch, **options: object
    ) -> ShareAcknowledgePartitionData:
        """The result of acknowledgements in one partition."""
        response = self.acknowledge(*batches, **options)  # type: ignore[arg-type]  # as acknowledge has them
        assert response.error_code == ErrorCode.NONE, response
        [[data]] = [topic.partitions for topic in response.responses]
        return data
