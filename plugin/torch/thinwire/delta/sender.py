"""The trainer's side of a stream to a vLLM server's workers. The trainer tells the server to update its
weights by control calls: through vLLM's own interface (vllm.py), or through TRL's:

    AsyncGRPOTrainer(..., weight_transfer=Transfer(VLLMClient(url), host))        trl.experimental.async_grpo

host: the address of this process for the server's workers. A control call tells each worker the address and a
secret. The worker then connects, and is sent the messages that it lacks."""

from __future__ import annotations

import concurrent.futures
import secrets
import socket
import sys
import time
import typing
from collections.abc import Callable, Iterable

from .link import Link, accept, serve
from .stream import Publisher

if typing.TYPE_CHECKING:
    import torch

READ = {"verl": "0.9.1", "vllm": "0.33.0"}


def check_read(package: str) -> None:
    """Raise ImportError if the imported package is not of the version in READ, which this module is for."""
    found = getattr(sys.modules[package], "__version__", "of no number")
    if found.split("+")[0] != READ[package]:
        raise ImportError("thinwire.delta knows the interface of %s %s; here is %s, whose was not read" % (
            package, READ[package], found))


def register_in_vllm() -> None:
    """Register vllm.py's engines. vLLM calls this in all its processes, by the wheel's entry point."""
    try:
        from vllm.distributed import weight_transfer
        from vllm.distributed.weight_transfer import factory

        trainers = factory.WeightTransferTrainerFactory
    except (ImportError, AttributeError):  # an older vLLM, which has no interface for other engines
        return
    if "thinwire" not in trainers._registry:
        weight_transfer.WeightTransferEngineFactory.register_engine(
            "thinwire", "thinwire.delta.vllm", "ThinwireWeightTransferEngine")
        trainers.register_engine("thinwire", "thinwire.delta.vllm", "ThinwireTrainerWeightTransferEngine")


class Client(typing.Protocol):
    """The control calls of a vLLM server, which vLLM's and TRL's clients have."""

    def init_weight_transfer_engine(self, init_info: dict[str, typing.Any]) -> None: ...
    def start_weight_update(self) -> None: ...
    def update_weights(self, update_info: dict[str, typing.Any]) -> None: ...
    def finish_weight_update(self) -> None: ...


class Sender:
    """Publishes weights, and lets the server's `n_workers` workers update theirs. After an error all links
    are closed; the next send() makes new ones. keep: number of the newest changes that are kept for workers
    that are behind; workers further behind are sent all weights."""

    def __init__(self, client: Client, n_workers: int, host: str, keep: int = 4, timeout_sec: float = 600.0):
        self._client, self._n_workers, self._keep, self._timeout_sec = client, n_workers, keep, timeout_sec
        self._listener = socket.create_server(("", 0))
        self._listener.settimeout(1.0)
        self._info = {"host": host, "port": self._listener.getsockname()[1], "secret": secrets.token_hex(32),
                      "timeout_sec": timeout_sec}
        self._links: list[Link] = []
        self._publisher: Publisher | None = None

    def connect(self) -> None:
        self._during(lambda: self._client.init_weight_transfer_engine(self._info), self._accept)

    def send(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Publish these (name, tensor) pairs, which may be made one by one, and send them to all workers."""
        if self._publisher is None:
            self._publisher = Publisher(weights, self._keep)
        else:
            self._publisher.publish(weights)
        if not self._links:
            self.connect()
        self._client.start_weight_update()
        self._during(lambda: self._client.update_weights({}), self._serve)
        self._client.finish_weight_update()

    def _during(self, call: Callable[[], None], work: Callable[[concurrent.futures.Future], None]) -> None:
        """Run `call`, a control call that returns when the server's workers are done, in a thread, and `work`
        meanwhile. If a link breaks and the call fails, too, raise the call's error: it says more."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            called = pool.submit(call)
            called.add_done_callback(lambda done: self.close() if done.exception() else None)
            try:
                work(called)
                called.result()
            except BaseException as error:
                self.close()
                raise (called.exception() if isinstance(error, OSError) else None) or error from None

    def _accept(self, called: concurrent.futures.Future) -> None:
        end = time.monotonic() + self._timeout_sec
        while len(self._links) < self._n_workers:
            try:
                secret = typing.cast(str, self._info["secret"])
                self._links.append(accept(self._listener, secret, self._timeout_sec))
            except TimeoutError:
                if called.done() or time.monotonic() > end:
                    raise ConnectionError("%d of the server's %d workers have connected" % (
                        len(self._links), self._n_workers)) from None

    def _serve(self, _called: concurrent.futures.Future) -> None:
        assert self._publisher is not None, "send() has made it"
        for one in list(self._links):
            serve(one, self._publisher.since)

    def close(self) -> None:
        while self._links:
            self._links.pop().close()


class Transfer:
    """TRL's interface for `weight_transfer`. client: TRL's client of a vLLM server. The rest: see Sender."""

    def __init__(self, client: typing.Any, host: str, keep: int = 4, timeout_sec: float = 600.0):
        self._client, self._arguments = client, (host, keep, timeout_sec)

    def init_weight_transfer(self) -> None:
        self._client.wait_for_server_ready()
        self._sender = Sender(self._client, self._client.get_world_size(), *self._arguments)
        self._sender.connect()

    def pause(self) -> None:
        self._client.pause()

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._sender.send(iterator)

    def resume(self) -> None:
        self._client.resume()

    def destroy(self) -> None:
        self._sender.close()
