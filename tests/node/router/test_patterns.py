"""RE2 patterns: matches, errors, and linear time."""

import time

import pytest

from odradek.node.router.patterns import PATTERN_COUNT_MAX, TopicPatterns
from odradek.protocol.errors import ApiError, ErrorCode

TOPICS = dict.fromkeys(("orders", "orders.eu", "orders-eu", "payments"))
LIVENESS_S = 5.0


def test_a_pattern_matches_whole_names() -> None:
    patterns = TopicPatterns()
    assert patterns.matching_topics("orders", TOPICS) == ("orders",)
    assert patterns.matching_topics(r"orders[.\-].*", TOPICS) == ("orders-eu", "orders.eu")
    assert patterns.matching_topics("orders|payments", TOPICS) == ("orders", "payments")
    assert patterns.matching_topics("none", TOPICS) == ()


@pytest.mark.parametrize("regex", ["(", "a{1001}", r"(a)\1", "(?=a)", "[z-a]", "\ud800"])
def test_an_invalid_pattern_is_refused_with_a_reason(regex: str) -> None:
    with pytest.raises(ApiError) as refused:
        TopicPatterns().matching_topics(regex, TOPICS)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "is not a valid regular expression" in (refused.value.message or "")


def test_a_pattern_that_would_take_too_much_memory_is_refused() -> None:
    with pytest.raises(ApiError):
        TopicPatterns().matching_topics("((a{100}){100}){100}", TOPICS)


@pytest.mark.parametrize("regex", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*a){20}b"])
def test_patterns_take_linear_time(regex: str) -> None:
    """Backtracking would not end."""
    topics = {"a" * length: None for length in range(200, 249)}
    started = time.monotonic()
    assert TopicPatterns().matching_topics(regex, topics) == ()
    assert time.monotonic() - started < LIVENESS_S


def test_matches_are_cached_until_the_topics_change() -> None:
    patterns = TopicPatterns()
    first = patterns.matching_topics("o.*", TOPICS)
    assert patterns.matching_topics("o.*", TOPICS) is first
    more = {**TOPICS, "others": None}
    assert patterns.matching_topics("o.*", more) == (*first, "others")


def test_the_number_of_cached_patterns_is_limited() -> None:
    patterns = TopicPatterns()
    for number in range(PATTERN_COUNT_MAX + 5):
        patterns.matching_topics(f"t{number}", TOPICS)
    assert len(patterns._compiled) <= PATTERN_COUNT_MAX
