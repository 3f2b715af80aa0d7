"""What happens at the end of `import torch`: a name is registered and, with TW_FSDP or TW_DDP, a function
wrapped. The rest waits for a process group: most programs that import torch never make one."""

from __future__ import annotations

import functools
import os
import sys

# Variables that switch something on, for models that the program makes.
SWITCHES = ("TW_FSDP", "TW_DDP")
OFF = ("", "0", "n", "no", "off", "false")
ON = ("y", "yes", "on", "true", "1")
REQUIRE = "require"  # on, and where the ranks do not all use Thinwire the job ends
# Where the function may have been put by name before it was wrapped.
HOLDERS = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh")


def is_on(switch: str) -> bool:
    return os.environ.get(switch, "").lower() not in OFF


def requiring() -> str:
    """The switch that says so, or what may have been meant so; "" if none does."""
    return next((one for one in SWITCHES if os.environ.get(one, "").lower() not in OFF + ON), "")


def set_up_logging() -> None:
    """Lines on stderr from info on, unless the program has said what it wants of logging."""
    import logging

    log = logging.getLogger("thinwire")
    if not logging.root.handlers and not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("thinwire: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    if log.level == logging.NOTSET:
        is_debug = os.environ.get("TW_LOG_LEVEL", "") in ("debug", "trace")
        log.setLevel(logging.DEBUG if is_debug else logging.INFO)


def _create(options: object, backend_options: object) -> object:
    from . import c10d

    return c10d.create(options, backend_options)


_patched = False


def _prepare() -> None:
    """Once in a process: the variables are looked at, and what they switch on is ours from now on."""
    global _patched
    if not _patched:
        from . import ddp, fsdp, policy, unused

        policy.check_environment()
        policy.from_environment()
        if is_on("TW_FSDP"):
            fsdp.patch()
        if is_on("TW_DDP"):
            ddp.patch()
        unused.watch()
        _patched = True


def _begin() -> None:
    """There is a default group."""
    import logging

    set_up_logging()
    log = logging.getLogger("thinwire")
    try:
        from . import agreement

        lacks = agreement.speak(_prepare)
    except Exception as error:
        if requiring():
            raise
        lacks = str(error)
    if lacks and os.environ.get("LOCAL_RANK", "0") == "0":
        log.warning("thinwire is off: %s", lacks)


def _watch(distributed: object) -> None:
    """Run _begin for each default group."""
    original = distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(*args, **kwargs):
        original(*args, **kwargs)
        _begin()

    for name in HOLDERS:
        module = sys.modules.get(name)
        if getattr(module, "init_process_group", None) is original:
            module.init_process_group = init_process_group


def run() -> None:
    """The entry point of group torch.backends. A job goes on as before, whatever fails, unless Thinwire is
    required."""
    asked = any(map(is_on, SWITCHES))
    try:
        import torch.distributed as distributed

        if not distributed.is_available():
            return
        if "thinwire" not in distributed.Backend.backend_list:
            distributed.Backend.register_backend("thinwire", _create, extended_api=True, devices=["cpu"])
        if asked:
            _watch(distributed)
    except Exception as error:
        if requiring():
            raise
        if asked:
            set_up_logging()
            import logging

            logging.getLogger("thinwire").warning("thinwire is off: %s", error)
