"""Sends changed weights from a trainer to vLLM's workers, over TCP.

    vllm serve MODEL --weight-transfer-config '{"backend": "thinwire"}'
    engine = WeightTransferTrainerFactory.trainer_init(TrainerInit(host, n_workers, rank=rank), client=client,
                                                       source=ModuleSource(model))
    engine.send_weights()                                            after each step, or some

The wheel registers the engines of both ends with vLLM. Each worker keeps the checkpoint's weights in host
memory, and is sent the messages that it lacks. It loads the weights into its model when all messages are
applied and their checksums are right. Links need a secret, which vLLM's control calls carry.
TW_NET_ENCRYPT=y, on the trainer and all workers, seals all messages."""

from __future__ import annotations

import dataclasses
import typing

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from .link import Link, connect, follow
from .sender import Sender, check_read
from .stream import Subscriber

check_read("vllm")


@dataclasses.dataclass
class InitInfo(WeightTransferInitInfo):
    """How a worker reaches the trainer. Sender makes it and sends it by a control call."""

    host: str
    port: int
    secret: str
    timeout_sec: float


@dataclasses.dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Has no fields: all information is in the messages."""


class ThinwireWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """vLLM's interface for its workers; its documentation is vLLM's."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False
    _link: Link | None = None

    def __init__(self, *args: typing.Any, **kwargs: typing.Any):
        super().__init__(*args, **kwargs)
        self._subscriber = Subscriber({})

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self.shutdown()
        self._link = connect((init_info.host, init_info.port), init_info.secret, init_info.timeout_sec)

    def start_weight_update(self) -> None:
        """Do nothing: receive_weights() changes the model, when all messages have come."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._link is None:
            raise RuntimeError("init_transfer_engine() comes first")
        follow(self._link, self._subscriber)
        initialize_layerwise_reload(self.model)
        with disable_mtp_completeness_check():
            weights = self._subscriber.weights
            self.model.load_weights((name, one.to(self.device)) for name, one in weights.items())
        finalize_layerwise_reload(self.model, self.model_config)

    def finish_weight_update(self) -> None:
        """Do nothing: receive_weights() has already loaded the weights."""

    def shutdown(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None


@dataclasses.dataclass
class TrainerInit(TrainerInitInfo):
    """host: trainer rank 0's address for vLLM's workers. n_workers: number of vLLM's workers, TP * PP * DP.
    keep, timeout_sec: see Sender."""

    backend: typing.ClassVar[str] = "thinwire"

    host: str
    n_workers: int
    keep: int = 4
    timeout_sec: float = 600.0


class ThinwireTrainerWeightTransferEngine(TrainerWeightTransferEngine[TrainerInit]):
    """vLLM's interface for the trainer's ranks; its documentation is vLLM's."""

    init_info_cls = TrainerInit
    _sender: Sender | None = None

    @classmethod
    def trainer_init(cls, init_info: TrainerInit, *, client: VLLMWeightSyncClient,
                     source: WeightSource | None = None) -> ThinwireTrainerWeightTransferEngine:
        if source is None:
            raise ValueError("thinwire sends a WeightSource's weights; source is None")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank)
        if init_info.is_sender:
            engine._sender = Sender(client, init_info.n_workers, init_info.host, init_info.keep,
                                    init_info.timeout_sec)
            engine._sender.connect()
        return engine

    def send_weights(self) -> None:
        """Send the weights. Every rank iterates to the end, even after an error: gathering is collective."""
        weights = self.source.iter_full()
        try:
            if self._sender is not None:
                self._sender.send(weights)
        finally:
            for _ in weights:
                pass

    def shutdown(self) -> None:
        if self._sender is not None:
            self._sender.close()
