"""Names and levels are those that Kafka's own tools have."""

import pytest

from odradek.cluster.metadata.features import SUPPORTED_RANGES
from odradek.cluster.metadata.kafka_releases import (
    RELEASES,
    metadata_version_level,
    metadata_version_name,
    release_levels,
)

KAFKA = """
7 3.3-IV3 0 0 0 0 0 0
8 3.4-IV0 0 0 0 0 0 0
9 3.5-IV0 0 0 0 0 0 0
10 3.5-IV1 0 0 0 0 0 0
11 3.5-IV2 0 0 0 0 0 0
12 3.6-IV0 0 0 0 0 0 0
13 3.6-IV1 0 0 0 0 0 0
14 3.6-IV2 0 0 0 0 0 0
15 3.7-IV0 0 0 0 0 0 0
16 3.7-IV1 0 0 0 0 0 0
17 3.7-IV2 0 0 0 0 0 0
18 3.7-IV3 0 0 0 0 0 0
19 3.7-IV4 0 0 0 0 0 0
20 3.8-IV0 0 0 0 0 0 0
21 3.9-IV0 1 0 0 0 0 0
22 4.0-IV0 1 0 1 0 0 0
23 4.0-IV1 1 0 1 0 0 0
24 4.0-IV2 1 2 1 0 0 0
25 4.0-IV3 1 2 1 0 0 0
26 4.1-IV0 1 2 1 1 0 0
27 4.1-IV1 1 2 1 1 0 0
28 4.2-IV0 1 2 1 1 1 0
29 4.2-IV1 1 2 1 1 1 1
30 4.3-IV0 1 2 1 1 1 1
"""
"""Kafka 4.3.1: MetadataVersion.VERSIONS, and for each Feature.defaultLevel of PRODUCTION_FEATURES,
as `kafka-features version-mapping` prints them."""
FEATURES = (
    "kraft.version",
    "transaction.version",
    "group.version",
    "eligible.leader.replicas.version",
    "share.version",
    "streams.version",
)


def test_every_level_has_kafkas_name_and_default_levels() -> None:
    for line in KAFKA.split("\n")[1:-1]:
        number, name, *defaults = line.split()
        level = int(number)
        assert metadata_version_name(level) == name
        assert metadata_version_level(name) == level
        expected = dict(zip(FEATURES, map(int, defaults), strict=True))
        assert release_levels(level) == {"metadata.version": level, **expected}
    assert metadata_version_name(6) is None
    assert metadata_version_name(31) is None


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *[("3.3", 7), ("3.3.1", 7), ("3.5", 11), ("3.7", 19), ("3.9", 21), ("4.0", 25)],
        *[("4.0.0", 25), ("4.1", 27), ("4.2", 29), ("4.3", 30), ("4.3.1", 30)],
        *[("4", None), ("4.4", None), ("3.2", None), ("4.3-IV9", None), ("", None), ("x.y", None)],
    ],
)
def test_a_release_is_its_highest_level(name: str, level: int | None) -> None:
    """As MetadataVersion.fromVersionString of Kafka 4.3.1."""
    assert metadata_version_level(name) == level


def test_the_highest_levels_here_are_those_of_the_newest_release() -> None:
    assert RELEASES[0] == "3.3"
    newest = metadata_version_level(RELEASES[-1])
    assert newest is not None
    supported = {name: found.max_level for name, found in SUPPORTED_RANGES.items()}
    assert release_levels(newest) == supported
