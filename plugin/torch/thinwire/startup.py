"""What TW_FSDP and TW_DDP do in a process once torch has a default process group."""

from __future__ import annotations

import functools
import importlib
import os

from . import policy
from .engine import agreement
from .switches import is_on, log, requiring, set_up_logging

# {variable: the module whose patch() it asks for}
PATCHES = {"TW_FSDP": ".fsdp.hooks", "TW_DDP": ".ddp"}


@functools.cache
def _prepare() -> None:
    """Check the variables, and patch what they switch on, once in a process. Modules are loaded here, so
    that the other ranks hear of one that cannot be loaded."""
    policy.check_environment()
    policy.from_environment()
    for variable, module in PATCHES.items():
        if is_on(variable):
            importlib.import_module(module, __package__).patch()
    importlib.import_module(".reporting.unused", __package__).watch()


def begin() -> None:
    """Tell the ranks of a new default group whether this one can use Thinwire."""
    set_up_logging()
    try:
        lacks = agreement.speak(_prepare)
    except Exception as error:
        if requiring():
            raise
        lacks = str(error)
    if lacks and os.environ.get("LOCAL_RANK", "0") == "0":
        log.warning("thinwire is off: %s", lacks)
