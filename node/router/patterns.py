"""RE2 patterns: the topics that match a consumer group's regular expression (KIP-848), and the
transactional ids that match a ListTransactions filter (KIP-1152).

RE2 because Kafka uses its syntax, and because it matches in linear time and compiles in bounded
memory: clients send the patterns, and the router has one thread. This is the only module that
imports google-re2, and it types what it uses.

A pattern must match the whole name. Matches are cached until the topics change. Called by
handlers/consumer_groups.py, handlers/transactions.py and the group coordinator.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import re2  # type: ignore[import-untyped]  # it comes without type hints

from odradek.protocol.errors import ApiError, ErrorCode

PATTERN_BYTES_MAX: Final = 1 << 20
"""Memory of one compiled pattern. Real ones take a few KiB."""
PATTERN_COUNT_MAX: Final = 1_000


class Pattern(Protocol):
    """A compiled pattern."""

    programsize: int
    """Instructions. RE2 executes each of them at most once per character."""

    def fullmatch(self, text: str) -> object | None:
        """None unless the whole text matches."""


class TopicPatterns:
    """Compiled patterns and the topics that match them."""

    __slots__ = ("_compiled", "_matching", "_topics")

    def __init__(self) -> None:
        self._compiled: dict[str, Pattern] = {}
        self._matching: dict[str, tuple[str, ...]] = {}
        self._topics: Mapping[str, object] | None = None

    def matching_topics(self, regex: str, topics: Mapping[str, object]) -> tuple[str, ...]:
        """The names in `topics` that match, sorted. ApiError(INVALID_REGULAR_EXPRESSION)."""
        if topics is not self._topics:
            self._topics = topics
            self._matching.clear()
        matching = self._matching.get(regex)
        if matching is None:
            matches = self._pattern(regex).fullmatch
            matching = self._matching[regex] = tuple(
                sorted(name for name in topics if matches(name) is not None)
            )
        return matching

    def _pattern(self, regex: str) -> Pattern:
        pattern = self._compiled.get(regex)
        if pattern is None:
            if len(self._compiled) >= PATTERN_COUNT_MAX:
                self._compiled.clear()
                self._matching.clear()
            pattern = self._compiled[regex] = compile_pattern(regex, "SubscribedTopicRegex")
        return pattern


def compile_pattern(regex: str, field: str) -> Pattern:
    """The compiled pattern. ApiError(INVALID_REGULAR_EXPRESSION) if it is invalid or too large.
    `field` is the request's field, for the message."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    # Capturing groups are not used and double the time.
    options.never_capture = True
    try:
        pattern: Pattern = re2.compile(regex, options)
    except (re2.error, UnicodeEncodeError) as error:
        why = error.args[0] if error.args else error
        reason = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{field} `{regex}` is not a valid regular expression: {reason}.",
        ) from None
    return pattern
