"""Members of a share group: they acquire records of a partition and acknowledge them."""

from collections.abc import Callable

from odradek.coordinator.share.acknowledgements import AcknowledgeType
from odradek.coordinator.share.acquisition import AcquiredRange
from odradek.protocol.errors import ErrorCode
from tests.simulation.clients import ClientCluster, SimulatedClient
from tests.simulation.cluster_node import ClusterNode
from tests.simulation.share_host import Acknowledgement, ShareAcknowledged, ShareFetched
from tests.simulation.store import Identity

_SILENT_SHARE = 0.08
_TYPES = (AcknowledgeType.ACCEPT,) * 7 + (
    AcknowledgeType.RELEASE,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
)


class ShareMember(SimulatedClient):
    """One consumer of a share group."""

    def __init__(self, cluster: ClientCluster, number: int, identity: Identity) -> None:
        super().__init__(cluster)
        self.name = f"share-{number}"
        self.identity = identity
        self._held: tuple[AcquiredRange, ...] = ()
        self._leader: int | None = None

    def act(self) -> None:
        """Acquire records, or acknowledge them."""
        if self.is_waiting:
            return
        if self._held and self._leader is not None:
            held, self._held = self._held, ()
            # Without an acknowledgement the locks expire, as if the member had died.
            if self.random.random() >= _SILENT_SHARE:
                self._acknowledge(self._leader, held)
            return
        self._leader = self.leader(self.identity)
        if self._leader is not None:
            self._fetch(self._leader)

    def leave(self) -> None:
        """Leave, and join again without records."""
        if self.is_waiting or self._leader is None:
            return
        self._held = ()
        name, identity = self.name, self.identity

        def what(node: ClusterNode, answer: Callable[[object], None]) -> None:
            node.router.shares.release(identity, name)
            answer(None)

        self.ask(self._leader, what, lambda _response: None)

    def _fetch(self, leader: int) -> None:
        name, identity = self.name, self.identity

        def what(node: ClusterNode, answer: Callable[[object], None]) -> None:
            answer(node.router.shares.fetch(identity, name))

        def fetched(response: object) -> None:
            if isinstance(response, ShareFetched) and response.error_code is ErrorCode.NONE:
                self._held = response.acquired

        self.ask(leader, what, fetched)

    def _acknowledge(self, leader: int, held: tuple[AcquiredRange, ...]) -> None:
        name, identity = self.name, self.identity
        batches = [
            Acknowledgement(taken.start, taken.end - 1, [self.random.choice(_TYPES)])
            for taken in held
        ]

        def what(node: ClusterNode, answer: Callable[[object], None]) -> None:
            node.router.shares.acknowledge(identity, name, batches, answer)

        def answered(response: object) -> None:
            assert response is None or isinstance(response, ShareAcknowledged)

        self.ask(leader, what, answered)
