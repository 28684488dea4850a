"""What was configured about groups: which are ephemeral, for how long, and who may join."""

import msgspec

from odradek.coordinator.group.policies import NO_POLICIES, GroupPolicies, GroupPolicyOverrides


def test_nothing_is_ephemeral_and_everybody_may_join_where_nothing_is_said() -> None:
    assert not NO_POLICIES.has_ephemeral
    assert NO_POLICIES.ttl_ms("g") is None
    assert NO_POLICIES.allowed_protocols("g") is None


def test_a_groups_own_word_counts_before_the_patterns() -> None:
    policies = GroupPolicies(
        ephemeral_patterns=("a*",),
        ephemeral_ttl_ms=5,
        own={
            "a1": GroupPolicyOverrides(is_ephemeral=False),
            "a2": GroupPolicyOverrides(ttl_ms=9),
            "b1": GroupPolicyOverrides(is_ephemeral=True),
            "b2": GroupPolicyOverrides(ttl_ms=9),
        },
    )
    names = ("a", "a1", "a2", "b1", "b2", "b3")
    assert [policies.ttl_ms(name) for name in names] == [5, None, 9, 5, None, None]


def test_whether_any_group_is_closed_to_a_protocol_is_known_beforehand() -> None:
    assert not NO_POLICIES.has_protocol_limits
    assert not GroupPolicies(own={"g": GroupPolicyOverrides(ttl_ms=1)}).has_protocol_limits
    policies = GroupPolicies(
        own={
            "f": GroupPolicyOverrides(ttl_ms=1),
            "g": GroupPolicyOverrides(protocols=frozenset({"share"})),
        }
    )
    assert policies.has_protocol_limits
    assert not msgspec.structs.replace(policies, own={}).has_protocol_limits


def test_whether_any_group_is_ephemeral_is_known_beforehand() -> None:
    assert GroupPolicies(ephemeral_patterns=("x*",)).has_ephemeral
    policies = GroupPolicies(own={"g": GroupPolicyOverrides(is_ephemeral=True)})
    assert policies.has_ephemeral
    assert not GroupPolicies(
        own={"g": GroupPolicyOverrides(is_ephemeral=False, ttl_ms=1)}
    ).has_ephemeral
    assert not msgspec.structs.replace(policies, own={}).has_ephemeral
