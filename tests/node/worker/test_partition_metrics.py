"""The metrics of partitions and stores are those of the logs that are in use."""

import shutil
from pathlib import Path

from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import TopicDeleted
from odradek.node.metrics.registry import Metrics
from odradek.node.worker.partition_metrics import (
    PartitionMetrics,
    folder_bytes,
    register_disk_metrics,
)
from odradek.storage.settings import LogSettings
from tests.node.worker.test_hosted_partitions import TOPIC_ID, image_after, place, topic
from tests.node.worker.test_turns import TurnBench, batch
from tests.support.stores import NOW_MS

OTHER_ID = bytes(range(1, 17))


def lines(metrics: Metrics, name: str) -> list[str]:
    """The labels and values of a family."""
    start = f'{name}{{process="worker-0",'
    text = "".join(part.lines for part in metrics.collect() if part.name == name)
    return [line.removeprefix(start).replace("} ", " ") for line in text.splitlines()]


def test_each_log_has_its_offsets_and_size(tmp_path: Path) -> None:
    bench, metrics = TurnBench(tmp_path), Metrics("worker-0")
    PartitionMetrics(bench.partitions).register(metrics)
    first = batch(b"a", b"b")
    bench.run(bench.stage(1, 0, first), bench.stage(2, 3, batch(b"c")))
    assert sorted(lines(metrics, "odradek_log_end_offset")) == [
        f'topic="a",partition="{index}" {end}' for index, end in enumerate((2, 0, 0, 1, 0))
    ]
    store, number = place(bench.partitions, TOPIC_ID, 0)
    bench.partitions.stores[store].log_starts.delete_records(number, 1)
    assert 'topic="a",partition="0" 1' in lines(metrics, "odradek_log_start_offset")
    size = f'topic="a",partition="0" {len(first)}'
    assert size in lines(metrics, "odradek_log_size_bytes")
    bench.partitions.stores[store].roll(0)
    assert size in lines(metrics, "odradek_log_size_bytes"), "also in a sealed segment"
    segments = dict(line.split() for line in lines(metrics, "odradek_store_segments"))
    assert segments[f'store="{store}"'] == "2"
    assert len(lines(metrics, "odradek_store_size_bytes")) == len(bench.partitions.stores) == 4
    assert lines(metrics, "odradek_segment_rewrites_total")[0] == 'store="0" 0'


def test_what_producers_write_is_counted_by_topic(tmp_path: Path) -> None:
    bench, metrics = TurnBench(tmp_path), Metrics("worker-0")
    PartitionMetrics(bench.partitions).register(metrics)
    batches = [batch(b"a", b"b"), batch(b"c")]
    bench.run(bench.stage(1, 0, batches[0]), bench.stage(2, 1, batches[1]))
    bytes_before = sum(map(len, batches))
    assert lines(metrics, "odradek_topic_received_bytes_total") == [f'topic="a" {bytes_before}']
    assert lines(metrics, "odradek_topic_received_records_total") == ['topic="a" 3']
    # The replica of partition 0 moves away: what it got remains in the sum.
    store, number = place(bench.partitions, TOPIC_ID, 0)
    bench.partitions.stores[store].delete_partitions([number])
    bench.run(bench.stage(3, 1, batch(b"d")))
    assert lines(metrics, "odradek_topic_received_records_total") == ['topic="a" 4']


def test_a_deleted_topic_has_no_series(tmp_path: Path) -> None:
    bench, metrics = TurnBench(tmp_path), Metrics("worker-0")
    PartitionMetrics(bench.partitions).register(metrics)
    bench.run(bench.stage(1, 0, batch(b"a")))
    created = topic("a", TOPIC_ID, 0, 0, 0, 0, 0, replicas=(0,))
    image = image_after(MetadataImage.empty(), *created)
    bench.partitions.apply_image(image_after(image, TopicDeleted(TOPIC_ID)))
    assert not lines(metrics, "odradek_log_end_offset")
    assert not lines(metrics, "odradek_topic_received_records_total")


def test_a_folder_takes_what_its_files_take(tmp_path: Path) -> None:
    (tmp_path / "sparse").write_bytes(b"")
    with (tmp_path / "sparse").open("r+b") as file:
        file.truncate(1 << 30)
    assert folder_bytes(tmp_path) < 1 << 20
    (tmp_path / "full").write_bytes(bytes(3 << 20))
    assert folder_bytes(tmp_path) >= 3 << 20
    assert folder_bytes(tmp_path / "none") == 0


def test_an_offline_directory_has_no_disk(tmp_path: Path) -> None:
    metrics = Metrics("worker-0")
    register_disk_metrics(metrics, [tmp_path, tmp_path / "offline"])
    usage = shutil.disk_usage(tmp_path)
    assert lines(metrics, "odradek_disk_size_bytes") == [f'directory="{tmp_path}" {usage.total}']
    [free] = lines(metrics, "odradek_disk_free_bytes")
    assert 0 < int(free.split()[-1]) <= usage.total


def test_what_waits_for_an_archive_and_what_it_has_lost(tmp_path: Path) -> None:
    bench, metrics = TurnBench(tmp_path), Metrics("worker-0")
    PartitionMetrics(bench.partitions).register(metrics)
    bench.run(bench.stage(1, 0, batch(b"a")), bench.stage(2, 1, batch(b"b")))
    assert lines(metrics, "odradek_archive_held_bytes") == []
    assert lines(metrics, "odradek_archive_lost_bytes_total") == []
    # Two partitions, which are in two stores.
    for partition in (0, 1):
        store, number = place(bench.partitions, TOPIC_ID, partition)
        settings = LogSettings(retention_ms=1, archive_group="g", archive_max_ms=-1)
        bench.partitions.stores[store].set_settings(number, settings)
        archive = bench.partitions.log((store, number)).archive
        assert archive is not None
        archive.archived_offset = 0
    assert lines(metrics, "odradek_archive_lost_bytes_total") == ['topic="a" 0']
    later_ms = NOW_MS + 10_000_000
    for store_of in bench.partitions.stores.values():
        assert store_of.maintenance(NOW_MS) is None
        assert list(store_of.maintenance(later_ms) or ())
    held = dict(line.split() for line in lines(metrics, "odradek_archive_held_bytes"))
    assert held == dict.fromkeys(
        ('topic="a",partition="0"', 'topic="a",partition="1"'), str(len(batch(b"a")))
    )
    for partition in (0, 1):
        store, number = place(bench.partitions, TOPIC_ID, partition)
        settings = LogSettings(retention_ms=1, archive_group="g", archive_max_ms=1)
        bench.partitions.stores[store].set_settings(number, settings)
    for store_of in bench.partitions.stores.values():
        list(store_of.maintenance(later_ms + 10_000_000) or ())
    lost = f'topic="a" {2 * len(batch(b"a"))}'
    assert lines(metrics, "odradek_archive_lost_bytes_total") == [lost]
    assert {line[-2:] for line in lines(metrics, "odradek_archive_held_bytes")} == {" 0"}
