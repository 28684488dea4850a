"""Each rule of tests/support/manifest_rules.py against objects that break it."""

import copy
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.support import manifest_rules as rules

Pod = dict[str, Any]
Objects = list[dict[str, Any]]
LABELS: Final = {"app": "a"}


def container(**changed: object) -> dict[str, Any]:
    return {
        "name": "a",
        "image": "a:1",
        "args": ["run", "--name=$(NAME)"],
        "env": [{"name": "NAME", "value": "a"}],
        "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
        "livenessProbe": {"httpGet": {"path": "/", "port": "http"}},
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "data", "mountPath": "/data"},
            {"name": "config", "mountPath": "/config", "readOnly": True},
        ],
        **changed,
    }


def valid() -> Objects:
    """A StatefulSet with all that belongs to it, without a fault."""
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": "a",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container()],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "config", "configMap": {"name": "a"}},
        ],
        "topologySpreadConstraints": [{"labelSelector": {"matchLabels": LABELS}}],
    }
    specs: list[tuple[str, str, dict[str, Any]]] = [
        (
            "StatefulSet",
            "a",
            {
                "replicas": 1,
                "serviceName": "a-headless",
                "selector": {"matchLabels": LABELS},
                "template": {"metadata": {"labels": LABELS}, "spec": pod},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
            },
        ),
        ("Service", "a-headless", service(clusterIP="None")),
        ("Service", "a-0", service(type="NodePort", nodePort=30_000)),
        ("ServiceAccount", "a", {}),
        ("ConfigMap", "a", {}),
        ("PodDisruptionBudget", "a", {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}}),
        (
            "NetworkPolicy",
            "a",
            {
                "podSelector": {"matchLabels": LABELS},
                "ingress": [{"ports": [{"port": 80, "endPort": 81}], "from": [{"ipBlock": {}}]}],
            },
        ),
        (
            "TLSRoute",
            "a",
            {
                "hostnames": ["a.example"],
                "parentRefs": [{"name": "g"}],
                "rules": [{"backendRefs": [{"name": "a-0", "port": 80}]}],
            },
        ),
        (
            "ServiceMonitor",
            "a",
            {"selector": {"matchLabels": {"kind": "a-headless"}}, "endpoints": [{"port": "http"}]},
        ),
    ]
    in_cluster: Objects = [
        {"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": []},
        {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "r"},
            "roleRef": {"name": "r"},
            "subjects": [{"name": "a"}],
        },
    ]
    return in_cluster + [
        {
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": "n",
                "labels": {**LABELS, "kind": name},
                "annotations": {"b": "c"},
            },
            "spec": spec,
        }
        for kind, name, spec in copy.deepcopy(specs)
    ]


def service(*, type: str = "ClusterIP", nodePort: int | None = None, **more: object) -> Pod:  # noqa: A002, N803, RUF100
    port = {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}
    if nodePort is not None:
        port["nodePort"] = nodePort
    return {"type": type, "selector": LABELS, "ports": [port], **more}


def find(objects: Objects, kind: str) -> Pod:
    return next(each for each in objects if each["kind"] == kind)


def pod_of(objects: Objects) -> Pod:
    spec = find(objects, "StatefulSet")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def first(objects: Objects) -> Pod:
    found = pod_of(objects)["containers"][0]
    assert isinstance(found, dict)
    return found


def in_pod(**changed: object) -> Callable[[Objects], None]:
    return lambda objects: pod_of(objects).update(changed)


def in_container(**changed: object) -> Callable[[Objects], None]:
    return lambda objects: first(objects).update(changed)


def in_spec(kind: str, **changed: object) -> Callable[[Objects], None]:
    return lambda objects: find(objects, kind)["spec"].update(changed)


def in_metadata(kind: str, **changed: object) -> Callable[[Objects], None]:
    return lambda objects: find(objects, kind)["metadata"].update(changed)


def once_more(kind: str) -> Callable[[Objects], None]:
    return lambda objects: objects.append(copy.deepcopy(find(objects, kind)))


def port(**changed: object) -> Pod:
    return {"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", **changed}


def mount(name: str, path: str) -> Pod:
    return {"name": name, "mountPath": path}


def cron_job(name: str = "c", schedule: str = "*/5 1-7,9 * * 0") -> Callable[[Objects], None]:
    """One more object."""
    spec = {
        "schedule": schedule,
        "jobTemplate": {"spec": {"template": {"metadata": {}, "spec": {}}}},
    }
    return lambda objects: objects.append(
        {"kind": "CronJob", "metadata": {"name": name}, "spec": spec}
    )


TWO_PORTS: Final = [
    {"name": "http", "containerPort": number, "protocol": "TCP"} for number in (80, 81)
]
BROKEN: Final[list[tuple[rules.Rule, Callable[[Objects], None], str]]] = [
    (rules.objects_have_different_names, once_more("Service"), "there are two"),
    (rules.names_are_valid, in_metadata("Service", name="x" * 64), "longer than 63"),
    (rules.names_are_valid, in_metadata("StatefulSet", name="x" * 53), "longer than 52"),
    (rules.names_are_valid, in_metadata("ConfigMap", name="A"), "not valid"),
    (rules.labels_are_valid, in_metadata("ConfigMap", labels={"a": "x" * 64}), "not valid"),
    (rules.labels_are_valid, in_metadata("ConfigMap", labels={"a": 1}), "no text"),
    (rules.labels_are_valid, in_metadata("ConfigMap", labels={"A_/b": "c"}), "no prefix"),
    (rules.labels_are_valid, in_metadata("ConfigMap", labels={"-b": "c"}), "no name of a label"),
    (rules.labels_are_valid, in_metadata("ConfigMap", annotations={"a": True}), "no text"),
    (rules.objects_are_in_the_namespace, in_metadata("Service", namespace=""), "no namespace"),
    (
        rules.objects_are_in_the_namespace,
        in_metadata("ClusterRole", namespace="n"),
        "its kind has no namespace",
    ),
    (rules.roles_are_bound, in_metadata("ServiceAccount", name="b"), "no service account a"),
    (rules.roles_are_bound, in_metadata("ClusterRole", name="b"), "not made and bound"),
    (
        rules.selectors_find_pods,
        in_spec("StatefulSet", selector={"matchLabels": {"app": "b"}}),
        "its own pods",
    ),
    (rules.selectors_find_pods, in_spec("Service", selector={"app": "b"}), "finds no pod"),
    (
        rules.selectors_find_pods,
        in_spec("Service", selector={**LABELS, "statefulset.kubernetes.io/pod-name": "a-1"}),
        "there is no pod a-1",
    ),
    (
        rules.selectors_find_pods,
        in_spec("PodDisruptionBudget", selector={"matchLabels": {}}),
        "finds no pod",
    ),
    (
        rules.affinities_find_the_own_pods,
        in_pod(topologySpreadConstraints=[{"labelSelector": {"matchLabels": {"app": "b"}}}]),
        "does not find its own pods",
    ),
    (
        rules.containers_have_different_names,
        in_pod(initContainers=[container()]),
        "two containers a",
    ),
    (
        rules.environments_are_unambiguous,
        in_container(env=[{"name": "NAME", "value": "a"}, {"name": "NAME", "value": "b"}]),
        "NAME is set twice",
    ),
    (
        rules.environments_are_unambiguous,
        in_container(env=[{"name": "NAME", "value": "a", "valueFrom": {}}]),
        "a value and a source",
    ),
    (rules.environments_are_unambiguous, in_container(env=[]), "names NAME, which is not set"),
    (rules.arguments_are_texts, in_container(args=[3]), "argument 3 is no text"),
    (rules.container_ports_are_different, in_container(ports=TWO_PORTS), "have the name http"),
    (
        rules.container_ports_are_different,
        in_container(
            ports=[{"name": name, "containerPort": 80, "protocol": "TCP"} for name in ("a", "b")]
        ),
        "port 80 is there twice",
    ),
    (
        rules.container_ports_are_different,
        in_container(ports=[{"name": "a" * 16, "containerPort": 80, "protocol": "TCP"}]),
        "no name of a port",
    ),
    (
        rules.volumes_fit_their_mounts,
        in_container(volumeMounts=[mount("other", "/other")]),
        "there is no volume other",
    ),
    (
        rules.volumes_fit_their_mounts,
        in_container(volumeMounts=[mount("tmp", "/a"), mount("data", "/a")]),
        "two volumes are mounted at /a",
    ),
    (
        rules.volumes_fit_their_mounts,
        in_container(volumeMounts=[mount("tmp", "/tmp")]),
        "volume config is not mounted",
    ),
    (
        rules.volumes_fit_their_mounts,
        in_pod(volumes=[{"name": "data", "emptyDir": {}}]),
        "two volumes data",
    ),
    (
        rules.volumes_fit_their_mounts,
        in_pod(volumes=[{"name": "tmp", "emptyDir": {}, "secret": {}}]),
        "needs one source",
    ),
    (
        rules.projected_paths_are_different,
        in_pod(
            volumes=[
                {
                    "name": "p",
                    "projected": {
                        "sources": [{"secret": {"name": s, "items": [{"path": "x"}]}} for s in "ab"]
                    },
                }
            ]
        ),
        "two files x",
    ),
    (
        rules.probes_have_one_handler,
        in_container(livenessProbe={"httpGet": {"port": "http"}, "exec": {}}),
        "livenessProbe needs one handler",
    ),
    (
        rules.probes_have_one_handler,
        in_container(lifecycle={"preStop": {}}),
        "preStop needs one handler",
    ),
    (
        rules.probes_have_one_handler,
        in_container(livenessProbe={"httpGet": {"port": "web"}}),
        "names port web",
    ),
    (
        rules.probes_have_one_handler,
        in_container(lifecycle={"preStop": {"sleep": {"seconds": 31}}}),
        "longer than the grace period",
    ),
    (
        rules.requests_are_within_limits,
        in_container(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1G"}}),
        "more memory than its limit",
    ),
    (rules.pods_are_restricted, in_pod(automountServiceAccountToken=True), "has a token"),
    (rules.pods_are_restricted, in_pod(enableServiceLinks=True), "taken for settings"),
    (rules.pods_are_restricted, in_pod(securityContext={}), "runAsNonRoot"),
    (rules.pods_are_restricted, in_container(securityContext={}), "more than it needs"),
    (rules.pods_are_restricted, in_container(volumeMounts=[]), "/tmp cannot be written"),
    (
        rules.referenced_objects_exist,
        in_pod(volumes=[{"name": "config", "configMap": {"name": "b"}}]),
        "no config map b",
    ),
    (
        rules.referenced_objects_exist,
        in_pod(volumes=[{"name": "config", "secret": {"secretName": "a-tls"}}]),
        "no secret a-tls",
    ),
    (
        rules.referenced_objects_exist,
        lambda objects: objects.remove(find(objects, "ServiceAccount")),
        "no service account a",
    ),
    (
        rules.jobs_end,
        lambda objects: objects.append(
            {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": {}}}}
        ),
        "restartPolicy",
    ),
    (rules.jobs_end, cron_job(), "restartPolicy"),
    (rules.names_are_valid, cron_job(name="x" * 53), "longer than 52"),
    (rules.cron_jobs_are_valid, cron_job(schedule="0 0 * *"), "is no schedule"),
    (rules.cron_jobs_are_valid, cron_job(schedule="60 * * * *"), "is no schedule"),
    (rules.cron_jobs_are_valid, cron_job(schedule="1-70/2,5 * * * *"), "is no schedule"),
    (rules.cron_jobs_are_valid, cron_job(schedule="* * 0 * *"), "is no schedule"),
    (rules.cron_jobs_are_valid, cron_job(schedule="*/0 * * * *"), "is no schedule"),
    (rules.cron_jobs_are_valid, cron_job(), "two of its Jobs would run at a time"),
    (
        rules.referenced_objects_exist,
        in_pod(volumes=[{"name": "t", "persistentVolumeClaim": {"claimName": "a-tables"}}]),
        "no claim a-tables",
    ),
    (
        rules.services_are_valid,
        in_spec("Service", ports=[port(), port(port=81)]),
        "two ports have the name http",
    ),
    (
        rules.services_are_valid,
        in_spec("Service", ports=[port(), port(name="b")]),
        "port 80 is there twice",
    ),
    (
        rules.services_are_valid,
        in_spec("Service", ports=[port(targetPort="web")]),
        "no container has a port web",
    ),
    (
        rules.services_are_valid,
        in_spec("Service", ports=[port(nodePort=9092)], type="NodePort"),
        "cannot be a port of machines",
    ),
    (
        rules.services_are_valid,
        in_spec("Service", ports=[port(nodePort=30_000)], type="NodePort"),
        "30000 of machines is used twice",
    ),
    (
        rules.services_are_valid,
        in_spec("Service", externalTrafficPolicy="Local"),
        "is for NodePort and LoadBalancer",
    ),
    (rules.services_are_valid, in_spec("Service", loadBalancerClass="a"), "no load balancer"),
    (
        rules.services_are_valid,
        in_spec("Service", type="LoadBalancer", loadBalancerSourceRanges=["10.0.0.1/8"]),
        "has host bits set",
    ),
    (rules.stateful_sets_are_valid, in_spec("StatefulSet", serviceName="b"), "no headless Service"),
    (
        rules.stateful_sets_are_valid,
        in_spec("StatefulSet", volumeClaimTemplates=[{"metadata": {"name": "data"}}] * 2),
        "two claims data",
    ),
    (rules.stateful_sets_are_valid, in_pod(restartPolicy="Never"), "must be Always"),
    (
        rules.disruption_budgets_are_valid,
        in_spec("PodDisruptionBudget", minAvailable=1),
        "either minAvailable or maxUnavailable",
    ),
    (
        rules.network_policies_are_valid,
        in_spec("NetworkPolicy", ingress=[{"ports": [{"port": 80, "endPort": 79}]}]),
        "79 is no end of 80",
    ),
    (
        rules.network_policies_are_valid,
        in_spec("NetworkPolicy", ingress=[{"ports": [{"port": "http", "endPort": 81}]}]),
        "endPort needs a number",
    ),
    (
        rules.network_policies_are_valid,
        in_spec("NetworkPolicy", ingress=[{"from": [{"ipBlock": {}, "podSelector": {}}]}]),
        "ipBlock excludes",
    ),
    (
        rules.routes_lead_to_services,
        in_spec("TLSRoute", rules=[{"backendRefs": [{"name": "a-0", "port": 81}]}]),
        "there is no a-0:81",
    ),
    (rules.routes_lead_to_services, in_spec("TLSRoute", parentRefs=[]), "no Gateway"),
    (rules.routes_lead_to_services, in_spec("TLSRoute", hostnames=["A b"]), "no host of a route"),
    (rules.routes_lead_to_services, once_more("TLSRoute"), "two routes have the host"),
    (
        rules.monitors_find_services,
        in_spec("ServiceMonitor", selector={"matchLabels": LABELS}),
        "finds 2 Services",
    ),
    (
        rules.monitors_find_services,
        in_spec("ServiceMonitor", endpoints=[{"port": "web"}]),
        "has no port web",
    ),
]


def test_the_example_has_no_fault() -> None:
    assert [fault for rule in rules.RULES for fault in rule(list(valid()))] == []


@pytest.mark.parametrize(("rule", "break_it", "fault"), BROKEN)
def test_a_rule_finds_what_breaks_it(
    rule: rules.Rule, break_it: Callable[[Objects], None], fault: str
) -> None:
    objects = valid()
    break_it(objects)
    found = list(rule(list(objects)))
    assert any(fault in each for each in found), found


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(rules.RULES)


@pytest.mark.parametrize(
    ("kind", "field", "is_refused"),
    [
        ("StatefulSet", "serviceName", True),
        ("StatefulSet", "replicas", False),
        ("Service", "clusterIP", True),
        ("Service", "type", False),
    ],
)
def test_fields_that_cannot_change(kind: str, field: str, is_refused: bool) -> None:
    after = valid()
    find(after, kind)["spec"][field] = "another"
    faults = list(rules.immutable_changes(list(valid()), list(after)))
    assert bool(faults) == is_refused


def test_a_valid_schedule_is_no_fault() -> None:
    objects: Objects = []
    cron_job()(objects)
    objects[0]["spec"]["concurrencyPolicy"] = "Forbid"
    assert list(rules.cron_jobs_are_valid(list(objects))) == []
