"""Whether a NetworkPolicy lets a connection through, as a network plugin of Kubernetes decides."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.helm_chart import Manifest

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The other end: a pod in a namespace, or an address outside of the Kubernetes cluster."""

    labels: Labels = field(default_factory=dict)
    namespace: str = ""
    namespace_labels: Labels = field(default_factory=dict)
    address: str = ""


def lets_in(policy: Manifest, peer: Peer, port: int) -> bool:
    """Whether a TCP connection from `peer` to a port of the policy's pods is let in."""
    return _is_allowed(policy, "Ingress", "from", peer, port, "TCP")


def lets_out(policy: Manifest, peer: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection from the policy's pods to a port of `peer` is let out."""
    return _is_allowed(policy, "Egress", "to", peer, port, protocol)


def _is_allowed(
    policy: Manifest, direction: str, end: str, peer: Peer, port: int, protocol: str
) -> bool:
    spec = policy["spec"]
    if direction not in spec["policyTypes"]:
        return True
    namespace = policy["metadata"]["namespace"]
    return any(
        _has_port(rule, port, protocol)
        # Without peers, or with none, a rule is for all.
        and (not rule.get(end) or any(_matches(each, peer, namespace) for each in rule[end]))
        for rule in spec.get(direction.lower(), ())
    )


def _has_port(rule: Manifest, port: int, protocol: str) -> bool:
    return not rule.get("ports") or any(
        each.get("protocol", "TCP") == protocol
        and each["port"] <= port <= each.get("endPort", each["port"])
        for each in rule["ports"]
    )


def _matches(selector: Manifest, peer: Peer, own_namespace: str) -> bool:
    if "ipBlock" in selector:
        network = ipaddress.ip_network(selector["ipBlock"]["cidr"])
        return bool(peer.address) and ipaddress.ip_address(peer.address) in network
    if peer.address:
        return False
    if "namespaceSelector" in selector:
        is_there = _selects(selector["namespaceSelector"], peer.namespace_labels)
    else:
        is_there = peer.namespace == own_namespace
    return is_there and _selects(selector.get("podSelector", {}), peer.labels)


def _selects(selector: Mapping[str, Mapping[str, str]], labels: Labels) -> bool:
    assert selector.keys() <= {"matchLabels"}, "no expressions here"
    return selector.get("matchLabels", {}).items() <= labels.items()
