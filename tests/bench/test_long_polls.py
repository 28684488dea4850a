"""The consumers of the benchmark wait as those of applications do."""

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.options import REPOSITORY

if TYPE_CHECKING:
    from odradek.node.embedded import EmbeddedBroker


@pytest.mark.e2e
def test_each_consumer_asks_twice_a_second(kafka_broker: "EmbeddedBroker") -> None:
    kafka_broker.create_topic("long-polls", partitions=1)
    load = [sys.executable, "-m", "bench.long_polls", kafka_broker.bootstrap_servers, "long-polls"]
    ran = subprocess.run(
        [*load, "50", "3"], capture_output=True, text=True, cwd=REPOSITORY, timeout=60, check=True
    )
    waiting, told = map(json.loads, ran.stdout.splitlines())
    assert waiting == {"waiting": 50}
    # The first wait ends up to a tenth early, with others; those after it begin at a tick.
    assert 30 < told["fetches_per_second"] <= 105
