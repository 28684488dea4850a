"""The features of this release."""

import pytest

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    REGISTERED_FEATURES,
    SECURITY_VERSION,
    SUPPORTED_FEATURES,
    SUPPORTED_RANGES,
    UnsupportedFeatureLevelError,
    check_finalized_levels,
    has_eligible_leader_replicas,
)
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import FeatureLevelChanged


def image_at(level: int, name: str = ELIGIBLE_LEADER_REPLICAS_VERSION) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    delta.replay(FeatureLevelChanged(name, level))
    return delta.apply(1)


def test_features_are_known_by_name() -> None:
    for feature in SUPPORTED_FEATURES:
        assert SUPPORTED_RANGES[feature.name] is feature
        assert feature.min_level <= feature.max_level
    names = [feature.name for feature in SUPPORTED_FEATURES]
    assert names == sorted(set(names))


def test_eligible_leader_replicas_are_on_from_level_one() -> None:
    assert not has_eligible_leader_replicas(MetadataImage.empty())
    assert not has_eligible_leader_replicas(image_at(0))
    assert has_eligible_leader_replicas(image_at(1))


def test_what_only_nodes_have_to_know_is_registered_and_not_told_to_clients() -> None:
    assert {feature.name for feature in REGISTERED_FEATURES} - set(SUPPORTED_RANGES) == {
        SECURITY_VERSION
    }


def test_a_level_of_a_newer_release_is_noticed() -> None:
    for feature in REGISTERED_FEATURES:
        check_finalized_levels(image_at(feature.max_level, feature.name))
        with pytest.raises(UnsupportedFeatureLevelError, match=feature.name):
            check_finalized_levels(image_at(feature.max_level + 1, feature.name))
    with pytest.raises(UnsupportedFeatureLevelError, match=r"level 1 of of\.tomorrow"):
        check_finalized_levels(image_at(1, "of.tomorrow"))
