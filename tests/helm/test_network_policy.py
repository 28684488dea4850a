"""Who reaches which port of a broker under the chart's NetworkPolicy."""

import pytest

from tests.support.helm_chart import NAMESPACE, Manifest, only, pod_specs, rendered
from tests.support.network_policy import Peer, lets_in, lets_out

PEER, LAST_WORKER, CLIENTS, EXTERNAL, HTTP = 9192, 9192 + 64, 9092, 9094, 8080
ALL = {PEER, LAST_WORKER, CLIENTS, EXTERNAL, HTTP}
OUTSIDE = Peer(address="203.0.113.9")
OTHER_POD = Peer(namespace="shop", labels={"app": "shop"})
SAME_NAMESPACE = Peer(namespace=NAMESPACE, labels={"app": "shop"})


def policy(values: str, *settings: str) -> Manifest:
    return only(rendered(values, *settings), "NetworkPolicy")


def broker(values: str) -> Peer:
    labels = only(rendered(values), "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    return Peer(namespace=NAMESPACE, labels=labels)


def ports(found: Manifest, peer: Peer) -> set[int]:
    return {port for port in ALL if lets_in(found, peer, port)}


def test_a_hardened_release_lets_in_who_is_named() -> None:
    found = policy("hardened")
    client = Peer(namespace="shop", namespace_labels={"kafka-clients": "true"})
    prometheus = Peer(
        namespace="monitoring", namespace_labels={"kubernetes.io/metadata.name": "monitoring"}
    )
    assert ports(found, broker("hardened")) == {PEER, LAST_WORKER, CLIENTS}
    assert ports(found, client) == {CLIENTS}
    assert ports(found, prometheus) == {HTTP}
    for stranger in (OTHER_POD, SAME_NAMESPACE, OUTSIDE):
        assert ports(found, stranger) == set()
    assert not lets_in(found, broker("hardened"), LAST_WORKER + 1)


def test_the_commands_of_the_chart_are_clients() -> None:
    settings = "scaleDown.hook=always,scaleUp.hook=always"
    found = policy("hardened", settings)
    names = set()
    for where, _, labels in pod_specs(rendered("hardened", settings)):
        assert lets_in(found, Peer(namespace=NAMESPACE, labels=labels), CLIENTS), where
        names.add(where)
    assert len(names) == 5, "StatefulSet, test, and three Jobs"


def test_without_names_clients_are_let_in_and_nothing_else() -> None:
    found = policy("node-port")
    assert ports(found, OUTSIDE) == {CLIENTS, EXTERNAL}
    assert ports(found, OTHER_POD) == {CLIENTS, EXTERNAL}
    assert ports(found, SAME_NAMESPACE) == {CLIENTS, EXTERNAL, HTTP}


def test_clients_outside_can_be_named() -> None:
    named = "networkPolicy.externalClients[0].ipBlock.cidr=203.0.113.0/24"
    found = policy("node-port", named)
    assert lets_in(found, OUTSIDE, EXTERNAL)
    assert not lets_in(found, Peer(address="198.51.100.1"), EXTERNAL)


@pytest.mark.parametrize("values", ["hardened", "node-port"])
def test_connections_of_brokers_can_be_limited_to_what_they_need(values: str) -> None:
    anywhere = policy(values)
    assert lets_out(anywhere, OUTSIDE, 443)
    rule = "networkPolicy.egress.rules[0].to[0].ipBlock.cidr=198.51.100.0/24"
    found = policy(values, "networkPolicy.egress.enabled=true", rule)
    for port in (PEER, LAST_WORKER, CLIENTS):
        assert lets_out(found, broker(values), port)
        assert not lets_out(found, OTHER_POD, port)
    for protocol in ("UDP", "TCP"):
        assert lets_out(found, Peer(namespace="kube-system"), 53, protocol), "names"
    assert not lets_out(found, OUTSIDE, 443)
    assert lets_out(found, Peer(address="198.51.100.1"), 443), "as an issuer of tokens"
    assert ports(found, broker(values)) >= {PEER, CLIENTS}, "what comes in is as before"
