"""What TW_FSDP and TW_DDP do in a process when torch's default process group has been made."""

from __future__ import annotations

import functools
import importlib
import os

from . import policy
from .engine import agreement
from .switches import is_on, log, requiring, set_up_logging

# {variable: the module whose patch() it switches on}
PATCHES = {"TW_FSDP": ".fsdp.hooks", "TW_DDP": ".ddp"}


@functools.cache
def _prepare() -> None:
    """Check the variables, and call patch() for those that are on, once in a process. Modules are loaded here
    and not at the top, so that a failing import becomes a reason that the other ranks are told."""
    policy.check_environment()
    policy.from_environment()
    for variable, module in PATCHES.items():
        if is_on(variable):
            importlib.import_module(module, __package__).patch()
    importlib.import_module(".reporting.unused", __package__).watch()


def begin() -> None:
    """Tell the ranks of a new default group whether this rank can use Thinwire."""
    set_up_logging()
    try:
        lacks = agreement.speak(_prepare)
    except Exception as error:
        if requiring():
            raise
        lacks = str(error)
    if lacks and os.environ.get("LOCAL_RANK", "0") == "0":
        log.warning("thinwire is off: %s", lacks)
