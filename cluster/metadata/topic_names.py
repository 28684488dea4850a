"""What a topic may be called, and which topics are ours.

Kafka's rules, kept because metrics, folders and other tools rely on them.
"""

import re
from typing import Final

NAME_LENGTH_MAX: Final = 249
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
"""Topics that coordinators keep their state in; clients are told that they are internal."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def topic_name_error(name: str) -> str | None:
    """Why no topic may have this name, in a sentence; None if one may."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic name has at most {NAME_LENGTH_MAX} characters, this one has {len(name)}"
    if _LEGAL.match(name) is None:
        return (
            f"topic name {name!r} contains something other than ASCII letters, digits,"
            " '.', '_' and '-'"
        )
    return None


def unify_collision_chars(name: str) -> str:
    """What two topics must not have in common: metric names write both '.' and '_' as '_'."""
    return name.replace(".", "_")
