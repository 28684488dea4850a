"""TxnOffsetCommit as clients of both transaction versions send it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.coordinator.group.requests import EndProducerTransaction
from odradek.coordinator.outcome import TransactionMarker
from odradek.coordinator.transaction.requests import AddPartitions
from odradek.protocol.errors import ErrorCode
from tests.support.transaction_harness import TOPIC, TransactionalClient, TransactionHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[TransactionHarness]:
    with TransactionHarness(tmp_path) as harness:
        yield harness


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("version", [0, 3, 5, 6])
def test_offsets_become_valid_with_the_commit(
    harness: TransactionHarness, version: int, is_commit: bool
) -> None:
    client = TransactionalClient(harness, version=2 if version >= 5 else 1)
    client.init()
    if version < 5:
        assert client.add_offsets() == ErrorCode.NONE
    assert client.commit_offset(9, version=version) == ErrorCode.NONE
    assert client.fetch_offset() == -ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert client.end(is_commit=is_commit) == ErrorCode.NONE
    harness.wait_for("CompleteCommit" if is_commit else "CompleteAbort")
    assert client.fetch_offset() == (9 if is_commit else -1)


@pytest.mark.parametrize(
    ("version", "code"),
    [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_an_older_client_must_add_the_group_first(
    harness: TransactionHarness, version: int, code: ErrorCode
) -> None:
    client = TransactionalClient(harness, version=1)
    client.init()
    assert client.commit_offset(9, version=version) == code
    assert client.fetch_offset() == -1


def test_a_commit_whose_transaction_ends_meanwhile_does_not_land_in_the_next_one(
    harness: TransactionHarness,
) -> None:
    """An older client has one epoch for all of its transactions. The commit waits for the
    verification while the transaction ends and the next one adds the same group."""
    client = TransactionalClient(harness, version=1)
    client.init()
    client.add_offsets()
    shard = harness.coordinators.shard_of("g")
    # The verification waits for a record of the transaction that is not committed yet.
    harness.bus.is_away = True
    producer = client.producer_id, client.producer_epoch
    adding = AddPartitions("tx", *producer, frozenset({(TOPIC, 1)}), client_version=1)
    harness.transactions.call("tx", adding)
    late = client.begin_commit_offset(9)
    marker = TransactionMarker(*producer, 0, is_commit=False)
    ended = harness.coordinators.call_shard(shard, EndProducerTransaction(marker, 1))
    harness.bus.come_back()
    assert harness.result(ended) == ErrorCode.NONE
    # The client may send it again, and does so only if it still waits for the answer.
    assert client.commit_code(late) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.fetch_offset() == -1
    assert client.commit_offset(9) == ErrorCode.NONE


def test_a_fenced_producer_commits_nothing(harness: TransactionHarness) -> None:
    zombie, owner = TransactionalClient(harness, version=1), TransactionalClient(harness, version=1)
    zombie.init()
    owner.init()
    assert zombie.commit_offset(9) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.add_offsets() == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("operation", "resource", "name", "code"),
    [
        (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "tx", 53),
        (AclOperation.READ, ResourceType.GROUP, "g", 30),
        (AclOperation.READ, ResourceType.TOPIC, TOPIC, 29),
    ],
)
def test_commits_need_permissions_on_transactional_id_group_and_topic(
    harness: TransactionHarness,
    operation: AclOperation,
    resource: ResourceType,
    name: str,
    code: int,
) -> None:
    client = TransactionalClient(harness, version=2)
    client.init()
    harness.deny(operation, resource, name)
    assert client.commit_offset(9) == code


def test_an_unknown_topic_has_an_error(harness: TransactionHarness) -> None:
    client = TransactionalClient(harness, version=2)
    client.init()
    harness.drop_topic(TOPIC)
    assert client.commit_offset(9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.commit_offset(9, version=6) == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [3, 5])
def test_a_commit_needs_a_group_before_a_producer(
    harness: TransactionHarness, version: int
) -> None:
    client = TransactionalClient(harness, version=2 if version == 5 else 1)
    code = client.commit_code(client.begin_commit_offset(9, version=version, group=""))
    assert code == ErrorCode.INVALID_GROUP_ID
