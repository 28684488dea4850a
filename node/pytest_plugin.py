"""A real broker in one line, for the tests of any project: the fixture `kafka_broker`.

Installed with Odradek, and therefore loaded by every pytest run on the machine: nothing is
imported here but pytest until a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Only for the reader and the type checker: loading the broker is the fixture's business.
    from node.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def kafka_broker_settings() -> Mapping[str, str]:
    """Settings of the broker; override it in your conftest.py, e.g. {"num.partitions": "4"}."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker_settings: Mapping[str, str]
) -> Iterator[EmbeddedBroker]:
    """A real Odradek for this session: own processes, own port, own folder, gone afterwards.

    `bootstrap_servers` is its address, `create_topic` makes topics; `kill_worker`, `restart` and
    `stop` are for tests of what your code does when a broker fails.
    """
    from node.embedded import EmbeddedBroker

    with EmbeddedBroker(
        tmp_path_factory.mktemp("odradek"), settings=kafka_broker_settings
    ) as broker:
        yield broker
