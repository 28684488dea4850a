"""Which names a topic may have: Kafka's rules."""

import pytest

from odradek.cluster.metadata.topic_names import topic_name_error, unify_collision_chars


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "__consumer_offsets", "x" * 249])
def test_valid_names_are_accepted(name: str) -> None:
    assert topic_name_error(name) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "b@d", "a b", "a\n", "ä", "a/b", "a:b", "\u0661"]
)
def test_invalid_names_are_refused(name: str) -> None:
    assert topic_name_error(name)


def test_names_that_differ_in_dots_and_underscores_only_collide() -> None:
    assert unify_collision_chars("a.b_c") == unify_collision_chars("a_b.c")
    assert unify_collision_chars("a.b") != unify_collision_chars("a-b")
