"""Logging is disabled in simulations: a failure shows the history of its run, and logging takes
time.
"""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Disable logging during a simulation."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
