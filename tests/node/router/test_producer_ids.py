"""Producer ids: each is given once, and one block is requested at a time."""

from typing import cast

import msgspec
import pytest

from odradek.cluster.controller.commands import AllocateProducerIds, ProducerIdsReply
from odradek.cluster.metadata.image import BrokerImage, MetadataImage
from odradek.node.bus.reply import Reply, drive
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.metadata_cache import MetadataCache
from odradek.node.router.producer_ids import ProducerIds
from odradek.protocol.errors import ApiError, ErrorCode


class Blocks:
    """A controller that answers when the test wants it."""

    def __init__(self) -> None:
        self.asked: list[Reply[ProducerIdsReply]] = []

    async def submit(self, command: AllocateProducerIds, _timeout_ms: int) -> ProducerIdsReply:
        assert command == AllocateProducerIds(1, 10)
        reply: Reply[ProducerIdsReply] = Reply()
        self.asked.append(reply)
        return await reply


class Takers:
    """Handlers that request an id each, and the ids in the order of the answers."""

    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids
        self.got: list[int | None] = []
        self.errors: list[BaseException] = []

    def draw(self, count: int = 1) -> None:
        for _ in range(count):
            drive(self._ids.next_id(), self._finish)

    def _finish(self, value: int | None, error: BaseException | None) -> None:
        if error is None:
            self.got.append(value)
        else:
            self.errors.append(error)


@pytest.fixture
def blocks() -> Blocks:
    return Blocks()


@pytest.fixture
def takers(blocks: Blocks) -> Takers:
    image = msgspec.structs.replace(MetadataImage.empty(), brokers={1: BrokerImage(1, 10)})
    return Takers(ProducerIds(MetadataCache(1, {}, image), cast("ControllerLink", blocks)))


def test_ids_of_a_block_need_no_further_request(blocks: Blocks, takers: Takers) -> None:
    takers.draw()
    blocks.asked[0].resolve(ProducerIdsReply(5000, 3))
    takers.draw(2)
    assert takers.got == [5000, 5001, 5002]
    assert len(blocks.asked) == 1
    takers.draw()
    assert len(blocks.asked) == 2


def test_concurrent_requests_wait_for_one_block(blocks: Blocks, takers: Takers) -> None:
    takers.draw(4)
    assert len(blocks.asked) == 1
    blocks.asked[0].resolve(ProducerIdsReply(0, 1000))
    assert sorted(number for number in takers.got if number is not None) == [0, 1, 2, 3]


def test_when_a_block_is_too_small_the_next_one_is_requested(
    blocks: Blocks, takers: Takers
) -> None:
    takers.draw(5)
    blocks.asked[0].resolve(ProducerIdsReply(0, 2))
    assert len(takers.got) == 2
    assert len(blocks.asked) == 2
    blocks.asked[1].resolve(ProducerIdsReply(100, 10))
    assert sorted(number for number in takers.got if number is not None) == [0, 1, 100, 101, 102]


def test_a_failed_block_is_an_error_of_one_request_and_the_next_one_requests_again(
    blocks: Blocks, takers: Takers
) -> None:
    takers.draw(2)
    blocks.asked[0].fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    assert len(takers.errors) == 1
    assert len(blocks.asked) == 2
    blocks.asked[1].resolve(ProducerIdsReply(7, 1))
    assert takers.got == [7]
