"""Which topic names are valid, and which topics are internal: Kafka's rules and texts."""

import re
from typing import Final

NAME_LENGTH_MAX: Final = 249
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
"""The topics with the coordinators' state; Metadata marks them as internal."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def topic_name_error(name: str) -> str | None:
    """Why the name is not valid, in a sentence; None if it is."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif _LEGAL.match(name) is None:
        reason = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_'"
            " and '-'"
        )
    else:
        return None
    return f"Topic name is invalid: {reason}"


def unify_collision_chars(name: str) -> str:
    """The name with '_' for '.': two topics must not share it, because metric names do."""
    return name.replace(".", "_")
