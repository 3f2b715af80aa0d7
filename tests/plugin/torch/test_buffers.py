"""buffers.py: memory of reductions that is used again once nobody has it."""

import threading

import pytest
import ranks
import thinwire
import torch
from thinwire import inside
from thinwire.fsdp import buffers
from torch import nn
from torch.distributed.fsdp import fully_shard

N = 1000

pytestmark = pytest.mark.skipif(not hasattr(torch._C, "_storage_Use_Count"), reason="torch does not tell")


def place(tensor):
    return tensor.untyped_storage().data_ptr()


def test_memory_that_nobody_has_is_used_again():
    found = buffers.Buffers()
    first = found.take((N,), torch.float32)
    view, where = first[10:20], place(first)
    del first
    assert place(found.take((N,), torch.float32)) != where  # a view is left
    del view
    again = found.take((10, N // 10), torch.float32)
    assert place(again) == where
    assert (again.shape, again.dtype, again.stride()) == ((10, N // 10), torch.float32, (N // 10, 1))


def test_a_fitting_one_is_taken():
    found = buffers.Buffers()
    where = place(found.take((N,), torch.float32))
    assert place(found.take((N,), torch.bfloat16)) == where  # half of it
    assert place(found.take((N // 2 - 1,), torch.bfloat16)) != where
    assert place(found.take((N + 1,), torch.float32)) != where


def test_no_more_are_kept_than_are_in_use_at_once(monkeypatch):
    found = buffers.Buffers()
    held = [found.take((N * factor,), torch.float32) for factor in (1, 3, 9, 27)]
    assert len(found._kept) == buffers.KEPT
    held.clear()
    for factor in (81, 243):
        found.take((N * factor,), torch.float32)  # in the place of what nobody needs
    assert sorted(one.nbytes() for one in found._kept) == [4 * N * 81, 4 * N * 243]
    monkeypatch.setattr(buffers, "KEPT_BYTES", 4 * N)
    assert place(found.take((2 * N,), torch.float32))
    assert not [one for one in found._kept if one.nbytes() == 8 * N]


def test_threads_do_not_get_the_same_memory():
    found, wrong = buffers.Buffers(), []

    def work(mark):
        for _ in range(2000):
            mine = found.take((N,), torch.float32).fill_(mark)
            if not bool((mine == mark).all()):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_a_torch_that_does_not_tell_gets_new_memory(monkeypatch):
    monkeypatch.setattr(inside, "is_in_use", lambda storage: True)
    found = buffers.Buffers()
    held = [found.take((N,), torch.float32) for _ in range(5)]
    assert len({place(one) for one in held}) == 5


def test_reductions_take_turns():
    def check(rank):
        buffers.shared._kept.clear()
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
        for layer in model:
            fully_shard(layer)
        thinwire.enable(fully_shard(model), "plain", "plain", min_bytes=1)
        for _ in range(3):
            model.zero_grad()
            model(torch.full((4, 64), rank + 1.0)).sum().backward()
        grads = [one.grad.full_tensor().sum().item() for one in model.parameters()]
        return len(buffers.shared._kept), grads

    found = ranks.run(2, check)
    assert found[0][1] == found[1][1]
    assert 1 <= found[0][0] <= buffers.KEPT
