"""The fetch server of a real leader, with a follower whose frames the test sends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from odradek.cluster.metadata.image import PartitionImage
from odradek.cluster.replication.messages import (
    PAYLOAD_HEAD,
    ReplicaFetchPartition,
    ReplicaFetchPosition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPartitionData,
)
from odradek.node.bus.replica_link import LeaderResponse, ReplicaLink
from odradek.node.worker.replica_fetch_server import (
    BATCHES_PER_RESPONSE_MAX,
    WATERMARK_LINGER_MS,
)
from odradek.protocol.errors import ErrorCode
from odradek.storage.layout import unlink_segment
from tests.support.replica_harness import CLUSTER_ID, TOPIC_ID, ReplicaHarness
from tests.support.stores import as_stored, batch_of, dropped_but_open
from tests.support.waiting import wait_until

LEADER = PartitionImage((0, 1), (0, 1), 0, 5)


class ScriptedFollower:
    """A follower that the test controls: node 1."""

    def __init__(self, folder: Path) -> None:
        self.harness = ReplicaHarness(folder, 1)
        self.harness.addresses.append("tcp://127.0.0.1:9")
        self.harness.start(LEADER)
        self.leader = self.harness.nodes[0]
        self.link = ReplicaLink(self.harness.context, self.harness.addresses[0], b"1-0-1", ())
        wait_until(self.link.take_connected, what="the connection")
        self.request_id = 0

    def ask(
        self,
        *,
        is_full: bool = False,
        subscribed: tuple[ReplicaFetchPartition, ...] = (),
        reached: tuple[ReplicaFetchPosition, ...] = (),
        cluster_id: str = CLUSTER_ID,
        bytes_max: int = 1 << 20,
    ) -> None:
        self.request_id += 1
        fetch = ReplicaFetchRequest(
            self.request_id,
            cluster_id,
            1,
            -1,
            0,
            is_full,
            subscribed,
            reached,
            wait_ms_max=500,
            bytes_max=bytes_max,
        )
        assert self.link.send(fetch)

    def wanted(
        self, offset: int = 0, last_epoch: int = -1, epoch: int = 5
    ) -> ReplicaFetchPartition:
        return ReplicaFetchPartition(1, TOPIC_ID, 0, epoch, offset, last_epoch)

    def hear(self) -> LeaderResponse:
        """The next response; time does not pass."""

        def answer() -> LeaderResponse | None:
            self.leader.run()
            return next(self.link.responses(), None)

        found = wait_until(answer, what="an answer")
        assert found is not None
        return found

    def begin(self) -> None:
        """Create a session and receive the first high watermark."""
        self.ask(is_full=True, subscribed=(self.wanted(),))
        self.hear_nothing()
        self.harness.now_ms += WATERMARK_LINGER_MS
        assert part_of(self.hear()).byte_count == 0

    def hear_nothing(self) -> None:
        """The request has arrived and is delayed."""
        wait_until(self._poll_once, what="the request has arrived")
        assert next(self.link.responses(), None) is None

    def hear_quiet(self) -> None:
        """No response comes."""
        for _ in range(3):
            self.leader.run()
        assert next(self.link.responses(), None) is None

    def _poll_once(self) -> bool:
        socket = self.leader.replication.server._socket
        assert socket is not None
        is_there = bool(socket.poll(1_000))
        self.leader.run()
        self.leader.run()
        return is_there


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedFollower]:
    scripted = ScriptedFollower(tmp_path)
    yield scripted
    scripted.link.close()
    scripted.harness.close()


def part_of(answer: LeaderResponse) -> ReplicaPartitionData:
    (part,) = answer.fetched.partitions
    return part


def test_batches_are_sent_unchanged_and_the_next_after_the_followers_position(
    scripted: ScriptedFollower,
) -> None:
    for fill in range(3):
        scripted.leader.append(fill, batch_of(size=5_000, fill=fill), acks=1)
    scripted.ask(is_full=True, subscribed=(scripted.wanted(),), bytes_max=6_000)
    first = scripted.hear()
    assert part_of(first).log_end_offset == 3
    assert bytes(first.payload[PAYLOAD_HEAD:]) == as_stored(batch_of(size=5_000, fill=0), 0, 5)
    scripted.ask()
    scripted.hear_nothing()
    scripted.ask(reached=(ReplicaFetchPosition(1, 1, 5),), bytes_max=6_000)
    assert scripted.hear().fetched.partitions == (), "the one that waited is answered first"
    second = scripted.hear()
    assert bytes(second.payload[PAYLOAD_HEAD:]) == as_stored(batch_of(size=5_000, fill=1), 1, 5)
    assert scripted.leader.log().high_watermark == 1


def test_a_response_has_so_many_batches_at_most_and_the_rest_follows(
    scripted: ScriptedFollower,
) -> None:
    count = BATCHES_PER_RESPONSE_MAX + 5
    for number in range(count):
        scripted.leader.append(number, batch_of(), acks=1)
    size = len(batch_of())
    scripted.ask(is_full=True, subscribed=(scripted.wanted(),))
    assert part_of(scripted.hear()).byte_count == BATCHES_PER_RESPONSE_MAX * size
    scripted.ask(reached=(ReplicaFetchPosition(1, BATCHES_PER_RESPONSE_MAX, 5),))
    assert part_of(scripted.hear()).byte_count == 5 * size


def test_a_segment_that_was_dropped_is_released_although_nothing_is_fetched(
    scripted: ScriptedFollower,
) -> None:
    """Its disk space is free after that: a full disk is emptied by a topic that is deleted."""
    scripted.leader.append(1, batch_of(size=5_000), acks=1)
    scripted.ask(is_full=True, subscribed=(scripted.wanted(),))
    assert part_of(scripted.hear()).byte_count
    store, number = scripted.leader.store(), scripted.leader.place()[1]
    store.roll(scripted.harness.now_ms)
    (extent,) = store.catalog.extents[number]
    with store.catalog.change() as change:
        change.delete_segment(extent.segment_id)
    unlink_segment(store.directory, extent.segment_id)
    assert dropped_but_open(store.directory)

    def is_released() -> bool:
        scripted.harness.now_ms += 1_000
        scripted.leader.run()
        return not dropped_but_open(store.directory)

    wait_until(is_released, timeout_s=10)


def test_a_request_waits_until_the_log_grows(scripted: ScriptedFollower) -> None:
    scripted.begin()
    scripted.ask()
    scripted.hear_nothing()
    scripted.leader.append(1, batch_of())
    assert part_of(scripted.hear()).byte_count == len(batch_of())


def test_a_diverging_follower_gets_no_high_watermark_before_its_next_position(
    scripted: ScriptedFollower,
) -> None:
    """Else it would take its diverging records as committed. The simulation found this."""
    scripted.leader.append(1, batch_of())
    scripted.ask(is_full=True, subscribed=(scripted.wanted(offset=1, last_epoch=4),))
    assert part_of(scripted.hear()).diverging_end == 0
    scripted.ask()
    scripted.hear_nothing()
    scripted.leader.replication.server.moved(scripted.leader.place(), scripted.harness.now_ms)
    scripted.harness.now_ms += 500
    assert scripted.hear().fetched.partitions == ()
    scripted.ask(reached=(ReplicaFetchPosition(1, 0, -1),))
    assert part_of(scripted.hear()).byte_count == len(batch_of())


def test_a_high_watermark_that_moved_meanwhile_is_sent_after_the_followers_position(
    scripted: ScriptedFollower,
) -> None:
    scripted.begin()
    scripted.leader.append(1, batch_of())
    scripted.ask()
    assert part_of(scripted.hear()).byte_count == len(batch_of())
    scripted.leader.replication.server.moved(scripted.leader.place(), scripted.harness.now_ms)
    scripted.ask(reached=(ReplicaFetchPosition(1, 1, 5),))
    scripted.hear_nothing()
    scripted.harness.now_ms += WATERMARK_LINGER_MS
    assert part_of(scripted.hear()).high_watermark == 1


def test_a_request_is_answered_after_its_wait_time(scripted: ScriptedFollower) -> None:
    scripted.begin()
    scripted.ask()
    scripted.hear_nothing()
    scripted.harness.now_ms += 500
    assert scripted.hear().fetched == ReplicaFetchResponse(2, 0, ErrorCode.NONE)


def test_a_new_high_watermark_is_sent_after_the_linger_time(scripted: ScriptedFollower) -> None:
    scripted.leader.append(1, batch_of())
    scripted.ask(is_full=True, subscribed=(scripted.wanted(),))
    assert part_of(scripted.hear()).high_watermark == 0
    scripted.ask(reached=(ReplicaFetchPosition(1, 1, 5),))
    scripted.hear_nothing()
    assert scripted.leader.answers() == {1: ErrorCode.NONE}, "the producer need not wait for that"
    scripted.harness.now_ms += WATERMARK_LINGER_MS
    assert part_of(scripted.hear()).high_watermark == 1


def test_an_old_leader_epoch_is_fenced(scripted: ScriptedFollower) -> None:
    scripted.ask(is_full=True, subscribed=(scripted.wanted(epoch=4),))
    assert part_of(scripted.hear()).error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("is_leading", [True, False], ids=["leads already", "leads next"])
def test_a_follower_with_a_newer_leader_epoch_waits_for_the_image(
    scripted: ScriptedFollower, is_leading: bool
) -> None:
    if not is_leading:
        scripted.harness.change(PartitionImage((0, 1), (0, 1), 1, 6, 1))
    scripted.leader.append(1, batch_of(), acks=1)
    scripted.ask(is_full=True, subscribed=(scripted.wanted(epoch=7),))
    scripted.hear_nothing()
    scripted.leader.append(2, batch_of(), acks=1)
    scripted.harness.now_ms += WATERMARK_LINGER_MS
    assert next(scripted.link.responses(), None) is None, "nothing of another epoch is told"
    scripted.harness.change(PartitionImage((0, 1), (0, 1), 0, 7, 2))
    scripted.harness.now_ms += WATERMARK_LINGER_MS
    assert part_of(scripted.hear()).error_code == ErrorCode.NONE
    assert scripted.leader.log().high_watermark == 0


def test_an_early_follower_gets_an_error_if_another_node_leads_the_epoch(
    scripted: ScriptedFollower,
) -> None:
    scripted.ask(is_full=True, subscribed=(scripted.wanted(epoch=7),))
    scripted.hear_nothing()
    scripted.harness.change(PartitionImage((0, 1), (0, 1), 1, 6, 1))
    scripted.hear_quiet()
    scripted.harness.change(PartitionImage((0, 1), (0, 1), 1, 8, 2))
    assert part_of(scripted.hear()).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_partition_of_another_node_is_unknown(scripted: ScriptedFollower) -> None:
    stranger = ReplicaFetchPartition(1, bytes(16), 0, 5, 0, -1)
    scripted.ask(is_full=True, subscribed=(stranger,))
    assert part_of(scripted.hear()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_diverging_follower_gets_the_diverging_epoch_and_makes_no_progress(
    scripted: ScriptedFollower,
) -> None:
    scripted.leader.append(1, batch_of(4))
    # It has records of epoch 3, of which we have none.
    scripted.ask(is_full=True, subscribed=(scripted.wanted(offset=4, last_epoch=3),))
    part = part_of(scripted.hear())
    assert (part.diverging_epoch, part.diverging_end) == (3, 0)
    assert scripted.leader.answers() == {}
    # More of an epoch than we have.
    scripted.ask(reached=(ReplicaFetchPosition(1, 9, 5),))
    part = part_of(scripted.hear())
    assert (part.diverging_epoch, part.diverging_end) == (5, 4)


def test_an_offset_out_of_range_is_answered_with_the_log_bounds(scripted: ScriptedFollower) -> None:
    scripted.leader.append(1, batch_of(4))
    scripted.ask(is_full=True, subscribed=(scripted.wanted(offset=9),))
    part = part_of(scripted.hear())
    assert (part.error_code, part.log_start_offset, part.log_end_offset) == (1, 0, 4)


def test_waiting_followers_get_an_error_when_the_leader_resigns(scripted: ScriptedFollower) -> None:
    scripted.begin()
    scripted.ask()
    scripted.hear_nothing()
    scripted.harness.change(PartitionImage((0, 1), (0, 1), 1, 6, 1))
    assert part_of(scripted.hear()).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_an_unknown_session_and_another_cluster_are_refused(
    scripted: ScriptedFollower,
) -> None:
    scripted.ask()
    assert scripted.hear().fetched.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    scripted.ask(is_full=True, cluster_id="other")
    assert scripted.hear().fetched.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_restarted_follower_replaces_its_former_session(scripted: ScriptedFollower) -> None:
    scripted.begin()
    again = ReplicaLink(scripted.harness.context, scripted.harness.addresses[0], b"1-0-2", ())
    wait_until(again.take_connected, what="the connection")
    old, scripted.link = scripted.link, again
    scripted.begin()
    scripted.link = old
    scripted.ask()
    assert scripted.hear().fetched.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    again.close()


def test_zmq_contexts_end_without_lingering() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = ReplicaLink(context, "tcp://127.0.0.1:9", b"x", ())
    link.send(ReplicaFetchRequest(1, "c", 1, -1, 0, True))
    link.close()
    context.term()
