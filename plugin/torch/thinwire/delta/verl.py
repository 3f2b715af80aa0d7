"""Weights from a trainer of verl's to its rollout workers, as what has changed, over TCP.

    actor_rollout_ref.rollout.checkpoint_engine.backend=thinwire
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=thinwire.delta.verl

Actor rank 0 publishes. Of the rollout workers on a host one is connected to it and hands on what it gets to
the others, so that a message crosses the network once a host. A worker that is new, or has missed a version,
is sent all weights. Each end has the weights in host memory, actor rank 0 twice. Workers prove a secret that
came by way of verl's own channel; what is sent is checked, and not encrypted."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import struct
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

import ray
import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

from .message import Version
from .sources import DeltaError
from .stream import Publisher, Subscriber, whole

_LENGTH = struct.Struct("<Q")
_NONCE_BYTES = 32
_PerWorker = dict[str, list[typing.Any]]  # arguments of init_process_group()
Since = Callable[[Version | None], Sequence[bytes]]  # the messages that lead from a version to the newest


class Place(typing.NamedTuple):
    """Where a worker can be reached, and what proves that one may."""

    host: str
    port: int
    secret: str
    n_breaks: int  # how often its connections have ended: all are made anew when that has changed anywhere


def _proof(place: Place, nonce: bytes) -> bytes:
    return hmac.digest(place.secret.encode(), nonce, "sha256")


class Link:
    """A connection, for bytes with their length before them. OSError if it breaks, or says nothing for
    `timeout_sec`."""

    def __init__(self, connection: socket.socket, timeout_sec: float):
        self._connection = connection
        connection.settimeout(timeout_sec)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self._connection.sendall(_LENGTH.pack(len(data)))
        self._connection.sendall(data)

    def receive(self, most: int = 1 << 62) -> bytes:
        [n] = _LENGTH.unpack(self._take(_LENGTH.size))
        if n > most:
            raise ConnectionError("a message of %d bytes, where %d are the most" % (n, most))
        return self._take(n)

    def _take(self, n: int) -> bytes:
        data = bytearray()
        while len(data) < n:
            part = self._connection.recv(min(n - len(data), 16 << 20))
            if not part:
                raise ConnectionError("the other end has closed")
            data += part
        return bytes(data)

    def close(self) -> None:
        self._connection.close()


def _accept(listener: socket.socket, place: Place, timeout_sec: float) -> Link:
    """The next connection that proves the secret; strangers are sent away."""
    while True:
        link = Link(listener.accept()[0], timeout_sec)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        with contextlib.suppress(OSError):
            link.send(nonce)
            if hmac.compare_digest(link.receive(_NONCE_BYTES), _proof(place, nonce)):
                return link
        link.close()


def _connect(place: Place, timeout_sec: float) -> Link:
    link = Link(socket.create_connection((place.host, place.port), timeout_sec), timeout_sec)
    link.send(_proof(place, link.receive(_NONCE_BYTES)))
    return link


def _serve(links: Iterable[Link], since: Since) -> None:
    """Send each what it lacks."""
    for link in links:
        have = json.loads(link.receive(1 << 10))
        messages = since(have and Version(*have))
        link.send(json.dumps(len(messages)).encode())
        for one in messages:
            link.send(one)


@CheckpointEngineRegistry.register("thinwire")
class ThinwireCheckpointEngine(CheckpointEngine):
    """verl's interface, which says what the methods are for. keep: versions whose changes are kept;
    timeout_sec: how long a worker is waited for."""

    def __init__(self, bucket_size: int, is_master: bool = False, keep: int = 4, timeout_sec: float = 600.0):
        self._keep, self._timeout_sec = keep, timeout_sec
        self._listener = socket.create_server(("", 0), family=socket.AF_INET)
        self._listener.settimeout(timeout_sec)
        self._place = Place(ray.util.get_node_ip_address(), self._listener.getsockname()[1],
                            secrets.token_hex(32), 0)
        self._topology: object = None
        self._source: Link | None = None  # whom the weights come from
        self._links: list[Link] = []  # whom they go to
        self._rank = 0
        self._publisher: Publisher | None = None
        self._subscriber = Subscriber({})

    def prepare(self) -> Place:
        return self._place

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int,
                       metadata: Sequence[Place]) -> tuple[_PerWorker, _PerWorker]:
        workers = metadata[actor_wg_world_size:]
        first: dict[str, Place] = {}  # {host: its first worker}
        for one in workers:
            first.setdefault(one.host, one)
        sources = [metadata[0] if first[one.host] == one else first[one.host] for one in workers]
        actors: _PerWorker = {
            "rank": list(range(actor_wg_world_size)), "source": [None] * actor_wg_world_size,
            "n_links": [len(first)] + [0] * (actor_wg_world_size - 1),
            "topology": [list(metadata)] * actor_wg_world_size}
        return actors, {"rank": [0] * rollout_world_size, "source": sources,
                        "n_links": [sources.count(one) for one in workers],
                        "topology": [list(metadata)] * rollout_world_size}

    def init_process_group(self, rank: int, source: Place | None, n_links: int, topology: object) -> None:
        if topology == self._topology:  # the connections of the last time are there
            return
        self._close()
        self._rank = rank
        with self._transfer():
            if source is not None:
                self._source = _connect(source, self._timeout_sec)
            for _ in range(n_links):
                self._links.append(_accept(self._listener, self._place, self._timeout_sec))
            self._topology = topology

    def finalize(self) -> None:
        """The connections stay for the next time."""

    def _close(self) -> None:
        for one in [*self._links, self._source]:
            if one is not None:
                one.close()
        self._links, self._source, self._topology = [], None, None

    @contextlib.contextmanager
    def _transfer(self) -> Iterator[None]:
        """Whatever fails inside ends the connections."""
        try:
            yield
        except BaseException:
            self._close()
            self._place = self._place._replace(n_breaks=self._place.n_breaks + 1)
            raise

    def _publish(self, weights: dict[str, torch.Tensor]) -> None:
        with self._transfer():
            if self._publisher is None:
                self._publisher = Publisher(weights, self._keep)
            else:
                self._publisher.publish(weights)
            _serve(self._links, self._publisher.since)

    async def send_weights(self, weights, global_steps: int | None = None) -> None:
        gathered = {}
        async for name, one in ensure_async_iterator(weights):  # on all actors, as gathering is collective
            if self._rank == 0:
                gathered[name] = one.detach().cpu()
        if self._rank == 0:
            await asyncio.to_thread(self._publish, gathered)

    def _follow(self) -> None:
        with self._transfer():
            assert self._source is not None, "init_process_group() comes first"
            base = self._subscriber.version
            self._source.send(json.dumps(base).encode())
            messages = [self._source.receive() for _ in range(json.loads(self._source.receive(64)))]
            try:
                for one in messages:
                    self._subscriber.apply(one)
            except DeltaError:
                self._subscriber = Subscriber({})  # the next time all weights are asked for
                raise

            newest = self._subscriber.version
            assert newest is not None, "a publisher has one"

            def since(have: Version | None) -> Sequence[bytes]:
                if have == newest:
                    return []
                return messages if have == base else [whole(self._subscriber.weights, newest)]

            _serve(self._links, since)

    async def receive_weights(self, global_steps: int | None = None
                              ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        await asyncio.to_thread(self._follow)
        for name, one in self._subscriber.weights.items():
            yield name, one
