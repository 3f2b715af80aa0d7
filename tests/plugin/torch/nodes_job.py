"""A job whose groups are of some of the ranks, without the first in most: HSDP, shards kept by two ranks,
pairs across nodes. Each rank prints a JSON line."""

import json
import os

import thinwire
import torch
import torch.distributed as dist
from thinwire import inside
from thinwire.engine import addresses, communicators
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def step(mesh, **kwargs):
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(64, 64), mesh=mesh, **kwargs)
    model(torch.ones(4, 64)).square().mean().backward()


def own_with(**environment):
    """What addresses.own() is where the environment is another; "" takes a variable away."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        return addresses.own(inside.default_store())
    finally:
        os.environ.clear()
        os.environ.update(before)


step(init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard")))
step(init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("shard", "other"))["shard"])
step(init_device_mesh("cpu", (world,)), reshard_after_forward=2)
print(json.dumps({
    "rank": rank,
    "in_nodes": os.environ.get("TW_CLUSTER") == "nodes",
    "groups": sorted(one._ranks for one in communicators.running()),
    "calls": sum(tally.calls for tally in thinwire.report().values()),
    "host": os.uname().nodename,
    "place": addresses.place(),
    "by_gloo": own_with(TW_NET_DEVICES=""),
    "by_store": own_with(TW_NET_DEVICES="", GLOO_SOCKET_IFNAME=""),
    "by_name": own_with(TW_NET_DEVICES="mlx5_0:1,lo", GLOO_SOCKET_IFNAME="eth0"),
}), flush=True)
dist.barrier()
