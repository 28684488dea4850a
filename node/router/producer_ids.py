"""Producer ids: a router allocates them in blocks from the controller (KIP-730).

An id is given once in the life of the cluster. The rest of a block is lost when the router stops.
While a block is requested, all requests for an id wait for it.
"""

from typing import Final

from odradek.cluster.controller.commands import AllocateProducerIds
from odradek.node.bus.reply import Reply
from odradek.node.router.controller_link import ControllerLink
from odradek.node.router.metadata_cache import MetadataCache

_TIMEOUT_MS: Final = 5_000


class ProducerIds:
    """The ids of one router."""

    def __init__(self, metadata: MetadataCache, controller: ControllerLink) -> None:
        self._metadata = metadata
        self._controller = controller
        self._next = 0
        self._end = 0
        self._is_refilling = False
        self._waiting: list[Reply[None]] = []

    async def next_id(self) -> int:
        """An id that was never given before. ApiError if the controller gives none."""
        while self._next == self._end:
            if self._is_refilling:
                reply = Reply[None]()
                self._waiting.append(reply)
                await reply
            else:
                await self._refill()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _refill(self) -> None:
        self._is_refilling = True
        try:
            node_id = self._metadata.node_id
            broker_epoch = self._metadata.image.brokers[node_id].broker_epoch
            command = AllocateProducerIds(node_id, broker_epoch)
            block = await self._controller.submit(command, _TIMEOUT_MS)
            self._next, self._end = block.first, block.first + block.count
        finally:
            self._is_refilling = False
            # The waiting requests try again. If the block failed, the first one requests another.
            waiting, self._waiting = self._waiting, []
            for reply in waiting:
                reply.resolve(None)
