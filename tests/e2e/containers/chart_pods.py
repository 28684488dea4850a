"""Pods of the Helm chart on a Docker engine, as Kubernetes would run them.

A pod's volumes outlive it, its files come from the rendered config maps and secrets in the layout
of a kubelet, and its names are aliases on a network. A thread for each pod does what a kubelet
does: it asks the probes, and starts a container again that ends or fails its liveness probe.
Connections to Services go through the test (service_proxy.py), to pods that are ready: clients in
containers reach them by their names, clients of a test by node ports on localhost.
"""

import shutil
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import docker
from docker.errors import NotFound
from docker.models.containers import Container

from tests.e2e.containers.nodes import LABEL, remove_all
from tests.e2e.containers.service_proxy import Address, ServiceProxy
from tests.support.service_player import PlayedService
from tests.support.stateful_set_player import (
    PlayedContainer,
    PlayedPod,
    PlayedProbe,
    PlayedRollout,
)
from tests.support.waiting import wait_until

WAIT_S: Final = 120.0
LOOK_S: Final = 0.1
"""How often it is looked whether a container runs."""


class ChartPods:
    """Pods by name. `gateway_port` is the port of a Gateway for TLSRoutes; 0 for none."""

    def __init__(
        self, engine: docker.DockerClient, prefix: str, folder: Path, *, gateway_port: int = 0
    ) -> None:
        self._engine = engine
        self._prefix = prefix
        self._folder = folder
        self._gateway_port = gateway_port
        self._kubelets: dict[str, Kubelet] = {}
        self._services: dict[str, PlayedService] = {}
        self._proxies: dict[Address, ServiceProxy] = {}
        self.network = engine.networks.create(prefix, driver="bridge", labels={LABEL: prefix})
        self.network.reload()
        self.address: str = self.network.attrs["IPAM"]["Config"][0]["Gateway"]
        """Of the machine, as its containers see it."""
        self.environment: dict[str, str] = {}
        """Variables that Kubernetes gives every container."""

    @property
    def names(self) -> list[str]:
        """The pods that run, by ordinal."""
        return sorted(self._kubelets)

    @property
    def restarts(self) -> dict[str, int]:
        """How often containers were started again, by pod, of those that were."""
        return {name: each.restarts for name, each in self._kubelets.items() if each.restarts}

    def container(self, name: str) -> Container:
        """The container of a pod."""
        return self._kubelets[name].container

    def pod_address(self, name: str) -> str:
        """The IP address of a pod."""
        return self._kubelets[name].address

    def log(self, name: str) -> str:
        """All that a pod has written."""
        return bytes(self.container(name).logs()).decode(errors="replace")

    # -- Services ----------------------------------------------------------------------------------

    def serve(self, services: Iterable[PlayedService]) -> None:
        """Have these Services and no others."""
        self._services = {each.name: each for each in services}
        for each in self._services.values():
            if each.node_port:
                self._listen(("127.0.0.1", each.node_port), each.name)
            elif not each.server_names and not each.publishes_not_ready:
                # That of the bootstrap Service; those of single brokers have one port in common.
                self._listen((self.address, each.port), each.name)
        if self._gateway_port and (self.address, self._gateway_port) not in self._proxies:
            self._proxies[self.address, self._gateway_port] = ServiceProxy(
                (self.address, self._gateway_port), self._behind_gateway, is_gateway=True
            )

    def _listen(self, address: Address, name: str) -> None:
        if address not in self._proxies:
            self._proxies[address] = ServiceProxy(address, lambda _: self._endpoints(name))

    def _endpoints(self, name: str) -> list[Address]:
        """The addresses behind a Service now."""
        service = self._services.get(name)
        if service is None:
            return []
        kubelets = [self._kubelets[pod] for pod in service.pods if pod in self._kubelets]
        return [
            (each.address, service.target_port)
            for each in kubelets
            if each.address and (each.is_ready or service.publishes_not_ready)
        ]

    def _behind_gateway(self, server_name: str) -> list[Address]:
        for each in list(self._services.values()):
            if server_name in each.server_names:
                return self._endpoints(each.name)
        return []

    def _hosts(self) -> dict[str, str]:
        """The names that lead to the machine: those of Services, and of routes."""
        return {
            name: self.address
            for each in self._services.values()
            for name in (*each.dns_names, *each.server_names)
        }

    # -- pods --------------------------------------------------------------------------------------

    def start(self, pods: Sequence[PlayedPod], rollout: PlayedRollout) -> None:
        """Start pods, all at once or one by one, and wait until their probes say ready."""
        count = len(pods) if rollout.is_parallel else 1

        def start(pod: PlayedPod) -> None:
            self._start(pod)
            if not rollout.is_parallel:
                self.wait_until_ready(pod.name)

        with ThreadPoolExecutor(count) as pool:
            list(pool.map(start, pods))
        for pod in pods:
            self.wait_until_ready(pod.name)

    def wait_until_ready(self, name: str) -> None:
        """Wait until the readiness probe succeeds."""
        kubelet = self._kubelets[name]
        wait_until(
            lambda: kubelet.is_ready or bool(kubelet.failure),
            timeout_s=WAIT_S,
            what=f"{name} is ready",
        )
        assert not kubelet.failure, f"{kubelet.failure}: {self.log(name)[-2000:]}"

    def stop(self, name: str) -> int:
        """Stop a pod as Kubernetes does and remove it; the exit code. It leaves the Services, then
        comes preStop, then SIGTERM; what is left of the grace period is the container's. Its
        volumes stay."""
        kubelet = self._kubelets[name]
        kubelet.stop_probing()
        pod, container = kubelet.pod, kubelet.container
        time.sleep(pod.pre_stop_s)
        container.stop(timeout=pod.stop_s - pod.pre_stop_s)
        code = int(container.wait()["StatusCode"])
        container.remove()
        shutil.rmtree(self._folder / name / "empty", ignore_errors=True)
        del self._kubelets[name]
        return code

    def update(self, pods: Sequence[PlayedPod], rollout: PlayedRollout) -> list[str]:
        """A rolling update; the names of the pods that were replaced, in this order."""
        replaced = []
        for pod in reversed(pods[rollout.partition :]):
            assert self.stop(pod.name) == 0
            self.start([pod], rollout)
            time.sleep(rollout.min_ready_s)
            assert self._kubelets[pod.name].is_ready
            replaced.append(pod.name)
        return replaced

    def write_files(self, pods: Iterable[PlayedPod]) -> None:
        """Give running pods the files of changed config maps and secrets."""
        for pod in pods:
            for container in pod.containers:
                self._mounts(pod.name, container)

    def run(self, pod: PlayedPod) -> tuple[int, str]:
        """Run a pod that ends, its containers in turn: exit code and output of the last one."""
        code, output = 0, ""
        for each in (*pod.initial, *pod.containers):
            code, output = self._run_to_its_end(pod, each)
            if code:
                break
        return code, output

    def remove(self) -> None:
        """Remove all containers, volumes and the network."""
        for kubelet in self._kubelets.values():
            kubelet.stop_probing()
        for proxy in self._proxies.values():
            proxy.close()
        remove_all(self._engine, self._prefix)
        with suppress(NotFound):
            self.network.remove()

    def _start(self, pod: PlayedPod) -> None:
        for each in pod.initial:
            code, output = self._run_to_its_end(pod, each)
            assert code == 0, f"{pod.name}, {each.name}: {output}"
        (main,) = pod.containers
        container = self._create(pod, main)
        container.start()
        self._kubelets[pod.name] = Kubelet(pod, container, self._prefix)

    def _run_to_its_end(self, pod: PlayedPod, spec: PlayedContainer) -> tuple[int, str]:
        container = self._create(pod, spec)
        try:
            container.start()
            code = int(container.wait(timeout=WAIT_S)["StatusCode"])
            return code, bytes(container.logs()).decode(errors="replace")
        finally:
            container.remove(force=True)

    def _create(self, pod: PlayedPod, spec: PlayedContainer) -> Container:
        volumes = self._mounts(pod.name, spec)
        limits: dict[str, object] = {}
        if spec.memory_bytes_max:
            limits |= {"mem_limit": spec.memory_bytes_max, "memswap_limit": spec.memory_bytes_max}
        if spec.cpus_max:
            limits["nano_cpus"] = int(spec.cpus_max * 1e9)
        container = self._engine.containers.create(
            spec.image,
            entrypoint=list(spec.command),
            command=[],
            name=f"{self._prefix}-{pod.name}-{spec.name}",
            hostname=pod.name,
            environment={**self.environment, **spec.environment},
            labels={LABEL: self._prefix},
            user=pod.user,
            read_only=spec.is_root_read_only,
            cap_drop=list(spec.dropped_capabilities),
            security_opt=[] if spec.may_escalate else ["no-new-privileges"],
            volumes=volumes,
            extra_hosts=self._hosts(),
            healthcheck={"test": ["NONE"]},
            network=self._prefix,
            **limits,
        )
        if pod.dns_names and spec in pod.containers:
            self.network.disconnect(container)
            self.network.connect(container, aliases=list(pod.dns_names))
        return container

    def _mounts(self, pod: str, spec: PlayedContainer) -> dict[str, dict[str, str]]:
        """Volumes of the engine, and folders below that of the test."""
        volumes = {}
        for number, mount in enumerate(spec.mounts):
            mode = "ro" if mount.is_read_only else "rw"
            if mount.claim:
                volumes[f"{self._prefix}-{mount.claim}"] = {"bind": mount.path, "mode": mode}
            elif mount.files is None:
                root = self._folder / pod / "empty" / mount.empty
                root.mkdir(parents=True, exist_ok=True)
                root.chmod(0o777)
                volumes[str(root)] = {"bind": mount.path, "mode": mode}
            else:
                root = self._folder / pod / spec.name / str(number)
                write_atomically(root, mount.files)
                volumes[str(root)] = {"bind": mount.path, "mode": mode}
        return volumes


class Kubelet(threading.Thread):
    """Asks the probes of one pod, whose container runs, and starts it again if it has to."""

    def __init__(self, pod: PlayedPod, container: Container, network: str) -> None:
        super().__init__(daemon=True, name=f"kubelet of {pod.name}")
        self.pod = pod
        self.container = container
        self.is_ready = False
        self.restarts = 0
        self.failure = ""
        """Why the container does not come up: it ended before it was ever ready."""
        self._network = network
        self._was_ready = False
        self._ending = threading.Event()
        self.address = self._find_address()
        self.start()

    def stop_probing(self) -> None:
        """The pod ends: it is not ready, and nothing is started again."""
        self._ending.set()
        self.join()
        self.is_ready = False

    def run(self) -> None:
        """Probe until `stop_probing`."""
        probes = [each for each in (self.pod.readiness, self.pod.liveness) if each is not None]
        began = time.monotonic()
        due = [began + (each.period_s if each is self.pod.liveness else 0) for each in probes]
        failures = [0] * len(probes)
        while not self._ending.wait(LOOK_S):
            self.container.reload()
            if self.container.status == "exited":
                if not self._was_ready:
                    self.failure = "the container has ended"
                    return
                self._start_again(None)
                continue
            for number, probe in enumerate(probes):
                if time.monotonic() < due[number]:
                    continue
                # A pod that is not ready is asked more often here, to save the test time.
                is_eager = probe is self.pod.readiness and not self.is_ready
                due[number] = time.monotonic() + (2 * LOOK_S if is_eager else probe.period_s)
                failures[number] = 0 if self._succeeds(probe) else failures[number] + 1
                has_failed = failures[number] >= probe.failure_threshold
                if probe is self.pod.readiness and (has_failed or not failures[number]):
                    self.is_ready = not has_failed
                    self._was_ready = self._was_ready or self.is_ready
                elif has_failed and probe is self.pod.liveness:
                    failures = [0] * len(probes)
                    self._start_again(probe)

    def _start_again(self, failed: PlayedProbe | None) -> None:
        self.is_ready = False
        if failed is not None:
            self.container.stop(timeout=failed.stop_s)
        self.container.start()
        self.address = self._find_address()
        self.restarts += 1

    def _succeeds(self, probe: PlayedProbe) -> bool:
        url = f"http://{self.address}:{probe.port}{probe.path}"
        try:
            with urllib.request.urlopen(url, timeout=probe.timeout_s) as answer:
                return 200 <= int(answer.status) < 400
        except OSError:
            return False

    def _find_address(self) -> str:
        self.container.reload()
        return str(self.container.attrs["NetworkSettings"]["Networks"][self._network]["IPAddress"])


def write_atomically(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a config map or secret as a kubelet does: each is a link through ..data,
    which is a link to a folder that is made anew. Replacing that link changes all files at once."""
    data = folder / "..data"
    if data.exists() and all(
        (data / path).exists() and (data / path).read_bytes() == content
        for path, content in files.items()
    ):
        return
    made = folder / f"..{time.time_ns()}"
    for path, content in files.items():
        file = made / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o444)
    new = folder / "..data_tmp"
    new.symlink_to(made.name)
    old = data.resolve() if data.exists() else None
    new.replace(data)
    for top in {path.partition("/")[0] for path in files}:
        link = folder / top
        if not link.is_symlink():
            link.symlink_to(f"..data/{top}")
    if old is not None:
        shutil.rmtree(old)
