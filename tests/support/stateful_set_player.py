"""What Kubernetes makes of a StatefulSet, Pod, Job or CronJob, as containers that any engine runs.

The rendered objects go in, with the content of the Secrets that are not the chart's own; what comes
out has no reference any more: names of pods and their DNS names, commands and environment with
their variables replaced, the files of config maps and secrets, volumes by their claims' names,
users, rights and limits, the probes, how a pod stops and how pods are replaced. It runs nothing
itself (tests/e2e/containers/chart_pods.py does).

Not played: scheduling (affinity, topology spread, priority, disruption budgets), requests of
resources, network policies, seccomp profiles, the owner and
mode of files beyond "readable for the pod's user", service accounts, and the sizes and classes of
volumes. A field of a probe, a volume or a hook that is not known here is a KeyError or an
AssertionError, not silence.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tests.support.helm_chart import Manifest, named, of_kind, only, pod_template
from tests.support.service_player import service_names

Secrets = Mapping[str, Mapping[str, bytes]]
"""The content of Secrets: by their names, by keys."""

SERVICE_ACCOUNT: Final = "(service account)"
"""The name under which `Secrets` have its `token` and the `ca.crt` of the API server."""
_VARIABLE: Final = re.compile(r"\$\((\w+)\)")
_QUANTITY: Final = re.compile(r"([0-9.]+)(\w*)")
_SUFFIXES: Final = {"": 1, "m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20} | {
    "Gi": 2**30
}
_LABEL: Final = re.compile(r"metadata\.labels\['(.+)'\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedMount:
    """A volume at its path: `claim` is the name of a persistent volume, `files` those of a config
    map or secret by relative path; `empty` is the name of a folder that all containers of the pod
    share, and that ends with it."""

    path: str
    is_read_only: bool
    claim: str = ""
    empty: str = ""
    files: Mapping[str, bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedProbe:
    """An HTTP probe. `stop_s` is the grace period of a container that fails it."""

    path: str
    port: int
    period_s: int
    timeout_s: int
    failure_threshold: int
    stop_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedContainer:
    """One container, with everything resolved. A limit that is 0 is none."""

    name: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[PlayedMount, ...]
    is_root_read_only: bool
    dropped_capabilities: tuple[str, ...]
    may_escalate: bool
    memory_bytes_max: int
    cpus_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPod:
    """One pod. `dns_names` are its own, by the headless Service."""

    name: str
    dns_names: tuple[str, ...]
    user: str
    initial: tuple[PlayedContainer, ...]
    containers: tuple[PlayedContainer, ...]
    liveness: PlayedProbe | None = None
    readiness: PlayedProbe | None = None
    pre_stop_s: int = 0
    stop_s: int = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRollout:
    """How pods are started and replaced: all at once or one after the other; the ordinals from
    `partition` on are replaced by an update, the last one first, each when its predecessor has been
    ready for `min_ready_s`."""

    is_parallel: bool
    partition: int
    min_ready_s: int


class Machine(NamedTuple):
    """Where a pod runs."""

    name: str = "machine"
    address: str = "127.0.0.1"


def rollout_of(manifests: list[Manifest]) -> PlayedRollout:
    """Of the StatefulSet."""
    spec = only(manifests, "StatefulSet")["spec"]
    strategy = spec["updateStrategy"]
    is_rolling = strategy["type"] == "RollingUpdate"
    rolling = strategy.get("rollingUpdate", {})
    assert rolling.keys() <= {"partition"}, rolling
    return PlayedRollout(
        is_parallel=spec.get("podManagementPolicy", "OrderedReady") == "Parallel",
        # With OnDelete an update replaces none.
        partition=rolling.get("partition", 0) if is_rolling else spec["replicas"],
        min_ready_s=spec.get("minReadySeconds", 0),
    )


def pods_of_stateful_set(
    manifests: list[Manifest],
    secrets: Secrets,
    *,
    cluster_domain: str = "cluster.local",
    labels: Mapping[str, str] | None = None,
    machines: Sequence[Machine] = (Machine(),),
) -> list[PlayedPod]:
    """The pods by ordinal, on the machines in turn. `labels` are added to them, as Kubernetes adds
    those of the machine."""
    stateful_set = only(manifests, "StatefulSet")
    spec, metadata = stateful_set["spec"], stateful_set["metadata"]
    template = spec["template"]
    pods = []
    for ordinal in range(spec["replicas"]):
        name = f"{metadata['name']}-{ordinal}"
        claims = {
            claim["metadata"]["name"]: f"{claim['metadata']['name']}-{name}"
            for claim in spec["volumeClaimTemplates"]
        }
        own_labels = {
            **template["metadata"]["labels"],
            **(labels or {}),
            "apps.kubernetes.io/pod-index": str(ordinal),
            "statefulset.kubernetes.io/pod-name": name,
        }
        resolver = _Resolver(
            manifests, secrets, name, own_labels, claims, machines[ordinal % len(machines)]
        )
        names = _dns_names(manifests, name, spec["serviceName"], own_labels, cluster_domain)
        pods.append(resolver.pod(template["spec"], tuple(names)))
    return pods


def pod_of(manifests: list[Manifest], kind: str, name: str, secrets: Secrets) -> PlayedPod:
    """The pod of a Pod, a Job, or of the Jobs of a CronJob."""
    manifest = named(manifests, kind, name)
    template = manifest if kind == "Pod" else pod_template(manifest)
    resolver = _Resolver(
        manifests, secrets, name, template["metadata"].get("labels", {}), {}, Machine()
    )
    return resolver.pod(template["spec"], ())


def _dns_names(
    manifests: list[Manifest],
    pod: str,
    governing: str,
    labels: Mapping[str, str],
    cluster_domain: str,
) -> Iterator[str]:
    """The names by the governing Service, if it has them from the pod's start on. A pod of one that
    publishes ready addresses only has none while the quorum forms, so it has none here."""
    service = named(manifests, "Service", governing)
    if not service["spec"].get("publishNotReadyAddresses"):
        return
    if service["spec"]["selector"].items() <= labels.items():
        for name in service_names(service["metadata"], cluster_domain):
            yield name
            yield f"{pod}.{name}"


class _Resolver:
    """Replaces the references of one pod."""

    def __init__(
        self,
        manifests: list[Manifest],
        secrets: Secrets,
        name: str,
        labels: Mapping[str, str],
        claims: Mapping[str, str],
        machine: "Machine",
    ) -> None:
        self._machine = machine
        own = {
            each["metadata"]["name"]: {
                key: base64.b64decode(text) for key, text in each["data"].items()
            }
            for each in of_kind(manifests, "Secret")
        }
        self._secrets = {**own, **secrets}
        self._config_maps = {
            each["metadata"]["name"]: {key: text.encode() for key, text in each["data"].items()}
            for each in of_kind(manifests, "ConfigMap")
        }
        self._name = name
        self._labels = labels
        self._claims = claims

    def pod(self, spec: Manifest, dns_names: tuple[str, ...]) -> PlayedPod:
        context = spec.get("securityContext", {})
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        played = [
            [self._container(each, volumes) for each in spec.get(kind, ())]
            for kind in ("initContainers", "containers")
        ]
        first = spec["containers"][0]
        stop_s = spec.get("terminationGracePeriodSeconds", 30)
        pre_stop = first.get("lifecycle", {}).get("preStop", {})
        assert pre_stop.keys() <= {"sleep"}, pre_stop
        if context.get("runAsNonRoot"):
            assert context.get("runAsUser"), "kubelet refuses to start a container as root"
        return PlayedPod(
            name=self._name,
            dns_names=dns_names,
            user=f"{context.get('runAsUser', 0)}:{context.get('runAsGroup', 0)}",
            initial=tuple(played[0]),
            containers=tuple(played[1]),
            liveness=_probe(first, "livenessProbe", stop_s),
            readiness=_probe(first, "readinessProbe", stop_s),
            pre_stop_s=pre_stop.get("sleep", {}).get("seconds", 0),
            stop_s=stop_s,
        )

    def _container(self, spec: Manifest, volumes: Mapping[str, Manifest]) -> PlayedContainer:
        environment = {each["name"]: self._variable(each) for each in spec.get("env", ())}
        words = (*spec.get("command", ()), *spec.get("args", ()))
        context = spec.get("securityContext", {})
        limits = spec.get("resources", {}).get("limits", {})
        return PlayedContainer(
            name=spec["name"],
            image=spec["image"],
            command=tuple(
                _VARIABLE.sub(lambda found: environment.get(found[1], found[0]), word)
                for word in words
            ),
            environment=environment,
            mounts=tuple(self._mount(each, volumes) for each in spec.get("volumeMounts", ())),
            is_root_read_only=bool(context.get("readOnlyRootFilesystem")),
            dropped_capabilities=tuple(context.get("capabilities", {}).get("drop", ())),
            may_escalate=bool(context.get("allowPrivilegeEscalation", True)),
            memory_bytes_max=int(_quantity(limits.get("memory", 0))),
            cpus_max=_quantity(limits.get("cpu", 0)),
        )

    def _variable(self, variable: Manifest) -> str:
        source = variable.get("valueFrom")
        if source is None:
            return str(variable.get("value", ""))
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            return self._secrets[reference["name"]][reference["key"]].decode()
        path = source["fieldRef"]["fieldPath"]
        if label := _LABEL.fullmatch(path):
            return self._labels.get(label[1], "")
        return {
            "metadata.name": self._name,
            "status.hostIP": self._machine.address,
            "spec.nodeName": self._machine.name,
        }[path]

    def _mount(self, mount: Manifest, volumes: Mapping[str, Manifest]) -> PlayedMount:
        path, is_read_only = mount["mountPath"], bool(mount.get("readOnly"))
        if mount["name"] in self._claims:
            claim = self._claims[mount["name"]]
            return PlayedMount(path=path, is_read_only=is_read_only, claim=claim)
        volume = volumes[mount["name"]]
        if "emptyDir" in volume:
            return PlayedMount(path=path, is_read_only=is_read_only, empty=mount["name"])
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            return PlayedMount(path=path, is_read_only=is_read_only, claim=claim)
        files = dict(self._files(volume))
        # Config maps and secrets are always read-only.
        return PlayedMount(path=path, is_read_only=True, files=files)

    def _files(self, volume: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
        if "configMap" in volume:
            source = volume["configMap"]
            yield from _chosen(self._config_maps[source["name"]], source)
        elif "secret" in volume:
            source = volume["secret"]
            yield from _chosen(self._secrets[source["secretName"]], source)
        else:
            for each in volume["projected"]["sources"]:
                if "serviceAccountToken" in each:
                    token = self._secrets[SERVICE_ACCOUNT]["token"]
                    yield each["serviceAccountToken"]["path"], token
                elif "configMap" in each:
                    assert each["configMap"]["name"] == "kube-root-ca.crt"
                    yield from _chosen(self._secrets[SERVICE_ACCOUNT], each["configMap"])
                else:
                    yield from _chosen(self._secrets[each["secret"]["name"]], each["secret"])


def _probe(container: Manifest, kind: str, stop_s: int) -> PlayedProbe | None:
    spec = dict(container.get(kind, {}))
    if not spec:
        return None
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    handler = spec.pop("httpGet")
    played = PlayedProbe(
        path=handler["path"],
        port=ports[handler["port"]],
        period_s=spec.pop("periodSeconds", 10),
        timeout_s=spec.pop("timeoutSeconds", 1),
        failure_threshold=spec.pop("failureThreshold", 3),
        stop_s=spec.pop("terminationGracePeriodSeconds", stop_s),
    )
    assert not spec, f"{kind} has {spec}"
    return played


def _quantity(text: str | float) -> float:
    """A quantity of Kubernetes, as 500m or 2Gi."""
    found = _QUANTITY.fullmatch(str(text))
    assert found, text
    return float(found[1]) * _SUFFIXES[found[2]]


def _chosen(content: Mapping[str, bytes], source: Manifest) -> Iterator[tuple[str, bytes]]:
    """The items of a source, or all of its keys. A missing key is a KeyError: the pod would not
    start."""
    if "items" not in source:
        yield from content.items()
        return
    for item in source["items"]:
        yield item["path"], content[item["key"]]
