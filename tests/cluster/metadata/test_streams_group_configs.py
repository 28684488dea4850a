"""The keys of streams groups: what a group may have of its own, and what it is otherwise."""

import pytest

from odradek.cluster.metadata.broker_configs import BROKER_CONFIGS
from odradek.cluster.metadata.config_definitions import ConfigScope
from odradek.cluster.metadata.streams_group_configs import (
    STREAMS_BROKER_CONFIGS,
    STREAMS_GROUP_CONFIGS,
)


def test_a_groups_default_is_that_of_the_brokers_key() -> None:
    for definition in STREAMS_GROUP_CONFIGS:
        [synonym] = definition.synonyms
        assert synonym.name == f"group.{definition.name}"
        assert definition.default == BROKER_CONFIGS[synonym.name].default


@pytest.mark.parametrize("kind", ["heartbeat.interval.ms", "session.timeout.ms"])
def test_defaults_are_within_their_bounds(kind: str) -> None:
    least, default, most = (
        int(BROKER_CONFIGS[f"group.streams.{end}{kind}"].default or 0)
        for end in ("min.", "", "max.")
    )
    assert least <= default <= most


def test_coordinators_must_agree_on_all_of_them() -> None:
    assert {definition.scope for definition in STREAMS_BROKER_CONFIGS} == {ConfigScope.CLUSTER}
