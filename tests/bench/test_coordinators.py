"""The benchmark counts committed transactions only."""

import os
from typing import TYPE_CHECKING

import pytest

from bench.brokers import Broker
from bench.coordinators import measure_transactions

if TYPE_CHECKING:
    from odradek.node.embedded import EmbeddedBroker


@pytest.mark.e2e
def test_producers_commit_side_by_side(kafka_broker: "EmbeddedBroker") -> None:
    port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
    broker = Broker(name="Odradek", version="1", port=port, pid=os.getpid(), start_seconds=0.0)
    [(figure, result)] = measure_transactions(broker, 0.2, records=3, producers=2)
    assert figure.name == "transactions of 3 records, 2 producers"
    assert result.value > 0
    assert result.cpu_us_per_record is not None
