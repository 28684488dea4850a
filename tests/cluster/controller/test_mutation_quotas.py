"""Quotas of controller mutations: strict and permissive, per command (KIP-599).

`The quota is strict`: it refuses once it is exhausted, and until then accepts any number.
"""

from odradek.cluster.controller.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MutatingClient,
    NewPartitions,
    NewTopic,
    TopicReference,
    TopicsReply,
)
from odradek.cluster.controller.mutation_quotas import _BUCKETS_MAX, MutationBuckets
from odradek.cluster.metadata.client_quotas import QuotaLimit
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import ClientQuotaChanged
from odradek.protocol.errors import ErrorCode
from tests.support.controller_harness import ControllerHarness, topic_id

STRICT = MutatingClient("ann", "app")
PERMISSIVE = MutatingClient("ann", "app", is_strict=False)
EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def limited(rate: float = 1.0) -> ControllerHarness:
    """A controller that limits ann to that many partitions per second, with a burst of eleven
    seconds."""
    harness = ControllerHarness()
    harness.write(ClientQuotaChanged((("user", "ann"),), "controller_mutation_rate", rate))
    return harness


def create(
    harness: ControllerHarness,
    *counts: int,
    client: MutatingClient | None = STRICT,
    validate_only: bool = False,
) -> tuple[list[int], int]:
    """The error of each topic, which has so many partitions, and the throttle time."""
    first = len(harness.image.topics_by_name)
    topics = tuple(
        NewTopic(f"t-{first + n}", topic_id(first + n + 1), count, 1)
        for n, count in enumerate(counts)
    )
    reply = harness.do(CreateTopics(topics, validate_only, client))
    assert isinstance(reply, TopicsReply)
    return [result.error_code for result in reply.results], reply.throttle_time_ms


def test_a_strict_quota_accepts_until_it_is_exhausted() -> None:
    harness = limited()
    assert create(harness, 10) == ([0], 0)
    # One token is left: any number of partitions is accepted.
    assert create(harness, 5) == ([0], 0)
    assert create(harness, 1) == ([EXCEEDED], 4000)
    harness.now_ms += 3_000
    assert create(harness, 1) == ([EXCEEDED], 1000)
    harness.now_ms += 1_000
    assert create(harness, 1) == ([0], 0)


def test_a_strict_quota_is_checked_for_each_topic() -> None:
    harness = limited()
    assert create(harness, 8, 8, 8) == ([0, 0, EXCEEDED], 5000)
    assert len(harness.image.topics_by_name) == 2


def test_a_permissive_quota_accepts_everything_and_throttles() -> None:
    harness = limited()
    assert create(harness, 11, client=PERMISSIVE) == ([0], 0)
    assert create(harness, 4, client=PERMISSIVE) == ([0], 4000)
    assert create(harness, 4, client=PERMISSIVE) == ([0], 8000)
    assert create(harness, 1, client=STRICT) == ([EXCEEDED], 8000)


def test_what_fails_for_another_reason_is_not_counted() -> None:
    harness = limited()
    assert create(harness, 0) == ([ErrorCode.INVALID_PARTITIONS], 0)
    assert create(harness, 12) == ([0], 0)
    assert create(harness, 1) == ([EXCEEDED], 1000)


def test_requests_that_only_validate_are_counted_too() -> None:
    # As in Kafka.
    harness = limited()
    assert create(harness, 12, validate_only=True) == ([0], 0)
    assert create(harness, 1) == ([EXCEEDED], 1000)


def test_partitions_that_are_added_and_topics_that_are_deleted_are_counted() -> None:
    harness = limited()
    create(harness, 2, 2, client=None)
    reply = harness.do(CreatePartitions((NewPartitions("t-0", 14),), False, STRICT))
    assert isinstance(reply, TopicsReply)
    assert (reply.results[0].error_code, reply.throttle_time_ms) == (0, 0)
    reply = harness.do(DeleteTopics((TopicReference("t-0"),), STRICT))
    assert isinstance(reply, TopicsReply)
    assert (reply.results[0].error_code, reply.throttle_time_ms) == (EXCEEDED, 1000)
    harness.now_ms += 1_000
    reply = harness.do(DeleteTopics((TopicReference("t-0"), TopicReference("t-1")), STRICT))
    assert isinstance(reply, TopicsReply)
    assert [result.error_code for result in reply.results] == [0, EXCEEDED]
    assert reply.throttle_time_ms == 14_000
    assert set(harness.image.topics_by_name) == {"t-1"}


def test_others_are_not_limited() -> None:
    harness = limited()
    create(harness, 20)
    assert create(harness, 20, client=MutatingClient("bob", "app")) == ([0], 0)
    assert create(harness, 20, client=None) == ([0], 0)
    # All client ids of a user share the user's quota.
    assert create(harness, 1, client=MutatingClient("ann", "other"))[0] == [EXCEEDED]


def test_the_burst_follows_the_configs() -> None:
    harness = limited()
    harness.set_config(
        ConfigResourceType.BROKER,
        "",
        controller_quota_window_num="2",
        controller_quota_window_size_seconds="3",
    )
    assert create(harness, 6) == ([0], 0)
    assert create(harness, 1) == ([0], 0)
    assert create(harness, 1) == ([EXCEEDED], 1000)


def test_the_number_of_buckets_is_bounded() -> None:
    buckets = MutationBuckets()
    kept = buckets.bucket(QuotaLimit("kept", "", 1.0))
    for number in range(_BUCKETS_MAX - 1):
        buckets.bucket(QuotaLimit(f"user-{number}", "", 1.0))
    assert buckets.bucket(QuotaLimit("kept", "", 1.0)) is kept
    for number in range(10):
        buckets.bucket(QuotaLimit(f"other-{number}", "", 1.0))
    assert buckets.bucket(QuotaLimit("kept", "", 1.0)) is kept
    assert len(buckets._buckets) == _BUCKETS_MAX
