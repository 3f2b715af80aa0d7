"""torchft's fault-tolerant DistributedDataParallel, over torchft's gloo."""

NEEDS = ["torchft==0.2.0"]
ENTRANTS = {"torchft": {}}


def prepare(name, model, make_optimizer):
    import os
    import socket

    import torch
    import torch.distributed as dist
    import torchft
    from torchft.coordination import LighthouseServer

    rank, world, master = dist.get_rank(), dist.get_world_size(), os.environ["MASTER_ADDR"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((master, 1))
        own_address = way.getsockname()[0]
    lighthouse = LighthouseServer("0.0.0.0:0", world) if rank == 0 else None
    said = [lighthouse.address().rsplit(":", 1)[1] if lighthouse else None]
    dist.broadcast_object_list(said)
    store = dist.TCPStore(own_address, 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(), load_state_dict=None, state_dict=None, min_replica_size=world,
        rank=0, world_size=1, store_addr=own_address, store_port=store.port, hostname=own_address,
        replica_id="rank%d" % rank, lighthouse_addr="http://%s:%s" % (master, said[0]), init_sync=False)
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    found = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, make_optimizer(found))
    optimizer.kept = store, lighthouse
    return found, optimizer
