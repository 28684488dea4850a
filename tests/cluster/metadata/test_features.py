"""The features of this release."""

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    SUPPORTED_FEATURES,
    SUPPORTED_RANGES,
    has_eligible_leader_replicas,
)
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import FeatureLevelChanged


def image_at(level: int) -> MetadataImage:
    delta = MetadataDelta(MetadataImage.empty())
    delta.replay(FeatureLevelChanged(ELIGIBLE_LEADER_REPLICAS_VERSION, level))
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
