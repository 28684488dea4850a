"""What ACLs have to allow, when a cluster refuses something for a lack of rights.

Kafka's answer names the kind of resource alone. Which operation was needed is known by whoever
asked: the callers of the wire client and of librdkafka.
"""

from typing import Final

TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53


def missing_right(
    code: int, *, topic: str = "", group: str = "", transactional_id: str = ""
) -> str:
    """The end of a message, beginning with a semicolon; empty for an error of another kind.

    `topic` is the operations and the name, as in "Read on topic orders"; of group and transactional
    id the name is enough.
    """
    needed = {
        TOPIC_AUTHORIZATION_FAILED: topic,
        GROUP_AUTHORIZATION_FAILED: f"Read on group {group}",
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"Write on transactional id {transactional_id}",
    }.get(code)
    return f"; ACLs have to allow this user {needed}" if needed else ""
