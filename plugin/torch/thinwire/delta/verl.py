"""Sends changed weights from verl's trainer to its rollout workers, over TCP.

    actor_rollout_ref.rollout.checkpoint_engine.backend=thinwire
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=thinwire.delta.verl

Actor rank 0 publishes. On each host one rollout worker is connected to actor rank 0 and passes messages on to
the host's other workers, so a message crosses the network once per host. A worker that is new or has missed a
version is sent all weights. Each process has one copy of the weights in host memory. Both ends of a
connection prove a secret from verl's own channel. TW_NET_ENCRYPT=y, on all processes, seals messages."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import typing
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import ray
import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

from .link import Link, accept, connect, follow, serve
from .message import Version
from .sender import check_read
from .stream import Publisher, Subscriber, whole

check_read("verl")
_PerWorker = dict[str, list[typing.Any]]  # arguments of init_process_group()


class Place(typing.NamedTuple):
    """The address of an actor or a rollout worker, and the secret for connections to it."""

    host: str
    port: int
    secret: str
    n_breaks: int  # times that its connections broke; if it changes for any worker, all connect anew


@CheckpointEngineRegistry.register("thinwire")
class ThinwireCheckpointEngine(CheckpointEngine):
    """verl's interface; its documentation is verl's. keep: number of the newest changes that are kept for
    workers that are behind. timeout_sec: longest wait for a worker."""

    def __init__(self, bucket_size: int, is_master: bool = False, keep: int = 4, timeout_sec: float = 600.0):
        self._keep, self._timeout_sec = keep, timeout_sec
        self._listener = socket.create_server(("", 0), family=socket.AF_INET)
        self._listener.settimeout(timeout_sec)
        self._place = Place(ray.util.get_node_ip_address(), self._listener.getsockname()[1],
                            secrets.token_hex(32), 0)
        self._topology: object = None
        self._source: Link | None = None  # to the process that sends weights to this one
        self._links: list[Link] = []  # to the workers that this process sends weights to
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
        if topology == self._topology:  # nothing has changed: the last call's connections are still there
            return
        self._close()
        self._rank = rank
        with self._transfer():
            if source is not None:
                self._source = connect((source.host, source.port), source.secret, self._timeout_sec)
            for _ in range(n_links):
                self._links.append(accept(self._listener, self._place.secret, self._timeout_sec))
            self._topology = topology

    def finalize(self) -> None:
        """Do nothing: the connections stay for the next transfer."""

    def _close(self) -> None:
        for one in [*self._links, self._source]:
            if one is not None:
                one.close()
        self._links, self._source, self._topology = [], None, None

    @contextlib.contextmanager
    def _transfer(self) -> Iterator[None]:
        """Context of a transfer. An exception inside closes all connections of this process."""
        try:
            yield
        except BaseException:
            self._close()
            self._place = self._place._replace(n_breaks=self._place.n_breaks + 1)
            raise

    def _publish(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        with self._transfer():
            if self._publisher is None:
                self._publisher = Publisher(weights, self._keep)
            else:
                self._publisher.publish(weights)
            for one in self._links:
                serve(one, self._publisher.since)

    async def send_weights(self, weights, global_steps: int | None = None) -> None:
        loop, gathered = asyncio.get_running_loop(), ensure_async_iterator(weights)

        async def following() -> tuple[str, torch.Tensor] | None:
            return await anext(gathered, None)

        def arriving() -> Iterator[tuple[str, torch.Tensor]]:
            while one := asyncio.run_coroutine_threadsafe(following(), loop).result():
                yield one[0], one[1].detach().cpu()

        try:
            if self._rank == 0:
                await asyncio.to_thread(self._publish, arriving())
        finally:
            async for _ in gathered:  # on all actors, even after an error, as gathering is collective
                pass

    def _follow(self) -> None:
        with self._transfer():
            assert self._source is not None, "init_process_group() comes first"
            base = self._subscriber.version
            messages = follow(self._source, self._subscriber)
            newest = self._subscriber.version
            assert newest is not None, "a publisher has one"

            def since(have: Version | None) -> Sequence[bytes]:
                if have == newest:
                    return []
                return messages if have == base else [whole(self._subscriber.weights, newest)]

            for link in self._links:
                serve(link, since)

    async def receive_weights(self, global_steps: int | None = None
                              ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        await asyncio.to_thread(self._follow)
        for name, one in self._subscriber.weights.items():
            yield name, one
