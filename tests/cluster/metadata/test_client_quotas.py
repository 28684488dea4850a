"""Which quota holds for whom: Kafka's order of precedence, and what is kept between lookups."""

import itertools
import random

import pytest

from odradek.cluster.metadata.client_quotas import (
    CLIENT_QUOTA_KEYS,
    ClientQuotasImage,
    QuotaEntity,
    QuotaKey,
    QuotaLimit,
    quota_entity,
)
from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import ClientQuotaChanged, ConfigChanged

RATE = QuotaKey.PRODUCER_BYTE_RATE
# The order of Kafka's documentation ("Client quotas", precedence), and with whom each is shared.
LEVELS: list[tuple[QuotaEntity, tuple[str, str]]] = [
    ((("client-id", "app"), ("user", "ann")), ("ann", "app")),
    ((("client-id", None), ("user", "ann")), ("ann", "app")),
    ((("user", "ann"),), ("ann", "")),
    ((("client-id", "app"), ("user", None)), ("ann", "app")),
    ((("client-id", None), ("user", None)), ("ann", "app")),
    ((("user", None),), ("ann", "")),
    ((("client-id", "app"),), ("", "app")),
    ((("client-id", None),), ("", "app")),
]


def image_of(*entities: QuotaEntity, key: str = RATE) -> ClientQuotasImage:
    return ClientQuotasImage({entity: {key: float(n + 1)} for n, entity in enumerate(entities)})


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_entity_holds(first: int) -> None:
    entities = [entity for entity, _ in LEVELS[first:]]
    limit = image_of(*entities).limits("ann", "app").producer_byte_rate
    assert limit == QuotaLimit(*LEVELS[first][1], 1.0)


def test_quotas_of_others_do_not_hold() -> None:
    others = image_of(
        quota_entity([("user", "bob")]),
        quota_entity([("user", "bob"), ("client-id", "app")]),
        quota_entity([("user", "ann"), ("client-id", "other")]),
        quota_entity([("client-id", "other")]),
        quota_entity([("ip", None)]),
    )
    assert others.limits("ann", "app").producer_byte_rate is None


def test_each_key_has_its_own_entity() -> None:
    quotas = ClientQuotasImage(
        {
            (("user", "ann"),): {QuotaKey.REQUEST_PERCENTAGE: 50.0},
            (("client-id", "app"),): {QuotaKey.CONSUMER_BYTE_RATE: 7.0},
        }
    )
    limits = quotas.limits("ann", "app")
    assert limits.request_percentage == QuotaLimit("ann", "", 50.0)
    assert limits.consumer_byte_rate == QuotaLimit("", "app", 7.0)
    assert limits.producer_byte_rate is limits.controller_mutation_rate is None


def test_a_client_without_a_client_id_is_subject_to_quotas_of_users_only() -> None:
    # As in Kafka: the defaults of client ids do not hold for it either.
    for count in range(1, len(LEVELS) + 1):
        for entities in itertools.combinations([entity for entity, _ in LEVELS], count):
            limit = image_of(*entities).limits("ann", "").producer_byte_rate
            of_user = [entity for entity in entities if len(entity) == 1 and entity[0][0] == "user"]
            assert (limit is not None) == bool(of_user)
            if limit is not None:
                assert limit == QuotaLimit("ann", "", entities.index(of_user[0]) + 1.0)


def test_what_was_found_is_kept_until_a_quota_changes() -> None:
    entity = (("user", None),)
    image = image_after(MetadataImage.empty(), [ClientQuotaChanged(entity, RATE, 5.0)], 1)
    limits = image.client_quotas.limits("ann", "app")
    assert image.client_quotas.limits("ann", "app") is limits
    other = image_after(image, [ConfigChanged(2, "t", "retention.ms", "1")], 2)
    assert other.client_quotas is image.client_quotas
    changed = image_after(other, [ClientQuotaChanged(entity, RATE, 6.0)], 3)
    assert changed.client_quotas.limits("ann", "app").producer_byte_rate == ("ann", "", 6.0)
    removed = image_after(changed, [ClientQuotaChanged(entity, RATE, None)], 4)
    assert not removed.client_quotas
    assert not removed.client_quotas.keys_of_clients
    assert removed.client_quotas.limits("ann", "app").producer_byte_rate is None


def test_what_is_kept_is_bounded() -> None:
    quotas = image_of((("user", None),))
    for number in range(10_001):
        quotas.limits("ann", f"client-{number}")
    assert len(quotas._by_client) <= 10_000
    assert quotas.limits("ann", "client-1").producer_byte_rate == QuotaLimit("ann", "", 1.0)


def test_connection_rates_are_by_address() -> None:
    key = QuotaKey.CONNECTION_CREATION_RATE
    quotas = image_of((("ip", "127.0.0.1"),), (("ip", None),), key=key)
    assert quotas.connection_rates == {"127.0.0.1": 1.0, None: 2.0}
    assert not quotas.keys_of_clients


@pytest.mark.parametrize("seed", range(5))
def test_an_image_after_changes_is_that_of_the_entities_it_has_then(seed: int) -> None:
    chance = random.Random(seed)
    entities: list[QuotaEntity] = [entity for entity, _ in LEVELS]
    addresses: list[QuotaEntity] = [(("ip", host),) for host in ("10.0.0.1", "10.0.0.2", None)]
    model: dict[QuotaEntity, dict[str, float]] = {}
    image = ClientQuotasImage()
    for _ in range(60):
        before, model_before = image, dict(model)
        changes: dict[QuotaEntity, dict[str, float]] = {}
        for entity in chance.sample(entities, 2):
            keys = chance.sample(CLIENT_QUOTA_KEYS, chance.randrange(3))
            changes[entity] = {key: float(chance.randrange(1, 9)) for key in keys}
        changes[chance.choice(addresses)] = chance.choice(
            [{}, {QuotaKey.CONNECTION_CREATION_RATE: 4.0}]
        )
        image = before.after(changes)
        model = {key: value for key, value in {**model, **changes}.items() if value}
        for found, expected in ((before, model_before), (image, model)):
            made = ClientQuotasImage(expected)
            assert dict(found) == expected, f"seed {seed}"
            assert found.keys_of_clients == made.keys_of_clients, f"seed {seed}"
            assert found.connection_rates == made.connection_rates, f"seed {seed}"
            assert found.limits("ann", "app") == made.limits("ann", "app"), f"seed {seed}"
