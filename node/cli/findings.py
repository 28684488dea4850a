"""Why a group or a partition does not move: findings, each a sentence and what to do about it.

Pure: made of what coordinators, leaders and transactions' coordinators told. A finding is a fact
that was seen, never a guess; what nobody knows is not said. Called by group_explain.py,
topic_explain.py and group_lag.py.
"""

from dataclasses import dataclass

from protocol.messages.insight import ExplainedGroup

NOBODY_STATES = ("Empty", "Dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is as it should not be, or explains why something stands still."""

    about: str
    """What it is about: the group, a member, `topic-partition`."""
    what: str
    """A sentence."""
    advice: str = ""
    """What to do, as a sentence; empty if nothing is wrong."""


def why_nobody_reads(group: ExplainedGroup) -> list[str]:
    """Sentences about the group as a whole, for who waits for it."""
    if not group.members and group.group_state in NOBODY_STATES:
        return ["the group has no members: nobody reads"]
    if group.wait:
        return [f"the group is in {group.group_state}: it waits {group.wait}"]
    return []
