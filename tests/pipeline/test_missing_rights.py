"""The right that is missing, by the code of the refusal."""

import pytest
from confluent_kafka import KafkaError

from odradek.pipeline.missing_rights import missing_right


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Read on topic orders"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "Read on group g"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Write on transactional id t-*"),
    ],
)
def test_a_refusal_says_what_to_allow(code: int, needed: str) -> None:
    told = missing_right(code, topic="Read on topic orders", group="g", transactional_id="t-*")
    assert told == f"; ACLs have to allow this user {needed}"


def test_other_errors_have_nothing_to_do_with_rights() -> None:
    assert missing_right(KafkaError.UNKNOWN_MEMBER_ID, topic="t", group="g") == ""
