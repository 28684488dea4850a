"""What a router counts of its clients, whom it throttles, and for how long."""

import dataclasses

import pytest

from odradek.cluster.controller.commands import MutatingClient
from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import ClientQuotaChanged, ConfigChanged
from odradek.node.router.client_quotas import (
    IDLE_MS,
    REPORT_MS,
    USES_MAX,
    USES_REPORTED_MAX,
    ClientQuotas,
    has_throttle_time,
)
from odradek.node.router.metadata_cache import MetadataCache
from odradek.protocol.apis import ApiKey

MB = 1_000_000
CLUSTER = "User:CLUSTER"
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
PERCENTAGE, MUTATIONS = "request_percentage", "controller_mutation_rate"
ANY_CLIENT = (("client-id", None),)


@dataclasses.dataclass
class Asked:
    """A request, as far as quotas look at it."""

    client_id: str | None = "app"
    principal: str = "User:ann"
    api_key: int = ApiKey.PRODUCE
    api_version: int = 9
    throttle_time_ms: int = 0


class QuotasFixture:
    def __init__(self) -> None:
        self.now_ms = 1_000
        self.metadata = MetadataCache(0, {})
        self.quotas = ClientQuotas(self.metadata, CLUSTER, lambda: self.now_ms)

    def set(
        self, key: str, value: float | None, entity: tuple[tuple[str, str | None], ...] = ANY_CLIENT
    ) -> None:
        self.apply(ClientQuotaChanged(entity, key, value))

    def apply(self, record: ClientQuotaChanged | ConfigChanged) -> None:
        image = self.metadata.image
        self.metadata.image = image_after(image, [record], image.offset + 1)

    def produce(self, count: int, asked: Asked | None = None) -> int:
        """The throttle time after a Produce request of that size."""
        return self.quotas.count_produce(asked or Asked(), count)

    def work(self, work_ns: int, asked: Asked | None = None, *, is_answered: bool = True) -> int:
        """The throttle time after a request that took so long."""
        return self.quotas.finish(
            asked or Asked(),
            shared_bytes=0,
            work_ns=work_ns,
            is_answered=is_answered,
        )


@pytest.fixture
def fixture() -> QuotasFixture:
    return QuotasFixture()


def test_without_quotas_nothing_is_counted(fixture: QuotasFixture) -> None:
    assert not fixture.quotas.is_active
    assert fixture.produce(100 * MB) == 0
    assert not fixture.quotas.is_fetch_throttled(Asked(), 100 * MB)
    assert fixture.quotas.fetch_bytes_max(Asked()) == 2**31 - 1
    assert fixture.quotas.use_count == 0


def test_a_producer_waits_until_its_rate_is_within_the_limit(fixture: QuotasFixture) -> None:
    fixture.set(PRODUCER, 1.0 * MB)
    assert fixture.quotas.is_active
    assert fixture.produce(10 * MB) == 0
    assert fixture.produce(2 * MB) == 2_000
    # What was produced above the limit counts.
    assert fixture.produce(1 * MB) == 3_000


def test_a_fetch_above_the_limit_is_not_counted(fixture: QuotasFixture) -> None:
    fixture.set(CONSUMER, 1.0 * MB)
    assert fixture.quotas.fetch_bytes_max(Asked()) == 10 * MB
    assert not fixture.quotas.is_fetch_throttled(Asked(), 9 * MB)
    for _ in range(3):
        asked = Asked()
        assert fixture.quotas.is_fetch_throttled(asked, 3 * MB)
        assert asked.throttle_time_ms == 2_000
    assert not fixture.quotas.is_fetch_throttled(Asked(), 1 * MB)


def test_a_batch_larger_than_the_window_is_sent_to_who_has_fetched_nothing_else(
    fixture: QuotasFixture,
) -> None:
    # In Kafka the consumer waits for ever.
    fixture.set(CONSUMER, 1.0 * MB)
    asked = Asked()
    assert not fixture.quotas.is_fetch_throttled(asked, 15 * MB)
    # Until it is ahead by no more than a second.
    assert asked.throttle_time_ms == 14_000
    assert fixture.quotas.is_fetch_throttled(Asked(), 1)
    fixture.now_ms += 15_000
    assert not fixture.quotas.is_fetch_throttled(Asked(), 15 * MB)
    fixture.now_ms += 11_000
    assert not fixture.quotas.is_fetch_throttled(Asked(), 1 * MB)
    assert fixture.quotas.is_fetch_throttled(Asked(), 15 * MB)


def test_records_of_a_share_group_are_counted_and_sent(fixture: QuotasFixture) -> None:
    fixture.set(CONSUMER, 1.0 * MB)
    for expected_ms in (0, 6_000, 14_000):
        throttle_ms = fixture.quotas.finish(
            Asked(), shared_bytes=8 * MB, work_ns=0, is_answered=True
        )
        assert throttle_ms == expected_ms


def test_the_time_of_requests_is_throttled_for_one_sample_at_most(fixture: QuotasFixture) -> None:
    fixture.set(PERCENTAGE, 50.0)
    # 50 % of ten seconds.
    assert fixture.work(5_000_000_000) == 0
    assert fixture.work(100_000_000) == 200
    assert fixture.work(5_000_000_000) == 1_000


def test_time_without_an_answer_does_not_throttle(fixture: QuotasFixture) -> None:
    fixture.set(PERCENTAGE, 1.0)
    assert fixture.work(5_000_000_000, is_answered=False) == 0
    assert fixture.work(1_000) == 0


def test_time_after_the_answer_is_of_the_next_request(fixture: QuotasFixture) -> None:
    fixture.set(PERCENTAGE, 1.0)
    assert fixture.work(99_000_000) == 0
    fixture.quotas.count_time(Asked(), 2_000_000)
    assert fixture.work(1_000) == 100


def test_the_longest_throttle_counts(fixture: QuotasFixture) -> None:
    fixture.set(PERCENTAGE, 1.0)
    assert fixture.work(200_000_000, Asked(throttle_time_ms=70_000)) == 70_000


def test_a_client_that_uses_all_of_its_limit_does_not_burst_again(fixture: QuotasFixture) -> None:
    fixture.set(PRODUCER, 1.0 * MB)
    assert fixture.produce(10 * MB) == 0
    assert fixture.produce(2 * MB) == 2_000
    # In Kafka it may now use ten seconds' quota at once, as in the beginning.
    fixture.now_ms += 12_000
    assert fixture.produce(1 * MB) == 0
    assert fixture.produce(1 * MB) == 1_000
    fixture.now_ms += 1_000
    assert fixture.produce(1 * MB) == 1_000
    # It may again after a pause of ten seconds.
    fixture.now_ms += 12_000
    assert fixture.produce(10 * MB) == 0


def test_other_nodes_are_not_limited(fixture: QuotasFixture) -> None:
    fixture.set(PRODUCER, 1.0)
    fixture.set(CONSUMER, 1.0, (("user", None),))
    node = Asked(principal=CLUSTER, client_id=None)
    assert fixture.produce(100 * MB, node) == 0
    assert not fixture.quotas.is_fetch_throttled(node, 100 * MB)
    assert fixture.quotas.use_count == 0


def test_a_users_clients_share_the_quota_of_the_user(fixture: QuotasFixture) -> None:
    fixture.set(PRODUCER, 1.0 * MB, (("user", None),))
    assert fixture.produce(10 * MB, Asked("a")) == 0
    assert fixture.produce(1 * MB, Asked("b")) == 1_000
    assert fixture.produce(1 * MB, Asked(None)) == 2_000
    assert fixture.produce(10 * MB, Asked("a", principal="User:bob")) == 0


def test_a_changed_limit_holds_for_what_was_counted(fixture: QuotasFixture) -> None:
    fixture.set(PRODUCER, 1.0 * MB)
    fixture.produce(15 * MB)
    fixture.set(PRODUCER, 2.0 * MB)
    assert fixture.produce(1) == 0
    fixture.set(PRODUCER, None)
    assert fixture.produce(1_000 * MB) == 0
    assert not fixture.quotas.is_active


def test_the_window_follows_the_settings(fixture: QuotasFixture) -> None:
    fixture.set(PRODUCER, 1.0 * MB)
    fixture.produce(1)
    kind = ConfigResourceType.BROKER
    fixture.apply(ConfigChanged(kind, "", "quota.window.num", "3"))
    fixture.apply(ConfigChanged(kind, "", "quota.window.size.seconds", "2"))
    assert fixture.quotas.fetch_bytes_max(Asked()) == 2**31 - 1
    assert fixture.produce(4 * MB - 1) == 0
    assert fixture.produce(MB) == 1_000


@pytest.mark.parametrize(
    ("api", "version", "is_strict"),
    [
        (ApiKey.CREATE_TOPICS, 5, False),
        (ApiKey.CREATE_TOPICS, 6, True),
        (ApiKey.CREATE_PARTITIONS, 2, False),
        (ApiKey.CREATE_PARTITIONS, 3, True),
        (ApiKey.DELETE_TOPICS, 4, False),
        (ApiKey.DELETE_TOPICS, 5, True),
        (ApiKey.METADATA, 12, False),
    ],
)
def test_requests_since_kip_599_have_a_strict_quota(
    fixture: QuotasFixture, api: ApiKey, version: int, is_strict: bool
) -> None:
    asked = Asked(api_key=api, api_version=version)
    assert fixture.quotas.mutating_client(asked) is None
    fixture.set(MUTATIONS, 1.0)
    assert fixture.quotas.mutating_client(asked) == MutatingClient("ann", "app", is_strict)


def test_the_number_of_rates_is_bounded(fixture: QuotasFixture) -> None:
    fixture.set(PRODUCER, 1.0 * MB)
    for number in range(USES_MAX + 5):
        fixture.produce(1, Asked(f"client-{number}"))
    assert fixture.quotas.use_count == USES_MAX


def test_metrics_are_of_those_that_are_throttled_and_used_last(
    fixture: QuotasFixture,
) -> None:
    fixture.set(PRODUCER, 1.0 * MB)
    for number in range(USES_REPORTED_MAX + 50):
        fixture.now_ms += 1
        fixture.produce(number, Asked(f"client-{number}"))
    fixture.produce(12 * MB, Asked("throttled"))
    fixture.now_ms += REPORT_MS
    reported = fixture.quotas.report()
    assert fixture.quotas.report() is reported
    assert len(reported) == USES_REPORTED_MAX
    names = {key.client_id for key in reported}
    assert "throttled" in names
    assert f"client-{USES_REPORTED_MAX + 49}" in names
    assert "client-0" not in names
    (throttled,) = (use for key, use in reported.items() if key.client_id == "throttled")
    assert (throttled.throttle_count, throttled.throttled_ms, throttled.limit) == (1, 2_000, MB)
    assert fixture.quotas.rate(throttled) == pytest.approx(12 * MB / (10 + REPORT_MS / 1000))


def test_rates_of_clients_that_are_gone_are_forgotten(fixture: QuotasFixture) -> None:
    fixture.set(PRODUCER, 1.0 * MB)
    fixture.produce(1, Asked("gone"))
    fixture.now_ms += IDLE_MS - 1
    fixture.produce(1, Asked("here"))
    assert len(fixture.quotas.report()) == 2
    fixture.now_ms += REPORT_MS
    assert [key.client_id for key in fixture.quotas.report()] == ["here"]


def test_responses_that_tell_of_a_throttle() -> None:
    assert has_throttle_time(ApiKey.PRODUCE, 1)
    assert not has_throttle_time(ApiKey.PRODUCE, 0)
    assert not has_throttle_time(ApiKey.SASL_HANDSHAKE, 1)
