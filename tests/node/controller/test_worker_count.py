"""How many workers a node shall have: what was set while it runs, else its own configuration."""

from pathlib import Path

from cluster.metadata.delta import MetadataDelta
from cluster.metadata.image import ConfigResourceType, MetadataImage
from cluster.metadata.records import ClusterCreated, ConfigChanged
from node.controller.worker_count import Regrouping, WorkerCount
from tests.support.child_process import node_config

BROKER = ConfigResourceType.BROKER


def after(image: MetadataImage, *configs: tuple[str, str, str | None]) -> MetadataImage:
    delta = MetadataDelta(image)
    delta.replay(ClusterCreated("c"))
    for name, key, value in configs:
        delta.replay(ConfigChanged(BROKER, name, key, value))
    return delta.apply(image.offset + 1)


def test_what_is_set_for_the_broker_counts_until_it_is_taken_back(tmp_path: Path) -> None:
    count = WorkerCount(node_config(tmp_path, workers="2", stores="4"))
    image = after(MetadataImage.empty())
    assert count.follow(image) is None
    image = after(image, ("0", "workers", "3"))
    assert count.follow(image) == Regrouping(3, set())
    assert count.follow(image) is None
    image = after(image, ("0", "fetch.max.bytes", "2000"), ("1", "workers", "1"))
    assert count.follow(image) is None
    image = after(image, ("0", "workers", "1"))
    assert count.follow(image) == Regrouping(1, {"worker-1", "worker-2"})
    image = after(image, ("0", "workers", None))
    assert count.follow(image) == Regrouping(2, set())


def test_what_is_set_for_all_brokers_counts_too(tmp_path: Path) -> None:
    count = WorkerCount(node_config(tmp_path, workers="1", stores="4"))
    image = after(MetadataImage.empty(), ("", "workers", "2"))
    assert count.follow(image) == Regrouping(2, set())


def test_there_are_no_more_workers_than_stores(tmp_path: Path) -> None:
    count = WorkerCount(node_config(tmp_path, workers="1", stores="3"))
    image = after(MetadataImage.empty(), ("0", "workers", "60"))
    assert count.follow(image) == Regrouping(3, set())


def test_a_node_whose_workers_were_changed_knows_what_was_configured(tmp_path: Path) -> None:
    config = node_config(tmp_path, workers="2", stores="4").with_workers(4)
    count = WorkerCount(config)
    assert count.follow(after(MetadataImage.empty())) == Regrouping(2, {"worker-2", "worker-3"})
