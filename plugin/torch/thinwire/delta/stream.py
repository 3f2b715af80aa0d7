"""A stream of messages from a trainer to inference servers.

    publisher = Publisher(model.state_dict())          the trainer
    publisher.publish(model.state_dict())              after each step, or after some
    messages = publisher.since(have)                   for a server with version `have`, or with None
    subscriber = Subscriber(model.state_dict())        the inference server
    subscriber.apply(message)                          sets subscriber.version

How messages travel is up to the caller. The publisher keeps a copy of the weights in host memory and the last
messages. A subscriber holds its weights and one message. Both need a few chunks of 2 M elements more. A
message is applied in place. A model that computes meanwhile would see a mix of both versions, so apply
messages between batches."""

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
    """Returns a message with all weights of `version`, for a subscriber with any version or none."""
    return tensors.encode({}, weights, threads, versions=(None, version))


class Publisher:
    """The newest weights, {name: tensor}, and the last `keep` changes that led to them. Weights may also be
    an iterable of (name, tensor), which makes tensors one by one: only a few are held at a time."""

    def __init__(self, weights: Weights, keep: int = 8, threads: int | None = None):
        self._weights = {name: tensors.on_host(name, one).clone() for name, one in _pairs(weights)}
        self._messages: collections.deque[tuple[Version, bytes]] = collections.deque(maxlen=keep)
        self._threads = threads
        self.version = Version(1, tensors.check_of(self._weights))

    def publish(self, weights: Weights) -> bytes:
        """Make these the newest weights. Returns the message that leads to them from the weights before."""
        version, data = tensors.encode_each(self._weights, _pairs(weights), self.version, self._threads)
        self._weights = tensors.decode(self._weights, data, in_place=True, threads=self._threads)
        self._messages.append((self.version, data))
        self.version = version
        return data

    def since(self, have: Version | None) -> list[bytes]:
        """Returns the messages that lead from version `have` to the newest, in order; [] if `have` is the
        newest. For None or a version that is too old or unknown, returns one message with all weights."""
        if have == self.version:
            return []
        bases = [base for base, _ in self._messages]
        if have in bases:
            return [data for _, data in self._messages][bases.index(have) :]
        return [whole(self._weights, self.version, self._threads)]


class Subscriber:
    """Weights, {name: tensor}, that follow a publisher's in place. version: the weights' version, as the
    publisher numbers it; None before the first message, and if the weights are a mix of versions."""

    def __init__(self, weights: Mapping[str, torch.Tensor], threads: int | None = None):
        self.weights, self._threads = dict(weights), threads
        self._types = {name: tensors.type_of(one) for name, one in weights.items()}
        self.version: Version | None = None

    def apply(self, data: bytes) -> bool:
        """Apply a message. Returns False, and does nothing, if the weights already are the message's new
        version. DeltaError, before anything is written, for a message from another version, for one that is
        damaged or incomplete, and for one with another type of a given tensor. A TornError sets the version
        to None: ask for all weights."""
        return self.ready(message.received(data))()

    def ready(self, received: message.Received) -> Callable[[], bool]:
        """Do all of apply() except writing. Returns a function that writes and returns apply()'s result."""
        versions = received.head.versions
        if versions is None:
            raise DeltaError("the message names no versions: it is not a stream's")
        (old, new), have = versions, self.version
        if new == have:
            return lambda: False
        if old is not None and old != have:
            raise DeltaError("the message is for version %s, these weights are %s"
                             % (old, have or "of no version"))
        for name, spec in received.head.specs.items():
            if spec.dtype != self._types.get(name, spec.dtype):
                raise DeltaError("%s: the message has it as %s, and here it is %s"
                                 % (name, spec.dtype, self._types[name]))
        make = tensors.checked(self.weights, received, in_place=True, threads=self._threads)

        def write() -> bool:
            self.version = None  # stays None if make() fails halfway
            self.weights = make()
            self.version = new
            return True

        return write
