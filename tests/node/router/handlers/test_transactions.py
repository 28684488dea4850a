"""InitProducerId without a transactional id, in every version (B.6)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.controller.commands import RegisterBroker
from node.router.authorizer import CLUSTER_NAME, Operation, ResourceType
from node.router.handlers.transactions import handle_init_producer_id
from protocol.errors import ApiError, ErrorCode
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.support.controller_room import topic_id
from tests.support.router_room import RouterRoom


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RouterRoom]:
    room = RouterRoom(tmp_path)
    yield room
    room.close()


def init(
    room: RouterRoom, version: int = 5, transactional_id: str | None = None, **former: int
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000
    )
    for field, value in former.items():
        setattr(request, field, value)
    return room.call(handle_init_producer_id, request, version)


@pytest.mark.parametrize("version", range(6))
def test_everybody_gets_an_id_of_his_own_at_epoch_0(room: RouterRoom, version: int) -> None:
    answers = [init(room, version) for _ in range(3)]
    assert [(answer.error_code, answer.producer_epoch) for answer in answers] == [(0, 0)] * 3
    assert len({answer.producer_id for answer in answers}) == 3


def test_a_former_id_is_not_given_back(room: RouterRoom) -> None:
    answer = init(room, producer_id=7_000_000, producer_epoch=3)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    assert answer.producer_id != 7_000_000


def test_ids_are_not_given_twice_by_another_router_or_after_a_restart(room: RouterRoom) -> None:
    mine = init(room).producer_id
    room.controller.do(RegisterBroker(0, topic_id(5), "cluster"))
    room.follow()
    room.services.producer_ids = type(room.services.producer_ids)(room.allocate_producer_ids)
    assert init(room).producer_id >= mine + 1000


def test_a_block_serves_many(room: RouterRoom) -> None:
    for _ in range(1001):
        assert init(room).error_code == 0
    assert len(room.link.timeouts_ms) == 2


def test_an_id_needs_idempotent_write_or_write_on_some_topic(room: RouterRoom) -> None:
    # KIP-679
    room.deny(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
    assert init(room).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    room.controller.has("mine", 1)
    room.follow()
    assert init(room).error_code == ErrorCode.NONE
    room.deny(Operation.WRITE, ResourceType.TOPIC, "mine")
    answer = init(room)
    assert (answer.error_code, answer.producer_id) == (31, -1)


def test_a_controller_that_does_not_answer_fails_the_request(room: RouterRoom) -> None:
    room.link.failure = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    with pytest.raises(ApiError) as caught:
        init(room)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    room.link.failure = None
    assert init(room).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [
        ("", ErrorCode.INVALID_REQUEST),
        ("t", ErrorCode.UNSUPPORTED_VERSION),
        ("secret", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_transactional_ids_are_refused_for_good(
    room: RouterRoom, transactional_id: str, code: ErrorCode
) -> None:
    room.deny(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "secret")
    answer = init(room, transactional_id=transactional_id)
    assert (answer.error_code, answer.producer_id) == (code, -1)
    assert not ErrorCode(answer.error_code).is_retriable
