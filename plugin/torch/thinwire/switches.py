"""The variables that switch Thinwire on, and its log: what every other file may need, without torch."""

from __future__ import annotations

import logging
import os
import sys

# Variables that switch something on, for models that the program makes.
SWITCHES = ("TW_FSDP", "TW_DDP")
OFF = ("", "0", "n", "no", "off", "false")
ON = ("y", "yes", "on", "true", "1")
REQUIRE = "require"  # value of a switch: it is on, and the job ends unless all ranks use Thinwire

log = logging.getLogger("thinwire")


def is_on(switch: str) -> bool:
    return os.environ.get(switch, "").lower() not in OFF


def requiring() -> str:
    """The switch that requires Thinwire, or has a value that may mean so; "" if none does."""
    return next((one for one in SWITCHES if os.environ.get(one, "").lower() not in OFF + ON), "")


def set_up_logging() -> None:
    """Send log lines to stderr from level info on, unless the program has set up logging itself."""
    if not logging.root.handlers and not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("thinwire: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    if log.level == logging.NOTSET:
        is_debug = os.environ.get("TW_LOG_LEVEL", "") in ("debug", "trace")
        log.setLevel(logging.DEBUG if is_debug else logging.INFO)
