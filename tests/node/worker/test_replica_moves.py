"""A replica moves to another log directory while it is appended to, truncated and deleted, and over
restarts (KIP-113). Real stores."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import (
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
    ReplicaDirectory,
)
from odradek.cluster.metadata.records import (
    ConfigChanged,
    PartitionChanged,
    PartitionsAdded,
    Record,
    TopicCreated,
    TopicDeleted,
)
from odradek.node.worker import replica_moves
from odradek.node.worker.hosted_partitions import HostedPartitions, PartitionLocation
from odradek.node.worker.moving_workers import MovingWorkers
from odradek.node.worker.replica_moves import SETTLE_MS, ReplicaMoves
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import Uuid
from odradek.storage.layout import directory_of, store_folder, store_number
from odradek.storage.log_append import LogAppend
from odradek.storage.partition_log import PartitionLog
from odradek.storage.reader import StoreReader
from odradek.storage.status import ReplicaRole
from odradek.storage.store import Store
from tests.support.stores import (
    NOW_MS,
    OPTIONS,
    TOPIC_ID,
    append_now,
    as_stored,
    batch_of,
    read_all,
)
from tests.support.waiting import wait_until

SECOND_ID: Uuid = bytes(range(16))
STORE_COUNT = 2
PARTITION = 0


class MovingNode:
    """The stores of a node with two log directories and one worker, and its moves."""

    def __init__(self, folder: Path, *, worker: int = 0, worker_count: int = 1) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.worker, self.worker_count = worker, worker_count
        self.folders = (folder / "a", folder / "b")
        self.image = MetadataImage.empty()
        self.now_ms = 0
        self.moved: list[tuple[PartitionLocation, PartitionLocation]] = []
        self.open()

    def open(self) -> None:
        self.partitions = HostedPartitions(
            folders=self.folders,
            directory_ids=(bytes(16), SECOND_ID),
            worker=self.worker,
            worker_count=self.worker_count,
            store_count=STORE_COUNT,
            node_id=0,
            static_configs={},
            options=OPTIONS,
            now_ms=NOW_MS,
        )
        self.moves = ReplicaMoves(
            self.partitions,
            lambda store: StoreReader(store_folder(self.folders, store)),
            lambda old, new: self.moved.append((old, new)),
            workers=MovingWorkers(self.folder, self.worker, self.worker_count),
            now_ms=self.now_ms,
        )
        if self.image.offset:
            self.follow()

    def restart(self) -> None:
        self.partitions.close()
        self.open()

    def follow(self, *records: Record) -> None:
        """Apply an entry of the metadata log."""
        if records:
            delta = MetadataDelta(self.image)
            for record in records:
                delta.replay(record)
            self.image = delta.apply(self.image.offset + 1)
        self.partitions.apply_image(self.image)
        self.moves.apply_image(self.image)

    def begin(self, directory: int = 1) -> ErrorCode:
        return self.moves.begin(TOPIC_ID, PARTITION, directory)

    def run(self, *, count: int = 1) -> None:
        for _ in range(count):
            wait_until(lambda: not self.moves.is_reading)
            self.moves.run_slice(self.now_ms, NOW_MS)
            if self.moves.is_reading:
                wait_until(lambda: not self.moves.is_reading)
                self.moves.run_slice(self.now_ms + 1, NOW_MS)
            self.now_ms += 50

    def finish(self, between: Callable[[], object] = lambda: None) -> None:
        """Run until no move is left; `between` the slices."""
        for _ in range(5_000):
            if not self.moves.count:
                return
            between()
            self.run()
        raise AssertionError("the move does not end")

    @property
    def location(self) -> PartitionLocation:
        location = self.partitions.location_of(TOPIC_ID, PARTITION)
        assert location is not None
        return location

    @property
    def store(self) -> Store:
        return self.partitions.stores[self.location[0]]

    @property
    def log(self) -> PartitionLog:
        return self.partitions.log(self.location)

    @property
    def directory(self) -> int:
        return directory_of(self.location[0])

    def append(self, *batches: bytes) -> None:
        append_now(self.store, self.location[1], *batches)

    def content(self) -> list[bytes]:
        reader = StoreReader(store_folder(self.folders, self.location[0]))
        try:
            number = reader.number_of(TOPIC_ID, PARTITION)
            assert number == self.location[1]
            return read_all(reader, number)
        finally:
            reader.close()

    def future(self) -> PartitionLog | None:
        store = self.partitions.stores[store_number(1 - self.directory, self.location[0] % 1024)]
        number = store.future_replicas.number_of(TOPIC_ID, PARTITION)
        return None if number is None else store.partitions()[number]


def topic(**fields: object) -> tuple[Record, ...]:
    state = PartitionImage((0,), (0,), 0, 0, **fields)  # type: ignore[arg-type]  # named by the tests
    return TopicCreated("t", TOPIC_ID), PartitionsAdded(TOPIC_ID, 0, (state,))


@pytest.fixture
def node(tmp_path: Path) -> MovingNode:
    node = MovingNode(tmp_path)
    node.follow(*topic())
    return node


def test_a_replica_moves_with_all_that_it_is_and_is_appended_to_meanwhile(
    node: MovingNode,
) -> None:
    node.append(*(batch_of(3, size=40_000) for _ in range(60)))
    node.append(batch_of(2, producer_id=77, producer_epoch=1, base_sequence=0))
    old, before = node.location, node.content()
    assert node.begin() is ErrorCode.NONE
    assert node.begin() is ErrorCode.NONE, "asked for again"
    randomness = random.Random(7)

    def append_some() -> None:
        if randomness.random() < 0.5:
            node.append(batch_of(1, size=randomness.randrange(10, 90_000)))

    def stays() -> None:
        append_some()
        assert node.location == old

    for _ in range(3):
        stays()
        node.run()
    assert node.future() is not None
    node.finish(append_some)
    assert node.directory == 1
    assert node.moved == [(old, node.location)]
    assert node.content()[: len(before)] == before
    end = node.log.log_end_offset
    assert node.log.high_watermark == end
    assert node.partitions.stores[old[0]].number_of(TOPIC_ID, PARTITION) is None
    # It goes on where it was: leader epoch, producers, admission.
    assert node.partitions.admission(*node.location).error_code is ErrorCode.NONE
    assert node.partitions.admission(*old).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.append(batch_of(1, producer_id=77, producer_epoch=1, base_sequence=2))
    assert node.log.log_end_offset == end + 1
    assert node.partitions.moved[old] == node.location
    content = node.content()
    node.restart()
    assert (node.directory, node.content()) == (1, content)
    assert node.moves.count == 0


def test_what_is_copied_is_byte_by_byte_the_same(node: MovingNode) -> None:
    batches = [batch_of(count, size=10) for count in (1, 5, 2)]
    node.append(*batches)
    assert node.begin() is ErrorCode.NONE
    node.finish()
    offsets = (0, 1, 6)
    assert node.content() == [
        as_stored(batch, offset) for batch, offset in zip(batches, offsets, strict=True)
    ]


def test_the_metadata_is_told_until_it_knows(node: MovingNode) -> None:
    node.begin()
    node.finish()
    assert node.partitions.misplaced == {(TOPIC_ID, PARTITION): SECOND_ID}
    state = node.image.partition(TOPIC_ID, PARTITION)
    assert state is not None
    node.restart()
    assert node.partitions.misplaced == {(TOPIC_ID, PARTITION): SECOND_ID}
    assigned = PartitionImage((0,), (0,), 0, 0, directories=(ReplicaDirectory(0, SECOND_ID),))
    node.follow(PartitionChanged(TOPIC_ID, PARTITION, assigned))
    assert node.partitions.misplaced == {}
    assert node.directory == 1


def test_a_move_goes_on_after_a_restart(node: MovingNode) -> None:
    node.append(*(batch_of(1, size=90_000) for _ in range(40)))
    content = node.content()
    node.begin()
    node.run(count=2)
    future = node.future()
    assert future is not None
    copied = future.log_end_offset
    assert 0 < copied < node.log.log_end_offset
    node.restart()
    assert (node.moves.count, node.directory) == (1, 0)
    future = node.future()
    assert future is not None
    assert (future.role, future.is_replicated) == (ReplicaRole.FOLLOWER, True)
    node.run()
    node.finish()
    assert (node.directory, node.content()) == (1, content)


@pytest.mark.parametrize("directory", [1, 0])
def test_a_process_that_ends_between_the_two_replicas_leaves_the_new_one(
    node: MovingNode, monkeypatch: pytest.MonkeyPatch, directory: int
) -> None:
    node.append(batch_of(4))
    if directory == 0:
        node.begin(1)
        node.finish()
    node.begin(directory)
    old = node.store

    class KilledError(Exception):
        pass

    def kill(_numbers: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(old, "delete_partitions", kill)
        with pytest.raises(KilledError):
            node.finish()
    content = node.content()
    node.restart()
    assert (node.directory, node.content()) == (directory, content)
    numbers = [store.number_of(TOPIC_ID, PARTITION) for store in node.partitions.stores.values()]
    assert sum(number is not None for number in numbers) == 1


def test_a_move_to_the_present_directory_ends_the_other(node: MovingNode) -> None:
    node.append(batch_of(2))
    node.begin(1)
    node.run()
    assert node.begin(0) is ErrorCode.NONE
    assert (node.moves.count, node.future(), node.directory) == (0, None, 0)
    assert node.begin(0) is ErrorCode.NONE


def test_a_truncated_log_is_followed(node: MovingNode) -> None:
    node.append(*(batch_of(1) for _ in range(6)))
    node.begin()
    node.run()
    future = node.future()
    assert future is not None
    assert future.log_end_offset == 6
    # The replica was a follower that had more than its new leader.
    node.store.truncate({node.location[1]: 3}, NOW_MS)
    node.store.set_leader_epoch(node.location[1], 5)
    turn = node.store.begin(NOW_MS)
    for _ in range(4):
        batch = memoryview(bytearray(batch_of(1)))
        turn.append(node.location[1], LogAppend(batch, 0, len(batch), leader_epoch=5))
    turn.commit()
    content = node.content()
    node.finish()
    assert (node.directory, node.content()) == (1, content)
    assert node.log.epochs.entries == ((0, 0), (5, 3))


def test_a_log_start_that_moves_is_followed(node: MovingNode) -> None:
    node.append(*(batch_of(1) for _ in range(6)))
    node.begin()
    node.run()
    node.store.log_starts.delete_records(node.location[1], 4)
    node.finish()
    assert (node.log.log_start_offset, node.log.log_end_offset) == (4, 6)
    node.begin(0)
    node.store.log_starts.delete_records(node.location[1], -1)
    node.finish()
    assert (node.directory, node.log.log_start_offset, node.log.log_end_offset) == (0, 6, 6)


def test_an_open_transaction_is_one_after_the_move(node: MovingNode) -> None:
    node.append(batch_of(2, producer_id=9, producer_epoch=0, base_sequence=0, attributes=0x10))
    node.append(batch_of(1))
    stable = node.log.last_stable_offset
    node.begin()
    node.finish()
    assert stable == node.log.last_stable_offset == 0
    assert node.log.producers[9].transaction_first_offset == 0


def test_a_deleted_topic_takes_its_future_replica_with_it(node: MovingNode) -> None:
    node.append(batch_of(2))
    node.begin()
    node.run()
    node.follow(TopicDeleted(TOPIC_ID))
    assert node.moves.count == 0
    assert not any(store.partitions() for store in node.partitions.stores.values())


def test_a_request_for_a_replica_that_is_not_here_yet_is_remembered(tmp_path: Path) -> None:
    node = MovingNode(tmp_path)
    assert node.begin(1) is ErrorCode.REPLICA_NOT_AVAILABLE
    node.follow(*topic())
    assert node.moves.count == 1
    node.finish()
    assert node.directory == 1


def test_an_offline_directory_is_refused_and_ends_moves_to_it(node: MovingNode) -> None:
    node.append(batch_of(2))
    node.begin(1)
    node.run()
    node.partitions.take_offline(1)
    node.run()
    node.follow()
    assert (node.moves.count, node.directory) == (0, 0)
    assert node.begin(1) is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_replica_that_moved_is_not_begun_anew_where_the_metadata_still_has_it(
    node: MovingNode,
) -> None:
    """An empty log of a member of the ISR could lead, and others would truncate theirs."""
    node.append(batch_of(2))
    node.begin(1)
    node.finish()
    node.partitions.take_offline(1)
    state = node.image.partition(TOPIC_ID, PARTITION)
    assert state is not None
    node.follow(PartitionChanged(TOPIC_ID, PARTITION, PartitionImage((0,), (0,), 0, 1)))
    assert not any(store.partitions() for store in node.partitions.stores.values())
    assert node.partitions.misplaced == {(TOPIC_ID, PARTITION): SECOND_ID}, "it is still told"
    # As soon as the metadata knows, a replica may be assigned to another directory.
    known = PartitionImage((0,), (0,), 0, 1, directories=(ReplicaDirectory(0, SECOND_ID),))
    node.follow(PartitionChanged(TOPIC_ID, PARTITION, known))
    assert node.partitions.misplaced == {}
    node.follow(PartitionChanged(TOPIC_ID, PARTITION, PartitionImage((0,), (0,), 0, 2)))
    assert node.location[0] < 1024


def test_the_replacement_waits_until_most_is_synced_and_nothing_is_in_preparation(
    node: MovingNode,
) -> None:
    is_preparing = True
    node.moves = ReplicaMoves(
        node.partitions,
        lambda store: StoreReader(store_folder(node.folders, store)),
        lambda old, new: node.moved.append((old, new)),
        lambda _location: is_preparing,
        workers=MovingWorkers(node.folder, 0, 1),
        now_ms=0,
    )
    node.append(batch_of(1))
    node.begin()
    node.run(count=2 * SETTLE_MS // 50)
    assert (node.moves.count, node.directory) == (1, 0)
    is_preparing = False
    node.run(count=2)
    assert (node.moves.count, node.directory) == (0, 1)


def test_slices_are_bounded(node: MovingNode) -> None:
    node.append(*(batch_of(1, size=50_000) for _ in range(60)))
    node.begin()
    node.run()
    future = node.future()
    assert future is not None
    assert future.active_bytes <= replica_moves.SLICE_BYTES


RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def test_moves_keep_to_the_rate_of_the_broker(node: MovingNode) -> None:
    node.append(*(batch_of(1, size=50_000) for _ in range(40)))
    node.follow(ConfigChanged(ConfigResourceType.BROKER, "0", RATE, "100000"))
    node.begin()
    node.run(count=100)  # five seconds
    future = node.future()
    assert future is not None
    assert 100_000 < future.active_bytes <= 5 * 100_000 + 2 * replica_moves.SLICE_BYTES
    assert node.moves.count == 1, "two megabytes take twenty seconds"
    node.follow(ConfigChanged(ConfigResourceType.BROKER, "0", RATE, None))
    node.finish()


def test_a_throttle_that_is_lifted_waits_for_no_token_of_the_former_rate(node: MovingNode) -> None:
    node.append(*(batch_of(1, size=50_000) for _ in range(20)))
    node.follow(ConfigChanged(ConfigResourceType.BROKER, "0", RATE, "1"))
    node.begin()
    node.run(count=3)
    future = node.future()
    assert future is not None
    assert future.log_end_offset < 20
    node.follow(ConfigChanged(ConfigResourceType.BROKER, "0", RATE, None))
    node.run(count=3)
    assert future.log_end_offset == 20


def test_the_rate_is_that_of_the_node_however_many_workers_move_replicas(tmp_path: Path) -> None:
    """Partitions 0 and 1 are in the stores of two workers."""
    workers = [MovingNode(tmp_path, worker=each, worker_count=2) for each in range(2)]
    state = PartitionImage((0,), (0,), 0, 0)
    created = TopicCreated("t", TOPIC_ID), PartitionsAdded(TOPIC_ID, 0, (state,) * 8)
    rate = 1_000_000
    for node in workers:
        node.follow(*created, ConfigChanged(ConfigResourceType.BROKER, "0", RATE, str(rate)))
    (first, second) = workers
    places: list[tuple[MovingNode, int]] = []
    for node in workers:
        partition = next(each for each in range(8) if node.partitions.location_of(TOPIC_ID, each))
        places.append((node, partition))
        location = node.partitions.location_of(TOPIC_ID, partition)
        assert location is not None
        batches = [batch_of(1, size=90_000) for _ in range(150)]
        append_now(node.partitions.stores[location[0]], location[1], *batches)

    def copied(milliseconds: int) -> list[int]:
        before = [node.moves.moved_bytes for node in workers]
        for _ in range(milliseconds // 50):
            for node in workers:
                node.run()
        return [node.moves.moved_bytes - old for node, old in zip(workers, before, strict=True)]

    slack = 2 * replica_moves.SLICE_BYTES
    for node, partition in places:
        assert node.moves.begin(TOPIC_ID, partition, 1) is ErrorCode.NONE
    both = copied(10_000)
    assert abs(sum(both) - 10 * rate) <= 2 * slack
    assert abs(both[0] - both[1]) <= slack
    # When one has nothing to move any more, the other one has all of the rate.
    assert second.moves.begin(TOPIC_ID, places[1][1], 0) is ErrorCode.NONE
    alone = copied(6_000)
    assert alone[1] == 0
    assert abs(alone[0] - 6 * rate) <= slack
    assert first.moves.count == 1


def test_after_the_last_move_its_readers_are_closed(node: MovingNode) -> None:
    """Their files would use space when they are deleted, where somebody wants to have it back."""
    readers: list[StoreReader] = []

    def open_reader(store: int) -> StoreReader:
        readers.append(StoreReader(store_folder(node.folders, store)))
        return readers[-1]

    node.moves = ReplicaMoves(
        node.partitions,
        open_reader,
        lambda old, new: node.moved.append((old, new)),
        workers=MovingWorkers(node.folder, 0, 1),
        now_ms=0,
    )
    node.append(*(batch_of(1, size=50_000) for _ in range(40)))
    node.begin()
    node.run()
    assert len(readers) == 2, "one of the loop, one of the thread"
    assert all(reader._segments for reader in readers)
    node.finish()
    wait_until(lambda: not any(reader._segments for reader in readers), what="they are closed")
