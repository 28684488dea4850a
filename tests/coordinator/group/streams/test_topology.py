"""Validation of topologies and of their topics."""

import pytest

from odradek.coordinator.group.streams.topology import (
    ConfiguredTopology,
    StatusCode,
    configure,
    summary,
    topology_of,
)
from odradek.coordinator.group.topics import TopicCatalog
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import StreamsGroupHeartbeatTopology, TopicInfo
from tests.support.consumer_playbook import image_of
from tests.support.streams_playbook import subtopology, topology, word_count


def configured(plan: StreamsGroupHeartbeatTopology, topics: dict[str, int]) -> ConfiguredTopology:
    return configure(topology_of(plan), TopicCatalog(image_of(topics)))


def code_of(found: ConfiguredTopology) -> StatusCode | None:
    return None if found.topology_error is None else found.topology_error[0]


def partitions(found: ConfiguredTopology) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in found.topics.values()}


def test_a_topology_whose_topics_exist_is_ready() -> None:
    found = configured(word_count(), {"in": 3, "words": 3, "counts": 3})
    assert found.is_ready
    assert found.missing == ()
    assert found.task_counts == {"0": 3, "1": 3}
    assert found.stateful == {"1"}


def test_missing_source_topics_are_the_first_error() -> None:
    found = configured(word_count(), {"words": 1})
    assert found.topology_error == (
        StatusCode.MISSING_SOURCE_TOPICS,
        "Source topics in are missing.",
    )
    assert found.missing == ()


def test_internal_topics_have_the_partition_count_of_their_sources() -> None:
    found = configured(word_count(), {"in": 5})
    assert found.topology_error == (
        StatusCode.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: counts, words",
    )
    assert {topic.name: topic.partitions for topic in found.missing} == {
        "words": 5,
        "counts": 5,
    }


def test_partitions_are_counted_through_several_repartition_topics_in_any_order() -> None:
    plan = topology(
        subtopology("0", repartition=["b"], sinks=["c"]),
        subtopology("1", repartition=["a"], sinks=["b"]),
        subtopology("2", "in", "more", sinks=["a"]),
        subtopology("3", repartition=["c"], changelogs=["store"]),
    )
    found = configured(plan, {"in": 2, "more": 7})
    assert partitions(found) == {"a": 7, "b": 7, "c": 7, "store": 7}


def test_a_partition_count_set_by_the_application_is_kept() -> None:
    plan = topology(
        subtopology("0", "in", sinks=["words"]),
        subtopology("1", repartition={"words": 8}, changelogs=["counts"]),
    )
    assert partitions(configured(plan, {"in": 2})) == {"words": 8, "counts": 8}


def test_copartitioned_topics_get_the_number_of_source_topics() -> None:
    plan = topology(
        subtopology("0", "in", sinks=["words"]),
        subtopology("1", "table", repartition=["words"], together=[([0], [0])]),
    )
    found = configured(plan, {"in": 2, "table": 6})
    assert partitions(found) == {"words": 6}
    assert found.task_counts == {"0": 2, "1": 6}


def test_copartitioned_repartition_topics_get_the_larger_number() -> None:
    plan = topology(
        subtopology("0", "in", sinks=["left"]),
        subtopology("1", "more", sinks=["right"]),
        subtopology("2", repartition=["left", "right"], together=[([], [0, 1])]),
    )
    assert partitions(configured(plan, {"in": 2, "more": 4})) == {"left": 4, "right": 4}


def test_a_fixed_partition_count_is_used_for_copartitioned_topics() -> None:
    plan = topology(
        subtopology("0", "in", sinks=["left"]),
        subtopology("1", "in", sinks=["right"]),
        subtopology("2", repartition={"left": 0, "right": 5}, together=[([], [0, 1])]),
    )
    assert partitions(configured(plan, {"in": 2})) == {"left": 5, "right": 5}


@pytest.mark.parametrize(
    ("part", "topics"),
    [
        (subtopology("0", "a", "b", together=[([0, 1], [])]), {"a": 1, "b": 2}),
        (
            subtopology("0", "a", repartition={"r": 3}, together=[([0], [0])]),
            {"a": 2},
        ),
        (
            subtopology("0", repartition={"r": 3, "s": 4}, together=[([], [0, 1])]),
            {},
        ),
        (subtopology("0", "a", changelogs=["store"]), {"a": 3, "store": 2}),
        (subtopology("0", "a", repartition={"r": 3}), {"a": 1, "r": 2}),
    ],
)
def test_wrong_partition_counts_are_reported(part: object, topics: dict[str, int]) -> None:
    plan = topology(part)  # type: ignore[arg-type]  # parametrized
    found = configured(plan, topics)
    assert code_of(found) is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert not found.is_ready


def test_the_hash_depends_on_subscribed_topics_only() -> None:
    first = configured(word_count(), {"in": 3}).metadata_hash
    assert configured(word_count(), {"in": 3, "other": 1}).metadata_hash == first
    assert configured(word_count(), {"in": 4}).metadata_hash != first
    assert configured(word_count(), {"in": 3, "words": 3}).metadata_hash != first


def _with_counted_changelog() -> StreamsGroupHeartbeatTopology:
    plan = word_count()
    plan.subtopologies[1].state_changelog_topics = [TopicInfo(name="counts", partitions=3)]
    return plan


@pytest.mark.parametrize(
    "plan",
    [
        topology(subtopology("0")),
        topology(subtopology("0", "a"), subtopology("0", "b")),
        topology(subtopology("0", "__consumer_offsets")),
        topology(subtopology("0", "no/topic")),
        topology(subtopology("0", "a", changelogs=[""])),
        topology(subtopology("0", repartition=["r"], sinks=["r"])),
        topology(subtopology("0", repartition=["r"])),
        topology(subtopology("0", "a", together=[([1], [])])),
        topology(subtopology("0", "a", together=[([-1], [])])),
        topology(subtopology("0", "a", repartition={"r": -1})),
        _with_counted_changelog(),
    ],
)
def test_an_inconsistent_topology_is_invalid(plan: StreamsGroupHeartbeatTopology) -> None:
    with pytest.raises(ApiError) as refused:
        topology_of(plan)
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_a_negative_topology_epoch_is_invalid() -> None:
    with pytest.raises(ApiError) as refused:
        topology_of(word_count(epoch=-1))
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH


def test_expressions_for_source_topics_are_refused_as_in_kafka() -> None:
    plan = word_count()
    plan.subtopologies[0].source_topic_regex = ["in.*"]
    with pytest.raises(ApiError) as refused:
        topology_of(plan)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_the_order_of_subtopologies_and_configs_does_not_matter() -> None:
    plan, turned = word_count(), word_count()
    turned.subtopologies.reverse()
    assert topology_of(plan) == topology_of(turned)


def test_a_summary_names_three() -> None:
    assert summary(["b", "a"]) == "a, b"
    assert summary("abcde") == "a, b, c and 2 additional topics"
