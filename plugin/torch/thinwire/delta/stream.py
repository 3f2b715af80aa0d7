"""A stream of messages, from one who trains to those that serve.

    publisher = Publisher(model.state_dict())          who trains
    publisher.publish(model.state_dict())              after each step, or some
    messages = publisher.since(have)                   for a server that has this version, or None
    subscriber = Subscriber(model.state_dict())        who serves
    subscriber.apply(message)                          subscriber.version is what it has

How messages travel is the caller's. The publisher has a copy of the weights in host memory and the last
messages; a subscriber its weights and the message; both a few chunks of 2 M elements beside. While a message
is applied in place, whoever computes with the weights sees some of both versions: apply between batches."""

from __future__ import annotations

import collections
import typing
from collections.abc import Callable, Iterable, Mapping

from . import message, tensors
from .message import Version
from .sources import DeltaError

if typing.TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


def _pairs(weights: Weights) -> Iterable[tuple[str, torch.Tensor]]:
    return weights.items() if isinstance(weights, Mapping) else weights


def whole(weights: Mapping[str, torch.Tensor], version: Version, threads: int | None = None) -> bytes:
    """A message with all weights, which are of that version, for whoever has another one or none."""
    return tensors.encode({}, weights, threads, versions=(None, version))


class Publisher:
    """The newest weights, {name: tensor}, and messages that lead to them from the `keep` versions before.
    Weights may be pairs (name, tensor), too, that are made one after the other: each is let go when the next
    one has come."""

    def __init__(self, weights: Weights, keep: int = 8, threads: int | None = None):
        self._weights = {name: tensors.on_host(name, one).clone() for name, one in _pairs(weights)}
        self._messages: collections.deque[tuple[Version, bytes]] = collections.deque(maxlen=keep)
        self._threads = threads
        self.version = Version(1, tensors.check_of(self._weights))

    def publish(self, weights: Weights) -> bytes:
        """Make these the newest weights. Returns the message that makes them of those before."""
        version, data = tensors.encode_each(self._weights, _pairs(weights), self.version, self._threads)
        self._weights = tensors.decode(self._weights, data, in_place=True, threads=self._threads)
        self._messages.append((self.version, data))
        self.version = version
        return data

    def since(self, have: Version | None) -> list[bytes]:
        """The messages that lead from a version to the newest, in order; none if it is that. For another
        version, or None, one message with all weights."""
        if have == self.version:
            return []
        bases = [base for base, _ in self._messages]
        if have in bases:
            return [data for _, data in self._messages][bases.index(have) :]
        return [whole(self._weights, self.version, self._threads)]


class Subscriber:
    """Weights, {name: tensor}, that follow a publisher's, in their own memory. version: None until all of
    them are known to be a publisher's."""

    def __init__(self, weights: Mapping[str, torch.Tensor], threads: int | None = None):
        self.weights, self._threads = dict(weights), threads
        self.version: Version | None = None

    def apply(self, data: bytes) -> bool:
        """Apply a message; False if the weights are what it leads to already. DeltaError, before anything is
        written, for another version's message and for one that is spoilt or breaks off. After a TornError
        the version is None: ask for all weights."""
        return self.ready(message.received(data))()

    def ready(self, received: message.Received) -> Callable[[], bool]:
        """Do all of apply() but the writing. Returns the function that writes."""
        versions = received.head.versions
        if versions is None:
            raise DeltaError("the message names no versions: it is not a stream's")
        (old, new), have = versions, self.version
        if new == have:
            return lambda: False
        if old is not None and old != have:
            raise DeltaError("the message is for version %s, these weights are %s"
                             % (old, have or "of no version"))
        make = tensors.checked(self.weights, received, in_place=True, threads=self._threads)

        def write() -> bool:
            self.version = None  # until all is done, whatever ends it
            self.weights = make()
            self.version = new
            return True

        return write
