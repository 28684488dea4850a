"""The configured policies of groups: protocols of members, and the lifetime of an empty group.

`GroupPolicySettings` of cluster/metadata has the keys. Called by `admission` and
`ephemeral_groups`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from odradek.cluster.metadata.group_settings import matches_any


class GroupPolicyOverrides(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The keys that are set for one group; None for others."""

    is_ephemeral: bool | None = None
    ttl_ms: int | None = None
    protocols: frozenset[str] | None = None
    """Types of groups, as ListGroups has them."""


class GroupPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of all groups, and those of single groups."""

    ephemeral_patterns: tuple[str, ...] = ()
    ephemeral_ttl_ms: int = 0
    own: Mapping[str, GroupPolicyOverrides] = {}
    """By group id, of groups that set something."""
    has_ephemeral: bool = False
    """Whether any group may be ephemeral; derived from the other fields."""
    has_protocol_limits: bool = False
    """Whether any group does not take all protocols; derived from the other fields."""

    def __post_init__(self) -> None:
        has_any = bool(self.ephemeral_patterns) or any(o.is_ephemeral for o in self.own.values())
        # Asked with everything that is written, however many groups have something of their own.
        msgspec.structs.force_setattr(self, "has_ephemeral", has_any)
        is_any_closed = any(own.protocols is not None for own in self.own.values())
        # And with every request.
        msgspec.structs.force_setattr(self, "has_protocol_limits", is_any_closed)

    def ttl_ms(self, group_id: str) -> int | None:
        """How long the group stays after its last member has left; None if it is not ephemeral."""
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
