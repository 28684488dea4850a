"""`odradek quota` against a cluster, ours or Kafka's."""

from uuid import uuid4

import pytest

from tests.node.cli.conftest import Run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e


def listed(kafka: Run, *options: str) -> list[object]:
    rows = kafka("quota", "list", *options, "-o", "json").json()
    assert isinstance(rows, list)
    return rows


def test_quotas_are_set_listed_and_removed(kafka: Run) -> None:
    user = f"user-{uuid4().hex[:8]}"
    done = kafka(
        *("quota", "set", "--user", user, "producer_byte_rate=1MiB", "request_percentage=12.5"),
    )
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"producer_byte_rate, request_percentage set for user {user}\n"
    of_all = kafka("quota", "set", "--user", user, "--default-client-id", "consumer_byte_rate=500")
    assert of_all.exit_code == 0, of_all.stderr
    own = [
        {"user": user, "client_id": None, "ip": None, "quota": key, "value": value}
        for key, value in (("producer_byte_rate", 1_048_576), ("request_percentage", 12.5))
    ]
    other = {
        "user": user,
        "client_id": "<default>",
        "ip": None,
        "quota": "consumer_byte_rate",
        "value": 500,
    }
    # Kafka answers before its brokers know of a change.
    wait_until(lambda: listed(kafka, "--user", user) == [*own, other])
    assert listed(kafka, "--user", user, "--default-client-id") == [other]
    plain = kafka("quota", "list", "--user", user).stdout
    assert "<default>" in plain

    dry = kafka("quota", "remove", "--user", user, "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    gone = kafka("quota", "remove", "--user", user, "request_percentage")
    assert gone.exit_code == 0, gone.stderr
    wait_until(lambda: listed(kafka, "--user", user) == [own[0], other])
    for options in ((), ("--default-client-id",)):
        assert kafka("quota", "remove", "--user", user, *options).exit_code == 0
    wait_until(lambda: not listed(kafka, "--user", user))
    nothing = kafka("quota", "remove", "--user", user)
    assert nothing.exit_code == 1
    assert f"user {user} has no quota" in nothing.stderr
    empty = kafka("quota", "list", "--user", user)
    assert (empty.stdout, empty.stderr) == ("", "There are no such quotas.\n")


def test_addresses_have_a_quota_of_their_own(kafka: Run) -> None:
    address = "192.0.2.77"
    done = kafka("quota", "set", "--ip", address, "connection_creation_rate=20")
    assert done.exit_code == 0, done.stderr
    row = {"user": None, "client_id": None, "ip": address}
    wait_until(
        lambda: (
            listed(kafka, "--ip", address)
            == [{**row, "quota": "connection_creation_rate", "value": 20}]
        )
    )
    assert kafka("quota", "remove", "--ip", address).exit_code == 0
    refused = kafka("quota", "set", "--ip", address, "producer_byte_rate=20")
    assert refused.exit_code == 1
    assert "Invalid configuration key producer_byte_rate (INVALID_REQUEST)" in refused.stderr


def test_what_is_only_checked_is_not_set(kafka: Run) -> None:
    user = f"user-{uuid4().hex[:8]}"
    checked = kafka("quota", "set", "--user", user, "producer_byte_rate=5", "--dry-run")
    assert checked.exit_code == 0, checked.stderr
    refused = kafka("quota", "set", "--user", user, "producer_byte_rate=0", "--dry-run")
    assert refused.exit_code == 1
    assert "Quota producer_byte_rate must be greater than 0" in refused.stderr
    assert not listed(kafka, "--user", user)


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "producer_byte_rate=5"),
        ("remove",),
        ("set", "--user", "a", "--default-user", "producer_byte_rate=5"),
        ("set", "--ip", "127.0.0.1", "--user", "a", "connection_creation_rate=5"),
        ("set", "--user", "", "producer_byte_rate=5"),
        ("set", "--user", "a", "bytes=5"),
        ("set", "--user", "a", "producer_byte_rate=fast"),
        ("set", "--user", "a", "request_percentage=much"),
        ("set", "--user", "a"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(kafka: Run, arguments: tuple[str, ...]) -> None:
    ran = kafka("quota", *arguments)
    assert ran.exit_code == 2
    assert "Error" in ran.stderr
