"""The retention gate: what goes, what is held, and what is lost, and a store that does it."""

import random
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.storage.archive_gate import GatedRetention, offset_by_cap, pass_gate
from odradek.storage.partition_log import NOT_KNOWN
from odradek.storage.segment import Extent
from odradek.storage.settings import LogSettings, StoreOptions
from odradek.storage.status import ReplicaRole
from odradek.storage.store import Store
from tests.storage.test_compaction import pairs
from tests.storage.test_maintenance import drain, log_starts
from tests.storage.test_retention import extents_of, opener, outcome
from tests.support.log_lines import log_lines
from tests.support.stores import NOW_MS, append_now, batch_of, create, open_store

OPTIONS = StoreOptions(
    segment_bytes=1 << 20,
    segment_map_bytes=64 << 20,
    status_slots=1 << 12,
    retention_check_interval_ms=10_000,
    cleaner_backoff_ms=1_000,
)
GROUP = "pipe.orders"
ONE_BYTE_EACH = [Extent(1, 0, 1_000, 1_000, 1_000, 0, 0)]


def gated(*, retained: int, archived: int = -1, capped: int = 0, start: int = 0) -> GatedRetention:
    """The gate of a log of a byte for each offset."""
    return pass_gate(
        ONE_BYTE_EACH,
        log_start_offset=start,
        retained_offset=retained,
        archived_offset=archived,
        capped_offset=capped,
    )


def archived(store: Store, number: int, offset: int) -> None:
    archive = store.partitions()[number].archive
    assert archive is not None
    archive.archived_offset = offset


def held_bytes(store: Store, number: int) -> int:
    archive = store.partitions()[number].archive
    assert archive is not None
    return archive.held_bytes


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # Unknown, or nothing committed: all is held.
        ({"retained": 300}, (0, 300, 0)),
        ({"retained": 300, "archived": 0}, (0, 300, 0)),
        # What the group has committed goes, and nothing above.
        ({"retained": 300, "archived": 200}, (200, 100, 0)),
        ({"retained": 300, "archived": 300}, (300, 0, 0)),
        ({"retained": 300, "archived": 900}, (300, 0, 0)),
        # The cap deletes without the group, and never more than retention would.
        ({"retained": 300, "archived": 100, "capped": 150}, (150, 150, 50)),
        ({"retained": 300, "archived": 100, "capped": 900}, (300, 0, 200)),
        ({"retained": 300, "archived": 200, "capped": 150}, (200, 100, 0)),
        ({"retained": 300, "capped": 150}, (150, 150, 150)),
        # Below the log start there is nothing to lose; the group may be behind it.
        ({"retained": 300, "archived": 20, "capped": 150, "start": 120}, (150, 150, 30)),
        ({"retained": 300, "archived": 20, "capped": 10, "start": 120}, (120, 180, 0)),
        # Retention wants nothing.
        ({"retained": 120, "archived": 900, "capped": 900, "start": 120}, (120, 0, 0)),
    ],
)
def test_what_goes_is_archived_or_above_the_cap(
    case: dict[str, int], expected: tuple[int, int, int]
) -> None:
    assert gated(**case) == expected


def test_the_gate_against_single_offsets() -> None:
    """The same with a decision for each offset."""
    rng = random.Random(14)
    for _ in range(2_000):
        start = rng.randrange(0, 500)
        retained = rng.randrange(start, 1_001)
        committed, capped = rng.randrange(-1, 1_001), rng.randrange(0, 1_001)
        goes = [at for at in range(start, retained) if at < committed or at < capped]
        expected = GatedRetention(
            start + len(goes),
            held_bytes=retained - start - len(goes),
            lost_bytes=sum(at >= committed for at in goes),
        )
        result = gated(retained=retained, archived=committed, capped=capped, start=start)
        assert result == expected, (start, retained, committed, capped)


def test_the_cap_is_by_age_and_by_size(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    def capped(number: int) -> int:
        log = store.partitions()[number]
        return outcome(
            offset_by_cap(
                log, extents_of(store, number), opener(store), now_ms=NOW_MS + 10_000, known={}
            )
        )

    by_age = create(store, 0, archive_group=GROUP, archive_max_ms=8_500)
    by_size = create(store, 1, archive_group=GROUP, archive_max_ms=-1, archive_max_bytes=3_000)
    without = create(store, 2, archive_group=GROUP, archive_max_ms=-1)
    for at in range(4):
        for number in (by_age, by_size, without):
            append_now(store, number, batch_of(1, size=1_000, timestamp=NOW_MS + 1_000 * at))
    assert [capped(by_age), capped(by_size), capped(without)] == [2, 1, 0]
    store.close()


def test_nothing_goes_before_the_group_has_committed_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    by_age = create(store, 0, retention_ms=1, archive_group=GROUP)
    by_size = create(store, 1, retention_ms=-1, retention_bytes=0, archive_group=GROUP)
    free = create(store, 2, retention_ms=1)
    for number in (by_age, by_size, free):
        append_now(store, number, *(batch_of(1, size=1_000) for _ in range(4)))
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert log_starts(store) == [0, 0, 4], "nothing is known of the group yet"
    assert held_bytes(store, by_age) == held_bytes(store, by_size) > 4_000
    archived(store, by_age, 3)
    archived(store, by_size, 2)
    drain(store, NOW_MS + 20_000)
    assert log_starts(store) == [3, 2, 4]
    assert 1_000 < held_bytes(store, by_age) < held_bytes(store, by_size)
    archived(store, by_age, 1)
    drain(store, NOW_MS + 30_000)
    assert log_starts(store) == [3, 2, 4], "the group was set back: the log start never is"
    archived(store, by_age, 4)
    archived(store, by_size, 100)
    drain(store, NOW_MS + 40_000)
    assert log_starts(store) == [4, 4, 4]
    assert held_bytes(store, by_age) == 0
    assert store.lost_bytes == {}
    store.close()


def test_a_store_that_is_opened_again_waits_until_it_is_told(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(store, retention_ms=1, archive_group=GROUP)
    append_now(store, number, *(batch_of(1) for _ in range(4)))
    archived(store, number, 4)
    store.close()
    store = open_store(tmp_path, OPTIONS)
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert log_starts(store) == [0]
    archived(store, number, 4)
    drain(store, NOW_MS + 20_000)
    assert log_starts(store) == [4]
    store.close()


def test_above_the_cap_retention_deletes_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(
        store,
        retention_ms=-1,
        retention_bytes=1_000,
        archive_group=GROUP,
        archive_max_bytes=3_000,
    )
    append_now(store, number, *(batch_of(1, size=1_000) for _ in range(4)))
    archived(store, number, 0)
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert log_starts(store) == [1]
    assert 1_000 < store.lost_bytes["topic"] < 1_200
    assert 2_000 < held_bytes(store, number) < 2_300
    assert log_lines(caplog) == [
        "retention deletes records that the group of the archive has not committed: the log is"
        " above odradek.archive.max.bytes or odradek.archive.max.ms topic=topic partition=0"
        f" group={GROUP} offset=0 end_offset=1"
        " action='start the job that commits for the group, or raise the limit'"
    ]
    append_now(store, number, batch_of(1, size=1_000))
    drain(store, NOW_MS + 20_000)
    assert log_starts(store) == [2]
    assert 2_000 < store.lost_bytes["topic"] < 2_400
    assert len(log_lines(caplog)) == 1, "once"
    # The group catches up, and dies again.
    archived(store, number, 5)
    drain(store, NOW_MS + 30_000)
    assert log_starts(store) == [4]
    append_now(store, number, *(batch_of(1, size=1_000) for _ in range(4)))
    drain(store, NOW_MS + 40_000)
    assert log_starts(store) == [6], "one more than it has committed"
    assert len(log_lines(caplog)) == 2, "once each time"
    store.close()


def test_the_cap_never_deletes_what_retention_keeps(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(
        store, retention_ms=50_000, archive_group=GROUP, archive_max_ms=0, archive_max_bytes=0
    )
    append_now(store, number, batch_of(1))
    archived(store, number, -1)
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert log_starts(store) == [0]
    drain(store, NOW_MS + 60_000)
    assert log_starts(store) == [1]
    store.close()


def test_the_cap_waits_two_minutes_for_a_group_of_which_nothing_is_known(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(store, retention_ms=1, archive_group=GROUP, archive_max_bytes=0)
    append_now(store, number, batch_of(1))
    assert store.maintenance(NOW_MS) is None
    for seconds in (10, 60, 120):
        drain(store, NOW_MS + seconds * 1_000)
        assert log_starts(store) == [0]
    drain(store, NOW_MS + 130_000)
    assert log_starts(store) == [1]
    append_now(store, number, batch_of(1))
    archived(store, number, 2)
    lost_bytes = store.lost_bytes["topic"]
    drain(store, NOW_MS + 140_000)
    assert log_starts(store) == [2]
    assert store.lost_bytes["topic"] == lost_bytes
    store.close()


def test_without_the_config_retention_goes_on_and_another_group_begins_anew(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path, OPTIONS)
    settings = LogSettings(retention_ms=1, archive_group=GROUP)
    number = create(store, retention_ms=1, archive_group=GROUP)
    append_now(store, number, batch_of(2))
    archived(store, number, 2)
    store.set_settings(number, LogSettings(retention_ms=2, archive_group=GROUP))
    archive = store.partitions()[number].archive
    assert archive is not None
    assert archive.archived_offset == 2, "the same group"
    store.set_settings(number, LogSettings(retention_ms=1, archive_group="other"))
    archive = store.partitions()[number].archive
    assert archive is not None
    assert archive.archived_offset == NOT_KNOWN
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert log_starts(store) == [0]
    store.set_settings(number, LogSettings(retention_ms=1))
    drain(store, NOW_MS + 20_000)
    assert log_starts(store) == [2]
    store.set_settings(number, settings)
    store.close()


def test_delete_records_is_obeyed_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(store, archive_group=GROUP)
    append_now(store, number, batch_of(5))
    archived(store, number, 3)
    assert store.log_starts.delete_records(number, 2) == (ErrorCode.NONE, 2)
    assert log_lines(caplog) == []
    assert store.log_starts.delete_records(number, 4) == (ErrorCode.NONE, 4)
    assert log_lines(caplog) == [
        "DeleteRecords has deleted records that the group of the archive has not committed"
        f" topic=topic partition=0 group={GROUP} offset=3 end_offset=4"
    ]
    assert store.lost_bytes == {}, "nobody was surprised"
    store.close()


def test_compaction_waits_too_on_followers_as_well(tmp_path: Path) -> None:
    store = open_store(tmp_path, OPTIONS)
    number = create(
        store,
        cleanup_compact=True,
        cleanup_delete=False,
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=0,
        archive_group=GROUP,
        archive_max_ms=60_000,
    )
    store.set_leader_epoch(number, 1, ReplicaRole.FOLLOWER)

    def batch_count() -> int:
        return sum(extent.batch_count for extent in store.catalog.extents[number])

    for value in ("1", "2", None):
        append_now(store, number, pairs(("key", value)))
        store.roll(NOW_MS)
    assert store.maintenance(NOW_MS) is None
    drain(store, NOW_MS + 10_000)
    assert batch_count() == 3, "nothing is known of the group yet"
    archived(store, number, 2)
    drain(store, NOW_MS + 20_000)
    assert batch_count() == 2, "the first value; the tombstone was not read"
    append_now(store, number, pairs(("other", "1")))
    store.roll(NOW_MS)
    drain(store, NOW_MS + 30_000)
    assert batch_count() == 3
    drain(store, NOW_MS + 80_000)
    assert batch_count() < 3, "above the cap"
    assert log_starts(store) == [0]
    store.close()
