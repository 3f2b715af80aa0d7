"""Thinwire under PyTorch: lossless and quantized collectives for training on slow networks.

    TW_FSDP=1 torchrun ... job.py                                the job is not changed
    thinwire.enable(model)                                       one line, after fully_shard
    thinwire.enable(model, grads={"*": "int4", "*.embed": "lossless"})
    model.register_comm_hook(None, thinwire.ddp_hook())
    torch.distributed.init_process_group("cpu:thinwire,cuda:nccl")
    thinwire.delta.encode(old, new)                              changes of weights, as a message
    python -m thinwire info | diff | patch

Each name is loaded at its first use, because torch imports this file in every program."""

from __future__ import annotations

import importlib
import typing

from . import autoload
from .version import __version__

if typing.TYPE_CHECKING:
    from . import delta
    from .c10d import quantize
    from .capi import ThinwireError
    from .ddp import hook as ddp_hook
    from .fsdp.hooks import disable, enable
    from .muon import at_owner
    from .policy import exact, unquantized
    from .reporting.report import report
    from .telemetry.spans import write as timeline

__all__ = ["ThinwireError", "__version__", "at_owner", "ddp_hook", "delta", "disable", "enable", "exact",
           "quantize", "report", "timeline", "unquantized"]

# {public name: (module that defines it, its name in that module)}
_PLACES = {
    "ThinwireError": (".capi", "ThinwireError"),
    "at_owner": (".muon", "at_owner"),
    "ddp_hook": (".ddp", "hook"),
    "disable": (".fsdp.hooks", "disable"),
    "enable": (".fsdp.hooks", "enable"),
    "exact": (".policy", "exact"),
    "quantize": (".c10d", "quantize"),
    "report": (".reporting.report", "report"),
    "timeline": (".telemetry.spans", "write"),
    "unquantized": (".policy", "unquantized"),
}
_autoload = autoload.run  # the entry point of group torch.backends: the end of `import torch`


def __getattr__(name: str) -> typing.Any:
    if name == "delta":
        return importlib.import_module(".delta", __name__)
    if name not in _PLACES:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    module, there = _PLACES[name]
    return getattr(importlib.import_module(module, __name__), there)


def __dir__() -> list[str]:
    return [*globals(), *_PLACES, "delta"]
