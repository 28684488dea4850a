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
from odradek.node.bus.replica_link import ReplicaListener, requests, send_response
from odradek.node.worker.replica_fetchers import BATCHES_PER_TURN
from odradek.protocol.errors import ErrorCode
from odradek.storage.append import AppendResult
from odradek.storage.environment import StorageError
from tests.support.replica_harness import ReplicaHarness
from tests.support.stores import as_stored, batch_of
from tests.support.waiting import wait_until

FOLLOWER = PartitionImage((0, 1), (0, 1), 1, 5)


class ScriptedLeader:
    """A leader that the test controls, node 1; node 0 follows."""

    def __init__(self, folder: Path) -> None:
        self.harness = ReplicaHarness(folder, 1)
        self.socket = ReplicaListener(self.harness.context, "tcp://127.0.0.1:*", ()).socket
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
def scripted(tmp_path: Path) -> Iterator[ScriptedLeader]:
    scripted = ScriptedLeader(tmp_path)
    yield scripted
    scripted.socket.close(0)
    scripted.harness.close()


def test_fetched_batches_are_appended_and_reported_and_move_the_high_watermark(
    scripted: ScriptedLeader,
) -> None:
    first = scripted.hear()
    (wanted,) = first.subscribed
    assert (wanted.fetch_offset, wanted.last_epoch, wanted.leader_epoch) == (0, -1, 5)
    batches = [as_stored(batch_of(2), 0, 3), as_stored(batch_of(3, size=9_000), 2, 4)]
    scripted.give(first, wanted.handle, b"".join(batches), watermark=4)
    second = scripted.hear()
    assert [(told.fetch_offset, told.last_epoch) for told in second.reached] == [(5, 4)]
    log = scripted.follower.log()
    assert (log.high_watermark, log.epochs.entries) == (4, ((3, 0), (4, 2)))
    assert scripted.follower.batches() == batches
    assert scripted.follower.replication.fetchers.lag == 95
    assert scripted.follower.replication.fetchers.fetched_bytes == sum(map(len, batches))


def test_a_gap_that_compaction_left_is_kept(scripted: ScriptedLeader) -> None:
    first = scripted.hear()
    batches = [as_stored(batch_of(2), 4, 3), as_stored(batch_of(), 90, 3)]
    scripted.give(first, first.subscribed[0].handle, b"".join(batches))
    assert scripted.hear().reached[0].fetch_offset == 91
    assert scripted.follower.batches() == batches


def test_a_corrupt_batch_is_fetched_again(scripted: ScriptedLeader) -> None:
    first = scripted.hear()
    good = as_stored(batch_of(2), 0, 3)
    scripted.give(first, first.subscribed[0].handle, good[:-1] + b"!")
    second = scripted.hear()
    assert second.reached == ()
    assert scripted.follower.log().log_end_offset == 0
    scripted.answer(second)
    scripted.harness.now_ms += 1_000
    third = scripted.hear()
    assert third.subscribed[0].fetch_offset == 0
    scripted.give(third, third.subscribed[0].handle, good)
    assert scripted.hear().reached[0].fetch_offset == 2


def test_a_failed_truncation_is_retried(
    scripted: ScriptedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scripted.hear()
    handle = first.subscribed[0].handle
    scripted.give(first, handle, as_stored(batch_of(2), 0, 3) + as_stored(batch_of(), 2, 4))
    second = scripted.hear()
    diverging = ReplicaPartitionData(handle, 0, 0, 0, 100, diverging_epoch=3, diverging_end=2)

    def refuse(*_: object) -> None:
        raise StorageError("full")

    with monkeypatch.context() as patch:
        patch.setattr(scripted.follower.store(), "truncate", refuse)
        scripted.answer(second, diverging)
        third = scripted.hear()
    assert third.reached == ()
    scripted.answer(third)
    scripted.harness.now_ms += 1_000
    fourth = scripted.hear()
    assert fourth.subscribed[0].fetch_offset == 3
    scripted.answer(fourth, diverging)
    assert scripted.hear().reached[0].fetch_offset == 2
    assert scripted.follower.log().epochs.entries == ((3, 0),)


def test_a_turn_has_not_the_batches_of_all_responses(scripted: ScriptedLeader) -> None:
    """Of several stores, say. Here nobody has asked for most of them, and they are ignored."""
    first = scripted.hear()
    batch = as_stored(batch_of(2), 0, 3)
    part = ReplicaPartitionData(first.subscribed[0].handle, 0, 0, 0, 100, len(batch))
    count = 20
    for number in range(count):
        answer = ReplicaFetchResponse(
            first.request_id + number, 0, ErrorCode.NONE, (part,), batch_count=BATCHES_PER_TURN
        )
        payload = [bytes(PAYLOAD_HEAD), batch]
        assert send_response(scripted.socket, scripted.identity, answer, payload)
    fetchers = scripted.follower.replication.fetchers
    (leader,) = fetchers._leaders.values()
    for number in range(count):
        assert leader.link.socket.poll(10_000), "an earlier turn has taken several"
        appends = fetchers.receive(scripted.harness.now_ms)
        assert len(appends) == (number == 0)
        for append in appends:
            append.result = AppendResult(ErrorCode.NONE)
        fetchers.after_turn(scripted.harness.now_ms)
    assert not leader.link.socket.poll(0)


def test_a_leader_without_an_address_is_not_fetched_from(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path, 1)
    harness.address_of = lambda node_id, store: None  # type: ignore[method-assign]  # nobody was told
    harness.start(FOLLOWER)
    harness.nodes[0].run()
    assert harness.nodes[0].replication.next_ms(harness.now_ms) > harness.now_ms
    harness.close()


def test_a_leader_with_new_workers_is_fetched_from_at_their_address(
    scripted: ScriptedLeader,
) -> None:
    scripted.hear()
    moved = ReplicaListener(scripted.harness.context, "tcp://127.0.0.1:*", ()).socket
    address = moved.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    before, scripted.socket = scripted.socket, moved
    scripted.harness.addresses[1] = address.rstrip(b"\0").decode()
    # Nothing is new about the partition; only a broker has told that it is elsewhere.
    scripted.harness.decide(BrokerImage(1, 7, bytes(16), ()))
    scripted.follower.follow()
    first = scripted.hear()
    assert first.is_full
    assert first.subscribed[0].fetch_offset == 0
    before.close(0)
