"""Where a broker's own configuration comes from, as clients see it."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.node.router.handlers.config_sources import handle_describe_config_sources
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.configs import (
    DescribeConfigSourcesRequest,
    DescribeConfigSourcesResponse,
)
from tests.support.router_harness import RouterHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    yield harness
    harness.close()


def test_the_origins_of_what_the_broker_was_started_with(harness: RouterHarness) -> None:
    control = harness.services.node_control
    control.config = msgspec.structs.replace(
        control.config,
        sources={"num.partitions": (("3", "the command line"), ("2", "node.toml line 1")), "x": ()},
        file_problem="not TOML",
        settings_problem="too large",
        restart_keys=("durability",),
        cluster_secrets=("the secret in use", "the secret that comes next"),
    )

    def asked(keys: list[str] | None) -> DescribeConfigSourcesResponse:
        request = DescribeConfigSourcesRequest(keys=keys)
        return harness.call(handle_describe_config_sources, request, 0)

    answer = asked(["num.partitions", "no.such.key", "num.partitions"])
    (key,) = answer.keys
    assert key.name == "num.partitions"
    assert [(each.value, each.origin) for each in key.values] == [
        ("3", "the command line"),
        ("2", "node.toml line 1"),
    ]
    assert (answer.file_problem, answer.restart_keys) == ("not TOML", ["durability"])
    assert answer.settings_problem == "too large"
    assert len(set(answer.secrets)) == 2
    assert all(len(fingerprint) == 4 for fingerprint in answer.secrets)
    assert [each.name for each in asked(None).keys] == ["num.partitions", "x"]
    assert asked(["k"] * 10_001).error_code == ErrorCode.INVALID_REQUEST
    harness.authorizer.denied.add(
        (AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    )
    with pytest.raises(ApiError):
        asked(None)
