"""Thinwire under PyTorch: quantized collectives for training on slow networks.

    TW_FSDP=1 torchrun ... job.py                                the job is not changed
    thinwire.enable(model, weights="int8", grads="int4")         one line, after fully_shard
    model.register_comm_hook(None, thinwire.ddp_hook(grads="int4"))
    torch.distributed.init_process_group("cpu:thinwire,cuda:nccl")

Nothing of torch is imported before it is asked for."""

from __future__ import annotations

import logging
import os
import sys
import typing

if typing.TYPE_CHECKING:
    import torch

    from .tally import Report

__all__ = ["ThinwireError", "ddp_hook", "disable", "enable", "exact", "quantize", "report"]

from .capi import ThinwireError
from .policy import exact


def enable(model: torch.nn.Module, weights: str | None = None, grads: str | None = None,
           min_bytes: int | None = None) -> torch.nn.Module:
    """See thinwire.fsdp.enable."""
    from . import fsdp

    return fsdp.enable(model, weights, grads, min_bytes)


def disable(model: torch.nn.Module) -> torch.nn.Module:
    """See thinwire.fsdp.disable."""
    from . import fsdp

    return fsdp.disable(model)


def ddp_hook(grads: str | None = None, min_bytes: int | None = None) -> typing.Callable:
    """See thinwire.ddp.hook."""
    from . import ddp

    return ddp.hook(grads, min_bytes)


def quantize(group: torch.distributed.ProcessGroup, codec: str | None) -> None:
    """See thinwire.c10d.quantize."""
    from . import c10d

    c10d.quantize(group, codec)


def report() -> Report:
    """What has been sent, how long it was waited for, and what stayed exact. Of this rank; str() is the text."""
    from . import tally

    return tally.report()


def _set_up_logging() -> None:
    """Lines on stderr from info on, unless the program has said what it wants of logging."""
    log = logging.getLogger("thinwire")
    if not logging.root.handlers and not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("thinwire: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    if log.level == logging.NOTSET:
        log.setLevel(logging.DEBUG if os.environ.get("TW_LOG_LEVEL", "") in ("debug", "trace") else logging.INFO)


def _autoload() -> None:
    """Runs at the end of `import torch` (entry point group torch.backends). Never fails: a job goes on as before."""
    asked = os.environ.get("TW_FSDP", "").lower() not in ("", "0", "n", "no", "off", "false")
    try:
        from . import c10d

        c10d.register()
        if asked:
            from . import fsdp, policy

            _set_up_logging()
            policy.check_environment()
            fsdp.patch()
    except Exception as error:
        if asked:
            logging.getLogger("thinwire").warning("thinwire is off: %s", error)
