"""Large messages are freed a slice at a time, and parts that others hold stay as they are."""

import itertools
import weakref

from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.groups import DeleteGroupsRequest
from odradek.protocol.sliced_release import release_in_slices


class Witness(str):
    """A string whose end can be seen."""

    __slots__ = ("__weakref__",)


def test_no_slice_frees_much_more_than_a_thousand_elements() -> None:
    names = [Witness(number) for number in range(10_000)]
    alive = weakref.WeakSet(names)
    held: list[object] = [DeleteGroupsRequest(groups_names=list(names))]
    del names
    counts = [len(alive) for _ in release_in_slices(held)]
    assert counts[-1] == 0
    assert held == []
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 1_000


def test_elements_of_elements_are_freed_in_slices_too() -> None:
    topics = [
        FetchTopic(topic=Witness(name), partitions=[FetchPartition() for _ in range(4_000)])
        for name in ("a", "b")
    ]
    alive = weakref.WeakSet(topic.topic for topic in topics)
    held: list[object] = [FetchRequest(topics=topics)]
    del topics
    slices = sum(1 for _ in release_in_slices(held))
    assert slices >= 16, "8,000 partitions are found in 8 slices, and freed in 8"
    assert len(alive) == 0


def test_what_others_hold_does_not_change() -> None:
    partitions = [FetchPartition(partition=number) for number in range(3)]
    topic = FetchTopic(topic="orders", partitions=partitions)
    for _ in release_in_slices([FetchRequest(topics=[topic])]):
        pass
    assert topic.partitions is partitions
    assert [partition.partition for partition in partitions] == [0, 1, 2]
