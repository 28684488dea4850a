"""The configured policies of groups: ephemeral groups and allowed protocols."""

import msgspec

from odradek.coordinator.group.policies import NO_POLICIES, GroupPolicies, GroupPolicyOverrides


def test_by_default_no_group_is_ephemeral_and_all_protocols_are_allowed() -> None:
    assert not NO_POLICIES.has_ephemeral
    assert NO_POLICIES.ttl_ms("g") is None
    assert NO_POLICIES.allowed_protocols("g") is None


def test_the_config_of_a_group_overrides_the_patterns() -> None:
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


def test_has_protocol_limits_is_derived() -> None:
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


def test_has_ephemeral_is_derived() -> None:
    assert GroupPolicies(ephemeral_patterns=("x*",)).has_ephemeral
    policies = GroupPolicies(own={"g": GroupPolicyOverrides(is_ephemeral=True)})
    assert policies.has_ephemeral
    assert not GroupPolicies(
        own={"g": GroupPolicyOverrides(is_ephemeral=False, ttl_ms=1)}
    ).has_ephemeral
    assert not msgspec.structs.replace(policies, own={}).has_ephemeral
