"""What an API server refuses, or what cannot work, although the schemas of Kubernetes accept it.

Each rule is a function from the objects of a release to sentences that say what is wrong.
tests/helm holds the chart to them, and each rule to an example that breaks it.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tests.support.helm_chart import Manifest, containers, of_kind, pod_specs, pod_template

DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SERVICE_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
DNS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
PORT_NAME: Final = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]*[a-z0-9])?")
ENVIRONMENT_REFERENCE: Final = re.compile(r"\$\((\w+)\)")
STATEFUL_SET_NAME_MAX: Final = 52
"""The label with a revision's hash, behind the name, has at most 63 characters."""
CRON_JOB_NAME_MAX: Final = 52
"""The names of its Jobs have eleven characters more."""
CRON_FIELDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
"""Minute, hour, day, month, day of the week: the smallest and the largest number."""
NODE_PORTS: Final = range(30_000, 32_768)
HANDLERS: Final = frozenset({"httpGet", "exec", "tcpSocket", "grpc", "sleep"})
CLUSTER_KINDS: Final = frozenset({"ClusterRole", "ClusterRoleBinding"})
"""Of objects that are in no namespace."""
MUTABLE: Final = frozenset(
    {
        *("replicas", "ordinals", "template", "updateStrategy", "minReadySeconds"),
        *("persistentVolumeClaimRetentionPolicy", "revisionHistoryLimit"),
    }
)
"""Of a StatefulSet's spec; everything else cannot change."""
UNITS: Final = {
    "": 1,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}

Faults = Iterator[str]
Rule = Callable[[list[Manifest]], Faults]


def name_of(manifest: Manifest) -> str:
    """`Kind name`."""
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def twice(names: Iterable[Any]) -> list[Any]:
    """What is there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a selector that is not empty finds the labels."""
    return bool(selector) and selector.items() <= labels.items()


def quantity(text: str | int | float) -> float:
    """The number of a quantity, as `500m` or `2Gi`."""
    matched = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert matched is not None, text
    return float(matched[1]) * UNITS[matched[2]]


# -- every object ----------------------------------------------------------------------------------


def objects_have_different_names(manifests: list[Manifest]) -> Faults:
    for kind, name in twice((each["kind"], each["metadata"]["name"]) for each in manifests):
        yield f"{kind} {name}: there are two"


def names_are_valid(manifests: list[Manifest]) -> Faults:
    for each in manifests:
        name, kind = each["metadata"]["name"], each["kind"]
        pattern, length_max = DNS_NAME, 253
        if kind == "Service":
            pattern, length_max = SERVICE_NAME, 63
        elif kind == "StatefulSet":
            pattern, length_max = DNS_LABEL, STATEFUL_SET_NAME_MAX
        elif kind == "CronJob":
            pattern, length_max = DNS_LABEL, CRON_JOB_NAME_MAX
        elif kind in ("Pod", "Job"):
            pattern, length_max = DNS_LABEL, 63
        if not pattern.fullmatch(name) or len(name) > length_max:
            yield f"{kind} {name}: the name is not valid, or is longer than {length_max}"


def labels_are_valid(manifests: list[Manifest]) -> Faults:
    labelled = [(name_of(each), each["metadata"].get("labels", {})) for each in manifests]
    labelled += [(where, labels) for where, _, labels in pod_specs(manifests)]
    for where, labels in labelled:
        for key, value in labels.items():
            prefix, _, name = key.rpartition("/")
            if not isinstance(value, str):
                yield f"{where}: label {key} is no text"
            elif len(value) > 63 or (value and not LABEL_NAME.fullmatch(value)):
                yield f"{where}: label {key}={value} is not valid"
            if len(name) > 63 or not LABEL_NAME.fullmatch(name):
                yield f"{where}: {key} is no name of a label"
            if prefix and not DNS_NAME.fullmatch(prefix):
                yield f"{where}: {prefix} is no prefix of a label"
    for each in manifests:
        for key, value in each["metadata"].get("annotations", {}).items():
            if not isinstance(value, str):
                yield f"{name_of(each)}: annotation {key} is no text"


def objects_are_in_the_namespace(manifests: list[Manifest]) -> Faults:
    for each in manifests:
        has_namespace = bool(each["metadata"].get("namespace"))
        if each["kind"] in CLUSTER_KINDS and has_namespace:
            yield f"{name_of(each)}: its kind has no namespace"
        elif each["kind"] not in CLUSTER_KINDS and not has_namespace:
            yield f"{name_of(each)}: it names no namespace"


def roles_are_bound(manifests: list[Manifest]) -> Faults:
    roles = {each["metadata"]["name"] for each in of_kind(manifests, "ClusterRole")}
    accounts = {each["metadata"]["name"] for each in of_kind(manifests, "ServiceAccount")}
    bound = set()
    for each in of_kind(manifests, "ClusterRoleBinding"):
        bound.add(each["roleRef"]["name"])
        for subject in each["subjects"]:
            if subject["name"] not in accounts:
                yield f"{name_of(each)}: there is no service account {subject['name']}"
    for name in sorted(roles ^ bound):
        yield f"ClusterRole {name}: it is not made and bound"


# -- selectors -------------------------------------------------------------------------------------


def selectors_find_pods(manifests: list[Manifest]) -> Faults:
    """Of the StatefulSet its own pods, of the others any."""
    found = [labels for _, _, labels in pod_specs(manifests)]
    for each in manifests:
        spec = each.get("spec", {})
        if each["kind"] == "StatefulSet":
            own = spec["template"]["metadata"]["labels"]
            if not matches(spec["selector"]["matchLabels"], own):
                yield f"{name_of(each)}: its selector does not find its own pods"
        elif each["kind"] == "Service":
            selector = dict(spec["selector"])
            pod = selector.pop("statefulset.kubernetes.io/pod-name", None)
            if pod is not None and pod not in _pod_names(manifests):
                yield f"{name_of(each)}: there is no pod {pod}"
            if not any(matches(selector, labels) for labels in found):
                yield f"{name_of(each)}: its selector finds no pod"
        elif each["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            field = "selector" if each["kind"] == "PodDisruptionBudget" else "podSelector"
            if not any(matches(spec[field]["matchLabels"], labels) for labels in found):
                yield f"{name_of(each)}: its selector finds no pod"


def affinities_find_the_own_pods(manifests: list[Manifest]) -> Faults:
    for where, pod, labels in pod_specs(manifests):
        terms = [term["labelSelector"] for term in pod.get("topologySpreadConstraints", ())]
        apart = pod.get("affinity", {}).get("podAntiAffinity", {})
        hard = apart.get("requiredDuringSchedulingIgnoredDuringExecution", ())
        soft = apart.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        terms += [term["labelSelector"] for term in hard]
        terms += [term["podAffinityTerm"]["labelSelector"] for term in soft]
        for term in terms:
            if not matches(term["matchLabels"], labels):
                yield f"{where}: an affinity or spread does not find its own pods"


def _pod_names(manifests: list[Manifest]) -> set[str]:
    return {
        f"{each['metadata']['name']}-{ordinal}"
        for each in of_kind(manifests, "StatefulSet")
        for ordinal in range(each["spec"]["replicas"])
    }


# -- pods and containers ---------------------------------------------------------------------------


def containers_have_different_names(manifests: list[Manifest]) -> Faults:
    for where, pod, _ in pod_specs(manifests):
        for name in twice(each["name"] for each in containers(pod)):
            yield f"{where}: there are two containers {name}"


def environments_are_unambiguous(manifests: list[Manifest]) -> Faults:
    """No name twice, one source each, and arguments use only what is there."""
    for where, pod, _ in pod_specs(manifests):
        for each in containers(pod):
            place = f"{where}, container {each['name']}"
            variables = each.get("env", [])
            for name in twice(variable["name"] for variable in variables):
                yield f"{place}: {name} is set twice"
            for variable in variables:
                if "value" in variable and "valueFrom" in variable:
                    yield f"{place}: {variable['name']} has a value and a source"
            known = {variable["name"] for variable in variables}
            for text in (*each.get("command", ()), *each.get("args", ())):
                for name in ENVIRONMENT_REFERENCE.findall(text):
                    if name not in known:
                        yield f"{place}: {text} names {name}, which is not set"


def arguments_are_texts(manifests: list[Manifest]) -> Faults:
    for where, pod, _ in pod_specs(manifests):
        for each in containers(pod):
            for text in (*each.get("command", ()), *each.get("args", ())):
                if not isinstance(text, str):
                    yield f"{where}, container {each['name']}: argument {text!r} is no text"


def container_ports_are_different(manifests: list[Manifest]) -> Faults:
    for where, pod, _ in pod_specs(manifests):
        ports = [port for each in pod["containers"] for port in each.get("ports", ())]
        for number in twice((port["containerPort"], port["protocol"]) for port in ports):
            yield f"{where}: port {number[0]} is there twice"
        for name in twice(port["name"] for port in ports):
            yield f"{where}: two ports have the name {name}"
        for port in ports:
            if len(port["name"]) > 15 or not PORT_NAME.fullmatch(port["name"]):
                yield f"{where}: {port['name']} is no name of a port"


def volumes_fit_their_mounts(manifests: list[Manifest]) -> Faults:
    """Each mount has its volume, each volume one source and a mount, each path one mount."""
    for where, pod, _ in pod_specs(manifests):
        volumes = pod.get("volumes", [])
        names = [volume["name"] for volume in volumes]
        names += [claim["metadata"]["name"] for claim in _claims(manifests, where)]
        for name in twice(names):
            yield f"{where}: there are two volumes {name}"
        for volume in volumes:
            if len(volume) != 2:
                yield f"{where}: volume {volume['name']} needs one source"
        mounted = set()
        for each in containers(pod):
            place = f"{where}, container {each['name']}"
            mounts = each.get("volumeMounts", [])
            mounted |= {mount["name"] for mount in mounts}
            for mount in mounts:
                if mount["name"] not in names:
                    yield f"{place}: there is no volume {mount['name']}"
            for path in twice(mount["mountPath"] for mount in mounts):
                yield f"{place}: two volumes are mounted at {path}"
        for name in sorted(set(names) - mounted):
            yield f"{where}: volume {name} is not mounted"


def projected_paths_are_different(manifests: list[Manifest]) -> Faults:
    for where, pod, _ in pod_specs(manifests):
        for volume in pod.get("volumes", ()):
            sources = volume.get("projected", {}).get("sources", ())
            paths = [
                item["path"]
                for source in sources
                for kind in source.values()
                for item in kind.get("items", ())
            ]
            for path in twice(paths):
                yield f"{where}: volume {volume['name']} has two files {path}"


def _claims(manifests: list[Manifest], where: str) -> list[Manifest]:
    return [
        claim
        for each in of_kind(manifests, "StatefulSet")
        if name_of(each) == where
        for claim in each["spec"]["volumeClaimTemplates"]
    ]


def probes_have_one_handler(manifests: list[Manifest]) -> Faults:
    for where, pod, _ in pod_specs(manifests):
        for each in pod["containers"]:
            hooks = {key: each[key] for key in each if key.endswith("Probe")}
            hooks |= each.get("lifecycle", {})
            ports = {port["name"] for port in each.get("ports", ())}
            for name, hook in hooks.items():
                if len(HANDLERS & hook.keys()) != 1:
                    yield f"{where}, container {each['name']}: {name} needs one handler"
                port = hook.get("httpGet", {}).get("port")
                if isinstance(port, str) and port not in ports:
                    yield f"{where}, container {each['name']}: {name} names port {port}"
            seconds = each.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds")
            if seconds is not None and seconds > pod["terminationGracePeriodSeconds"]:
                yield f"{where}: preStop sleeps longer than the grace period"


def requests_are_within_limits(manifests: list[Manifest]) -> Faults:
    for where, pod, _ in pod_specs(manifests):
        for each in containers(pod):
            resources = each.get("resources", {})
            limits = resources.get("limits", {})
            for name, amount in resources.get("requests", {}).items():
                if name in limits and quantity(amount) > quantity(limits[name]):
                    place = f"{where}, container {each['name']}"
                    yield f"{place}: it requests more {name} than its limit"


def pods_are_restricted(manifests: list[Manifest]) -> Faults:
    """The pod security standard `restricted`, and nothing that the root file system would keep."""
    for where, pod, _ in pod_specs(manifests):
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{where}: it has a token of Kubernetes that it does not need"
        if pod.get("enableServiceLinks") is not False:
            yield f"{where}: variables of Services would be taken for settings (ODRADEK_PORT)"
        of_pod = pod.get("securityContext", {})
        if not of_pod.get("runAsNonRoot") or not of_pod.get("seccompProfile"):
            yield f"{where}: runAsNonRoot and seccompProfile must be set"
        for each in containers(pod):
            own = each.get("securityContext", {})
            if (
                own.get("allowPrivilegeEscalation") is not False
                or own.get("capabilities", {}).get("drop") != ["ALL"]
                or not own.get("readOnlyRootFilesystem")
            ):
                yield f"{where}, container {each['name']}: it may do more than it needs"
            writable = {m["mountPath"] for m in each["volumeMounts"] if not m.get("readOnly")}
            if "/tmp" not in writable:
                yield f"{where}, container {each['name']}: /tmp cannot be written"


def referenced_objects_exist(manifests: list[Manifest]) -> Faults:
    """Config maps always are the chart's own. Secrets may be somebody else's: names that begin with
    the release's name are ours."""
    made = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    certified = {each["spec"]["secretName"] for each in of_kind(manifests, "Certificate")}
    names = {each["metadata"]["name"] for each in of_kind(manifests, "StatefulSet")}
    for where, pod, _ in pod_specs(manifests):
        account = pod.get("serviceAccountName", "default")
        if account in names and ("ServiceAccount", account) not in made:
            yield f"{where}: there is no service account {account}"
        for volume in pod.get("volumes", ()):
            wanted = volume.get("configMap", {}).get("name")
            if wanted is not None and ("ConfigMap", wanted) not in made:
                yield f"{where}: there is no config map {wanted}"
            secrets = [volume["secret"]["secretName"]] if "secret" in volume else []
            sources = volume.get("projected", {}).get("sources", ())
            secrets += [source["secret"]["name"] for source in sources if "secret" in source]
            for source in sources:
                config_map = source.get("configMap", {}).get("name")
                # Every namespace has the one with the authority of the API server.
                if config_map not in (None, "kube-root-ca.crt"):
                    yield f"{where}: there is no config map {config_map}"
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", "")
            is_ours = any(claim.startswith(f"{name}-") for name in names)
            if is_ours and ("PersistentVolumeClaim", claim) not in made:
                yield f"{where}: there is no claim {claim}"
            for secret in secrets:
                is_ours = any(secret.startswith(f"{name}-") for name in names)
                if is_ours and ("Secret", secret) not in made and secret not in certified:
                    yield f"{where}: there is no secret {secret}"


def jobs_end(manifests: list[Manifest]) -> Faults:
    for each in manifests:
        if each["kind"] in ("Pod", "Job", "CronJob"):
            spec = each["spec"] if each["kind"] == "Pod" else pod_template(each)["spec"]
            if spec.get("restartPolicy") not in ("Never", "OnFailure"):
                yield f"{name_of(each)}: restartPolicy must be Never or OnFailure"


# -- single kinds ----------------------------------------------------------------------------------


def cron_jobs_are_valid(manifests: list[Manifest]) -> Faults:
    """Schedules of numbers, without names of months and days. A table has one writer."""
    for each in of_kind(manifests, "CronJob"):
        spec = each["spec"]
        fields = spec["schedule"].split()
        if len(fields) != len(CRON_FIELDS) or not all(map(_is_cron_field, fields, CRON_FIELDS)):
            yield f"{name_of(each)}: {spec['schedule']} is no schedule"
        if spec.get("concurrencyPolicy", "Allow") == "Allow":
            yield f"{name_of(each)}: two of its Jobs would run at a time"


def _is_cron_field(text: str, limits: tuple[int, int]) -> bool:
    """`*`, `7`, `1-5`, each with `/2` behind it, and lists of these."""
    for part in text.split(","):
        matched = re.fullmatch(r"(?:\*|(\d+)(?:-(\d+))?)(?:/([1-9]\d*))?", part)
        if matched is None:
            return False
        first, last = (int(number) if number else None for number in matched.group(1, 2))
        if first is not None and not limits[0] <= first <= (last or first) <= limits[1]:
            return False
    return True


def services_are_valid(manifests: list[Manifest]) -> Faults:
    known = {
        port["name"]
        for _, pod, _ in pod_specs(manifests)
        for each in pod["containers"]
        for port in each.get("ports", ())
    }
    node_ports = []
    for each in of_kind(manifests, "Service"):
        spec = each["spec"]
        ports = spec["ports"]
        for name in twice(port["name"] for port in ports):
            yield f"{name_of(each)}: two ports have the name {name}"
        for number, _ in twice((port["port"], port["protocol"]) for port in ports):
            yield f"{name_of(each)}: port {number} is there twice"
        for port in ports:
            if isinstance(port["targetPort"], str) and port["targetPort"] not in known:
                yield f"{name_of(each)}: no container has a port {port['targetPort']}"
            if "nodePort" in port:
                node_ports.append(port["nodePort"])
                if spec["type"] == "ClusterIP" or port["nodePort"] not in NODE_PORTS:
                    yield f"{name_of(each)}: {port['nodePort']} cannot be a port of machines"
        if spec["type"] == "ClusterIP" and "externalTrafficPolicy" in spec:
            yield f"{name_of(each)}: externalTrafficPolicy is for NodePort and LoadBalancer"
        if spec["type"] != "LoadBalancer" and spec.keys() & {
            "loadBalancerClass",
            "loadBalancerSourceRanges",
        }:
            yield f"{name_of(each)}: it is no load balancer"
        for network in spec.get("loadBalancerSourceRanges", ()):
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                yield f"{name_of(each)}: {error}"
    for number in twice(node_ports):
        yield f"port {number} of machines is used twice"


def stateful_sets_are_valid(manifests: list[Manifest]) -> Faults:
    headless = {
        each["metadata"]["name"]
        for each in of_kind(manifests, "Service")
        if each["spec"].get("clusterIP") == "None"
    }
    for each in of_kind(manifests, "StatefulSet"):
        spec = each["spec"]
        if spec["serviceName"] not in headless:
            yield f"{name_of(each)}: there is no headless Service {spec['serviceName']}"
        for name in twice(claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]):
            yield f"{name_of(each)}: there are two claims {name}"
        if spec["template"]["spec"].get("restartPolicy", "Always") != "Always":
            yield f"{name_of(each)}: restartPolicy must be Always"


def disruption_budgets_are_valid(manifests: list[Manifest]) -> Faults:
    for each in of_kind(manifests, "PodDisruptionBudget"):
        if len(each["spec"].keys() & {"minAvailable", "maxUnavailable"}) != 1:
            yield f"{name_of(each)}: it needs either minAvailable or maxUnavailable"


def network_policies_are_valid(manifests: list[Manifest]) -> Faults:
    for each in of_kind(manifests, "NetworkPolicy"):
        for entry in each["spec"].get("ingress", ()):
            for port in entry.get("ports", ()):
                if not isinstance(port["port"], int) and "endPort" in port:
                    yield f"{name_of(each)}: endPort needs a number as port"
                elif port.get("endPort", 65_535) < port["port"] or port.get("endPort", 0) > 65_535:
                    yield f"{name_of(each)}: endPort {port['endPort']} is no end of {port['port']}"
            for peer in entry.get("from", ()):
                if "ipBlock" in peer and len(peer) > 1:
                    yield f"{name_of(each)}: ipBlock excludes selectors"


def routes_lead_to_services(manifests: list[Manifest]) -> Faults:
    ports = {
        (each["metadata"]["name"], port["port"])
        for each in of_kind(manifests, "Service")
        for port in each["spec"]["ports"]
    }
    hosts = []
    for each in of_kind(manifests, "TLSRoute"):
        hosts += each["spec"]["hostnames"]
        for rule in each["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                if (backend["name"], backend["port"]) not in ports:
                    yield f"{name_of(each)}: there is no {backend['name']}:{backend['port']}"
        if not each["spec"]["parentRefs"]:
            yield f"{name_of(each)}: it has no Gateway"
    for host in hosts:
        if not DNS_NAME.fullmatch(host.removeprefix("*.")):
            yield f"{host} is no host of a route"
    for host in twice(hosts):
        yield f"two routes have the host {host}"


def monitors_find_services(manifests: list[Manifest]) -> Faults:
    for each in of_kind(manifests, "ServiceMonitor"):
        spec = each["spec"]
        found = [
            service
            for service in of_kind(manifests, "Service")
            if matches(spec["selector"]["matchLabels"], service["metadata"]["labels"])
        ]
        if len(found) != 1:
            yield f"{name_of(each)}: it finds {len(found)} Services"
        for endpoint in spec["endpoints"]:
            for service in found:
                if endpoint["port"] not in {port["name"] for port in service["spec"]["ports"]}:
                    yield f"{name_of(each)}: {name_of(service)} has no port {endpoint['port']}"


RULES: Final[tuple[Rule, ...]] = (
    *(objects_have_different_names, names_are_valid, labels_are_valid),
    *(objects_are_in_the_namespace, roles_are_bound),
    *(selectors_find_pods, affinities_find_the_own_pods),
    *(containers_have_different_names, environments_are_unambiguous, arguments_are_texts),
    *(container_ports_are_different, volumes_fit_their_mounts, projected_paths_are_different),
    *(probes_have_one_handler, requests_are_within_limits, pods_are_restricted),
    *(referenced_objects_exist, jobs_end, cron_jobs_are_valid),
    *(services_are_valid, stateful_sets_are_valid),
    *(disruption_budgets_are_valid, network_policies_are_valid, routes_lead_to_services),
    monitors_find_services,
)


def immutable_changes(before: list[Manifest], after: list[Manifest]) -> Faults:
    """What an upgrade changes and an API server refuses to change."""
    old = {(each["kind"], each["metadata"]["name"]): each for each in before}
    for each in after:
        known = old.get((each["kind"], each["metadata"]["name"]))
        if known is None:
            continue
        fields: Iterable[str] = ()
        if each["kind"] == "PersistentVolumeClaim":
            # A claim may also ask for more.
            fields = ("accessModes", "storageClassName")
        if each["kind"] == "StatefulSet":
            fields = (known["spec"].keys() | each["spec"].keys()) - MUTABLE
        elif each["kind"] == "Service":
            fields = ("clusterIP",)
        for field in sorted(fields):
            if known["spec"].get(field) != each["spec"].get(field):
                yield f"{name_of(each)}: {field} cannot change"
