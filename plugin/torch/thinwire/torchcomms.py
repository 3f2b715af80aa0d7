"""What torchcomms gets that is asked for a backend "thinwire" (entry point group torchcomms.backends): a refusal that says why.

Its backends are C++ of one version of its interface, and PyPI has had nothing but an empty package of that name to build with."""

from __future__ import annotations

import importlib.metadata


def _version() -> str:
    try:
        return importlib.metadata.version("torchcomms")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


raise ImportError(
    "thinwire has no backend for torchcomms (this is %s): its interface is not known here. Under torch.distributed FSDP2 goes over "
    "thinwire with TW_FSDP=1, DDP with TW_DDP=1" % _version())
