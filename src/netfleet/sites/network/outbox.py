"""A site's messages of this round and of the one before, for as long as a neighbour may ask for them.

A site is never more than one round ahead of a neighbour, because each needs the other's message of every round. So it
keeps the messages of two rounds, and those of the last finished one on disk beside its state. Then any site can be
killed at any moment: when it resumes it asks again for what it lost, and computes the same.
"""

import functools
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from netfleet.compute.host_memory import HostMemory
from netfleet.engines.host import Tag

_PREFIX = "sent/"


@dataclass(frozen=True)
class Message:
    """The bytes of a message, and their description."""

    words: str
    data: Tensor  # [bytes], uint8, in the memory of the host

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256, in hexadecimal."""
        return hashlib.sha256(self.data.numpy().data).hexdigest()


class Outbox:
    """Messages by round and number. Listeners are called whenever one is added."""

    def __init__(self) -> None:
        self._lock, self._memory = threading.Lock(), HostMemory()
        self._messages: dict[Tag, Message] = {}
        self._listeners: list[Callable[[], None]] = []
        self.t = -1  # the round that this site is in

    def copy(self, words: str, data: Tensor) -> Message:
        """A message that can be posted; the data may change afterwards."""
        return Message(words, self._memory.copy(data))

    def post(self, tag: Tag, message: Message) -> None:
        """Serve a message from now on, and delete those of rounds that nobody can ask for any more."""
        with self._lock:
            self.t = max(self.t, tag.t)
            self._messages[tag] = message
            for old in [known for known in self._messages if known.t < tag.t - 1]:
                del self._messages[old]
        self.notify()

    def notify(self) -> None:
        for listener in list(self._listeners):
            listener()

    def get(self, tag: Tag) -> Message | None:
        with self._lock:
            return self._messages.get(tag)

    def last(self) -> Message | None:
        """The first message of the latest round that has one."""
        with self._lock:
            first = [tag for tag in self._messages if tag.call == 0]
            return self._messages[max(first)] if first else None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call the listener for every new message."""
        self._listeners.append(listener)

    def network_state(self, t: int) -> dict[str, Tensor]:
        """The messages of round t, to be saved with the state after it."""
        with self._lock:
            return {
                f"{_PREFIX}{tag.t}/{tag.call}/{message.words}": message.data
                for tag, message in self._messages.items()
                if tag.t == t
            }

    def load_network_state(self, memory: dict[str, Tensor]) -> None:
        """Serve again what was saved."""
        with self._lock:
            for name, data in memory.items():
                if name.startswith(_PREFIX):
                    t, call, words = name.removeprefix(_PREFIX).split("/", 2)
                    self._messages[Tag(int(t), int(call))] = Message(words, data.to("cpu", torch.uint8))
                    self.t = max(self.t, int(t) + 1)
