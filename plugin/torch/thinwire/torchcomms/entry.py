"""The backend "thinwire" of torchcomms (entry point group torchcomms.backends): new_comm("thinwire", device,
name, hints={"codec": "int8"}).

torchcomms loads this module when the backend is asked for. Backends can be written in Python from 0.3 on, and
its interface is not promised to stay: a version that was not read is refused with the reason, as is one whose
calls have other parameters."""

from __future__ import annotations

import importlib

from . import abi

INSTEAD = "Under torch.distributed FSDP2 goes over thinwire with TW_FSDP=1, DDP with TW_DDP=1"


def load() -> None:
    """Register the backend. ImportError for a torchcomms that is not known here."""
    try:
        why = abi.difference(importlib.import_module("torchcomms"), abi.version())
    except ImportError as error:
        why = str(error)
    if why:
        raise ImportError("thinwire has no backend for torchcomms (this is %s): %s. %s"
                          % (abi.version(), why, INSTEAD))
    importlib.import_module(".backend", __package__).register()


load()
