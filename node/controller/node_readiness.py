"""When this node serves, is ready, may stop, and how many workers it has.

    condition                                              follows
    ---------------------------------------------------------------------------------------------
    this broker is registered                              its processes get the metadata
    and not fenced                                         ready is reported to the supervisor
    its replicas are in sync, once after the start         probes say ready (catch_up.py)
    the controlled shutdown is done, and all processes
    have applied its last offset                           the supervisor may stop the node
    the config `workers` has changed                       the supervisor changes their number
    a setting of the node is set through the cluster       the supervisor has it take effect

Called by the controller's process in every turn.
"""

from collections.abc import Set

from odradek.cluster.metadata.image import BrokerImage, MetadataImage
from odradek.cluster.metadata.settings import broker_settings
from odradek.node.config import NodeConfig
from odradek.node.controller.bootstrap import min_insync_warning
from odradek.node.controller.broker_lifecycle import BrokerLifecycle
from odradek.node.controller.catch_up import CatchUpLook
from odradek.node.controller.metadata_publisher import MetadataPublisher
from odradek.node.node_overrides import node_overrides
from odradek.node.observability import (
    CatchUpReport,
    ProcessReady,
    ResizeWorkers,
    SettingsOverridden,
    ShutdownAllowed,
    SupervisorLink,
)
from odradek.node.structured_log import get_logger

CATCH_UP_LOOK_MS = 500
PARTITIONS_PER_TURN = 10_000
"""About 5 ms."""

log = get_logger(__name__)


class NodeReadiness:
    """See the module's docstring."""

    def __init__(
        self,
        config: NodeConfig,
        supervisor: SupervisorLink,
        *,
        lifecycle: BrokerLifecycle,
        publisher: MetadataPublisher,
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._lifecycle = lifecycle
        self._publisher = publisher
        self._expected = node_processes(config, config.worker_count)
        self._worker_count = config.worker_count
        self._is_complete = False
        self._is_ready = False
        self._has_released = False
        self._has_caught_up = not config.is_clustered
        self._catch_up_look: CatchUpLook | None = None
        self._catch_up_due_ms = 0
        self._told_behind = ""
        self._now_ms = 0
        self._applied_configs: object = None
        self._overrides: dict[str, str] | None = None
        """What the supervisor was told last."""

    def follow(self, config: NodeConfig) -> None:
        """The configuration of this node has changed while it runs."""
        self._config = config
        self._applied_configs = None

    def tick(self, image: MetadataImage, now_ms: int) -> None:
        """Send heartbeats and liveness checks that are due; report that the node may stop."""
        self._now_ms = now_ms
        lifecycle, publisher = self._lifecycle, self._publisher
        # Once: a process that restarts quickly does not make the node ask to be fenced.
        self._is_complete |= self._expected <= publisher.names
        publisher.tick(now_ms)
        applied = publisher.applied_offset(image)
        is_complete = self._is_complete and not publisher.liveness.unresponsive
        lifecycle.tick(now_ms, offset=applied, is_complete=is_complete)
        offset = lifecycle.shutdown_offset
        if offset is not None and applied >= offset and not self._has_released:
            self._has_released = True
            self._supervisor.send(ShutdownAllowed())

    def serve(self, image: MetadataImage) -> None:
        """Serve if this broker is registered in `image`; apply its configs."""
        broker = self._registration(image)
        self._publisher.is_serving |= broker is not None
        self._publisher.serve_waiting(image)
        if broker is not None and not broker.is_fenced and not self._is_ready:
            self._is_ready = True
            # Before: a probe must not come between the two.
            self._report_catch_up(image)
            if (warning := min_insync_warning(self._config, image)) is not None:
                log.warning("too few replicas for min.insync.replicas", reason=warning)
            self._supervisor.send(ProcessReady())
        if self._is_ready and not self._has_caught_up:
            self._report_catch_up(image)
        if self._is_ready and image.configs is not self._applied_configs:
            self._applied_configs = image.configs
            self._resize_workers(image)
            overrides = node_overrides(image, self._config.node_id)
            if overrides != self._overrides:
                self._overrides = overrides
                self._supervisor.send(SettingsOverridden(overrides))

    def _report_catch_up(self, image: MetadataImage) -> None:
        """Tell the supervisor what this node lacks, for its probes."""
        if self._catch_up_look is None:
            if self._has_caught_up or self._now_ms < self._catch_up_due_ms:
                return
            self._catch_up_due_ms = self._now_ms + CATCH_UP_LOOK_MS
            self._catch_up_look = CatchUpLook(image, self._config.node_id)
        if self._catch_up_look.proceed(PARTITIONS_PER_TURN):
            problem = self._catch_up_look.problem
            self._catch_up_look = None
        else:
            problem = self._told_behind or "the replicas of this node are not all looked at yet"
        self._has_caught_up = not problem
        if self._has_caught_up or problem != self._told_behind:
            self._told_behind = problem
            self._supervisor.send(CatchUpReport(problem))

    def _registration(self, image: MetadataImage) -> BrokerImage | None:
        broker = self._lifecycle.broker(image)
        if broker is None and self._lifecycle.is_refused and not self._config.is_clustered:
            # The disk is full. An earlier start's registration is enough for clients to read.
            return image.brokers.get(self._config.node_id)
        return broker

    def _resize_workers(self, image: MetadataImage) -> None:
        config = self._config
        workers = broker_settings(image, config.node_id, config.broker_configs).workers
        count = min(workers or config.worker_count, config.store_count)
        if count != self._worker_count:
            self._publisher.forget({f"worker-{n}" for n in range(count, self._worker_count)})
            self._worker_count = count
            if config.is_clustered:
                self._publisher.liveness.set_expected(node_processes(config, count))
            self._lifecycle.resize_workers(count)
            self._supervisor.send(ResizeWorkers(count))


def node_processes(config: NodeConfig, worker_count: int) -> Set[str]:
    """The processes of this node that apply the metadata."""
    workers = {f"worker-{index}" for index in range(worker_count)}
    return workers | {f"router-{index}" for index in range(config.router_count)}
