"""Keys of share partitions as text."""

import pytest

from odradek.coordinator.ownership import shard_of
from odradek.coordinator.share.requests import ShareKey
from odradek.protocol.types import uuid_from_text

TOPIC = uuid_from_text("AAAAAAAAAAEAAAAAAAAAAg")


@pytest.mark.parametrize("group_id", ["g", "a:b", ":", "ä b"])
def test_a_key_is_parsed_from_its_text(group_id: str) -> None:
    key = ShareKey(group_id, TOPIC, 7)
    assert ShareKey.parse(key.text) == key


def test_the_text_of_a_key_is_kafkas() -> None:
    text = ShareKey("g", TOPIC, 7).text
    assert text == "g:AAAAAAAAAAEAAAAAAAAAAg:7"
    # Of Java's "g:AAAAAAAAAAEAAAAAAAAAAg:7".hashCode().
    assert shard_of(text, 50) == 24


@pytest.mark.parametrize(
    "text",
    [
        "",
        "g",
        "g:AAAAAAAAAAEAAAAAAAAAAg",
        ":AAAAAAAAAAEAAAAAAAAAAg:0",
        " :AAAAAAAAAAEAAAAAAAAAAg:0",
        "g:topic:0",
        "g:AAAAAAAAAAEAAAAAAAAAAg:",
        "g:AAAAAAAAAAEAAAAAAAAAAg:x",
    ],
)
def test_invalid_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of three kinds
        ShareKey.parse(text)
