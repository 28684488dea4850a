"""What the cores' shells log in a simulation is told by its own history, and costs time."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Nothing is logged while a simulation runs."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
