"""A real broker for the tests of any project: a pytest plugin with the fixtures `kafka_broker` and
`kafka_broker_secured`.

```python
def test_orders(kafka_broker):
    kafka_broker.create_topic("orders", partitions=3)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
```

The plugin is an entry point of the installed package, so every pytest run on the machine loads this
module: it imports only pytest until a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # For the type checker only: the fixture loads the broker.
    from odradek.node.embedded import EmbeddedBroker
    from odradek.node.secured_broker import SecuredBroker


@pytest.fixture(scope="session")
def kafka_broker_settings() -> Mapping[str, str]:
    """Settings of the broker. Override it in conftest.py, for example `{"num.partitions": "4"}`."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker_settings: Mapping[str, str]
) -> Iterator[EmbeddedBroker]:
    """A real Odradek broker for this session, with its own processes, port and data folder.

    `bootstrap_servers` is its address and `create_topic` creates topics. `kill_worker`, `restart`
    and `stop` test what your code does when a broker fails. The data folder is deleted at the end.
    """
    from odradek.node.embedded import EmbeddedBroker

    with EmbeddedBroker(
        tmp_path_factory.mktemp("odradek"), settings=kafka_broker_settings
    ) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_broker_secured(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker_settings: Mapping[str, str]
) -> Iterator[SecuredBroker]:
    """A real Odradek broker for this session, to which clients have to authenticate with SASL.

    `bootstrap_servers` is its address, `user` and `password` are for PLAIN and SCRAM, and
    `properties(mechanism)` are librdkafka's properties. `access_token` makes tokens of OAUTHBEARER,
    `add_user` and `remove_user` change the users of SCRAM. `broker` is what `kafka_broker` is.
    """
    from odradek.node.secured_broker import SecuredBroker

    with SecuredBroker(
        tmp_path_factory.mktemp("odradek-secured"), settings=kafka_broker_settings
    ) as secured:
        yield secured
