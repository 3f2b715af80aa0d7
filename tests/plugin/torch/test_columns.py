"""columns.py: gradients with loss, under scales of their columns."""

import pytest
import ranks
import thinwire
import torch
from models import BF16, make, train
from thinwire import inside, policy
from thinwire.collectives import columns, operations
from thinwire.engine import communicators, segments
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WIDTH, LARGE = 128, 100.0


def exponents(matrix):
    sums = columns._Sums([columns.Matrix(0, matrix.numel(), matrix.shape[1])])
    return sums.exponents(sums.of([matrix[None]]), columns.LIMIT)


def test_exponents():
    torch.manual_seed(0)
    matrix = torch.randn(400, 8)
    matrix[:, 3] *= 100
    matrix[:, 5] /= 16
    assert exponents(matrix).tolist() == [0, 0, 0, 6, 0, -4, 0, 0]
    # nothing is concluded of few rows, nor of zeros
    assert not exponents(matrix[: columns.LEAST_ROWS - 1]).any()
    assert not exponents(torch.zeros(400, 8)).any()
    matrix[50:] = 0
    assert exponents(matrix)[3] == 6
    matrix[:, 2] = 0
    assert exponents(matrix)[2] == 0


def test_powers_are_exact():
    found = columns._powers(torch.tensor([-60.0, -1.0, 0.0, 7.0, 60.0]))
    assert found.tolist() == [2.0**-60, 0.5, 1.0, 128.0, 2.0**60]


def test_which_pieces_are_matrices():
    pieces = [segments.Piece(12, "", 4, columns=4), segments.Piece(5, "norms and biases"),
              segments.Piece(12, "smaller", 4, columns=4), segments.Piece(6, "", 6, columns=6),
              segments.Piece(0, "", 4, columns=4)]
    found = columns.matrices(pieces, segments.offsets_of(pieces, 2), 2)
    assert found == [columns.Matrix(0, 12, 4), columns.Matrix(29, 6, 6)]
    run = torch.arange(70)
    views = found[1].of(run, 2)
    assert views.tolist() == [[[29, 30, 31, 32, 33, 34]], [[64, 65, 66, 67, 68, 69]]]


@pytest.mark.parametrize("text, found", [
    ("int4", "int4:block=128,columns"),
    ("int4:columns=no", "int4:block=128,columns=no"),
    ("int4:block=64,columns", "int4:block=64,columns"),
    ("int8:columns=no,hadamard", "int8:block=2048,hadamard,columns=no"),
    ("lossless", "lossless"),
    ("ecdq", "ecdq:step=1"),
    ("ecdq:step=0.5", "ecdq:step=0.5"),
    ({"*.up": "plain"}, "int4:block=32,columns=no;*.up=plain"),
])
def test_text(text, found):
    assert ranks.run(1, lambda _rank: policy.make(grads=text).grads_text(), backend=None,
                     TW_GRADS="int4:block=32,columns=no") == [found]


def test_wrong_texts():
    def check(_rank):
        for wrong, match in (("lossless:columns=no", "what rounds blocks"), ("int4:columns=2", "columns=2"),
                             ("ecdq:columns=no", "what rounds blocks"),
                             ("ecdq:step=1.1", "not a codec"), ("int4:", "not a codec")):
            with pytest.raises(ValueError, match=match):
                policy.make(grads=wrong)
        with pytest.raises(ValueError, match="'ecdq' is for gradients"):
            policy.make(weights="ecdq")
        return policy.make("int8").weights_text() == "int8:block=2048"  # weights have none

    assert ranks.run(1, check, backend=None) == [True]


class Ended(communicators.Waitable):
    """An operation that has ended, by an error or without one."""

    def __init__(self, error=None):
        self.error = error

    def test(self):
        return True

    def exception(self):
        return self.error


@pytest.mark.parametrize("error, factor", [(None, 4.0), (ValueError(), 1.0)])
def test_who_only_polls_gets_the_columns_multiplied_back_once(error, factor):
    result = torch.ones(3, 2)
    work = operations.Work(columns.Scaled(Ended(error), [(result, torch.full((2,), 4.0))]), "")
    for _ in range(2):
        assert work.is_completed() and work.is_success() == (error is None)
        assert torch.equal(result, torch.full((3, 2), factor))


def layer(kind=fully_shard, rows=200, **kwargs):
    torch.manual_seed(0)
    return kind(nn.Linear(WIDTH, rows), **kwargs)


def gradients(model, rank, steps=3):
    """Of a layer one input of which is far larger than the others."""
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + rank)
        x = torch.randn(64, WIDTH, generator=generator)
        x[:, 5] *= LARGE
        model.zero_grad()
        model(x).tanh().square().mean().backward()
    found = model.weight.grad
    return found.to_local() if hasattr(found, "to_local") else found


def lost(found, expected):
    """The share of what became 0, and the error, beside the large column."""
    small = torch.arange(WIDTH) != 5
    found, expected = found[:, small].float(), expected[:, small].float()
    zeros = ((found == 0) & (expected != 0)).float().mean().item()
    return zeros, ((found - expected).norm() / expected.norm()).item()


POLICIES = [BF16, MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16),
            MixedPrecisionPolicy(torch.float16, torch.float16)]


@pytest.mark.parametrize("mixed", POLICIES)
def test_a_large_column_takes_nothing_from_the_others(mixed):
    def check(rank):
        def with_codec(grads, steps=3):
            model = thinwire.enable(layer(mp_policy=mixed), "plain", grads, min_bytes=0)
            return gradients(model, rank, steps)

        expected, without, found = with_codec("plain"), with_codec("int4:columns=no"), with_codec("int4")
        assert torch.equal(with_codec("int4", 1), with_codec("plain", 1))  # the first time nothing is lost
        tally = thinwire.report()[columns.KIND]
        assert tally.calls == 4 and tally.sent_bytes > 0
        large = found[:, 5].norm() / expected[:, 5].norm()
        return lost(without, expected), lost(found, expected), large.item()

    for (zeros, error), (own_zeros, own_error), large in ranks.run(3, check):
        assert zeros > 0.6 and error > 0.8
        assert own_zeros < 0.1 and own_error < 0.3 and abs(large - 1) < 0.1


def test_between_replicas():
    def hybrid():
        return layer(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))

    def check(rank):
        expected = gradients(thinwire.enable(hybrid(), "plain", "plain"), rank)
        return lost(gradients(thinwire.enable(hybrid(), "plain", "int4", min_bytes=0), rank), expected)

    for zeros, error in ranks.run(4, check, nodes=[0, 0, 1, 1]):
        assert zeros < 0.15 and error < 0.4


def test_not_a_number_passes_and_is_forgotten():
    def check(rank):
        model = thinwire.enable(layer(), "plain", "int4", min_bytes=0)
        expected = gradients(thinwire.enable(layer(), "plain", "plain"), rank)
        gradients(model, rank)
        model(torch.full((64, WIDTH), float("nan"))).sum().backward()
        assert torch.isnan(model.weight.grad.to_local()).any()
        return lost(gradients(model, rank), expected)

    for zeros, error in ranks.run(2, check):
        assert zeros < 0.1 and error < 0.3


def test_unquantized_has_no_scales_and_all_ranks_have_the_same():
    def check(rank):
        with thinwire.unquantized():
            found = gradients(thinwire.enable(layer(), "plain", "int4", min_bytes=0), rank)
        assert torch.equal(found, gradients(thinwire.enable(layer(), "plain", "plain"), rank))
        assert columns.KIND not in thinwire.report()
        model = thinwire.enable(make(), "plain", "int4", min_bytes=0)
        train(model, rank, 5)
        powers = [shape.scaling._powers for group in inside.groups_of(model)
                  for found in group._reduce_scatter_comm._shapes.values()
                  for _, shape, _ in found if shape.scaling is not None]
        assert any(powers)
        return [(i, up.tolist()) for one in powers for i, _, up in one]

    one, *others = ranks.run(3, check)
    assert all(other == one for other in others)

