"""A future replica is hidden until it replaces the log that it was copied from."""

from pathlib import Path

import pytest

from odradek.protocol.types import NO_EPOCH
from odradek.storage.partition_log import NewPartition
from odradek.storage.reader import StoreReader
from odradek.storage.settings import LogSettings
from odradek.storage.status import ReplicaRole
from odradek.storage.store import Store
from odradek.storage.validation import AppendOrigin
from tests.support.stores import TOPIC_ID, append_now, batch_of, create, open_store, read_all


def create_future(store: Store, partition: int = 0) -> int:
    new = NewPartition(
        TOPIC_ID,
        "topic",
        partition,
        NO_EPOCH,
        LogSettings(),
        ReplicaRole.FOLLOWER,
        is_future=True,
    )
    return store.create_partitions([new])[0]


def test_only_who_asks_for_the_future_replica_finds_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    reader = StoreReader(tmp_path)
    future = create_future(store)
    assert create_future(store) == future
    assert store.number_of(TOPIC_ID, 0) is reader.number_of(TOPIC_ID, 0) is None
    assert store.future_replicas.number_of(TOPIC_ID, 0) == future
    assert reader.future_number_of(TOPIC_ID, 0) == future
    assert store.future_replicas.numbers() == [future]
    # The partition may be here, too: it is another one.
    current = create(store)
    assert current != future
    assert reader.number_of(TOPIC_ID, 0) == current
    store.close()
    store = open_store(tmp_path)
    assert store.number_of(TOPIC_ID, 0) == current
    assert store.future_replicas.number_of(TOPIC_ID, 0) == future
    store.delete_partitions([future])
    assert store.future_replicas.numbers() == []
    assert store.number_of(TOPIC_ID, 0) == current
    reader.close()
    store.close()


def test_a_promoted_replica_has_the_state_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    old_store, new_store = open_store(tmp_path / "old"), open_store(tmp_path / "new")
    current = create(old_store)
    append_now(old_store, current, batch_of(3, producer_id=8, producer_epoch=0, base_sequence=0))
    old_store.set_leader_epoch(current, 6)
    replaced = old_store.partitions()[current]
    source = StoreReader(tmp_path / "old")
    future = create_future(new_store)
    for batch in read_all(source, current):
        append_now(new_store, future, batch, origin=AppendOrigin.REPLICATION)
    new_store.future_replicas.promote(future, replaced, 1)
    log = new_store.partitions()[future]
    assert new_store.number_of(TOPIC_ID, 0) == future
    assert new_store.future_replicas.numbers() == []
    assert (log.high_watermark, log.leader_epoch, log.role) == (3, 6, ReplicaRole.LEADER)
    assert log.epochs.entries == replaced.epochs.entries
    assert log.producers == replaced.producers
    reader = StoreReader(tmp_path / "new")
    assert reader.number_of(TOPIC_ID, 0) == future
    assert reader.future_number_of(TOPIC_ID, 0) is None
    assert read_all(reader, future) == read_all(source, current)
    assert reader.status.high_watermark(future) == 3
    for each in (source, reader):
        each.close()
    new_store.close()
    again = open_store(tmp_path / "new")
    assert again.number_of(TOPIC_ID, 0) == future
    assert again.future_replicas.replacements_of(future) == 1
    assert again.partitions()[future].producers.keys() == {8}
    again.close()
    old_store.close()


def test_a_replica_that_is_behind_is_not_promoted(tmp_path: Path) -> None:
    old_store, new_store = open_store(tmp_path / "old"), open_store(tmp_path / "new")
    current, future = create(old_store), create_future(new_store)
    append_now(old_store, current, batch_of(1))
    with pytest.raises(AssertionError, match="behind"):
        new_store.future_replicas.promote(future, old_store.partitions()[current], 1)
    assert new_store.number_of(TOPIC_ID, 0) is None
    old_store.close()
    new_store.close()
