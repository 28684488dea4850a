"""The keys of groups: within what the broker's allow, and by which of the broker's they default."""

from odradek.cluster.metadata.broker_configs import BROKER_CONFIGS
from odradek.cluster.metadata.config_definitions import ConfigScope
from odradek.cluster.metadata.group_configs import ASSIGNORS, CONSUMER_GROUP_CONFIGS, GROUP_CONFIGS
from odradek.cluster.metadata.share_record_configs import SHARE_GROUP_RECORD_CONFIGS
from odradek.coordinator.group.consumer.assignors import ASSIGNORS as MADE

MEMBERS_KEYS = {
    name: definition
    for name, definition in GROUP_CONFIGS.items()
    if name.startswith(("consumer.", "share.")) and definition not in SHARE_GROUP_RECORD_CONFIGS
}
"""What concerns members; test_share_configs.py has what concerns records."""


def test_a_groups_default_is_that_of_the_brokers_key() -> None:
    for definition in MEMBERS_KEYS.values():
        [synonym] = definition.synonyms
        assert synonym.name == f"group.{definition.name}"
        assert definition.default == BROKER_CONFIGS[synonym.name].default


def test_every_key_of_a_group_has_bounds_and_keeps_them() -> None:
    for name, definition in MEMBERS_KEYS.items():
        protocol, _, kind = name.partition(".")
        least, most = (
            BROKER_CONFIGS[f"group.{protocol}.{end}.{kind}"].default for end in ("min", "max")
        )
        assert int(least or 0) <= int(definition.default or 0) <= int(most or 0)


def test_coordinators_must_agree_on_all_of_them() -> None:
    assert {definition.scope for definition in CONSUMER_GROUP_CONFIGS} == {ConfigScope.CLUSTER}


def test_the_assignors_that_may_be_named_are_those_that_are_made() -> None:
    assert set(ASSIGNORS) == set(MADE)
