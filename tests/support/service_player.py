"""What Kubernetes makes of Services and TLSRoutes: where connections to a name or a port may end.

The rendered objects go in; what comes out names pods and their ports only. A headless Service is
no `PlayedService`: its names are those of the pods (stateful_set_player.py). Nothing is run here.
Not played: session affinity, traffic policies (every pod is on the one machine), node selectors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.support.helm_chart import Manifest, of_kind, only


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedService:
    """A Service of one port. `pods` may take a connection, once they are ready or, with
    `publishes_not_ready`, at any time. `node_port` is 0 without one; `server_names` are the hosts
    of TLSRoutes that lead here."""

    name: str
    dns_names: tuple[str, ...]
    pods: tuple[str, ...]
    port: int
    target_port: int
    node_port: int
    publishes_not_ready: bool
    server_names: tuple[str, ...]


def services_of(
    manifests: list[Manifest], *, cluster_domain: str = "cluster.local"
) -> list[PlayedService]:
    """All Services that are not headless."""
    stateful_set = only(manifests, "StatefulSet")
    template = stateful_set["spec"]["template"]
    (container,) = template["spec"]["containers"]
    container_ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    pods = {
        name: {
            **template["metadata"]["labels"],
            "apps.kubernetes.io/pod-index": str(ordinal),
            "statefulset.kubernetes.io/pod-name": name,
        }
        for ordinal in range(stateful_set["spec"]["replicas"])
        for name in [f"{stateful_set['metadata']['name']}-{ordinal}"]
    }
    found = []
    for service in of_kind(manifests, "Service"):
        spec, metadata = service["spec"], service["metadata"]
        if spec.get("clusterIP") == "None":
            continue
        (port,) = spec["ports"]
        found.append(
            PlayedService(
                name=metadata["name"],
                dns_names=tuple(service_names(metadata, cluster_domain)),
                pods=tuple(
                    name
                    for name, labels in pods.items()
                    if spec["selector"].items() <= labels.items()
                ),
                port=port["port"],
                target_port=container_ports[port["targetPort"]],
                node_port=port.get("nodePort", 0),
                publishes_not_ready=bool(spec.get("publishNotReadyAddresses")),
                server_names=tuple(_server_names(manifests, metadata["name"])),
            )
        )
    return found


def service_names(metadata: Mapping[str, str], cluster_domain: str) -> Iterator[str]:
    """The DNS names of a Service, in its own namespace."""
    name, namespace = metadata["name"], metadata["namespace"]
    for suffix in ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.{cluster_domain}"):
        yield f"{name}{suffix}"


def _server_names(manifests: list[Manifest], service: str) -> Iterator[str]:
    for route in of_kind(manifests, "TLSRoute"):
        for rule in route["spec"]["rules"]:
            if any(backend["name"] == service for backend in rule["backendRefs"]):
                yield from route["spec"]["hostnames"]
