"""Archived offsets on their way to the logs."""

from pathlib import Path

from odradek.cluster.metadata.topic_settings import TopicSettings
from odradek.node.bus.messages import ArchivedOffsetsSet, RequestFailed, SetArchivedOffsets
from odradek.node.worker.hosted_partitions import log_settings_of
from odradek.protocol.errors import ErrorCode
from odradek.storage.layout import store_index
from odradek.storage.partition_log import NOT_KNOWN
from tests.node.worker.test_hosted_partitions import TOPIC_ID, place
from tests.node.worker.test_turns import TurnBench

GROUP = "pipe.orders"


def test_the_offsets_come_to_the_logs_that_wait_for_the_group(tmp_path: Path) -> None:
    bench = TurnBench(tmp_path)
    logs = []
    for partition, group in ((0, GROUP), (1, "other")):
        store, number = place(bench.partitions, TOPIC_ID, partition)
        settings = log_settings_of(TopicSettings(archive_group=group, archive_max_bytes=7))
        assert settings.archive_max_bytes == 7
        bench.partitions.stores[store].set_settings(number, settings)
        log = bench.partitions.log((store, number))
        assert log.archive is not None
        log.archive.held_bytes = 100 + partition
        logs.append(log)
    first = store_index(TOPIC_ID, 0, 8)
    offsets = ((TOPIC_ID, 0, 42), (TOPIC_ID, 1, 43), (bytes(16), 0, 44))
    bench.turns.run([(bench.router, SetArchivedOffsets(9, first, 0, GROUP, offsets))], 0)
    assert bench.take() == [ArchivedOffsetsSet(9, (100, 0, 0))]
    archives = [log.archive for log in logs]
    assert archives[0] is not None
    assert archives[1] is not None
    assert [archives[0].archived_offset, archives[1].archived_offset] == [42, NOT_KNOWN]
    bench.turns.run([(bench.router, SetArchivedOffsets(10, 7_777, 0, GROUP, offsets))], 0)
    (failed,) = bench.take()
    assert isinstance(failed, RequestFailed)
    assert failed.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
