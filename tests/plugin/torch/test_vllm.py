"""delta/vllm.py and sender.py: vLLM's weight transfer, with vLLM where it is installed, else with what the
engines ask of it; and TRL's client, of the same calls."""

import concurrent.futures
import contextlib
import dataclasses
import http.server
import importlib.util
import json
import subprocess
import sys
import threading
import types
import typing

import pytest
import torch
from thinwire import delta
from thinwire.delta import sender

MODULES = ("vllm", *("vllm." + name for name in (
    "distributed", "distributed.weight_transfer", "distributed.weight_transfer.base",
    "distributed.weight_transfer.factory", "model_executor", "model_executor.model_loader",
    "model_executor.model_loader.mtp_validation", "model_executor.model_loader.reload")))
Init, Update = typing.TypeVar("Init"), typing.TypeVar("Update")


class Engine(typing.Generic[Init, Update]):
    def __init__(self, config, vllm_config, device, model):
        self.device, self.model, self.model_config = device, model, None

    def parse_init_info(self, found):
        return self.init_info_cls(**found)

    def update_weights(self, found):
        self.receive_weights(self.update_info_cls(**found))


class TrainerEngine(typing.Generic[Init]):
    def __init__(self, *, client, source=None, is_sender=True, rank=0):
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank


@dataclasses.dataclass
class TrainerInitInfo:
    rank: int = dataclasses.field(kw_only=True)

    @property
    def is_sender(self):
        return self.rank == 0


class Factory:
    def __init__(self):
        self._registry = {}

    def register_engine(self, name, module, kind):
        assert name not in self._registry
        self._registry[name] = lambda: getattr(importlib.import_module(module), kind)


def stand_ins():
    """What the engines import, as vLLM 0.33.0 has it; `reloads` says when its models were reloaded."""
    made = {name: types.ModuleType(name) for name in MODULES}
    for name, module in made.items():
        if "." in name:
            setattr(made[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    made["vllm"].__version__ = "0.33.0"
    base, factory, reload = made[MODULES[3]], made[MODULES[4]], made[MODULES[8]]
    base.WeightTransferEngine, base.TrainerWeightTransferEngine = Engine, TrainerEngine
    base.TrainerInitInfo = TrainerInitInfo
    for name in ("WeightTransferInitInfo", "WeightTransferUpdateInfo", "VLLMWeightSyncClient",
                 "WeightSource"):
        setattr(base, name, type(name, (), {}))
    factory.WeightTransferTrainerFactory = Factory()
    factory.WeightTransferEngineFactory = made[MODULES[2]].WeightTransferEngineFactory = Factory()
    made[MODULES[7]].disable_mtp_completeness_check = contextlib.nullcontext
    reload.initialize_layerwise_reload = lambda model: model.seen.append("begin")
    reload.finalize_layerwise_reload = lambda model, _config: model.seen.append("end")
    return made


@pytest.fixture(scope="module")
def factories():
    """vLLM's, in which the wheel's entry point has registered both engines."""
    if importlib.util.find_spec("vllm") is None:
        sys.modules |= stand_ins()
    for _ in range(2):  # vLLM may call it again
        sender.register_in_vllm()
    from vllm.distributed.weight_transfer import factory

    return factory.WeightTransferEngineFactory, factory.WeightTransferTrainerFactory


class Model:
    """Of a worker: what load_weights() got, and when."""

    def __init__(self):
        self.weights, self.seen = {}, []

    def load_weights(self, weights):
        self.seen.append("load")
        self.weights = {name: one.clone() for name, one in weights}


class Server:
    """A vLLM server with workers, called as its clients call it, and as TRL's client does."""

    def __init__(self, factories, n_workers):
        kind = factories[0]._registry["thinwire"]()
        self.models = [Model() for _ in range(n_workers)]
        self.workers = [kind(None, types.SimpleNamespace(parallel_config=None, model_config=None),
                             torch.device("cpu"), model) for model in self.models]
        self.calls, self.broken = [], None

    def _all(self, name, call):
        self.calls.append(name)
        if self.broken == name:
            raise RuntimeError("the server says no")
        with concurrent.futures.ThreadPoolExecutor(len(self.workers)) as pool:
            list(pool.map(call, self.workers))

    def init_weight_transfer_engine(self, info):
        self._all("init", lambda one: one.init_transfer_engine(one.parse_init_info(info)))

    def start_weight_update(self):
        self._all("start", lambda one: one.start_weight_update())

    def update_weights(self, info):
        self._all("update", lambda one: one.update_weights(info))

    def finish_weight_update(self):
        self._all("finish", lambda one: one.finish_weight_update())

    def wait_for_server_ready(self):
        self.calls.append("wait")

    def get_world_size(self):
        return len(self.workers)

    def pause(self):
        self.calls.append("pause")

    def resume(self):
        self.calls.append("resume")


class Weights(dict):
    """A source of a rank's: how often all of it was gathered."""

    n_gathered = 0

    def iter_full(self):
        yield from self.items()
        self.n_gathered += 1


def initial():
    torch.manual_seed(0)
    return Weights(embed=torch.randn(500, 64).bfloat16(), norm=torch.ones(64), up=torch.randn(64, 300).half())


def change(weights):
    for one in weights.values():
        one.view(-1)[::50] *= 1.01


def same(found, weights):
    return found.keys() == weights.keys() and all(
        torch.equal(found[name], one) for name, one in weights.items())


@pytest.fixture
def job(factories, request, monkeypatch):
    """A server of two workers, and the engines of trainer ranks 0 and 1."""
    monkeypatch.setenv("TW_NET_ENCRYPT", getattr(request, "param", "n"))
    server, weights, trainers = Server(factories, 2), initial(), []
    kind = factories[1]._registry["thinwire"]()
    for rank in range(2):
        info = kind.init_info_cls("127.0.0.1", n_workers=2, timeout_sec=30.0, rank=rank)
        trainers.append(kind.trainer_init(info, client=server, source=Weights(weights)))
    yield server, weights, trainers
    for one in [*trainers, *server.workers]:
        one.shutdown()


@pytest.mark.parametrize("job", ["n", "y"], indirect=True)
def test_workers_follow(job, request):
    server, weights, trainers = job
    links = [*trainers[0]._sender._links, *(one._link for one in server.workers)]
    assert [one._sealed for one in links] == [request.node.callspec.params["job"] == "y"] * 4
    for step in range(1, 4):
        for one in trainers:
            one.send_weights()
        assert all(same(model.weights, weights) for model in server.models)
        assert all(model.seen == ["begin", "load", "end"] * step for model in server.models)
        assert server.calls == ["init"] + ["start", "update", "finish"] * step
        assert [one.source.n_gathered for one in trainers] == [step, step]
        change(weights)


def test_after_a_failure_the_next_update_brings_all(job):
    """A server that refuses, a worker whose link breaks, one whose weights are spoilt: its model stays."""
    server, weights, (trainer, _) = job
    trainer.send_weights()
    old = {name: one.clone() for name, one in weights.items()}
    change(weights)
    server.broken = "update"
    with pytest.raises(RuntimeError, match="the server says no"):
        trainer.send_weights()
    assert trainer.source.n_gathered == 2 and all(same(model.weights, old) for model in server.models)
    server.broken = None
    trainer.send_weights()
    assert all(same(model.weights, weights) for model in server.models)
    server.workers[0]._link.close()
    change(weights)
    with pytest.raises(OSError):
        trainer.send_weights()
    server.workers[1]._subscriber.weights["up"].zero_()
    change(weights)
    with pytest.raises(delta.DeltaError, match="^up: the old values"):
        trainer.send_weights()
    assert server.models[1].seen.count("load") < 4
    trainer.send_weights()
    assert all(same(model.weights, weights) for model in server.models)


def test_workers_that_do_not_come_are_counted(factories):
    kind, server = factories[1]._registry["thinwire"](), Server(factories, 1)
    info = kind.init_info_cls("127.0.0.1", n_workers=2, timeout_sec=30.0, rank=0)
    with pytest.raises(ConnectionError, match="1 of the server's 2 workers have connected"):
        kind.trainer_init(info, client=server, source=initial())
    with pytest.raises(ValueError, match="source is None"):
        kind.trainer_init(info, client=server)
    with pytest.raises(RuntimeError, match="comes first"):
        Server(factories, 1).update_weights({})


def test_trl_sends_by_the_same_engine(factories):
    """As AsyncGRPOTrainer calls what it is given."""
    server, weights = Server(factories, 2), initial()
    transfer = sender.Transfer(server, "127.0.0.1", timeout_sec=30.0)
    transfer.init_weight_transfer()
    for _ in range(2):
        transfer.pause()
        transfer.send_weights(iter(weights.items()))
        transfer.resume()
        assert all(same(model.weights, weights) for model in server.models)
        change(weights)
    assert server.calls == ["wait", "init"] + ["pause", "start", "update", "finish", "resume"] * 2
    transfer.destroy()


class Http(http.server.BaseHTTPRequestHandler):
    """The routes of vLLM's server that TRL's client asks for."""

    def do_GET(self):
        self.answer({"world_size": len(self.server.behind.workers)})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        name = self.path.partition("?")[0].lstrip("/")
        infos = [asked[key] for key in ("init_info", "update_info") if key in asked]
        getattr(self.server.behind, name)(*infos)
        self.answer({})

    def answer(self, found):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_):
        pass


TRAINER = """
import accelerate, sys, torch
from thinwire.delta.sender import Transfer
from trl.experimental.async_grpo.async_grpo_trainer import WeightTransferProtocol
from trl.experimental.async_grpo.vllm_client import VLLMClient
accelerate.PartialState(cpu=True)  # TRL's client logs by it
assert {name for name in vars(WeightTransferProtocol) if name[0] != "_"} <= set(dir(Transfer))
transfer = Transfer(VLLMClient(sys.argv[1]), "127.0.0.1", timeout_sec=30.0)
transfer.init_weight_transfer()
for step in (1, 2):
    transfer.pause()
    transfer.send_weights((name, torch.full((300, 40), step * n).bfloat16()) for n, name in enumerate("abc"))
    transfer.resume()
transfer.destroy()
"""


def test_trl_with_its_own_client(factories, monkeypatch):
    """In a process of its own, over HTTP, and sealed."""
    monkeypatch.setenv("TW_NET_ENCRYPT", "y")
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed")
    behind = Server(factories, 2)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Http) as server:
        server.behind = behind
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = subprocess.run([sys.executable, "-c", TRAINER, "http://127.0.0.1:%d" % server.server_port],
                              capture_output=True, text=True, timeout=300)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert behind.calls == ["init"] + ["pause", "start", "update", "finish", "resume"] * 2
    assert all(model.weights["c"].eq(4).all() and len(model.weights) == 3 for model in behind.models)


def test_a_version_that_was_not_read_is_refused(factories, monkeypatch):
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.34.1")
    with pytest.raises(ImportError, match=r"vllm 0\.33\.0; here is 0\.34\.1, whose was not read"):
        sender.check_read("vllm")
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.33.0+cu129")
    sender.check_read("vllm")
