"""`odradek doctor`: the problems of addresses, and their advice."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odradek.node.cli.doctor import (
    bootstrap_problems,
    broker_problems,
    certificate_problems,
    cluster_problems,
    installation_text,
    secret_problems,
)
from odradek.node.cli.probe import Address, ProbeResult
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.record_walker import IS_COMPILED
from tests.node.cli.conftest import Run
from tests.support.ports import free_port

OUTSIDE = Address("192.0.2.7", 9092)


@contextmanager
def advertising(folder: Path, address: str) -> Iterator[str]:
    """A broker that advertises another address; its real address."""
    settings = {"advertised.listeners": f"PLAINTEXT://{address}"}
    with EmbeddedBroker(folder, settings=settings) as broker:
        yield broker.bootstrap_servers


@pytest.mark.e2e
def test_a_healthy_cluster_has_no_problem(odradek: Run, bootstrap: str) -> None:
    ran = odradek("doctor", bootstrap, "-o", "json")
    document = ran.json()
    assert isinstance(document, dict)
    assert document["problems"] == []
    assert [row["source"] for row in document["addresses"]] == ["bootstrap", "advertised"]
    assert {row["verdict"] for row in document["addresses"]} == {"ok"}
    assert "Every address can be used" in odradek("doctor", bootstrap).stderr


@pytest.mark.e2e
def test_an_advertised_address_that_refuses_connections_is_a_problem(
    odradek: Run, tmp_path: Path
) -> None:
    with advertising(tmp_path, f"127.0.0.1:{free_port()}") as bootstrap:
        ran = odradek("doctor", bootstrap)
    assert ran.exit_code == 1
    assert "node 0 is advertised at 127.0.0.1:" in ran.stderr
    assert "refused" in ran.stderr
    assert "advertised.listeners of node 0" in ran.stderr


@pytest.mark.e2e
def test_an_advertised_name_that_does_not_resolve_is_a_problem(
    odradek: Run, tmp_path: Path
) -> None:
    with advertising(tmp_path, "kafka-0.invalid:9092") as bootstrap:
        ran = odradek("doctor", bootstrap, "-o", "json")
    assert ran.exit_code == 1
    assert "cannot resolve kafka-0.invalid" in ran.stdout


@pytest.mark.e2e
def test_an_advertised_address_of_another_cluster_is_a_problem(
    odradek: Run, bootstrap: str, tmp_path: Path
) -> None:
    with advertising(tmp_path, bootstrap) as bootstrap_probe:
        ran = odradek("doctor", bootstrap_probe)
    assert ran.exit_code == 1
    assert "another cluster answers" in ran.stderr


def test_an_unreachable_bootstrap_address_is_a_problem(odradek: Run) -> None:
    ran = odradek("doctor", f"127.0.0.1:{free_port()}")
    assert ran.exit_code == 1
    assert "is the broker running" in ran.stderr
    assert odradek("doctor", "not:an:address").exit_code == 2


def test_the_form_of_the_record_check_is_told(odradek: Run) -> None:
    address = f"127.0.0.1:{free_port()}"
    document = json.loads(odradek("doctor", address, "-o", "json").stdout)
    text = installation_text(is_compiled=IS_COMPILED)
    assert (document["is_record_check_compiled"], document["installation"]) == (IS_COMPILED, text)
    assert text in odradek("doctor", address).stdout.splitlines()


def test_an_installation_without_compiled_code_says_what_to_install() -> None:
    assert installation_text(is_compiled=True) == (
        "This installation checks produced records with compiled code."
    )
    text = installation_text(is_compiled=False)
    assert "gcc python3-dev" in text
    assert "\n" not in text


def bootstrap_probe(**brokers: Address) -> ProbeResult:
    return ProbeResult(
        OUTSIDE,
        resolved=(OUTSIDE.host,),
        connected_ms=1.0,
        cluster_id="c",
        controller_id=0,
        brokers={int(name[1:]): address for name, address in brokers.items()},
    )


def test_a_loopback_address_of_a_remote_broker_is_explained() -> None:
    inside = Address("localhost", 9092)
    found = ProbeResult(inside, resolved=("127.0.0.1", "::1"), failure="refused")
    (problem,) = broker_problems(0, found, bootstrap_probe(n0=inside))
    assert "client's own machine" in problem.advice
    assert "192.0.2.7" in problem.advice


@pytest.mark.parametrize("failure", ["name", "refused", "silent", "unreachable", "tls", "closed"])
def test_every_problem_of_a_broker_names_the_config_to_change(failure: str) -> None:
    found = ProbeResult(Address("10.1.2.3", 9092), resolved=("10.1.2.3",), failure=failure)
    (problem,) = broker_problems(3, found, bootstrap_probe(n3=found.address))
    assert "advertised.listeners of node 3" in problem.advice
    assert problem.node == 3


@pytest.mark.parametrize(
    "failure", ["name", "refused", "silent", "unreachable", "closed", "tls", "stranger"]
)
def test_every_problem_of_a_bootstrap_address_has_advice(failure: str) -> None:
    (problem,) = bootstrap_problems(ProbeResult(OUTSIDE, failure=failure))
    assert problem.advice
    assert list(bootstrap_problems(ProbeResult(OUTSIDE))) == []


def test_two_nodes_at_one_address_are_a_problem() -> None:
    (problem,) = cluster_problems(bootstrap_probe(n0=OUTSIDE, n1=OUTSIDE, n2=Address("b", 1)))
    assert "nodes 0 and 1" in problem.problem


def test_a_cluster_without_controller_or_brokers_is_a_problem() -> None:
    headless = bootstrap_probe(n1=OUTSIDE)
    headless.controller_id = -1
    (problem,) = cluster_problems(headless)
    assert "no active controller" in problem.problem
    (problem,) = cluster_problems(bootstrap_probe())
    assert "reports no broker" in problem.problem


def test_a_broker_that_another_does_not_list_is_a_problem() -> None:
    found = ProbeResult(
        Address("b", 1), resolved=("192.0.2.8",), cluster_id="c", brokers={1: OUTSIDE}
    )
    (problem,) = broker_problems(2, found, bootstrap_probe(n2=found.address))
    assert "is unknown" in problem.problem


def test_what_a_broker_says_of_its_configuration_file_is_a_problem() -> None:
    found = ProbeResult(
        OUTSIDE,
        resolved=(OUTSIDE.host,),
        connected_ms=1.0,
        cluster_id="c",
        brokers={0: OUTSIDE},
        file_problem="num.partitons is unknown",
        settings_problem="arena.bytes=5: Cannot allocate memory",
        restart_keys=("durability", "listeners"),
        listener_problems=("listener A: its certificate expires in 3 days",),
        storage_problem="log directory /b is offline: Input/output error",
    )
    listener, refused, settings, storage, restart = broker_problems(
        0, found, bootstrap_probe(n0=OUTSIDE)
    )
    assert settings.problem.endswith("through the cluster: arena.bytes=5: Cannot allocate memory")
    assert storage.problem.endswith("log directory /b is offline: Input/output error")
    assert storage.advice.startswith("Repair its disk, or mount it")
    assert listener.problem == "node 0: listener A: its certificate expires in 3 days"
    assert "refuses its configuration file as it is now: num.partitons" in refused.problem
    assert "needs a restart for durability, listeners" in restart.problem


@pytest.mark.parametrize(
    ("secrets", "says"),
    [
        ([("aaaa",), ("aaaa",), None], ""),
        ([None, None, None], ""),
        ([("aaaa", "bbbb"), ("aaaa",), None], "node 0 has aaaa, then bbbb; node 1 has aaaa"),
        ([("aaaa", "bbbb"), ("bbbb", "aaaa"), ()], "node 2 has none"),
        ([("aaaa", "bbbb"), ("aaaa", "bbbb"), None], "every node accepts two cluster secrets"),
    ],
)
def test_a_secret_that_is_being_replaced_is_a_problem_until_it_is(
    secrets: list[tuple[str, ...] | None], says: str
) -> None:
    problems = list(secret_problems(dict(enumerate(secrets))))
    assert len(problems) == bool(says)
    if says:
        assert says in problems[0].problem


@pytest.mark.parametrize(
    ("days", "says"), [(None, ""), (30.0, ""), (3.2, "expires in 3 days"), (-1.0, "has expired")]
)
def test_a_certificate_that_expires_soon_is_a_problem(days: float | None, says: str) -> None:
    problems = list(
        certificate_problems(ProbeResult(Address("broker", 9093), certificate_days=days))
    )
    assert len(problems) == bool(says)
    if says:
        assert problems[0].problem == f"the certificate of broker:9093 {says}"
