"""What the records of all newer types of groups have in common."""

import pytest

from odradek.coordinator.group.consumer.records import CONSUMER_RECORDS
from odradek.coordinator.group.modern.records import (
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    ModernRecord,
    ModernRecords,
    TargetEpochRecord,
    TargetRecord,
)
from odradek.coordinator.group.share.records import SHARE_RECORDS
from odradek.coordinator.group.streams.records import STREAMS_RECORDS

ALL = (CONSUMER_RECORDS, SHARE_RECORDS, STREAMS_RECORDS)


@pytest.mark.parametrize("records", ALL)
def test_every_type_has_its_own_class_of_each_record(records: ModernRecords) -> None:
    common = (EpochRecord, TargetEpochRecord, MemberRecord, TargetRecord, CurrentRecord)
    for record, base in zip(records, (*common, ModernRecord), strict=True):
        assert issubclass(record, base)
    assert all(set(records).isdisjoint(other) for other in ALL if other is not records)
