"""The cluster's metrics: at the active controller, and counted anew when topics change."""

import msgspec

from odradek.cluster.metadata.image import NO_LEADER, BrokerImage, MetadataImage
from odradek.cluster.metadata.records import PartitionChanged
from odradek.node.controller.controller_metrics import ClusterMetrics
from odradek.node.metrics.registry import Metrics
from tests.node.worker.test_hosted_partitions import TOPIC_ID, image_after, topic

INTERNAL_ID = bytes(range(1, 17))


class ClusterView:
    def __init__(self) -> None:
        self.image = MetadataImage.empty()
        self.is_active = True
        self.metrics = Metrics("controller")
        ClusterMetrics(lambda: self.image, lambda: self.is_active).register(self.metrics)

    def lines(self) -> set[str]:
        text = "".join(part.lines for part in self.metrics.collect())
        return {line.replace('{process="controller",', "{") for line in text.splitlines()}


def test_topics_and_partitions_without_a_leader_are_counted() -> None:
    view = ClusterView()
    view.image = image_after(
        view.image, *topic("a", TOPIC_ID, 0, 0), *topic("__consumer_offsets", INTERNAL_ID, 0)
    )
    assert 'odradek_topics{scope="user"} 1' in view.lines()
    assert 'odradek_topics{scope="internal"} 1' in view.lines()
    assert 'odradek_offline_partitions{scope="user"} 0' in view.lines()
    state = view.image.topics_by_name["a"].partitions[1]
    gone = msgspec.structs.replace(state, leader=NO_LEADER)
    view.image = image_after(view.image, PartitionChanged(TOPIC_ID, 1, gone))
    assert 'odradek_offline_partitions{scope="user"} 1' in view.lines()
    assert 'odradek_offline_partitions{scope="internal"} 0' in view.lines()


def test_brokers_are_active_or_fenced() -> None:
    view = ClusterView()
    brokers = {n: BrokerImage(broker_id=n, broker_epoch=1, is_fenced=n == 2) for n in (1, 2, 3)}
    view.image = msgspec.structs.replace(view.image, brokers=brokers)
    assert {
        'odradek_brokers{state="active"} 2',
        'odradek_brokers{state="fenced"} 1',
    } <= view.lines()


def test_only_the_active_controller_has_them() -> None:
    view = ClusterView()
    view.is_active = False
    assert not view.lines()
