"""Kafka's client options reach the wire client."""

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.wire_options import open_cluster, timeout_s


def test_the_timeout_is_that_of_kafkas_clients() -> None:
    assert timeout_s({}) == 30.0
    assert timeout_s({"default.api.timeout.ms": "1500"}) == 1.5
    with pytest.raises(PipelineError, match=r"default.api.timeout.ms is 'soon'"):
        timeout_s({"default.api.timeout.ms": "soon"})


def test_options_reach_the_cluster() -> None:
    kafka = {"client.rack": "a", "default.api.timeout.ms": "50"}
    with open_cluster("127.0.0.1:1", kafka) as cluster:
        assert (cluster.rack, cluster.timeout_s) == ("a", 0.05)
        with pytest.raises(PipelineError, match=r"127.0.0.1:1"):
            cluster.topics()
    with pytest.raises(PipelineError, match=r"security.protocol is 'TLS'"):
        open_cluster("127.0.0.1:1", {"security.protocol": "TLS"})
