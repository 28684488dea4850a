"""RE2 patterns: which topics a consumer group's expression stands for (KIP-848), and which
transactional ids a lister wants (KIP-1152).

RE2 because Kafka takes its syntax, and because it matches in linear time and compiles in bounded
memory: an expression comes from anybody, and the router has one thread. google-re2 is Google's
own binding; this is the only module that imports it, and what it takes and gives is typed here.

A pattern must match the whole name. Answers are remembered until the topics change. Called by
handlers/consumer_groups.py, handlers/transactions.py and shards/group_coordinator_type.py.
"""

from collections.abc import Mapping
from typing import Final, Protocol

import re2  # type: ignore[import-untyped]  # it comes without type hints

from odradek.protocol.errors import ApiError, ErrorCode

PATTERN_BYTES_MAX: Final = 1 << 20
"""Memory that one compiled pattern may take. The largest that Kafka's users write take some KiB."""
PATTERN_COUNT_MAX: Final = 1_000


class Pattern(Protocol):
    """A compiled pattern."""

    def fullmatch(self, text: str) -> object | None:
        """None unless the whole text matches."""


class TopicPatterns:
    """Compiled patterns with the topics they stood for when last asked."""

    __slots__ = ("_compiled", "_found", "_topics")

    def __init__(self) -> None:
        self._compiled: dict[str, Pattern] = {}
        self._found: dict[str, tuple[str, ...]] = {}
        self._topics: Mapping[str, object] | None = None

    def matching_topics(self, regex: str, topics: Mapping[str, object]) -> tuple[str, ...]:
        """The names among `topics` that match, sorted; ApiError(INVALID_REGULAR_EXPRESSION)."""
        if topics is not self._topics:
            self._topics = topics
            self._found.clear()
        found = self._found.get(regex)
        if found is None:
            matches = self._pattern(regex).fullmatch
            found = self._found[regex] = tuple(
                sorted(name for name in topics if matches(name) is not None)
            )
        return found

    def _pattern(self, regex: str) -> Pattern:
        pattern = self._compiled.get(regex)
        if pattern is None:
            if len(self._compiled) >= PATTERN_COUNT_MAX:
                self._compiled.clear()
                self._found.clear()
            pattern = self._compiled[regex] = compile_pattern(regex, "SubscribedTopicRegex")
        return pattern


def compile_pattern(regex: str, field: str) -> Pattern:
    """A pattern; ApiError(INVALID_REGULAR_EXPRESSION) if it is none, or one that is too large.
    `field` is where a client has written it."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    # Groups are looked at by nobody, and finding them takes twice the time.
    options.never_capture = True
    try:
        pattern: Pattern = re2.compile(regex, options)
    except (re2.error, UnicodeEncodeError) as error:
        why = error.args[0] if error.args else error
        told = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{field} `{regex}` is not a valid regular expression: {told}.",
        ) from None
    return pattern
