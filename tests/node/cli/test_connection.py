"""Connection options, and the texts of connection errors."""

from pathlib import Path

import click
import pytest

from odradek.node.cli.connection import explain, make_connection, parse_properties, split_address
from odradek.node.embedded import EmbeddedBroker
from tests.node.cli.conftest import Run
from tests.support.ports import free_port


def test_an_address_is_host_and_port_also_for_ipv6() -> None:
    assert split_address("kafka-1:9093") == ("kafka-1", 9093)
    assert split_address("[::1]:9093") == ("::1", 9093)


@pytest.mark.parametrize(
    ("address", "host"), [("kafka-1", "kafka-1"), ("[fe80::1]", "fe80::1"), ("::1", "::1")]
)
def test_a_port_that_is_left_out_is_9092(address: str, host: str) -> None:
    assert split_address(address) == (host, 9092)


@pytest.mark.parametrize(
    "address",
    ["", "kafka:", ":9092", "kafka:http", "kafka:70000", "kafka:0", "a b:1", "[kafka]:1", "a:b:1"],
)
def test_an_invalid_address_is_a_usage_error(address: str, odradek: Run) -> None:
    ran = odradek("topic", "list", "--bootstrap", address)
    assert ran.exit_code == 2
    assert f"{address!r} is not HOST, HOST:PORT or [IPV6]:PORT" in ran.stderr


def test_properties_of_the_command_line_win_over_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# comment\n\nsecurity.protocol = SSL\nsasl.username=a=b\n")
    connection = make_connection("h:1", 5.0, file, ["security.protocol=SASL_SSL"])
    assert connection.properties == {"security.protocol": "SASL_SSL", "sasl.username": "a=b"}


def test_the_addresses_of_a_file_are_used_unless_others_are_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1,b:2\n")
    profile = {"bootstrap.servers": "p:3"}
    found = make_connection("h:1", 5.0, file, (), profile)
    assert (found.bootstrap, found.properties) == ("h:1", {})
    found = make_connection("h:1", 5.0, file, (), profile, is_bootstrap_named=False)
    assert found.addresses == [("a", 1), ("b", 2)]
    found = make_connection("h:1", 5.0, None, (), profile, is_bootstrap_named=False)
    assert found.bootstrap == "p:3"


def test_a_line_without_a_property_is_a_usage_error() -> None:
    with pytest.raises(click.BadParameter, match=r"'oops' in client\.properties is not KEY=VALUE"):
        parse_properties(["oops"], "in client.properties")


def test_an_unreachable_cluster_is_an_error_at_once_with_advice(odradek: Run) -> None:
    ran = odradek("topic", "list", "--bootstrap", f"127.0.0.1:{free_port()}")
    assert ran.exit_code == 1
    assert "Connection refused" in ran.stderr
    assert "odradek serve" in ran.stderr
    assert ran.stdout == ""


def test_only_errors_of_kafka_clients_are_explained() -> None:
    assert explain(KeyError("bug")) is None


@pytest.mark.e2e
def test_a_wrong_client_property_is_an_error_without_a_traceback(kafka: Run) -> None:
    ran = kafka("topic", "list", "-X", "no.such.property=1")
    assert ran.exit_code == 1
    assert "no.such.property" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.e2e
def test_the_cluster_may_be_named_before_the_command(odradek: Run, bootstrap: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    assert odradek("-b", bootstrap, "topic", "list").exit_code == 0
    assert odradek("--bootstrap", bootstrap, "produce", "before", "x").exit_code == 0
    # More special than the environment, less than the command's own option.
    assert odradek("-b", bootstrap, "broker", "list", bootstrap=nobody).exit_code == 0
    assert odradek("-b", nobody, "broker", "list", "-b", bootstrap).exit_code == 0
    assert odradek("-b", nobody, "broker", "list", bootstrap=bootstrap).exit_code == 1
    assert odradek("-b", bootstrap, "doctor").exit_code == 0
    assert odradek("doctor", "-b", bootstrap).exit_code == 0
    assert odradek("doctor", bootstrap=bootstrap).exit_code == 0
    assert odradek("-b", nobody, "doctor", bootstrap).exit_code == 0


@pytest.mark.e2e
def test_properties_may_stand_before_the_command(
    odradek: Run, bootstrap: str, tmp_path: Path
) -> None:
    wrong = ("-X", "no.such.property=1")
    ran = odradek("-b", bootstrap, *wrong, "topic", "list")
    assert ran.exit_code == 1
    assert "no.such.property" in ran.stderr
    file = tmp_path / "client.properties"
    file.write_text("no.such.key=1")
    ran = odradek("-b", bootstrap, "--client-config", str(file), "topic", "list")
    assert "no.such.key" in ran.stderr
    # The last one of a property wins.
    protocol = "security.protocol"
    before = odradek("-X", f"{protocol}=SSL", "topic", "list", "-X", f"{protocol}=plaintext")
    assert "cannot reach the cluster" in before.stderr or before.exit_code == 0


@pytest.mark.e2e
def test_a_broker_is_reached_by_ipv6(tmp_path: Path, odradek: Run) -> None:
    broker = EmbeddedBroker(tmp_path, settings={"listeners": f"PLAINTEXT://[::1]:{free_port()}"})
    with broker:
        address = f"[::1]:{broker.bootstrap_servers.rpartition(':')[2]}"
        assert odradek("produce", "six", "hello", bootstrap=address).exit_code == 0
        assert odradek("consume", "six", bootstrap=address).stdout == "hello\n"
        assert odradek("doctor", address).exit_code == 0
