"""Who may open a transaction in a partition, on a real store and a worker's turns."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.bus.messages import (
    NO_GUARD,
    Append,
    Appended,
    DescribeProducers,
    ProducersDescribed,
    Unverified,
    WriteMarker,
)
from node.worker.turns import RouterState
from protocol.errors import ErrorCode
from protocol.records import TRANSACTIONAL, Record, build_batch
from tests.support.router_room import RouterRoom
from tests.support.stores import NOW_MS

PRODUCER_ID = 5


class Stage:
    """A partition, and a producer whose batches go on from each other."""

    def __init__(self, room: RouterRoom) -> None:
        self.room = room
        room.controller.has("t", 1, 1)
        room.follow()
        self.place = room.place("t")
        self.sequence = 0

    def append(self, guard: int, *, epoch: int = 0, attributes: int = TRANSACTIONAL) -> object:
        frame = self.room.lay_down(
            build_batch(
                [Record(0, NOW_MS, b"k", b"v")],
                attributes=attributes,
                producer_id=PRODUCER_ID,
                producer_epoch=epoch,
                base_sequence=self.sequence,
            )
        )
        at = self.room.offset_of(frame)
        answer = self._turn(Append(1, *self.place, at, len(frame), guard=guard))
        if isinstance(answer, Appended) and not answer.error_code:
            self.sequence += 1
        return answer

    def mark(
        self,
        *,
        epoch: int = 0,
        version: int = 1,
        coordinator_epoch: int = 0,
        only_if: tuple[int, int] | None = None,
    ) -> Appended:
        marker = WriteMarker(
            1,
            *self.place,
            PRODUCER_ID,
            epoch,
            coordinator_epoch,
            True,
            version,
            only_if=only_if,
        )
        answer = self._turn(marker)
        assert isinstance(answer, Appended)
        return answer

    def end_offset(self) -> int:
        reader = self.room.services.logs.reader(self.place[0])
        assert reader is not None
        return reader.status.log_end_offset(self.place[1])

    def transaction_start(self) -> int:
        described = self._turn(DescribeProducers(1, *self.place))
        assert isinstance(described, ProducersDescribed)
        return described.producers[0][-1]

    def _turn(self, request: Append | WriteMarker | DescribeProducers) -> object:
        router = RouterState(self.room.arena)
        self.room.turns.run([(router, request)], NOW_MS)
        (answer,) = router.replies
        return answer


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    room = RouterRoom(tmp_path)
    yield Stage(room)
    room.close()


def code_of(answer: object) -> int:
    assert isinstance(answer, Appended), answer
    return answer.error_code


def guard_of(answer: object) -> int:
    assert isinstance(answer, Unverified), answer
    return answer.guard


def test_the_first_batch_comes_back_with_a_guard_and_is_let_in_with_it(stage: Stage) -> None:
    guard = guard_of(stage.append(0))
    assert stage.end_offset() == 0
    assert code_of(stage.append(guard)) == ErrorCode.NONE
    # The transaction is open: nobody needs to vouch for what follows.
    assert code_of(stage.append(0)) == ErrorCode.NONE


def test_a_guard_given_before_a_marker_opens_nothing_behind_it(stage: Stage) -> None:
    guard = guard_of(stage.append(0))
    assert code_of(stage.append(guard)) == ErrorCode.NONE
    stale = guard
    assert code_of(stage.mark()) == ErrorCode.NONE
    assert guard_of(stage.append(stale)) != stale
    fresh = guard_of(stage.append(0))
    assert code_of(stage.mark()) == ErrorCode.NONE
    assert guard_of(stage.append(fresh)) != fresh


def test_whose_epoch_is_not_that_of_the_open_transaction_is_asked_for(stage: Stage) -> None:
    assert code_of(stage.append(NO_GUARD)) == ErrorCode.NONE
    assert guard_of(stage.append(0, epoch=1)) > 0


def test_batches_outside_of_transactions_need_no_guard(stage: Stage) -> None:
    assert code_of(stage.append(0, attributes=0)) == ErrorCode.NONE


def test_a_marker_that_comes_twice_is_written_once_in_version_2(stage: Stage) -> None:
    stage.append(NO_GUARD)
    assert code_of(stage.mark(epoch=1, version=2)) == ErrorCode.NONE
    end_offset = stage.end_offset()
    assert code_of(stage.mark(epoch=1, version=2)) == ErrorCode.NONE
    assert stage.end_offset() == end_offset


def test_a_marker_meant_for_one_transaction_ends_no_other(stage: Stage) -> None:
    stage.append(NO_GUARD)
    for start, timestamp, epoch in ((1, NOW_MS, 0), (0, NOW_MS - 1, 0), (0, NOW_MS, 1)):
        refused = stage.mark(epoch=epoch, only_if=(start, timestamp))
        assert refused.error_code == ErrorCode.INVALID_TXN_STATE
    assert (stage.transaction_start(), stage.end_offset()) == (0, 1)
    assert code_of(stage.mark(only_if=(0, NOW_MS))) == ErrorCode.NONE
    assert stage.transaction_start() == -1
    assert stage.mark(only_if=(0, NOW_MS)).error_code == ErrorCode.INVALID_TXN_STATE
    assert stage.end_offset() == 2


def test_a_straggling_marker_does_not_end_the_next_transaction(stage: Stage) -> None:
    stage.append(NO_GUARD)
    stage.mark(epoch=1, version=2)
    stage.sequence = 0
    assert code_of(stage.append(NO_GUARD, epoch=1)) == ErrorCode.NONE
    begun = stage.transaction_start()
    assert begun == 2
    assert code_of(stage.mark(epoch=1, version=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert stage.transaction_start() == begun
    assert code_of(stage.mark(epoch=2, version=2)) == ErrorCode.NONE
    assert stage.transaction_start() == -1


def test_a_former_coordinator_is_fenced(stage: Stage) -> None:
    stage.append(NO_GUARD)
    assert code_of(stage.mark(coordinator_epoch=4)) == ErrorCode.NONE
    fenced = stage.mark(coordinator_epoch=3)
    assert fenced.error_code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
