"""Thinwire under PyTorch: lossless and quantized collectives for training on slow networks.

    TW_FSDP=1 torchrun ... job.py                                the job is not changed
    thinwire.enable(model)                                       one line, after fully_shard
    thinwire.enable(model, grads={"*": "int4", "*.embed": "lossless"})
    model.register_comm_hook(None, thinwire.ddp_hook())
    torch.distributed.init_process_group("cpu:thinwire,cuda:nccl")
    thinwire.delta.encode(old, new)                              weights that have changed, for somewhere else
    python -m thinwire info | diff | patch

Nothing but this file is loaded before it is asked for: torch imports it, in every program."""

from __future__ import annotations

import importlib
import typing

from .version import __version__

if typing.TYPE_CHECKING:
    import os

    import torch

    from . import delta
    from .capi import ThinwireError
    from .policy import ByName, exact, unquantized
    from .tally import Report

__all__ = ["ThinwireError", "__version__", "ddp_hook", "delta", "disable", "enable", "exact", "quantize",
           "report", "timeline", "unquantized"]


def __getattr__(name: str) -> typing.Any:
    if name == "ThinwireError":
        from .capi import ThinwireError

        return ThinwireError
    if name in ("unquantized", "exact"):
        from .policy import unquantized

        return unquantized
    if name == "delta":
        return importlib.import_module(".delta", __name__)
    raise AttributeError("module %r has no attribute %r" % (__name__, name))


def enable(model: torch.nn.Module, weights: ByName | None = None, grads: ByName | None = None,
           min_bytes: int | None = None) -> torch.nn.Module:
    """See thinwire.fsdp.enable."""
    from . import fsdp

    return fsdp.enable(model, weights, grads, min_bytes)


def disable(model: torch.nn.Module) -> torch.nn.Module:
    """See thinwire.fsdp.disable."""
    from . import fsdp

    return fsdp.disable(model)


def ddp_hook(grads: ByName | None = None, min_bytes: int | None = None,
             model: torch.nn.parallel.DistributedDataParallel | None = None) -> typing.Callable:
    """See thinwire.ddp.hook."""
    from . import ddp

    return ddp.hook(grads, min_bytes, model)


def quantize(group: torch.distributed.ProcessGroup, codec: str | None) -> None:
    """See thinwire.c10d.quantize."""
    from . import c10d

    c10d.quantize(group, codec)


def report() -> Report:
    """What has been sent, how long it was waited for, and what was not quantized. Of this rank; str() is the
    text."""
    from . import tally

    return tally.report()


def timeline(path: str | os.PathLike[str]) -> None:
    """Write, as a Chrome trace for Perfetto, when this rank's operations ran, and when it waited for which,
    of the last 16384 of both. On GPUs they are in the stream's order, and not in it: torch.profiler shows
    them."""
    from . import spans

    spans.write(path)


def _autoload() -> None:
    """Runs at the end of `import torch` (entry point group torch.backends)."""
    from . import autoload

    autoload.run()
