"""What was configured about groups: which are ephemeral, for how long, and who may join."""

import msgspec

from odradek.coordinator.group.rules import NO_RULES, OwnRules, Rules


def test_nothing_is_ephemeral_and_everybody_may_join_where_nothing_is_said() -> None:
    assert not NO_RULES.has_ephemeral
    assert NO_RULES.ttl_ms("g") is None
    assert NO_RULES.allowed("g") is None


def test_a_groups_own_word_counts_before_the_patterns() -> None:
    rules = Rules(
        ephemeral_patterns=("a*",),
        ephemeral_ttl_ms=5,
        own={
            "a1": OwnRules(is_ephemeral=False),
            "a2": OwnRules(ttl_ms=9),
            "b1": OwnRules(is_ephemeral=True),
            "b2": OwnRules(ttl_ms=9),
        },
    )
    names = ("a", "a1", "a2", "b1", "b2", "b3")
    assert [rules.ttl_ms(name) for name in names] == [5, None, 9, 5, None, None]


def test_whether_any_group_is_closed_to_a_protocol_is_known_beforehand() -> None:
    assert not NO_RULES.has_closed
    assert not Rules(own={"g": OwnRules(ttl_ms=1)}).has_closed
    rules = Rules(own={"f": OwnRules(ttl_ms=1), "g": OwnRules(protocols=frozenset({"share"}))})
    assert rules.has_closed
    assert not msgspec.structs.replace(rules, own={}).has_closed


def test_whether_any_group_is_ephemeral_is_known_beforehand() -> None:
    assert Rules(ephemeral_patterns=("x*",)).has_ephemeral
    rules = Rules(own={"g": OwnRules(is_ephemeral=True)})
    assert rules.has_ephemeral
    assert not Rules(own={"g": OwnRules(is_ephemeral=False, ttl_ms=1)}).has_ephemeral
    assert not msgspec.structs.replace(rules, own={}).has_ephemeral
