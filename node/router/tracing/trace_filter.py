"""Which requests a trace session wants: what is asked before the handler runs, and what only after
that, when topics and duration are known."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from odradek.cluster.metadata.image import MetadataImage
from odradek.protocol.types import ZERO_UUID

_TOPIC_FIELDS: Final = ("topic_data", "topics", "topic_names")
_NAME_FIELDS: Final = ("name", "topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFilter:
    """All conditions hold together; None: any. `slower_than_ns` is the least duration.

    Of the requests that match before they run, one in `sample_every` is traced; of those that match
    in the end at most `rate_max` in each second are kept.
    """

    client_ids: frozenset[str] | None = None
    api_keys: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    correlation_id: int | None = None
    slower_than_ns: int = 0
    sample_every: int = 1
    rate_max: int = 100

    def may_match(self, api_key: int, client_id: str | None, correlation_id: int) -> bool:
        """Whether a request can match, as far as its header says."""
        return (
            (self.api_keys is None or api_key in self.api_keys)
            and (self.client_ids is None or (client_id or "") in self.client_ids)
            and (self.correlation_id is None or correlation_id == self.correlation_id)
        )

    def matches(self, topics: Iterable[str], duration_ns: int) -> bool:
        """Whether a request that has ended and could match does."""
        return duration_ns >= self.slower_than_ns and (
            self.topics is None or not self.topics.isdisjoint(topics)
        )


def topics_of(request: Any) -> Iterable[str | bytes]:  # noqa: ANN401 - a request of any API
    """The topics that a request names, by name or id."""
    for field in _TOPIC_FIELDS:
        for topic in getattr(request, field, None) or ():
            if isinstance(topic, str):
                yield topic
                continue
            name = next((getattr(topic, each, None) for each in _NAME_FIELDS), None)
            topic_id: bytes = getattr(topic, "topic_id", ZERO_UUID)
            if name:
                yield name
            elif topic_id != ZERO_UUID:
                yield topic_id


def topic_names(topics: Iterable[str | bytes], image: MetadataImage) -> list[str]:
    """The names, in order; an id that is unknown is left out."""
    names = set()
    for topic in topics:
        if isinstance(topic, str):
            names.add(topic)
        elif (known := image.topics_by_id.get(topic)) is not None:
            names.add(known.name)
    return sorted(names)
