"""A job of torchcomms': all-gathers and sums, plain and with a codec, between all ranks and in a node. Each
rank prints a JSON line."""

import json
import os
from datetime import timedelta

import thinwire
import torch
import torchcomms

N = 1 << 18
comm = torchcomms.new_comm("thinwire", torch.device("cpu"), "all", timeout=timedelta(seconds=60))
rank, world = comm.get_rank(), comm.get_size()
values = torch.randn(world, N, generator=torch.Generator().manual_seed(0))


def sent(call):
    before = thinwire.report().counted_bytes
    call()
    return thinwire.report().counted_bytes - before


def reduce(made, hints=None, expected=values.sum(0), bound=0.2):
    total = values[rank].clone()
    made.all_reduce(total, torchcomms.ReduceOp.SUM, False, hints)
    return bool((total - expected).abs().max() < bound)


def gather(hints=None):
    whole = torch.empty(world * N)
    comm.all_gather_single(whole, values[rank].clone(), True, hints).wait()
    return bool((whole - values.view(-1)).abs().max() < 0.05)


good = []
own = [one for one in range(world) if one // 2 == rank // 2]
node = comm.split(own, "node", hints={"codec": "int8"})
found = {
    "rank": rank,
    "in_nodes": os.environ.get("TW_CLUSTER") == "nodes",
    "plain": sent(lambda: good.extend([reduce(comm, bound=1e-4), gather()])),
    "int8": sent(lambda: good.extend([reduce(comm, {"codec": "int8"}), gather({"codec": "int8"})])),
    "in_node": sent(lambda: good.append(reduce(node, expected=values[own].sum(0), bound=1e-4))),
}
print(json.dumps(found | {"good": all(good)}), flush=True)
node.finalize()
comm.finalize()
