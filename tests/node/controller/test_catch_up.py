"""Which replicas a node has to catch up with before probes call it ready."""

import pytest

from odradek.cluster.metadata.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    ReplicaDirectory,
    TopicImage,
)
from odradek.node.controller.catch_up import CatchUpLook

OWN = 1
FIRST, SECOND = b"1" * 16, b"2" * 16


def image(*partitions: PartitionImage, broker: BrokerImage | None = None) -> MetadataImage:
    topic = TopicImage("orders", b"t" * 16, partitions)
    own = broker or BrokerImage(OWN, 7, log_dirs=(FIRST, SECOND))
    return MetadataImage(brokers={OWN: own}, topics_by_id={topic.topic_id: topic})


def catch_up_text(image: MetadataImage, node_id: int) -> str:
    look = CatchUpLook(image, node_id)
    assert look.proceed(1_000)
    return look.problem


def test_a_look_at_many_partitions_is_divided_among_turns() -> None:
    behind = PartitionImage((0, OWN), (0,), 0)
    look = CatchUpLook(image(*[PartitionImage((0, 2), (0,), 0)] * 249, behind), OWN)
    assert [look.proceed(100) for _turn in range(3)] == [False, False, True]
    assert look.problem == "1 replicas are not in sync yet: orders-249"
    look = CatchUpLook(image(*[behind] * 200), OWN)
    assert [look.proceed(100) for _turn in range(3)] == [False, False, True]
    assert look.problem.startswith("200 replicas are not in sync yet: orders-0, ")


def test_replicas_that_are_not_in_sync_are_named() -> None:
    behind = PartitionImage((0, OWN), (0,), 0)
    text = catch_up_text(image(behind, PartitionImage((0, OWN), (0, OWN), 0)), OWN)
    assert text == "1 replicas are not in sync yet: orders-0"
    text = catch_up_text(image(*[behind] * 5), OWN)
    assert text == "5 replicas are not in sync yet: orders-0, orders-1, orders-2, ..."


@pytest.mark.parametrize(
    "partition",
    [
        pytest.param(PartitionImage((0, OWN), (0, OWN), 0), id="in sync"),
        pytest.param(PartitionImage((0, OWN), (0, OWN), OWN), id="led here"),
        pytest.param(PartitionImage((0, 2), (0,), 0), id="of others"),
        pytest.param(PartitionImage((0, OWN), (0,), -1), id="nobody leads"),
        pytest.param(PartitionImage((0, OWN), (0,), 0, adding_replicas=(OWN,)), id="being added"),
        pytest.param(
            PartitionImage((0, OWN), (0,), 0, directories=(ReplicaDirectory(OWN, SECOND),)),
            id="disk has failed",
        ),
    ],
)
def test_what_cannot_or_need_not_be_in_sync_is_not_waited_for(partition: PartitionImage) -> None:
    broker = BrokerImage(OWN, 7, log_dirs=(FIRST, SECOND), offline_log_dirs=(SECOND,))
    assert catch_up_text(image(partition, broker=broker), OWN) == ""


def test_a_node_that_is_not_registered_has_nothing_to_catch_up_with() -> None:
    assert catch_up_text(MetadataImage.empty(), OWN) == ""
