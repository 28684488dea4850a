"""What is derived from a field that declares a key."""

import dataclasses

import pytest

from odradek.cluster.metadata.config_definitions import ConfigError, ConfigScope, at_least, between
from odradek.cluster.metadata.config_schema import (
    Bound,
    CoarserKey,
    Copied,
    GroupDefault,
    TopicDefault,
    converted,
    copies,
    copy_of,
    fields_of,
    integer,
    long,
    settings,
    string,
)
from odradek.cluster.metadata.image import ConfigResourceType

HOURS = CoarserKey("log.keep.hours", 3_600_000, 2, -1)


@settings(ConfigResourceType.TOPIC)
class Topic:
    """A topic's settings."""

    keep_ms: int = long(
        7_200_000,
        "How long it is kept.",
        enforced_by="x",
        validator=at_least(-1),
        broker=TopicDefault(
            "log.keep.ms", coarser=(CoarserKey("log.keep.hours", 3_600_000, 2, -1),)
        ),
    )
    is_loud: bool = converted(
        string("quiet", "How loud.", enforced_by="x", name="volume"), lambda text: text == "loud"
    )


@settings(ConfigResourceType.GROUP, "tea.")
class Group:
    """A group's settings."""

    cups: int = integer(
        2,
        "How many cups.",
        enforced_by="x",
        validator=at_least(1),
        broker=GroupDefault(between(1, 9), low=Bound(1), high=Bound(4, at_least(2), "group.most")),
    )
    size: int = integer(5, "How large.", enforced_by="x", is_broker_key=True)
    is_fixed: bool = False


copied = Copied(Group)


@copies
class Copy:
    """Some of a group's settings."""

    dozens: int = copied(lambda group: group.size * 12)
    other: int = 7


def test_a_settings_class_is_frozen_and_has_the_defaults_of_its_keys() -> None:
    assert Topic() == Topic(keep_ms=7_200_000, is_loud=False)
    assert Group() == Group(cups=2, size=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Topic().keep_ms = 1  # type: ignore[misc]  # frozen


def test_keys_are_named_after_their_fields_by_default() -> None:
    assert [field.definition.name for field in fields_of(Topic)] == ["keep.ms", "volume"]
    assert [field.definition.name for field in fields_of(Group)] == ["tea.cups", "group.tea.size"]
    assert [field.is_broker_key for field in fields_of(Group)] == [False, True]
    assert not fields_of(int)


def test_a_topics_key_has_a_default_of_the_broker_and_coarser_ones() -> None:
    field = fields_of(Topic)[0]
    assert field.definition.synonyms == (("log.keep.ms", 1), ("log.keep.hours", 3_600_000))
    fine, coarse = field.broker_keys
    assert (fine.name, fine.default, fine.scope) == ("log.keep.ms", None, ConfigScope.BROKER)
    assert (coarse.name, coarse.default, coarse.scope) == (
        "log.keep.hours",
        "2",
        ConfigScope.BROKER,
    )
    assert fine.documentation == "The keep.ms of topics that set none: how long it is kept."


def test_a_groups_key_has_a_default_and_bounds_of_the_broker() -> None:
    field = fields_of(Group)[0]
    assert field.definition.bounds == ("group.tea.min.cups", "group.most")
    assert [(key.name, key.default) for key in field.broker_keys] == [
        ("group.tea.cups", "2"),
        ("group.tea.min.cups", "1"),
        ("group.most", "4"),
    ]
    for key, refused in zip(field.broker_keys, ("10", "10", "1"), strict=True):
        with pytest.raises(ConfigError):
            key.parse(refused)
    assert field.definition.parse("10") == 10


def test_copies_have_the_values_of_their_source() -> None:
    assert Copy() == Copy(dozens=60)
    assert copy_of(Copy, Group(size=1), other=3) == Copy(dozens=12, other=3)
