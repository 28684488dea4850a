"""What a connection calls without knowing it: who takes its frames before they are requests, and
who it is handed over to. Implemented by the router.
"""

from typing import Generic, Protocol, TypeVar

S_contra = TypeVar("S_contra", contravariant=True)
"""The place of a request in its connection."""


class ConnectionGate(Protocol, Generic[S_contra]):
    """What frames pass before they are requests: authentication."""

    def takes(self, slot: S_contra, frame: memoryview) -> bool:
        """Complete the slot now or later, or return False: the frame is a request."""


class Handover(Protocol):
    """A connection that is handed over, from the decision until it is taken back."""

    def begin(self) -> None:
        """All responses are written, nothing is read: hand it over, or `take_back` it. Further
        calls have no effect."""

    def recall(self) -> None:
        """The connection is to be closed: `take_back` it as soon as possible."""

    def lost(self) -> None:
        """The connection is closed."""
