"""What client and server ask of a site's record (`runtime.receipts.SiteReceipts`)."""

from typing import Protocol

from netfleet.privacy.receipts.lines import What
from netfleet.privacy.receipts.state import Key
from netfleet.sites.network.outbox import Message
from netfleet.sites.network.receipt_format import GivenReceipts, Note
from netfleet.sites.network.wire import Expected, Kind

#: What the answer to a request is, for the record.
WHAT: dict[Kind, What] = {Kind.PULL: "message", Kind.MODEL: "model", Kind.FACTS: "facts", Kind.KEY: "key"}


class Receipts(Protocol):
    """Nothing leaves that is not on record, and nobody gets more without confirming what it got before."""

    def offer(self, to: str, key: Key, message: Message) -> Note | None:
        """What to send with a message; its line is on disk when this returns. Raises FrameError if a receipt for an
        earlier message is missing.
        """

    def take(self, giver: str, given: GivenReceipts) -> None:
        """Record a neighbour's receipts; raises FrameError if one of them is not valid."""

    def to_give(self, to: str) -> bytes:
        """Receipts for a neighbour's last messages."""

    def received(self, sender: str, what: What, expected: Expected, data: memoryview, note: Note | None) -> None:
        """Record a message that has arrived; raises FrameError if its note is not valid."""


class NoReceipts:
    """Records nothing: for measurements and for tests of other things."""

    def offer(self, to: str, key: Key, message: Message) -> Note | None:
        return None

    def take(self, giver: str, given: GivenReceipts) -> None: ...

    def to_give(self, to: str) -> bytes:
        return b""

    def received(self, sender: str, what: What, expected: Expected, data: memoryview, note: Note | None) -> None: ...
