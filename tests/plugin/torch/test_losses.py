"""losses.py: what the report says of what is lost, and of whom it warns."""

import pytest
import ranks
import thinwire
import torch
from models import make, train
from thinwire.collectives import losses, operations
from thinwire.reporting import report
from thinwire.telemetry import tally
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH = 128
FAST = {"TW_COLL_MODEL": "inter:beta=400gbit"}


class Model(nn.Module):
    """One of its inputs is far larger than the others."""

    def __init__(self, large):
        super().__init__()
        torch.manual_seed(0)
        self.large, self.first, self.last = large, nn.Linear(WIDTH, 200), nn.Linear(200, WIDTH)

    def forward(self, x):
        x = torch.cat([self.large * x[:, :1], x[:, 1:]], 1)
        return self.last(torch.tanh(self.first(x)))


def steps(rank, grads, n=20, large=100.0, weights="plain"):
    model = Model(large)
    for layer in (model.first, model.last):
        fully_shard(layer)
    model = thinwire.enable(fully_shard(model), weights, grads, min_bytes=0)
    for step in range(n):
        x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x).square().mean().backward()
        model.zero_grad()


def warnings():
    return ranks.logged("loses too much")


def test_a_parameter_that_loses_too_much_is_named_once():
    def check(rank):
        steps(rank, "int4:columns=no", 40)
        found = thinwire.report()["reduce-scatter"].losses
        return found["first", "first.weight"], found["last", "last.weight"], warnings()

    (first, last, said), (own, _, silent) = ranks.run(2, check)
    assert first.zeros > 0.8 and own.zeros > 0.8 and last.zeros < 0.5
    assert first.looks == last.looks == 40 // losses.EVERY
    assert 0.05 < last.error < 0.5 and last.n_values > 10000
    assert len(said) == 1 and silent == []
    assert said[0].startswith("reduce-scatter of first.weight loses too much by int4:block=128,columns=no: ")
    assert "% became 0 (bounds: 50 %, 0.50)" in said[0]
    assert said[0].endswith('set TW_GRADS="int4:block=128,columns=no;first.weight=lossless", or leave out '
                            "columns=no")


def test_below_the_bounds_nothing_is_said():
    def check(rank):
        steps(rank, "int4", 40)
        return thinwire.report()["reduce-scatter"].loss_by_group(), warnings(), str(thinwire.report())

    for found, said, text in ranks.run(2, check):
        assert set(found) == {"first", "last"} and said == []
        assert all(one.zeros < 0.35 and 0.05 < one.error < 0.3 for one in found.values())
        assert "lost, by samples (" in text and "% became 0" in text


def test_dithered_integers_lose_the_same_beside_a_large_input():
    def check(rank):
        steps(rank, "ecdq", 40)
        found = thinwire.report()["reduce-scatter"]
        return found.loss_by_group(), warnings(), found.unquantized

    for found, said, plain in ranks.run(2, check):
        assert set(found) == {"first", "last"} and said == []
        assert all(one.zeros == 0 and 0.02 < one.error < 0.4 for one in found.values())
        assert not set(plain) - {"norms and biases"}


def sums(rank, grads, n):
    """Gradients of one step, n times over, and their mean."""
    model = nn.Linear(WIDTH, 200, bias=False)
    torch.manual_seed(0)
    nn.init.normal_(model.weight)
    model, found = thinwire.enable(fully_shard(model), "plain", grads, min_bytes=0), []
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(rank))
    for _ in range(n):
        model(x).square().mean().backward()
        found.append(model.weight.grad.to_local().clone())
        model.zero_grad()
    return found, torch.stack(found).mean(0)


def test_dithered_integers_have_errors_with_a_mean_of_0():
    def check(rank):
        (exact,), _ = sums(rank, "plain", 1)
        found, mean = sums(rank, "ecdq", 100)
        assert not torch.equal(found[0], found[1])  # each step draws other numbers
        one = sum((each - exact).norm().item() for each in found) / len(found)
        return one / exact.norm().item(), (mean - exact).norm().item() / one

    for error, left in ranks.run(2, check):
        assert 0.1 < error < 0.4 and 0.07 < left < 0.14  # a tenth, of 100


def test_the_bounds():
    loss = tally.Loss()
    loss.add(100.0, 1.0, 10, 6)
    assert loss.error == pytest.approx(0.1) and loss.zeros == 0.6 and not losses.too_much(loss)
    for _ in range(losses.LOOKS - 1):
        loss.add(100.0, 1.0, 10, 6)
    assert losses.too_much(loss)
    assert not losses.too_much(tally.Loss(9, 1.0, 0.24, 10, 5))
    assert losses.too_much(tally.Loss(9, 1.0, 0.26, 10, 0))
    assert tally.Loss().error == tally.Loss().zeros == 0.0


def test_weights_and_what_loses_nothing():
    def check(rank):
        steps(rank, "lossless", 6)
        assert not any(one.losses for one in thinwire.report().values())
        assert "lost" not in str(thinwire.report())
        steps(rank, {"*": "plain", "*.last": "int8"}, 8, weights="int8")
        found = thinwire.report()
        assert {name for _, name in found["reduce-scatter"].losses} == {"last.weight"}
        gathered = found["all-gather"].losses
        assert {name for _, name in gathered} == {"first.weight", "last.weight"}
        return all(0.001 < one.error < 0.02 and one.zeros < 0.05 for one in gathered.values())

    assert ranks.run(2, check, **ranks.SLOW) == [True, True]


def test_what_is_declined_says_why():
    def check(rank):
        train(thinwire.enable(make()), rank, 2)
        found = thinwire.report()["reduce-scatter"]
        assert found.sent_bytes == found.plain_bytes and found.bound_bytes == 0
        return dict(found.unquantized), "not quantized: " + operations.DECLINED in " ".join(
            str(thinwire.report()).split())

    assert ranks.run(2, check, **FAST) == [({operations.DECLINED: 2 * 12}, True)] * 2


def test_lines_are_short():
    kinds = {"reduce-scatter": tally.Tally(10**4, 10**10, 10**9, took_sec=234.0, wait_sec=234.0)}
    for number in range(9):
        kinds["reduce-scatter"].unquantized["a reason of no small length, number %d" % number] = 10**6
    other = {("all-gather", "rank 3: TW_WEIGHTS=" + "int8:block=2048; " * 9): tally.Elsewhere(10, 10)}
    lines = tally.wrapped(str(report.Report(kinds, other, 10**9, 5)))
    assert max(len("thinwire: " + line) for line in lines) < 120 and len(lines) > 5
    assert lines[1].startswith("  reduce-scatter: ") and "waited for 234 s" in lines[1]
    assert all(line.startswith("      ") for line in lines[2:4])
