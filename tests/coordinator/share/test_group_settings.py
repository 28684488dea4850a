"""The terms of a share group: from its configs, the broker's, or none at all."""

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import ConfigResourceType, MetadataImage
from odradek.cluster.metadata.records import ConfigChanged
from odradek.coordinator.share.group_settings import ShareGroupSettings, share_group_settings

STATIC: dict[str, str] = {}


def image_with(*configs: tuple[int, str, str, str | None]) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    for config in configs:
        delta.replay(ConfigChanged(*config))
    return delta.apply(1)


GROUP, BROKER = ConfigResourceType.GROUP, ConfigResourceType.BROKER


def test_a_group_without_configs_has_the_defaults() -> None:
    assert share_group_settings(MetadataImage.empty(), 1, STATIC, "g") == ShareGroupSettings()


def test_a_group_has_its_own_terms_or_the_brokers() -> None:
    image = image_with(
        (BROKER, "", "group.share.record.lock.duration.ms", "20000"),
        (BROKER, "", "group.share.delivery.count.limit", "4"),
        (GROUP, "g", "share.delivery.count.limit", "3"),
        (GROUP, "g", "share.isolation.level", "read_committed"),
        (GROUP, "g", "share.renew.acknowledge.enable", "FALSE"),
        (GROUP, "g", "share.redelivery.delay.ms", "70"),
        (GROUP, "g", "share.redelivery.backoff.factor", "1.5"),
        (GROUP, "g", "errors.deadletterqueue.topic.name", "dlq.g"),
        (GROUP, "g", "errors.deadletterqueue.copy.record.enable", "true"),
    )
    assert share_group_settings(image, 1, STATIC, "g") == ShareGroupSettings(
        lock_duration_ms=20_000,
        delivery_count_limit=3,
        is_read_committed=True,
        may_renew=False,
        redelivery_delay_ms=70,
        redelivery_backoff=1.5,
        dead_letter_topic="dlq.g",
        copies_dead_letters=True,
    )
    assert share_group_settings(image, 1, STATIC, "h") == ShareGroupSettings(
        lock_duration_ms=20_000, delivery_count_limit=4
    )


def test_where_a_group_begins() -> None:
    image = image_with(
        (GROUP, "early", "share.auto.offset.reset", "earliest"),
        (GROUP, "recent", "share.auto.offset.reset", "by_duration:PT2S"),
    )
    assert share_group_settings(image, 1, STATIC, "early") == ShareGroupSettings(
        begins_earliest=True
    )
    assert share_group_settings(image, 1, STATIC, "recent") == ShareGroupSettings(
        begins_before_ms=2_000
    )


def test_what_the_brokers_allow_holds_for_values_that_were_set_before() -> None:
    image = image_with(
        (GROUP, "g", "share.delivery.count.limit", "9"),
        (BROKER, "", "group.share.max.delivery.count.limit", "6"),
    )
    assert share_group_settings(image, 1, STATIC, "g").delivery_count_limit == 6


def test_terms_are_computed_once_for_an_image() -> None:
    image = image_with((GROUP, "g", "share.delivery.count.limit", "3"))
    assert share_group_settings(image, 1, STATIC, "g") is share_group_settings(
        image, 1, STATIC, "g"
    )
    assert share_group_settings(image, 1, STATIC, "x") is share_group_settings(
        image, 1, STATIC, "y"
    )


def test_without_a_delay_nothing_rests() -> None:
    assert ShareGroupSettings().delay_ms(3) == 0


def test_a_record_rests_longer_with_each_delivery_but_never_more_than_a_day() -> None:
    group_settings = ShareGroupSettings(redelivery_delay_ms=100, redelivery_backoff=2.0)
    assert [group_settings.delay_ms(count) for count in (0, 1, 2, 3)] == [0, 100, 200, 400]
    assert group_settings.delay_ms(60) == 86_400_000


def test_suspicion_begins_at_half_of_the_limit_rounded_up_but_not_below_two() -> None:
    limits = [
        ShareGroupSettings(delivery_count_limit=limit).throttle_from for limit in (2, 3, 5, 6, 10)
    ]
    assert limits == [2, 2, 3, 3, 5]
