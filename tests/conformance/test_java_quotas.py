"""Client quotas with Kafka's own kafka-configs: users, clients and ips (KIP-546, KIP-612)."""

import pytest

from tests.conformance.dialogue import unique
from tests.conformance.test_java_tools import CONFIGS, Tool, pytestmark, tool
from tests.support.waiting import wait_until

__all__ = ["pytestmark", "tool"]


def parts(described: str) -> tuple[str, list[str]]:
    """The entity, and its quotas in order: Kafka's tools print them in that of a hash table."""
    entity, _, quotas = described.partition(" are ")
    return entity, sorted(quotas.strip().split(", "))


@pytest.mark.parametrize(
    ("options", "quotas", "text"),
    [
        (
            ("--entity-type", "users", "--entity-name", "{name}"),
            "producer_byte_rate=1024,request_percentage=50.5",
            "Quota configs for user-principal '{name}' are producer_byte_rate=1024.0,"
            " request_percentage=50.5",
        ),
        (
            (
                *("--entity-type", "users", "--entity-name", "{name}"),
                *("--entity-type", "clients", "--entity-default"),
            ),
            "consumer_byte_rate=2048",
            "Quota configs for user-principal '{name}', the default client-id are"
            " consumer_byte_rate=2048.0",
        ),
        (
            ("--entity-type", "clients", "--entity-name", "{name}"),
            "controller_mutation_rate=5.5",
            "Quota configs for client-id '{name}' are controller_mutation_rate=5.5",
        ),
        (
            ("--entity-type", "ips", "--entity-name", "192.0.2.1"),
            "connection_creation_rate=100",
            "Quota configs for ip '192.0.2.1' are connection_creation_rate=100.0",
        ),
    ],
    ids=["user", "user and default client", "client", "ip"],
)
def test_quotas_are_set_described_and_removed(
    tool: Tool, options: tuple[str, ...], quotas: str, text: str
) -> None:
    name = unique("quota")
    entity = [option.format(name=name) for option in options]
    added = tool(CONFIGS, *entity, "--alter", "--add-config", quotas)
    assert "Completed updating config for" in added

    def described() -> str:
        # Of a user it looks for SCRAM credentials as well.
        lines = tool(CONFIGS, *entity, "--describe").splitlines()
        return "\n".join(line for line in lines if line.startswith("Quota configs"))

    # Kafka answers before its brokers know of the change.
    wait_until(lambda: parts(described()) == parts(text.format(name=name)), timeout_s=60)
    keys = ",".join(quota.partition("=")[0] for quota in quotas.split(","))
    removed = tool(CONFIGS, *entity, "--alter", "--delete-config", keys)
    assert "Completed updating config for" in removed
    wait_until(lambda: not described(), timeout_s=60)
