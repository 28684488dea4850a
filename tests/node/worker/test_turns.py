"""A worker's turn on real stores: one commit, answers after it, errors on a full disk."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.metadata.image import MetadataImage
from odradek.node.bus.messages import (
    Append,
    AppendBytes,
    Appended,
    DeleteRecords,
    DescribeProducers,
    PartitionsAdvanced,
    ProducersDescribed,
    RecordsDeleted,
    RequestFailed,
    ToRouter,
    WriteMarker,
)
from odradek.node.worker import append_preparation
from odradek.node.worker.hosted_partitions import HostedPartitions
from odradek.node.worker.turn_requests import PreparedAppend, Request, RouterState
from odradek.node.worker.turns import TurnExecutor
from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from odradek.storage.reader import StoreReader
from tests.node.worker.test_hosted_partitions import (
    TOPIC_ID,
    image_after,
    open_partitions,
    place,
    topic,
)
from tests.support.poison_batches import raw_batch
from tests.support.router_harness import RouterHarness
from tests.support.stores import NOW_MS, batch_of, largest_file
from tests.support.waiting import wait_until

PRODUCER_ID = 5
ZSTD = Codec.ZSTD


class TurnBench:
    """One worker's turns with one router, whose arena is plain memory."""

    def __init__(self, folder: Path, pin_offload_thread: Callable[[], None] | None = None) -> None:
        self.partitions: HostedPartitions = open_partitions(folder)
        self.partitions.apply_image(
            image_after(MetadataImage.empty(), *topic("a", TOPIC_ID, 0, 0, 0, 0, 0, replicas=(0,)))
        )
        self.broadcast: list[ToRouter] = []
        self.turns = TurnExecutor(self.partitions, self.broadcast.append, pin_offload_thread)
        self.router = RouterState(arena=memoryview(bytearray(4 << 20)))
        self._used = 16

    def stage(self, request_id: int, partition: int, batch: bytes) -> Append:
        """Put a batch into the arena, as a router would have."""
        store, number = place(self.partitions, TOPIC_ID, partition)
        start, self._used = self._used, self._used + len(batch)
        assert self.router.arena is not None
        self.router.arena[start : self._used] = batch
        return Append(request_id, store, number, start, len(batch))

    def run(
        self, *requests: "Append | AppendBytes | DeleteRecords | DescribeProducers | WriteMarker"
    ) -> None:
        self.turns.run([(self.router, request) for request in requests], NOW_MS)

    def watch(self, partition: int) -> None:
        store, number = place(self.partitions, TOPIC_ID, partition)
        self.partitions.stores[store].status.set_watch(number)

    def take(self) -> list[ToRouter]:
        replies = list(self.router.replies)
        self.router.replies.clear()
        return replies


@pytest.fixture
def bench(tmp_path: Path) -> TurnBench:
    return TurnBench(tmp_path)


def batch(
    *values: bytes, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1
) -> bytes:
    records = [Record(offset, NOW_MS, None, value, ()) for offset, value in enumerate(values)]
    return build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def test_appends_of_one_turn_get_their_offsets_in_order(bench: TurnBench) -> None:
    bench.run(
        bench.stage(1, 0, batch(b"a", b"b")),
        bench.stage(2, 1, batch(b"c")),
        bench.stage(3, 0, batch(b"d")),
    )
    replies = {r.request_id: r for r in bench.take() if isinstance(r, Appended)}
    assert [replies[i].base_offset for i in (1, 2, 3)] == [0, 0, 2]
    assert all(r.error_code == ErrorCode.NONE for r in replies.values())
    assert replies[1].log_append_time_ms == -1


def test_appended_batches_can_be_read_through_a_store_reader(
    bench: TurnBench, tmp_path: Path
) -> None:
    bench.run(bench.stage(1, 0, batch(b"payload")))
    store, number = place(bench.partitions, TOPIC_ID, 0)
    reader = StoreReader(tmp_path / str(store))
    result = reader.read(number, 0, max_bytes=1 << 20, end_offset=1, min_one_batch=True)
    assert b"payload" in b"".join(bytes(buffer) for buffer in result.buffers)
    reader.close()


def test_batches_of_a_client_in_a_message_are_validated_like_those_in_the_arena(
    bench: TurnBench,
) -> None:
    store, number = place(bench.partitions, TOPIC_ID, 0)
    broken = bytearray(batch(b"x" * 50))
    broken[-3] ^= 0xFF
    bench.run(
        AppendBytes(1, store, number, bytes(broken), is_client=True),
        AppendBytes(2, store, number, batch(b"fine"), is_client=True),
    )
    codes = {r.request_id: r.error_code for r in bench.take() if isinstance(r, Appended)}
    assert codes == {1: ErrorCode.CORRUPT_MESSAGE, 2: ErrorCode.NONE}


def test_a_coordinator_appends_only_in_the_leader_epoch_in_which_it_was_loaded(
    bench: TurnBench,
) -> None:
    """Its records depend on the log that it has loaded; another node may have led meanwhile."""
    store, number = place(bench.partitions, TOPIC_ID, 0)
    epoch = bench.partitions.admission(store, number).leader_epoch
    bench.run(
        AppendBytes(1, store, number, batch(b"a"), leader_epoch=epoch),
        AppendBytes(2, store, number, batch(b"b"), leader_epoch=epoch + 1),
        AppendBytes(3, store, number, batch(b"c")),
    )
    replies = {reply.request_id: reply for reply in bench.take()}  # type: ignore[union-attr]  # all are answers
    assert isinstance(replies[1], Appended)
    assert replies[2] == RequestFailed(2, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert isinstance(replies[3], Appended)
    assert replies[3].base_offset == 1


def test_a_coordinator_appends_only_at_the_expected_base_offset(bench: TurnBench) -> None:
    """If the batch before it was refused, it is refused too, also in the same turn."""
    store, number = place(bench.partitions, TOPIC_ID, 0)
    bench.run(
        AppendBytes(1, store, number, batch(b"b"), base_offset=1),
        AppendBytes(2, store, number, batch(b"a"), base_offset=0),
        AppendBytes(3, store, number, batch(b"b"), base_offset=1),
        AppendBytes(4, store, number, batch(b"a"), base_offset=0),
    )
    replies = {reply.request_id: reply for reply in bench.take()}  # type: ignore[union-attr]  # all are answers
    assert replies[1] == RequestFailed(1, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert replies[4] == RequestFailed(4, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert [replies[n].base_offset for n in (2, 3)] == [0, 1]  # type: ignore[union-attr]  # both were appended


def test_unknown_partitions_and_bytes_outside_the_arena_are_refused(bench: TurnBench) -> None:
    store, number = place(bench.partitions, TOPIC_ID, 0)
    bench.run(
        Append(1, store, number + 1000, 16, 100),
        Append(2, store, number, len(bench.router.arena or b"") - 10, 100),
        Append(3, 99, 0, 16, 100),
    )
    codes = [r.error_code for r in bench.take() if isinstance(r, RequestFailed)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3


def test_only_watched_partitions_are_notified_and_only_once(bench: TurnBench) -> None:
    store, number = place(bench.partitions, TOPIC_ID, 0)
    bench.partitions.stores[store].status.set_watch(number)
    bench.run(bench.stage(1, 0, batch(b"a")), bench.stage(2, 1, batch(b"b")))
    assert bench.broadcast == [PartitionsAdvanced(store, (number,))]
    bench.run(bench.stage(3, 0, batch(b"c")))
    assert len(bench.broadcast) == 1


def test_delete_records_sees_the_appends_before_it_in_the_turn(bench: TurnBench) -> None:
    store, number = place(bench.partitions, TOPIC_ID, 0)
    bench.run(
        bench.stage(1, 0, batch(b"a", b"b", b"c")),
        DeleteRecords(2, store, number, -1),
        DeleteRecords(3, store, number, 99),
    )
    deleted = [r for r in bench.take() if isinstance(r, RecordsDeleted)]
    assert (deleted[0].error_code, deleted[0].low_watermark) == (ErrorCode.NONE, 3)
    assert deleted[1].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_producers_are_described(bench: TurnBench) -> None:
    store, number = place(bench.partitions, TOPIC_ID, 0)
    bench.run(
        bench.stage(1, 0, batch(b"a", b"b", producer_id=77, producer_epoch=3, base_sequence=0)),
    )
    bench.run(DescribeProducers(2, store, number))
    (described,) = (r for r in bench.take() if isinstance(r, ProducersDescribed))
    ((producer_id, epoch, last_sequence, *_),) = described.producers
    assert (producer_id, epoch, last_sequence) == (77, 3, 1)


def test_duplicate_of_an_idempotent_batch_is_answered_with_its_first_offset(
    bench: TurnBench,
) -> None:
    sent = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    bench.run(bench.stage(1, 0, sent), bench.stage(2, 0, sent))
    answers = [r for r in bench.take() if isinstance(r, Appended)]
    assert [(a.error_code, a.base_offset) for a in answers] == [(0, 0), (0, 0)]


def test_a_large_turn_for_several_stores_uses_the_offload_thread_and_answers_everything(
    tmp_path: Path,
) -> None:
    """Offsets are contiguous in each partition in both threads, and every request is answered."""
    helped: list[int] = []
    bench = TurnBench(tmp_path, lambda: helped.append(threading.get_ident()))
    large = bytes(40_000)
    for partition in range(4):
        bench.watch(partition)
    requests = [
        bench.stage(10 * partition + nth, partition, batch(large, b"%d" % nth))
        for nth in range(3)
        for partition in range(4)
    ]
    stores = {request.store for request in requests}
    assert len(stores) > 1, "else there is nothing to share"
    bench.run(*requests)
    assert len(helped) == 1
    assert helped != [threading.get_ident()]
    answers = {r.request_id: r for r in bench.take() if isinstance(r, Appended)}
    assert answers.keys() == {request.request_id for request in requests}
    for partition in range(4):
        assert [answers[10 * partition + nth].base_offset for nth in range(3)] == [0, 2, 4]
        assert all(answers[10 * partition + nth].error_code == 0 for nth in range(3))
    told = {
        (m.store, n)
        for m in bench.broadcast
        if isinstance(m, PartitionsAdvanced)
        for n in m.numbers
    }
    assert told == {place(bench.partitions, TOPIC_ID, partition) for partition in range(4)}
    assert bench.turns.appended_count == 12
    assert bench.turns.appended_bytes == sum(request.length for request in requests)
    for partition in range(4):
        store, number = place(bench.partitions, TOPIC_ID, partition)
        reader = StoreReader(tmp_path / str(store))
        found = reader.read(number, 0, max_bytes=1 << 20, end_offset=6)
        assert found.next_offset == 6
        reader.close()


def test_each_stores_order_is_kept_in_an_offloaded_turn(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path, lambda: None)
    large = bytes(100_000)
    first = [bench.stage(partition, partition, batch(large)) for partition in range(4)]
    cuts = [
        DeleteRecords(10 + request.request_id, request.store, request.number, -1)
        for request in first
    ]
    bench.run(*first, *cuts)
    cut = {r.request_id: r.low_watermark for r in bench.take() if isinstance(r, RecordsDeleted)}
    assert cut == {10: 1, 11: 1, 12: 1, 13: 1}


def test_small_turns_and_turns_of_one_store_are_not_offloaded(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path, lambda: pytest.fail("nobody needs help here"))
    bench.run(*(bench.stage(nth, nth, batch(b"small")) for nth in range(4)))
    bench.run(*(bench.stage(nth, 0, batch(bytes(100_000))) for nth in range(4)))
    assert len([r for r in bench.take() if isinstance(r, Appended)]) == 8


# -- transactions ---------------------------------------------------------------------------------


class _Stage:
    """A partition, and a producer with consecutive transactions."""

    def __init__(self, harness: RouterHarness) -> None:
        self.harness = harness
        harness.controller.has("t", 1, 1)
        harness.follow()
        self.place = harness.place("t")
        self.sequence = 0

    def append(self, *, epoch: int = 0, leader_epoch: int = -1) -> int:
        frame = self.harness.write_frame(
            build_batch(
                [Record(0, NOW_MS, b"k", b"v")],
                attributes=TRANSACTIONAL,
                producer_id=PRODUCER_ID,
                producer_epoch=epoch,
                base_sequence=self.sequence,
            )
        )
        at = self.harness.offset_of(frame)
        answer = self._turn(Append(1, *self.place, at, len(frame), leader_epoch=leader_epoch))
        assert isinstance(answer, Appended | RequestFailed)
        self.sequence += not answer.error_code
        return answer.error_code

    def mark(
        self,
        *,
        epoch: int = 0,
        version: int = 1,
        coordinator_epoch: int = 0,
        expected_transaction: tuple[int, int] | None = None,
    ) -> int:
        marker = WriteMarker(
            1,
            *self.place,
            PRODUCER_ID,
            epoch,
            coordinator_epoch,
            True,
            version,
            expected_transaction=expected_transaction,
        )
        answer = self._turn(marker)
        assert isinstance(answer, Appended)
        return answer.error_code

    def end_offset(self) -> int:
        reader = self.harness.services.logs.reader(self.place[0])
        assert reader is not None
        return reader.status.log_end_offset(self.place[1])

    def transaction_start(self) -> int:
        described = self._turn(DescribeProducers(1, *self.place))
        assert isinstance(described, ProducersDescribed)
        return described.producers[0][-1]

    def _turn(self, request: Append | WriteMarker | DescribeProducers) -> object:
        router = RouterState(self.harness.arena)
        self.harness.turns.run([(router, request)], NOW_MS)
        (answer,) = router.replies
        return answer


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[_Stage]:
    harness = RouterHarness(tmp_path)
    yield _Stage(harness)
    harness.close()


def test_an_append_for_another_leader_epoch_is_refused(stage: _Stage) -> None:
    assert stage.append(leader_epoch=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert stage.append(leader_epoch=0) == ErrorCode.NONE


def test_a_repeated_marker_is_written_once_in_transaction_version_2(stage: _Stage) -> None:
    stage.append()
    assert stage.mark(epoch=1, version=2) == ErrorCode.NONE
    end_offset = stage.end_offset()
    assert stage.mark(epoch=1, version=2) == ErrorCode.NONE
    assert stage.end_offset() == end_offset


def test_a_marker_with_an_expected_transaction_ends_no_other_one(stage: _Stage) -> None:
    stage.append()
    for start, timestamp, epoch in ((1, NOW_MS, 0), (0, NOW_MS - 1, 0), (0, NOW_MS, 1)):
        refused = stage.mark(epoch=epoch, expected_transaction=(start, timestamp))
        assert refused == ErrorCode.INVALID_TXN_STATE
    assert (stage.transaction_start(), stage.end_offset()) == (0, 1)
    assert stage.mark(expected_transaction=(0, NOW_MS)) == ErrorCode.NONE
    assert stage.transaction_start() == -1
    assert stage.mark(expected_transaction=(0, NOW_MS)) == ErrorCode.INVALID_TXN_STATE
    assert stage.end_offset() == 2


def test_a_batch_that_must_continue_a_transaction_comes_before_its_marker(stage: _Stage) -> None:
    def continuing(request_id: int, epoch: int) -> AppendBytes:
        content = batch_of(
            producer_id=PRODUCER_ID,
            producer_epoch=epoch,
            base_sequence=stage.sequence,
            attributes=TRANSACTIONAL,
        )
        stage.sequence += 1
        place = stage.place
        return AppendBytes(request_id, *place, content, True, must_continue_transaction=True)

    router = RouterState(stage.harness.arena)

    def run(*requests: Request) -> None:
        stage.harness.turns.run([(router, each) for each in requests], NOW_MS)

    run(continuing(1, 0))
    stage.sequence = 0
    assert stage.append() == ErrorCode.NONE
    marker = WriteMarker(3, *stage.place, PRODUCER_ID, 1, 0, True, 2)
    run(continuing(2, 0), marker, continuing(4, 0), continuing(5, 1))
    replies = [reply for reply in router.replies if isinstance(reply, Appended)]
    assert {reply.request_id: reply.error_code for reply in replies} == {
        1: ErrorCode.INVALID_TXN_STATE,
        2: ErrorCode.NONE,
        3: ErrorCode.NONE,
        4: ErrorCode.INVALID_PRODUCER_EPOCH,
        5: ErrorCode.INVALID_TXN_STATE,
    }
    assert stage.end_offset() == 3


def test_a_late_marker_does_not_end_the_next_transaction(stage: _Stage) -> None:
    stage.append()
    stage.mark(epoch=1, version=2)
    stage.sequence = 0
    assert stage.append(epoch=1) == ErrorCode.NONE
    begun = stage.transaction_start()
    assert begun == 2
    assert stage.mark(epoch=1, version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert stage.transaction_start() == begun
    assert stage.mark(epoch=2, version=2) == ErrorCode.NONE
    assert stage.transaction_start() == -1


def test_a_former_coordinator_is_fenced(stage: _Stage) -> None:
    stage.append()
    assert stage.mark(coordinator_epoch=4) == ErrorCode.NONE
    fenced = stage.mark(coordinator_epoch=3)
    assert fenced == ErrorCode.TRANSACTION_COORDINATOR_FENCED


# -- batches that take long to check ---------------------------------------------------------------


def _bomb(timestamp: int = NOW_MS, count: int = 400_000) -> bytes:
    """A few hundred bytes that unfold to as many records."""
    return raw_batch(b"\x0c\0\0\0\x01\x01\0" * count, count, base_timestamp=timestamp, codec=ZSTD)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn does one step of a batch only."""
    monkeypatch.setattr(append_preparation, "INLINE_COST_MAX", 0)


def _large(count: int = 20_000) -> bytes:
    """A batch that is right, and has several steps."""
    records = [Record(index, NOW_MS, None, None) for index in range(count)]
    return build_batch(records, codec=ZSTD)


def _run_until_answered(bench: TurnBench, count: int) -> dict[int, ToRouter]:
    """Turns of what comes back, until so many requests are answered."""
    replies: list[ToRouter] = []

    def are_answered() -> bool:
        bench.turns.run(bench.turns.preparation.take(), NOW_MS)
        replies.extend(bench.take())
        return len(replies) >= count

    wait_until(are_answered)
    assert len(replies) == count
    return {r.request_id: r for r in replies if isinstance(r, Appended | RequestFailed)}


def test_a_batch_that_takes_long_to_check_is_answered_in_a_later_turn(bench: TurnBench) -> None:
    began = time.perf_counter()
    bench.run(bench.stage(1, 0, _bomb()), bench.stage(2, 1, batch(b"other")))
    assert time.perf_counter() - began < 1
    (reply,) = bench.take()
    assert isinstance(reply, Appended)
    assert (reply.request_id, reply.error_code) == (2, ErrorCode.NONE)
    refused = _run_until_answered(bench, 1)[1]
    assert isinstance(refused, Appended)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in refused.record_errors] == list(range(1, 101))


@pytest.mark.usefixtures("_impatient")
def test_requests_of_a_partition_wait_behind_such_a_batch_in_their_order(bench: TurnBench) -> None:
    bench.run(bench.stage(1, 0, batch(b"before")), bench.stage(2, 0, _large()))
    store, number = place(bench.partitions, TOPIC_ID, 0)
    bench.run(
        bench.stage(3, 0, batch(b"a", b"b")),
        bench.stage(4, 1, batch(b"other")),
        AppendBytes(5, store, number, batch(b"c"), is_client=True),
    )
    bench.run(bench.stage(6, 0, _large(19_000)), bench.stage(7, 0, batch(b"last")))
    replies = {r.request_id: r for r in bench.take() if isinstance(r, Appended)}
    assert sorted(replies) == [1, 4]
    replies |= {
        id_: r for id_, r in _run_until_answered(bench, 5).items() if isinstance(r, Appended)
    }
    assert {r.error_code for r in replies.values()} == {ErrorCode.NONE}
    assert [replies[id_].base_offset for id_ in (1, 2, 3, 5, 6, 7)] == [
        0, 1, 20_001, 20_003, 20_004, 39_004
    ]  # fmt: skip


@pytest.mark.usefixtures("_impatient")
def test_a_marker_waits_for_the_batch_before_it(bench: TurnBench) -> None:
    store, number = place(bench.partitions, TOPIC_ID, 0)
    records = [Record(index, NOW_MS, None, None) for index in range(20_000)]
    batch = build_batch(
        records, codec=ZSTD, attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0,
        base_sequence=0,
    )  # fmt: skip
    bench.run(bench.stage(1, 0, batch))
    bench.run(WriteMarker(2, store, number, 7, 0, 0, True, 1, leader_epoch=-1))
    assert bench.take() == []
    replies = _run_until_answered(bench, 2)
    marker = replies[2]
    assert isinstance(marker, Appended)
    assert (marker.error_code, marker.base_offset) == (ErrorCode.NONE, 20_000)


@pytest.mark.usefixtures("_impatient")
def test_a_batch_in_preparation_is_not_overwritten_by_its_neighbour(bench: TurnBench) -> None:
    """The worker writes a stamp into the bytes before a large batch, which are another's here."""
    large = build_batch([Record(i, NOW_MS, None, b"%08d" % i) for i in range(20_000)])
    for turn in range(3):
        first = bench.stage(2 * turn + 1, 0, large)
        second = bench.stage(2 * turn + 2, 0, batch(b"x" * 20_000))
        second.has_headroom = True
        bench.run(first, second)
        for reply in _run_until_answered(bench, 2).values():
            assert isinstance(reply, Appended)
            assert reply.error_code == ErrorCode.NONE


@pytest.mark.usefixtures("_impatient")
def test_both_threads_of_a_turn_share_the_preparation_thread(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path, lambda: None)
    bench.run(*(bench.stage(id_, id_ % 5, _large(10_000 + id_)) for id_ in range(1, 16)))
    assert bench.take() == []
    answered = _run_until_answered(bench, 15)
    replies = {id_: r for id_, r in answered.items() if isinstance(r, Appended)}
    assert {r.error_code for r in replies.values()} == {ErrorCode.NONE}
    assert bench.turns.preparation.thread.count == 0
    for partition in range(5):
        offsets = [replies[id_].base_offset for id_ in range(1, 16) if id_ % 5 == partition]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("with_thread", [False, True])
def test_appends_are_measured_while_somebody_has_a_quota_of_time(
    tmp_path: Path, with_thread: bool
) -> None:
    bench = TurnBench(tmp_path, (lambda: None) if with_thread else None)
    large = b"x" * 200_000

    def times() -> dict[int, int]:
        bench.run(
            bench.stage(1, 0, batch(b"small")),
            bench.stage(2, 1, batch(large)),
            bench.stage(3, 2, batch(large)),
        )
        return {r.request_id: r.work_ns for r in bench.take() if isinstance(r, Appended)}

    assert times() == {1: 0, 2: 0, 3: 0}
    bench.turns.measure(is_on=True)
    least = dict.fromkeys((1, 2, 3), 10**9)
    for _ in range(5):
        began_ns = time.perf_counter_ns()
        measured = times()
        elapsed_ns = time.perf_counter_ns() - began_ns
        assert min(measured.values()) > 0
        # Two threads at most work in a turn.
        assert sum(measured.values()) <= elapsed_ns * (1 + with_thread)
        # Each time may include one in which another process had the processor.
        least = {id_: min(spent, least[id_]) for id_, spent in measured.items()}
    assert least[1] < min(least[2], least[3])
    bench.turns.measure(is_on=False)
    assert set(times().values()) == {0}


def test_other_requests_are_measured_too(bench: TurnBench) -> None:
    store, number = place(bench.partitions, TOPIC_ID, 0)

    def times() -> list[int]:
        bench.run(DeleteRecords(1, store, number, 0), DescribeProducers(2, store, number))
        replies = [r for r in bench.take() if isinstance(r, RecordsDeleted | ProducersDescribed)]
        assert [r.error_code for r in replies] == [ErrorCode.NONE] * 2
        return [r.work_ns for r in replies]

    assert times() == [0, 0]
    bench.turns.measure(is_on=True)
    assert min(times()) > 0


@pytest.mark.usefixtures("_impatient")
def test_the_time_of_the_preparation_thread_is_the_requests(bench: TurnBench) -> None:
    bench.turns.measure(is_on=True)
    bench.run(bench.stage(1, 0, _large()))
    assert not bench.take()
    prepared = wait_until(bench.turns.preparation.take)
    bench.turns.run(prepared, NOW_MS)
    [reply] = bench.take()
    assert isinstance(reply, Appended)
    [(_, append)] = prepared
    assert isinstance(append, PreparedAppend)
    assert reply.work_ns > append.work_ns > 100_000


# -- a turn of one batch takes a shorter way -------------------------------------------------------

_LARGE_VALUE = 300 << 10
"""Not looked at in one go."""


def _altered(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def _sequence(number: int, epoch: int = 0) -> bytes:
    return batch(b"v", producer_id=5, producer_epoch=epoch, base_sequence=number)


_BATCHES = (
    batch(b"a", b"b"),
    _altered(batch(b"c")),
    batch(b"x" * _LARGE_VALUE),
    batch(b"x" * (2 << 20)),
    batch_of(3, codec=Codec.LZ4),
    _altered(batch_of(3, codec=Codec.LZ4)),
    _large(),
    _bomb(),
    batch(b"d") + batch(b"e"),
    b"short",
    _sequence(0),
    _sequence(1),
    _sequence(1),
    _sequence(7),
    _sequence(0, epoch=1),
    _sequence(2),
    batch_of(1, producer_id=9, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL),
    batch(b"last"),
)


def _requests_of(bench: TurnBench) -> Iterator[AppendBytes]:
    """Each batch, and one with each field that makes a request another one."""
    here = place(bench.partitions, TOPIC_ID, 0)
    for number, content in enumerate(_BATCHES):
        yield AppendBytes(number, *here, content, is_client=True)
    count = len(_BATCHES)
    plain = batch(b"plain")
    yield AppendBytes(count, *here, plain)  # a coordinator's
    yield AppendBytes(count + 1, *here, plain, is_client=True, acks=1)
    yield AppendBytes(count + 2, *here, plain, is_client=True, leader_epoch=0)
    yield AppendBytes(count + 3, *here, plain, is_client=True, leader_epoch=99)
    yield AppendBytes(count + 4, *here, plain, is_client=True, base_offset=4)
    yield AppendBytes(count + 5, *here, plain, is_client=True, must_continue_transaction=True)
    yield AppendBytes(count + 6, here[0], 77, plain, is_client=True)
    yield AppendBytes(count + 7, 77, here[1], plain, is_client=True)


def _answered(
    bench: TurnBench, request: AppendBytes, *companions: AppendBytes
) -> Appended | RequestFailed:
    """The answer to the request in a turn with these others. It may come in a later turn."""
    bench.run(request, *companions)
    found: list[Appended | RequestFailed] = []

    def is_answered() -> bool:
        if prepared := bench.turns.preparation.take():
            bench.turns.run(prepared, NOW_MS)
        found.extend(
            reply
            for reply in bench.take()
            if isinstance(reply, Appended | RequestFailed)
            and reply.request_id == request.request_id
        )
        return bool(found)

    wait_until(is_answered)
    assert len(found) == 1
    return found[0]


def _content(folder: Path, bench: TurnBench) -> bytes:
    store, number = place(bench.partitions, TOPIC_ID, 0)
    reader = StoreReader(folder / str(store))
    end = reader.status.log_end_offset(number)
    parts: list[bytes] = []
    at = 0
    while at < end:
        result = reader.read(number, at, max_bytes=64 << 20, end_offset=end)
        parts += map(bytes, result.buffers)
        at = result.next_offset
    reader.close()
    return b"".join(parts)


def test_answers_and_log_are_those_of_turns_with_several_batches(tmp_path: Path) -> None:
    alone, others = TurnBench(tmp_path / "alone"), TurnBench(tmp_path / "others")
    here, elsewhere = place(alone.partitions, TOPIC_ID, 0), place(others.partitions, TOPIC_ID, 1)
    codes: set[int] = set()
    for mine, other in zip(_requests_of(alone), _requests_of(others), strict=True):
        companion = AppendBytes(10_000, *elsewhere, batch(b"companion"), is_client=True)
        expected = _answered(others, other, companion)
        assert _answered(alone, mine) == expected, f"request {mine.request_id}"
        codes.add(expected.error_code)
    first, second = (
        bench.partitions.stores[here[0]].partitions()[here[1]] for bench in (alone, others)
    )
    assert first.producers == second.producers
    assert first.client_bytes == second.client_bytes
    assert first.log_end_offset == first.high_watermark == second.log_end_offset
    assert _content(tmp_path / "alone", alone) == _content(tmp_path / "others", others)
    assert codes >= {
        ErrorCode.NONE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }


def _as_view(request: AppendBytes) -> AppendBytes:
    """With its batches in the midst of what a worker has received."""
    received = memoryview(b"before" + request.batches + b"behind")
    view = received[len(b"before") : -len(b"behind")]
    return msgspec.structs.replace(request, batches=view)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_view_of_what_was_received_is_appended_like_bytes(tmp_path: Path, is_alone: bool) -> None:
    views, copies = TurnBench(tmp_path / "views"), TurnBench(tmp_path / "copies")
    elsewhere = place(views.partitions, TOPIC_ID, 1)
    companion = AppendBytes(10_000, *elsewhere, batch(b"companion"), is_client=True)
    companions = () if is_alone else (companion,)
    for copied in _requests_of(copies):
        expected = _answered(copies, copied, *companions)
        given = _answered(views, _as_view(copied), *companions)
        assert given == expected, f"request {copied.request_id}"
    assert _content(tmp_path / "views", views) == _content(tmp_path / "copies", copies)


def test_a_watched_partition_is_notified_before_the_answer(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path)
    here = place(bench.partitions, TOPIC_ID, 0)
    replies = bench.router.replies
    turns = TurnExecutor(bench.partitions, replies.append)
    bench.watch(0)
    for number in (1, 2):
        request = AppendBytes(number, *here, batch(b"a"), is_client=True)
        turns.run([(bench.router, request)], NOW_MS)
    assert replies == [
        PartitionsAdvanced(here[0], (here[1],)),
        Appended(1, ErrorCode.NONE, 0, -1, 0),
        Appended(2, ErrorCode.NONE, 1, -1, 0),
    ]


def test_a_full_disk_fails_the_batch_and_the_next_one_is_taken(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path)
    here = place(bench.partitions, TOPIC_ID, 0)
    log = bench.partitions.stores[here[0]].partitions()[here[1]]
    first = AppendBytes(1, *here, _sequence(0), is_client=True)
    assert isinstance(_answered(bench, first), Appended)
    large = batch(b"x" * (200 << 10))
    with largest_file(64 << 10):
        failed = _answered(bench, AppendBytes(2, *here, large, is_client=True))
        assert isinstance(failed, RequestFailed)
        assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (log.log_end_offset, log.high_watermark) == (1, 1)
        assert bench.turns.failed_count == 1
        assert list(bench.turns.failed_stores) == [here[0]]
    assert _answered(bench, AppendBytes(3, *here, large, is_client=True)) == Appended(
        3, ErrorCode.NONE, 1, -1, 0
    )
    assert bench.turns.appended_count == 2
