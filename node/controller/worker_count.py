"""How many workers this node shall have: what its broker config `workers` says.

The node's own configuration is its static layer, so that what was set while the node ran goes first
and its deletion brings the node's own back. More than there are stores would own nothing.
"""

from collections.abc import Set
from typing import NamedTuple

from cluster.metadata.image import MetadataImage
from cluster.metadata.settings import broker_settings
from node.config import NodeConfig


class Regrouping(NamedTuple):
    """Another number of workers, and the names of those that end for good."""

    worker_count: int
    ended: Set[str]


class WorkerCount:
    """The number that the node has, or is getting."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._static = config.broker_configs
        self._count = config.worker_count
        self._configs: object = None

    def follow(self, image: MetadataImage) -> Regrouping | None:
        """What is to change now; None for nothing. Costs nothing while no config changes."""
        if image.configs is self._configs:
            return None
        self._configs = image.configs
        config = self._config
        workers = broker_settings(image, config.node_id, self._static).workers
        before, self._count = self._count, min(workers or config.worker_count, config.store_count)
        if self._count == before:
            return None
        return Regrouping(self._count, {f"worker-{n}" for n in range(self._count, before)})
