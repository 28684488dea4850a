"""The latest fetch of each partition, until its connection is closed."""

from odradek.node.router.fetch_activity import PARTITIONS_MAX, FetchActivity
from odradek.node.router.fetch_sessions import CachedPartition
from odradek.protocol.messages.diagnostics import ExplainedReader

TOPIC_ID = bytes(range(16))


def wanted(topic: str | bytes, partition: int, offset: int) -> CachedPartition:
    return CachedPartition(topic, partition, offset, 1)


def fetch(
    readers: FetchActivity,
    *partitions: CachedPartition,
    connection: int = 1,
    now_ms: int = 0,
    session: int = 0,
    is_reduced: bool = False,
) -> None:
    readers.record_fetch(
        connection,
        "client",
        "host",
        partitions,
        session_id=session,
        is_reduced=is_reduced,
        is_read_committed=False,
        now_ms=now_ms,
    )


def of(readers: FetchActivity, partition: int = 0, now_ms: int = 0) -> list[ExplainedReader]:
    return readers.of_topic("t", TOPIC_ID, now_ms).get(partition, [])


def reader(idle_ms: int, fetch_idle_ms: int, offset: int) -> ExplainedReader:
    return ExplainedReader(
        client_id="client",
        client_host="/host",
        idle_ms=idle_ms,
        fetch_idle_ms=fetch_idle_ms,
        offset=offset,
    )


def test_a_partition_that_is_not_fetched_becomes_idle_while_its_client_is_active() -> None:
    readers = FetchActivity()
    fetch(readers, wanted("t", 0, 5), wanted("t", 1, 7), now_ms=100)
    fetch(readers, wanted("t", 1, 8), now_ms=900)
    assert of(readers, 0, 1_000) == [reader(900, 100, 5)]
    assert of(readers, 1, 1_000) == [reader(100, 100, 8)]


def test_fetches_by_topic_id_are_found() -> None:
    readers = FetchActivity()
    fetch(readers, wanted(TOPIC_ID, 0, 5))
    fetch(readers, wanted("t", 0, 6), connection=2)
    assert sorted(reading.offset for reading in of(readers)) == [5, 6]


def test_an_error_of_a_fetch_lasts_until_the_next_fetch() -> None:
    readers = FetchActivity()
    fetch(readers, wanted("t", 0, 5))
    readers.record_error(1, "t", 0, 29)
    readers.record_error(9, "t", 0, 29)
    assert of(readers)[0].error_code == 29
    fetch(readers, wanted("t", 0, 5))
    assert of(readers)[0].error_code == 0


def test_a_closed_connection_has_no_entries() -> None:
    readers = FetchActivity()
    fetch(readers, wanted("t", 0, 5))
    readers.remove_connection(1)
    readers.remove_connection(1)
    assert of(readers) == []
    assert len(readers) == 0


def test_entries_of_a_connection_are_limited() -> None:
    readers = FetchActivity()
    fetch(readers, *(wanted("t", index, 0) for index in range(PARTITIONS_MAX + 1)))
    fetch(readers, wanted("t", 0, 1))
    fetch(readers, wanted("t", 0, 1))
    assert of(readers, PARTITIONS_MAX) == []
    assert of(readers, 0) != []


def test_an_incremental_fetch_counts_for_all_partitions_of_the_session() -> None:
    readers = FetchActivity()

    def seen(now_ms: int) -> list[tuple[int, int]]:
        readings = [of(readers, index, now_ms)[0] for index in range(3)]
        return [(reading.idle_ms, reading.offset) for reading in readings]

    fetch(readers, wanted("t", 0, 5), wanted("t", 1, 5), session=3, is_reduced=True, now_ms=100)
    first, second, third = wanted("t", 0, 6), wanted("t", 1, 5), wanted("t", 2, 0)
    fetch(readers, first, second, third, session=3, now_ms=200)
    assert seen(200) == [(0, 6), (0, 5), (0, 0)]
    fetch(readers, wanted("t", 0, 7), third, session=3, is_reduced=True, now_ms=300)
    fetch(readers, wanted("t", 0, 8), third, session=3, now_ms=400)
    assert seen(400) == [(0, 8), (200, 5), (0, 0)]
    # Another session of the same connection has partitions of its own.
    fetch(readers, wanted("t", 1, 6), session=4, now_ms=500)
    assert seen(500) == [(100, 8), (0, 6), (100, 0)]


def test_what_is_sent_is_counted_by_topic() -> None:
    activity = FetchActivity()
    activity.record_sent([("t", 100, 2), ("u", 10, 1), ("t", 5, 3)])
    activity.record_sent([("t", 1, 1)])
    assert activity.sent == {"t": (106, 6), "u": (10, 1)}
