"""Connection options, and the texts of connection errors."""

from pathlib import Path

import click
import pytest

from odradek.node.cli.connection import explain, make_connection, parse_properties, split_address
from tests.node.cli.conftest import Run
from tests.support.ports import free_port


def test_an_address_is_host_and_port_also_for_ipv6() -> None:
    assert split_address("kafka-1:9092") == ("kafka-1", 9092)
    assert split_address("[::1]:9092") == ("::1", 9092)


@pytest.mark.parametrize("address", ["kafka", "kafka:", ":9092", "kafka:http", "kafka:70000"])
def test_an_invalid_address_is_a_usage_error(address: str, odradek: Run) -> None:
    ran = odradek("topic", "list", "--bootstrap", address)
    assert ran.exit_code == 2
    assert f"{address!r} is not HOST:PORT" in ran.stderr


def test_properties_of_the_command_line_win_over_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# comment\n\nsecurity.protocol = SSL\nsasl.username=a=b\n")
    connection = make_connection("h:1", 5.0, file, ["security.protocol=SASL_SSL"])
    assert connection.properties == {"security.protocol": "SASL_SSL", "sasl.username": "a=b"}


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
