"""Who may join a group, and how long it stays when it is Empty: what was configured, as values.

The keys are those of cluster/metadata/group_settings.py. The shell makes a new
`GroupPolicies` whenever a config changes. Called by `admission` and `ephemeral`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from odradek.cluster.metadata.group_settings import matches_any


class GroupPolicyOverrides(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was set for one group; None where nothing was."""

    is_ephemeral: bool | None = None
    ttl_ms: int | None = None
    protocols: frozenset[str] | None = None
    """Types of groups, as ListGroups has them."""


class GroupPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """What was set for all groups, and for some."""

    ephemeral_patterns: tuple[str, ...] = ()
    ephemeral_ttl_ms: int = 0
    own: Mapping[str, GroupPolicyOverrides] = {}
    """By group id; groups of which nothing was set are missing."""
    has_ephemeral: bool = False
    """Whether any group may be ephemeral; follows from the others."""
    has_protocol_limits: bool = False
    """Whether any group does not take all protocols; follows from the others."""

    def __post_init__(self) -> None:
        has_any = bool(self.ephemeral_patterns) or any(o.is_ephemeral for o in self.own.values())
        # Asked with everything that is written, however many groups have something of their own.
        msgspec.structs.force_setattr(self, "has_ephemeral", has_any)
        is_any_closed = any(own.protocols is not None for own in self.own.values())
        # And with every request.
        msgspec.structs.force_setattr(self, "has_protocol_limits", is_any_closed)

    def ttl_ms(self, group_id: str) -> int | None:
        """How long the group stays when its last member has gone; None for as long as others do."""
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
