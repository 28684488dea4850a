"""ListOffsets (B.1) and OffsetForLeaderEpoch (B.11) as clients see them, in every version."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.node.bus.messages import DeleteRecords
from odradek.node.router.handlers.offsets import (
    DEBUGGING_REPLICA_ID,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    handle_list_offsets,
    handle_offset_for_leader_epoch,
)
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.compression import Codec
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from odradek.protocol.records import TRANSACTIONAL
from tests.support.router_harness import RouterHarness
from tests.support.stores import NOW_MS, batch_of

NEWEST = 11
FIRST_SPECIAL = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
NOTHING = (ErrorCode.NONE, -1, -1, -1)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    harness.controller.has("t", 1, 2)
    harness.follow()
    yield harness
    harness.close()


def listed(
    harness: RouterHarness,
    *partitions: ListOffsetsPartition,
    topic: str = "t",
    version: int = NEWEST,
    isolation_level: int = 0,
) -> list[ListOffsetsPartitionResponse]:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level if version >= 2 else 0,
        topics=[ListOffsetsTopic(name=topic, partitions=list(partitions))],
    )
    (answer,) = harness.call(handle_list_offsets, request, version).topics
    assert answer.name == topic
    return answer.partitions


def ask(
    harness: RouterHarness,
    timestamp: int,
    *,
    partition: int = 0,
    version: int = NEWEST,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    topic: str = "t",
) -> tuple[int, int, int, int]:
    """(error, offset, timestamp, leader epoch)"""
    wanted = ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=current_leader_epoch
    )
    (answer,) = listed(
        harness, wanted, topic=topic, version=version, isolation_level=isolation_level
    )
    assert answer.partition_index == partition
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


def delete_below(harness: RouterHarness, offset: int) -> None:
    store, number = harness.place("t")
    harness.turns.run([(RouterState(), DeleteRecords(1, store, number, offset))], NOW_MS)


# -- after an election -----------------------------------------------------------------------------


@pytest.fixture
def elected(tmp_path: Path) -> Iterator[RouterHarness]:
    """A new leader: of four records of earlier leaders, two are below its high watermark."""
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("t", 1, 1, 2)
    harness.follow()
    harness.lead("t", 3)
    harness.append("t", batch_of(2, timestamp=NOW_MS), batch_of(2, timestamp=NOW_MS + 1_000))
    commit(harness, 2)
    harness.lead("t", 4, leader=1)
    harness.lead("t", 5)
    yield harness
    harness.close()


def commit(harness: RouterHarness, offset: int) -> None:
    store, number = harness.place("t")
    harness.partitions.stores[store].set_high_watermark(number, offset)


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
def test_an_unknown_end_offset_is_not_available(elected: RouterHarness, version: int) -> None:
    """KIP-207: it might be lower than an end offset that the former leader has returned."""
    code = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    assert ask(elected, LATEST, version=version) == (code, -1, -1, -1)
    assert ask(elected, NOW_MS + 1, version=version) == (code, -1, -1, -1)
    # Offsets below the high watermark can be returned.
    epoch = 3 if version >= 4 else -1
    assert ask(elected, NOW_MS, version=version) == (ErrorCode.NONE, 0, NOW_MS, epoch)
    assert ask(elected, EARLIEST, version=version)[:2] == (ErrorCode.NONE, 0)
    commit(elected, 4)
    assert ask(elected, LATEST, version=version)[:2] == (ErrorCode.NONE, 4)


def test_records_of_the_new_epoch_do_not_make_the_end_known(elected: RouterHarness) -> None:
    elected.append("t", batch_of(3))
    assert ask(elected, LATEST)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    commit(elected, 4)
    assert ask(elected, LATEST)[:2] == (ErrorCode.NONE, 4)


def test_the_debugging_replica_id_gets_the_log_end_offset_of_any_replica(
    elected: RouterHarness,
) -> None:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    topics = [ListOffsetsTopic(name="t", partitions=[wanted])]
    request = ListOffsetsRequest(replica_id=DEBUGGING_REPLICA_ID, topics=topics)

    def latest() -> tuple[int, int]:
        (answer,) = elected.call(handle_list_offsets, request, NEWEST).topics[0].partitions
        return answer.error_code, answer.offset

    assert latest() == (ErrorCode.NONE, 4)
    elected.lead("t", 6, leader=1)
    assert latest() == (ErrorCode.NONE, 4)
    wanted.current_leader_epoch = 5
    assert latest()[0] == ErrorCode.FENCED_LEADER_EPOCH


def test_followers_list_no_offsets(elected: RouterHarness) -> None:
    elected.lead("t", 6, leader=1)
    for timestamp in (LATEST, EARLIEST, NOW_MS):
        assert ask(elected, timestamp)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(elected, LATEST, current_leader_epoch=5)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(elected, LATEST, current_leader_epoch=7)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


# -- the ends --------------------------------------------------------------------------------------


def test_earliest_and_latest_are_returned_in_every_version(harness: RouterHarness) -> None:
    harness.lead("t", 3)
    harness.append("t", batch_of(2), batch_of(3))
    delete_below(harness, 1)
    for version in range(1, NEWEST + 1):
        epoch = 3 if version >= 4 else -1
        assert ask(harness, LATEST, version=version) == (ErrorCode.NONE, 5, -1, epoch)
        assert ask(harness, EARLIEST, version=version) == (ErrorCode.NONE, 1, -1, epoch)


def test_an_empty_log_begins_and_ends_at_0(harness: RouterHarness) -> None:
    assert ask(harness, LATEST)[:3] == (ErrorCode.NONE, 0, -1)
    assert ask(harness, EARLIEST)[:3] == (ErrorCode.NONE, 0, -1)
    assert ask(harness, MAX_TIMESTAMP) == NOTHING
    assert ask(harness, 0) == NOTHING


def test_latest_for_read_committed_is_the_last_stable_offset(harness: RouterHarness) -> None:
    open_one = batch_of(
        2, producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )
    harness.append("t", batch_of(3), open_one, batch_of(1))
    assert ask(harness, LATEST)[1] == 6
    assert ask(harness, LATEST, isolation_level=1)[1] == 3
    assert ask(harness, LATEST, isolation_level=1, version=1)[1] == 6, "version 1 knows of none"


def test_earliest_has_the_epoch_of_its_record(harness: RouterHarness) -> None:
    harness.lead("t", 2)
    harness.append("t", batch_of(2))
    harness.lead("t", 6)
    harness.append("t", batch_of(2))
    assert ask(harness, EARLIEST) == (ErrorCode.NONE, 0, -1, 2)
    assert ask(harness, LATEST) == (ErrorCode.NONE, 4, -1, 6)
    delete_below(harness, 3)
    assert ask(harness, EARLIEST) == (ErrorCode.NONE, 3, -1, 6)


@pytest.mark.parametrize(
    ("special", "wanted"),
    [
        (LATEST, (2, -1)),
        (EARLIEST, (1, -1)),
        (MAX_TIMESTAMP, (1, NOW_MS)),
        (EARLIEST_LOCAL, (1, -1)),
        (LATEST_TIERED, (-1, -1)),
        (EARLIEST_PENDING_UPLOAD, (-1, -1)),
    ],
)
def test_special_timestamps_are_supported_since_their_version(
    harness: RouterHarness, special: int, wanted: tuple[int, int]
) -> None:
    harness.append("t", batch_of(2))
    delete_below(harness, 1)
    for version in range(1, NEWEST + 1):
        found = ask(harness, special, version=version)[:3]
        if version < FIRST_SPECIAL[special]:
            assert found == (ErrorCode.UNSUPPORTED_VERSION, -1, -1), version
        else:
            assert found == (ErrorCode.NONE, *wanted), version


@pytest.mark.parametrize("special", [-7, -100, -(2**63)])
def test_unknown_negative_timestamps_are_unsupported(harness: RouterHarness, special: int) -> None:
    assert ask(harness, special)[0] == ErrorCode.UNSUPPORTED_VERSION


# -- by time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", [1, 4, NEWEST])
def test_a_timestamp_finds_the_first_record_at_or_after_it_within_a_batch(
    harness: RouterHarness, codec: Codec, version: int
) -> None:
    harness.lead("t", 3)
    times = [NOW_MS + 10 * step for step in range(6)]
    harness.append(
        "t",
        batch_of(3, timestamps=times[:3], codec=codec),
        batch_of(3, timestamps=times[3:], codec=codec),
    )
    epoch = 3 if version >= 4 else -1
    for asked, offset in ((0, 0), (5, 1), (10, 1), (11, 2), (21, 3), (30, 3), (50, 5)):
        found = ask(harness, NOW_MS + asked, version=version)
        assert found == (ErrorCode.NONE, offset, times[offset], epoch), asked
    assert ask(harness, NOW_MS + 51, version=version) == NOTHING
    assert ask(harness, 0, version=version)[1] == 0


def test_a_timestamp_is_searched_in_offset_order(
    harness: RouterHarness,
) -> None:
    times = [NOW_MS + 50, NOW_MS + 10, NOW_MS + 90, NOW_MS + 20]
    harness.append("t", batch_of(4, timestamps=times))
    assert ask(harness, NOW_MS + 15)[:3] == (ErrorCode.NONE, 0, NOW_MS + 50)
    assert ask(harness, NOW_MS + 60)[:3] == (ErrorCode.NONE, 2, NOW_MS + 90)


def test_a_timestamp_is_searched_from_the_log_start_offset(harness: RouterHarness) -> None:
    times = [NOW_MS + step for step in range(4)]
    harness.append("t", batch_of(4, timestamps=times))
    delete_below(harness, 2)
    assert ask(harness, NOW_MS)[:3] == (ErrorCode.NONE, 2, NOW_MS + 2)


def test_a_timestamp_is_searched_below_the_readers_limit(harness: RouterHarness) -> None:
    open_one = batch_of(
        1,
        timestamp=NOW_MS + 10,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    harness.append("t", batch_of(1), open_one)
    assert ask(harness, NOW_MS + 5)[1] == 1
    assert ask(harness, NOW_MS + 5, isolation_level=1) == NOTHING


@pytest.mark.parametrize("codec", CODECS)
def test_max_timestamp_finds_the_record_within_its_batch(
    harness: RouterHarness, codec: Codec
) -> None:
    """KIP-734; the first one, if there are several."""
    times = [NOW_MS, NOW_MS + 90, NOW_MS + 90, NOW_MS + 20]
    harness.append(
        "t", batch_of(4, timestamps=times, codec=codec), batch_of(1, timestamp=NOW_MS + 50)
    )
    assert ask(harness, MAX_TIMESTAMP)[:3] == (ErrorCode.NONE, 1, NOW_MS + 90)
    delete_below(harness, 3)
    assert ask(harness, MAX_TIMESTAMP)[:3] == (ErrorCode.NONE, 4, NOW_MS + 50)


# -- version 0 -------------------------------------------------------------------------------------


def list_version_0(
    harness: RouterHarness, timestamp: int, count: int, partition: int = 0
) -> list[int]:
    wanted = ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, max_num_offsets=count
    )
    (answer,) = listed(harness, wanted, version=0)
    assert answer.error_code == ErrorCode.NONE
    return answer.old_style_offsets


def test_version_0_lists_offsets_in_descending_order_up_to_the_limit(
    harness: RouterHarness,
) -> None:
    harness.append("t", batch_of(4, timestamps=[NOW_MS + step for step in range(4)]))
    delete_below(harness, 1)
    assert list_version_0(harness, LATEST, 10) == [4, 1]
    assert list_version_0(harness, LATEST, 1) == [4]
    assert list_version_0(harness, EARLIEST, 10) == [1]
    assert list_version_0(harness, LATEST, 0) == []
    assert list_version_0(harness, LATEST, 10, partition=1) == [0]


# -- what cannot be listed -------------------------------------------------------------------------


def test_a_partition_that_is_named_twice_is_an_invalid_request(harness: RouterHarness) -> None:
    twice = [ListOffsetsPartition(partition_index=0, timestamp=time) for time in (LATEST, EARLIEST)]
    once = ListOffsetsPartition(partition_index=1, timestamp=LATEST)
    for version in range(NEWEST + 1):
        codes = [answer.error_code for answer in listed(harness, *twice, once, version=version)]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


def test_a_partition_named_under_two_entries_of_its_topic_is_a_duplicate(
    harness: RouterHarness,
) -> None:
    mention = ListOffsetsTopic(
        name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)]
    )
    request = ListOffsetsRequest(replica_id=-1, topics=[mention, mention])
    response = harness.call(handle_list_offsets, request, NEWEST)
    codes = [partition.error_code for topic in response.topics for partition in topic.partitions]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize(("topic", "partition"), [("nowhere", 0), ("t", 2), ("t", -1)])
def test_an_unknown_topic_or_partition_has_an_error(
    harness: RouterHarness, topic: str, partition: int
) -> None:
    found = ask(harness, LATEST, topic=topic, partition=partition)
    assert found == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)


@pytest.mark.parametrize("topic", ["t", "nowhere"])
def test_a_denied_topic_is_refused_whether_it_exists_or_not(
    harness: RouterHarness, topic: str
) -> None:
    harness.deny(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    assert ask(harness, LATEST, topic=topic) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1, -1)
    # Whoever is a broker may ask for the ends of epochs.
    assert ends(harness, 0, topic=topic)[0] != ErrorCode.TOPIC_AUTHORIZATION_FAILED
    harness.deny(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    assert ends(harness, 0, topic=topic)[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [4, NEWEST])
def test_another_leader_epoch_is_fenced_or_unknown(harness: RouterHarness, version: int) -> None:
    harness.lead("t", 5)
    codes = {
        epoch: ask(harness, LATEST, version=version, current_leader_epoch=epoch)[0]
        for epoch in (-1, 4, 5, 6)
    }
    assert codes == {
        -1: ErrorCode.NONE,
        4: ErrorCode.FENCED_LEADER_EPOCH,
        5: ErrorCode.NONE,
        6: ErrorCode.UNKNOWN_LEADER_EPOCH,
    }


def test_the_epoch_is_checked_before_the_leader(tmp_path: Path) -> None:
    """A client in an older epoch is fenced by a former leader too."""
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("t", 1, 1)
    harness.follow()
    harness.lead("t", 5, leader=1)
    assert ask(harness, LATEST)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(harness, LATEST, current_leader_epoch=4)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(harness, LATEST, current_leader_epoch=6)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ends(harness, 5, current=4)[0] == ErrorCode.FENCED_LEADER_EPOCH
    harness.close()


# -- OffsetForLeaderEpoch --------------------------------------------------------------------------


def ends(
    harness: RouterHarness,
    epoch: int,
    *,
    current: int = -1,
    topic: str = "t",
    partition: int = 0,
    version: int = 4,
) -> tuple[int, int, int]:
    """(error, epoch, end offset)"""
    wanted = OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    (answer,) = harness.call(handle_offset_for_leader_epoch, request, version).topics
    (end,) = answer.partitions
    assert isinstance(end, EpochEndOffset)
    assert (answer.topic, end.partition) == (topic, partition)
    return end.error_code, end.leader_epoch, end.end_offset


@pytest.mark.parametrize("version", range(5))
def test_an_epoch_ends_where_the_next_one_begins(harness: RouterHarness, version: int) -> None:
    """The response is for the requested epoch, or the next lower one with records."""
    harness.lead("t", 2)
    harness.append("t", batch_of(2))
    harness.lead("t", 5)
    harness.append("t", batch_of(3))

    def known(epoch: int) -> int:
        return epoch if version >= 1 else -1

    assert ends(harness, 2, version=version) == (ErrorCode.NONE, known(2), 2)
    assert ends(harness, 4, version=version) == (ErrorCode.NONE, known(2), 2)
    assert ends(harness, 5, version=version) == (ErrorCode.NONE, known(5), 5)


@pytest.mark.parametrize("epoch", [6, 2**31 - 1, -1])
def test_an_unknown_epoch_has_no_end_offset(harness: RouterHarness, epoch: int) -> None:
    harness.lead("t", 5)
    harness.append("t", batch_of(3))
    assert ends(harness, epoch) == (ErrorCode.NONE, -1, -1)


def test_the_current_epoch_without_records_ends_at_the_log_end_offset(
    harness: RouterHarness,
) -> None:
    harness.lead("t", 2)
    harness.append("t", batch_of(2))
    harness.lead("t", 7)
    assert ends(harness, 7) == (ErrorCode.NONE, 7, 2)
    assert ends(harness, 6) == (ErrorCode.NONE, 2, 2)


@pytest.mark.parametrize("version", [2, 4])
def test_the_current_leader_epoch_is_checked(harness: RouterHarness, version: int) -> None:
    harness.lead("t", 5)
    refused = (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert ends(harness, 5, current=4, version=version) == refused
    assert ends(harness, 5, current=6, version=version)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ends(harness, 5, current=5, version=version)[0] == ErrorCode.NONE


@pytest.mark.parametrize(("topic", "partition"), [("nowhere", 0), ("t", 2), ("t", -1)])
def test_an_unknown_partition_has_no_epochs(
    harness: RouterHarness, topic: str, partition: int
) -> None:
    found = ends(harness, 0, topic=topic, partition=partition)
    assert found == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
