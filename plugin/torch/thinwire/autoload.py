"""What `import torch` runs at its end: registers the backend "thinwire" and, with TW_FSDP or TW_DDP, wraps
init_process_group(). The rest of the package is loaded when a program makes a process group: most programs
that import torch never make one."""

from __future__ import annotations

import functools
import importlib
import sys
import typing

from .switches import SWITCHES, is_on, log, requiring, set_up_logging

# Modules that may have imported init_process_group() before it was wrapped.
HOLDERS = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh")


def _create(options: object, backend_options: object) -> object:
    return importlib.import_module(".c10d", __package__).create(options, backend_options)


def _is_off(error: Exception) -> None:
    """Raise the error if the job requires Thinwire. Otherwise warn that Thinwire is off."""
    if requiring():
        raise error
    if any(map(is_on, SWITCHES)):
        set_up_logging()
        log.warning("thinwire is off: %s", error)


def begin() -> None:
    """Start Thinwire for a new default group."""
    try:
        startup = importlib.import_module(".startup", __package__)
    except Exception as error:  # this version of torch lacks something that startup.py imports
        _is_off(error)
    else:
        startup.begin()


def _watch(distributed: typing.Any) -> None:
    """Wrap init_process_group(), so that it calls begin() after it has made the default group."""
    original = distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        original(*args, **kwargs)
        begin()

    for name in HOLDERS:
        module: typing.Any = sys.modules.get(name)
        if getattr(module, "init_process_group", None) is original:
            module.init_process_group = init_process_group


def run() -> None:
    """The entry point of group torch.backends."""
    try:
        distributed: typing.Any = importlib.import_module("torch.distributed")
        if not distributed.is_available():
            return
        if "thinwire" not in distributed.Backend.backend_list:
            distributed.Backend.register_backend("thinwire", _create, extended_api=True, devices=["cpu"])
        if any(map(is_on, SWITCHES)):
            _watch(distributed)
    except Exception as error:
        _is_off(error)
