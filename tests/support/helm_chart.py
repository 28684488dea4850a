"""The Helm chart, rendered by helm itself.

The PATH, .venv/bin or the variable HELM has the program; without it the tests are skipped. The
same arguments render the same text, so each combination is rendered once in a session.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parent.parent.parent
CHART: Final = ROOT / "helm" / "odradek"
VALUES: Final = ROOT / "tests" / "helm" / "values"
VALUES_FILES: Final = tuple(sorted(path.stem for path in VALUES.glob("*.yaml")))
RELEASE: Final = "kafka"
NAMESPACE: Final = "events"
KUBERNETES_VERSION: Final = "1.34.0"
TIMEOUT_S: Final = 120

Manifest = Mapping[str, Any]
"""One object of Kubernetes."""


class ChartError(Exception):
    """Helm refused the chart or its values; the text is helm's."""


def program(name: str, origin: str) -> str:
    """The path of a program; skips the test if there is none, and says where it comes from."""
    own = ROOT / ".venv" / "bin" / name
    found = os.environ.get(name.upper()) or shutil.which(name)
    if found is None and not own.exists():
        pytest.skip(f"needs {name} {origin}, in the PATH, in .venv/bin or as {name.upper()}")
    return found or str(own)


def run_helm(*arguments: str) -> str:
    """What helm prints. Raises ChartError."""
    command = [program("helm", "(go install helm.sh/helm/v3/cmd/helm)"), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if ended.returncode:
        raise ChartError(ended.stderr + ended.stdout)
    return ended.stdout


@cache
def rendered_text(values: str | None, *settings: str, release: str = RELEASE) -> str:
    """The chart with a file of tests/helm/values and further values, as in `replicas=4`."""
    arguments = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES_VERSION]
    if values is not None:
        arguments += ["--values", str(VALUES / f"{values}.yaml")]
    for setting in settings:
        arguments += ["--set", setting]
    return run_helm("template", release, str(CHART), *arguments)


def notes(values: str, folder: Path) -> str:
    """What helm says after an installation, for which it wants a Kubernetes cluster: rendered by a
    copy of the chart in `folder`."""
    chart = folder / CHART.name
    shutil.copytree(CHART, chart)
    (chart / "templates" / "notes.yaml").write_text(
        'kind: Notes\ntext: {{ include "odradek.notes" . | toJson }}\n'
    )
    arguments = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES_VERSION)
    text = run_helm(
        *("template", RELEASE, str(chart), "--show-only", "templates/notes.yaml", *arguments),
        *("--values", str(VALUES / f"{values}.yaml")),
    )
    return str(yaml.safe_load(text)["text"])


def rendered(values: str | None, *settings: str, release: str = RELEASE) -> list[Manifest]:
    """The same, as objects."""
    text = rendered_text(values, *settings, release=release)
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """The objects of one kind."""
    return [each for each in manifests if each["kind"] == kind]


def only(manifests: list[Manifest], kind: str) -> Manifest:
    """The one object of a kind."""
    (found,) = of_kind(manifests, kind)
    return found


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """One object."""
    (found,) = (each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name)
    return found


def pod_specs(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Mapping[str, str]]]:
    """Every pod that the objects make: where it is, its spec and its labels."""
    for each in manifests:
        where = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield where, each["spec"], each["metadata"].get("labels", {})
        elif each["kind"] in ("StatefulSet", "Job", "CronJob"):
            template = pod_template(each)
            yield where, template["spec"], template["metadata"].get("labels", {})


def pod_template(manifest: Manifest) -> Manifest:
    """That of the pods of a StatefulSet, a Job or a CronJob."""
    spec = manifest["spec"]
    found = spec["jobTemplate"]["spec"]["template"] if "jobTemplate" in spec else spec["template"]
    assert isinstance(found, dict)
    return found


def containers(pod: Manifest) -> list[Manifest]:
    """Those that run first, and the others."""
    return [*pod.get("initContainers", ()), *pod["containers"]]
