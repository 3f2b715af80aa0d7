"""The backend "thinwire" of torchcomms (entry point group torchcomms.backends): new_comm("thinwire", device,
name, hints={"codec": "int8"}).

torchcomms loads this module when a program asks for the backend. Since 0.3 backends can be written in Python,
but the interface may still change. So a version that abi.py does not list, or whose calls have other
parameters, is refused with the reason."""

from __future__ import annotations

import importlib

from . import abi

INSTEAD = "Under torch.distributed FSDP2 goes over thinwire with TW_FSDP=1, DDP with TW_DDP=1"


def load() -> None:
    """Register the backend. ImportError, with the reason, if the installed torchcomms is not supported."""
    try:
        why = abi.difference(importlib.import_module("torchcomms"), abi.version())
    except ImportError as error:
        why = str(error)
    if why:
        raise ImportError("thinwire has no backend for torchcomms (this is %s): %s. %s"
                          % (abi.version(), why, INSTEAD))
    importlib.import_module(".backend", __package__).register()


load()
