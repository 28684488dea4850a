"""The fetchers of a real follower, with a leader whose responses the test sends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from odradek.cluster.metadata.image import BrokerImage, PartitionImage
from odradek.cluster.replication.messages import (
    PAYLOAD_HEAD,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPartitionData,
)
from odradek.node.bus.replica_link import bind_replica_listener, requests, send_response
from odradek.protocol.errors import ErrorCode
from odradek.storage.environment import StorageError
from tests.support.replica_harness import ReplicaHarness
from tests.support.stores import as_stored, batch_of
from tests.support.waiting import wait_until

FOLLOWER = PartitionImage((0, 1), (0, 1), 1, 5)


class Played:
    """A leader that the test controls, node 1; node 0 follows."""

    def __init__(self, folder: Path) -> None:
        self.harness = ReplicaHarness(folder, 1)
        self.socket = bind_replica_listener(self.harness.context, "tcp://127.0.0.1:*", None)
        address = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(address, bytes)
        self.harness.addresses.append(address.rstrip(b"\0").decode())
        self.harness.start(FOLLOWER)
        self.follower = self.harness.nodes[0]
        self.identity = b""

    def hear(self) -> ReplicaFetchRequest:
        """The follower's next request."""

        def request() -> ReplicaFetchRequest | None:
            self.follower.run()
            for identity, fetch in requests(self.socket):
                self.identity = identity
                return fetch
            return None

        found = wait_until(request, what="a request")
        assert found is not None
        return found

    def answer(
        self, fetch: ReplicaFetchRequest, *parts: ReplicaPartitionData, batches: bytes = b""
    ) -> None:
        answer = ReplicaFetchResponse(fetch.request_id, 0, ErrorCode.NONE, parts)
        payload = [bytes(PAYLOAD_HEAD), batches] if batches else []
        assert send_response(self.socket, self.identity, answer, payload)

    def give(
        self, fetch: ReplicaFetchRequest, handle: int, batches: bytes, watermark: int = 0
    ) -> None:
        """Answer with batches."""
        part = ReplicaPartitionData(handle, 0, watermark, 0, 100, len(batches))
        self.answer(fetch, part, batches=batches)


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    played = Played(tmp_path)
    yield played
    played.socket.close(0)
    played.harness.close()


def test_fetched_batches_are_appended_and_reported_and_move_the_high_watermark(
    played: Played,
) -> None:
    first = played.hear()
    (wanted,) = first.subscribed
    assert (wanted.fetch_offset, wanted.last_epoch, wanted.leader_epoch) == (0, -1, 5)
    batches = [as_stored(batch_of(2), 0, 3), as_stored(batch_of(3, size=9_000), 2, 4)]
    played.give(first, wanted.handle, b"".join(batches), watermark=4)
    second = played.hear()
    assert [(told.fetch_offset, told.last_epoch) for told in second.reached] == [(5, 4)]
    log = played.follower.log()
    assert (log.high_watermark, log.epochs.entries) == (4, ((3, 0), (4, 2)))
    assert played.follower.batches() == batches
    assert played.follower.replication.fetchers.lag == 95
    assert played.follower.replication.fetchers.fetched_bytes == sum(map(len, batches))


def test_a_gap_that_compaction_left_is_kept(played: Played) -> None:
    first = played.hear()
    batches = [as_stored(batch_of(2), 4, 3), as_stored(batch_of(), 90, 3)]
    played.give(first, first.subscribed[0].handle, b"".join(batches))
    assert played.hear().reached[0].fetch_offset == 91
    assert played.follower.batches() == batches


def test_a_corrupt_batch_is_fetched_again(played: Played) -> None:
    first = played.hear()
    good = as_stored(batch_of(2), 0, 3)
    played.give(first, first.subscribed[0].handle, good[:-1] + b"!")
    second = played.hear()
    assert second.reached == ()
    assert played.follower.log().log_end_offset == 0
    played.answer(second)
    played.harness.now_ms += 1_000
    third = played.hear()
    assert third.subscribed[0].fetch_offset == 0
    played.give(third, third.subscribed[0].handle, good)
    assert played.hear().reached[0].fetch_offset == 2


def test_a_failed_truncation_is_retried(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    first = played.hear()
    handle = first.subscribed[0].handle
    played.give(first, handle, as_stored(batch_of(2), 0, 3) + as_stored(batch_of(), 2, 4))
    second = played.hear()
    diverging = ReplicaPartitionData(handle, 0, 0, 0, 100, diverging_epoch=3, diverging_end=2)

    def refuse(*_: object) -> None:
        raise StorageError("full")

    with monkeypatch.context() as patch:
        patch.setattr(played.follower.store(), "truncate", refuse)
        played.answer(second, diverging)
        third = played.hear()
    assert third.reached == ()
    played.answer(third)
    played.harness.now_ms += 1_000
    fourth = played.hear()
    assert fourth.subscribed[0].fetch_offset == 3
    played.answer(fourth, diverging)
    assert played.hear().reached[0].fetch_offset == 2
    assert played.follower.log().epochs.entries == ((3, 0),)


def test_a_leader_without_an_address_is_not_fetched_from(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, 1)
    harness.address_of = lambda node_id, store: None  # type: ignore[method-assign]  # nobody was told
    harness.start(FOLLOWER)
    harness.nodes[0].run()
    assert harness.nodes[0].replication.next_ms(harness.now_ms) > harness.now_ms
    harness.close()


def test_a_leader_with_new_workers_is_fetched_from_at_their_address(played: Played) -> None:
    played.hear()
    moved = bind_replica_listener(played.harness.context, "tcp://127.0.0.1:*", None)
    address = moved.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    before, played.socket = played.socket, moved
    played.harness.addresses[1] = address.rstrip(b"\0").decode()
    # Nothing is new about the partition; only a broker has told that it is elsewhere.
    played.harness.decide(BrokerImage(1, 7, bytes(16), ()))
    played.follower.follow()
    first = played.hear()
    assert first.is_full
    assert first.subscribed[0].fetch_offset == 0
    before.close(0)
