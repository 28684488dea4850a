"""The configured policies of groups: allowed protocols, and the lifetime of an empty group.

`GroupPolicySettings` of cluster/metadata has the keys. Called by `admission` and
`ephemeral_groups`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from odradek.cluster.metadata.group_settings import matches_any


class GroupPolicyOverrides(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The config values of one group; None if the key is not set."""

    is_ephemeral: bool | None = None
    ttl_ms: int | None = None
    protocols: frozenset[str] | None = None
    """Types of groups, as ListGroups has them."""


class GroupPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of all groups, and those of single groups."""

    ephemeral_patterns: tuple[str, ...] = ()
    ephemeral_ttl_ms: int = 0
    own: Mapping[str, GroupPolicyOverrides] = {}
    """By group id, for groups with own values."""
    has_ephemeral: bool = False
    """Whether any group may be ephemeral; derived from the other fields."""
    has_protocol_limits: bool = False
    """Whether any group allows some protocols only; derived from the other fields."""

    def __post_init__(self) -> None:
        # Every request and every outcome with records reads these.
        own = self.own.values()
        has_ephemeral = bool(self.ephemeral_patterns) or any(group.is_ephemeral for group in own)
        has_limits = any(group.protocols is not None for group in own)
        msgspec.structs.force_setattr(self, "has_ephemeral", has_ephemeral)
        msgspec.structs.force_setattr(self, "has_protocol_limits", has_limits)

    def ttl_ms(self, group_id: str) -> int | None:
        """The lifetime after the last member has left; None if the group is not ephemeral."""
        own = self.own.get(group_id, _NO_OVERRIDES)
        is_ephemeral = own.is_ephemeral
        if is_ephemeral is None:
            is_ephemeral = matches_any(group_id, self.ephemeral_patterns)
        if not is_ephemeral:
            return None
        return self.ephemeral_ttl_ms if own.ttl_ms is None else own.ttl_ms

    def allowed_protocols(self, group_id: str) -> frozenset[str] | None:
        """The protocols by which members may join; None for all."""
        return self.own.get(group_id, _NO_OVERRIDES).protocols


_NO_OVERRIDES: Final = GroupPolicyOverrides()
NO_POLICIES: Final = GroupPolicies()
