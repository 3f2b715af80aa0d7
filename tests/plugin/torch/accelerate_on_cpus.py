"""accelerate_on_cpus.py JOB: the job, where accelerate believes that there are accelerators: it shards on
those alone."""

import pathlib
import runpy
import sys

from accelerate import DistributedType
from accelerate.state import AcceleratorState

made = AcceleratorState.__init__


def init(self, *args, **kwargs):
    made(self, *args, **kwargs)
    plugin = kwargs.get("fsdp_plugin")
    if plugin is not None:
        plugin.set_mixed_precision(self.mixed_precision)
        AcceleratorState._shared_state |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": plugin}


AcceleratorState.__init__ = init
sys.path[0] = str(pathlib.Path(sys.argv[1]).parent)
runpy.run_path(sys.argv[1], run_name="__main__")
