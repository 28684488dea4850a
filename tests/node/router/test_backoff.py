"""The pauses between the attempts of a retry."""

from itertools import islice

from odradek.node.router.backoff import exponential_backoff


def test_each_pause_is_twice_the_one_before_up_to_the_maximum() -> None:
    assert list(islice(exponential_backoff(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
