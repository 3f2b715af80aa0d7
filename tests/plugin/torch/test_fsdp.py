"""fsdp: FSDP2 over Thinwire, between processes over UCX."""

import hashlib

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from models import BF16, WIDTH, Block, batch, loss_of, make, train
from thinwire import inside
from thinwire.collectives import operations
from thinwire.engine import communicators
from thinwire.fsdp import comms, hooks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def weights(model):
    """All parameters, whole, as torch itself gathers them."""
    return [one.full_tensor().clone() if hasattr(one, "full_tensor") else one for one in model.parameters()]


def digest(tensors):
    return hashlib.sha256(b"".join(one.detach().float().numpy().tobytes() for one in tensors)).hexdigest()




def itself(model):
    return model


def plainly(model):
    return thinwire.enable(model, "plain", "plain")


def both(rank, prepare=itself, **kwargs):
    """(gloo's, Thinwire's plain) losses and weights of the same training. By default Thinwire has the bits of
    its plain one, in fewer bytes."""
    options = {name: kwargs.pop(name) for name in ("policy", "mesh", "reshard_after_forward")
               if name in kwargs}
    results, sent = [], [0]
    for enable in (itself, plainly, thinwire.enable):
        model = enable(prepare(make(**options)))
        losses = train(model, rank, **kwargs)
        results.append((losses, digest(weights(model)), weights(model)))
        sent.append(thinwire.report().counted_bytes)
    assert thinwire.report()["all-gather"].calls > 0
    assert results[1][:2] == results[2][:2]
    assert sent[3] - sent[2] < sent[2] - sent[1]
    return results[:2]


def bit_equal(rank, **kwargs):
    (losses, bits, _), (own_losses, own_bits, _) = both(rank, **kwargs)
    return losses == own_losses and bits == own_bits


def close(rank, tolerance=1e-5, **kwargs):
    (losses, _, whole), (own_losses, _, own_whole) = both(rank, **kwargs)
    torch.testing.assert_close(torch.tensor(own_losses), torch.tensor(losses), rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(own_whole, whole):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
    return True


def test_plain_is_gloo_to_the_last_bit_on_two_ranks():
    def check(rank):
        assert bit_equal(rank)
        assert bit_equal(rank, accumulate=2)
        assert bit_equal(rank, accumulate=2, sync=False)
        assert bit_equal(rank, policy=MixedPrecisionPolicy())
        assert bit_equal(rank, policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16))
        assert bit_equal(rank, reshard_after_forward=False)
        return True

    assert all(ranks.run(2, check, **ranks.SLOW))


@pytest.mark.parametrize("world", [3, 4])
def test_plain_is_close_to_gloo_on_more(world):
    assert all(ranks.run(world, lambda rank: close(rank), **ranks.SLOW))


def test_the_variable_alone_loses_nothing():
    """Over 200 steps."""

    def check(rank):
        expected = train(make(), rank, 200)
        hooks.patch()
        found = train(make(), rank, 200)
        tally = thinwire.report()
        assert tally["reduce-scatter"].bound_bytes > 0
        assert set(tally["reduce-scatter"].unquantized) <= {operations.DECLINED}
        assert not tally["all-gather"].unquantized and not tally["all-gather"].unkept
        return found == expected

    assert all(ranks.run(2, check, limit_sec=400, **ranks.SLOW))


def test_divide_factors():
    def factor(model):
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(4.0)
        return model

    def summed(model):
        for module in model.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)
        return factor(model)

    def fp16(rank):
        return bit_equal(rank, policy=MixedPrecisionPolicy(torch.float16, torch.float16))

    def premultiplied(rank):
        # gloo has no PREMUL_SUM: what FSDP2 makes of sums is the measure.
        model = thinwire.enable(factor(make()), "plain", "plain")
        return train(model, rank), train(summed(make()), rank)

    def check(rank):
        assert fp16(rank)
        assert bit_equal(rank, prepare=summed)
        own, expected = premultiplied(rank)
        torch.testing.assert_close(torch.tensor(own), torch.tensor(expected))
        return True

    assert all(ranks.run(2, check, **ranks.SLOW))


def test_quantized_training():
    """Bytes as promised, all ranks gather the same bits, and the losses stay near."""

    def check(rank):
        plain = train(make(), rank, 6)
        model = thinwire.enable(make(), "int8:block=128", "int4:columns=no", min_bytes=1024)
        near = train(model, rank, 6)
        model[0].unshard()
        gathered = digest([model[0].up.weight, model[0].down.weight])
        exact = torch.equal(model[0].norm.weight, weights(model)[0].bfloat16())
        model[0].reshard()
        found = thinwire.report()
        return plain, near, gathered, exact, found

    results = ranks.run(4, check)
    assert len({gathered for _, _, gathered, _, _ in results}) == 1
    for plain, near, _, exact, found in results:
        assert plain != near
        torch.testing.assert_close(torch.tensor(near), torch.tensor(plain), rtol=0.05, atol=0.05)
        assert exact
        gather, scatter = found["all-gather"], found["reduce-scatter"]
        assert found.counted_bytes == gather.sent_bytes + scatter.sent_bytes
        assert gather.sent_bytes < 0.6 * gather.plain_bytes and scatter.sent_bytes < 0.2 * scatter.plain_bytes
        assert gather.unquantized["norms and biases"] == 4 * gather.calls
        assert scatter.unquantized["norms and biases"] == 4 * scatter.calls


def test_small_parameters_and_single_nodes_stay_plain():
    def small(rank):
        model = thinwire.enable(make(), "int8", "int4", min_bytes=1 << 20)
        assert train(model, rank) == train(make(), rank)
        found = thinwire.report()["all-gather"]
        assert found.unquantized["smaller than TW_MIN_BYTES"] == 2 * found.calls
        assert found.sent_bytes == found.plain_bytes
        return True

    def one_node(rank):
        model = thinwire.enable(make(), "int8", "int4", min_bytes=0)
        assert train(model, rank) == train(make(), rank)
        return thinwire.report()["all-gather"].unquantized["ranks of one node"] > 0

    assert all(ranks.run(2, small))
    assert all(ranks.run(2, one_node, nodes=[0, 0]))


def test_switches():
    """enable, disable and unquantized() at any step."""

    def check(rank):
        expected = train(make(), rank, 4)
        model, found = make(), []
        found += train(thinwire.enable(model, "plain", "plain"), rank, 1)
        with thinwire.unquantized():
            thinwire.enable(model, "int8", "int4", min_bytes=0)
            calls = thinwire.report()["all-gather"].calls
            assert train(model, rank, 1, first=1) and thinwire.report()["all-gather"].calls > calls
        sent = thinwire.report().counted_bytes
        thinwire.disable(model)
        train(model, rank, 1, first=2)
        assert thinwire.report().counted_bytes == sent
        assert thinwire.report()["all-gather"].sent_bytes == thinwire.report()["all-gather"].plain_bytes
        with pytest.raises(ValueError, match="fully_shard"):
            thinwire.enable(nn.Linear(2, 2))
        return found == expected[:1]

    assert all(ranks.run(2, check))


def test_unquantized_block_is_bit_equal_and_a_patched_torch_needs_no_call():
    def check(rank):
        expected = train(make(), rank)
        hooks.patch()
        with thinwire.unquantized():
            found = train(make(), rank)
        assert found == expected and thinwire.report()["all-gather"].unquantized["unquantized()"] > 0
        return train(make(), rank) != expected

    assert all(ranks.run(2, check, TW_MIN_BYTES="1", TW_WEIGHTS="int8"))


@pytest.mark.parametrize("before", [False, True])
def test_buffers_of_the_process_group(before):
    """torch puts its own gather in the place of ours: it still goes over Thinwire."""

    def allocating(model):
        for module in model.modules():
            if hasattr(module, "set_allocate_memory_from_process_group_for_comm"):
                module.set_allocate_memory_from_process_group_for_comm(True)
        return model

    def check(rank):
        expected = train(make(), rank)
        enable = lambda model: thinwire.enable(model, "plain", "plain")
        model = enable(allocating(make())) if before else allocating(enable(make()))
        assert all("ProcessGroup" in type(one._all_gather_comm.allocator).__name__
                   for one in inside.groups_of(model))
        assert train(model, rank) == expected
        found = thinwire.report()
        assert found["all-gather"].calls > 0 and found["reduce-scatter"].calls > 0 and not found.elsewhere
        for module in model.modules():
            if hasattr(module, "set_allocate_memory_from_process_group_for_comm"):
                module.set_allocate_memory_from_process_group_for_comm(False)
        train(model, rank, 1)
        return not thinwire.report().elsewhere

    assert all(ranks.run(2, check))


class Branches(nn.Module):
    """Uses one of two layers: the other one has no gradient."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.which = 0

    def forward(self, x):
        return self.layers[2](self.layers[self.which](x))


def test_unused_parameters():
    def losses(rank, enable):
        torch.manual_seed(0)
        model = enable(fully_shard(Branches(), mp_policy=BF16))
        found = []
        for step in range(4):
            model.which = step % 2
            found += train(model, rank, 1, first=step)
        return found

    def check(rank):
        expected = losses(rank, itself)
        assert losses(rank, plainly) == losses(rank, thinwire.enable) == expected
        near = losses(rank, lambda model: thinwire.enable(model, "int8", "int8", min_bytes=0))
        torch.testing.assert_close(torch.tensor(near), torch.tensor(expected), rtol=0.02, atol=0.02)
        # boundaries are known although a part of the parameters is reduced
        return comms.UNKNOWN not in thinwire.report()["reduce-scatter"].unquantized

    assert all(ranks.run(2, check))


class Some(nn.Module):
    """Uses the first n of its layers."""

    def __init__(self):
        super().__init__()
        self.layers, self.n = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)]), 3

    def forward(self, x):
        for layer in self.layers[: self.n]:
            x = layer(x)
        return x


def make_some():
    torch.manual_seed(0)
    model = Some()
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def gathers_and_computations(model):
    """A list that gets ("gather", layer) and ("compute", layer) as they come."""
    log = []

    def watch(number, comm, layer):
        def gather(*args, **kwargs):
            log.append(("gather", number))
            return comm(*args, **kwargs)

        gather.allocate = comm.allocate
        layer.register_forward_hook(lambda *_: log.append(("compute", number)))
        return gather

    for number, (group, layer) in enumerate(zip(inside.groups_of(model), model.layers)):
        group._all_gather_comm = watch(number, group._all_gather_comm, layer)
    return log


@torch.no_grad()
def test_the_next_gather_runs_beside_the_computation():
    def passed(model, n, log):
        log.clear()
        model.n = n
        result = model(torch.ones(4, WIDTH))
        return [(what[0], number) for what, number in log], result

    def check(rank):
        model, plain = thinwire.enable(make_some(), "plain", "plain"), make_some()
        log = gathers_and_computations(model)
        in_turn = [("g", 0), ("c", 0), ("g", 1), ("c", 1), ("g", 2), ("c", 2)]
        assert passed(model, 3, log)[0] == in_turn
        assert passed(model, 3, log)[0] == [("g", 0), ("g", 1), ("c", 0), ("g", 2), ("c", 1), ("c", 2)]
        # A gather in vain is the last of its kind, and nobody sees its weights, which are old by then.
        assert passed(model, 1, log)[0] == [("g", 0), ("g", 1), ("c", 0)]
        for one in (model, plain):
            one.layers[1].weight.to_local().fill_(0.5)
        order, result = passed(model, 3, log)
        assert order == in_turn
        return torch.equal(result, plain(torch.ones(4, WIDTH)))

    assert all(ranks.run(2, check))


class Interrupt(BaseException):
    """Like KeyboardInterrupt: torch does not call what it calls after an exception."""


class Failing(Some):
    """Raises before a layer when told to, while that layer is gathered ahead."""

    error = ValueError

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if self.n == number:
                raise self.error("of the model")
            x = layer(x)
        return x


def make_failing():
    torch.manual_seed(0)
    model = Failing()
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def after_a_failure(model, change, use, error=ValueError):
    """What `use` finds when a forward has raised before the third layer, whose weights are on their way, and
    weights have changed."""
    x, optimizer = torch.ones(4, WIDTH), torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(2):
        model(x).square().mean().backward()
    model.n, model.error = 2, error
    with pytest.raises(error):
        model(x)
    model.n = -1
    change(model, optimizer)
    return use(model, x)


def data_changes(model, _optimizer):
    for one in model.parameters():
        one.data.to_local().mul_(0.5)


def whole_model(model, x):
    return [model(x).square().mean().item() for _ in range(2)]


def one_layer(model, x):
    return [model.layers[2](x).square().mean().item()]


def unsharded(model, _x):
    model.layers[2].unshard()
    return [model.layers[2].weight.square().mean().item()]


@pytest.mark.parametrize("patched", [False, True])
def test_weights_that_a_failed_forward_has_asked_for_are_not_used(patched):
    def optimized(_model, optimizer):
        optimizer.step()

    def check(rank):
        cases = [(optimized, whole_model), (data_changes, whole_model), (optimized, one_layer),
                 (optimized, unsharded), (optimized, whole_model, Interrupt)]
        expected = [after_a_failure(make_failing(), *case) for case in cases]
        if patched:
            hooks.patch()
        enable = (lambda model: model) if patched else lambda model: thinwire.enable(model, "plain", "plain")
        found = [after_a_failure(enable(make_failing()), *case) for case in cases]
        assert thinwire.report()["all-gather"].calls > 0
        return found == expected, found, expected

    for equal, found, expected in ranks.run(2, check, TW_WEIGHTS="plain", TW_GRADS="plain"):
        assert equal, (found, expected)


def test_meshes():
    """HSDP, and a part of the ranks kept between forward and backward."""

    def check(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        assert close(rank, mesh=mesh)
        assert close(rank, reshard_after_forward=2)
        calls = thinwire.report()["all-gather"].calls
        near = thinwire.enable(make(reshard_after_forward=2), "int8", "int4", min_bytes=0)
        torch.testing.assert_close(torch.tensor(train(near, rank)), torch.tensor(train(make(), rank)),
                                   rtol=0.05, atol=0.05)
        found = thinwire.report()
        # ranks 0 and 1 share a node: their gather for the backward pass is not quantized
        assert found["all-gather"].calls > calls and found["all-gather"].unquantized["ranks of one node"] > 0
        return comms.UNKNOWN not in found["all-gather"].unquantized

    assert all(ranks.run(4, check, nodes=[0, 0, 1, 1], **ranks.SLOW))


EIGHT_BITS = torch.float8_e4m3fn


class Adapted(nn.Module):
    """A frozen base in bf16, adapters and a norm in fp32, and another type: all in one group of
    parameters."""

    def __init__(self, odd=0):
        super().__init__()
        if odd:
            self.first = nn.Parameter(torch.ones(odd).to(EIGHT_BITS), requires_grad=False)
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).to(torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.table = nn.Parameter(torch.arange(24.0).to(EIGHT_BITS), requires_grad=False)

    def forward(self, x):
        x = self.norm(x)
        return self.base(x.to(torch.bfloat16)).float() + self.up(self.down(x))


def make_adapted(odd=0):
    torch.manual_seed(0)
    return fully_shard(Adapted(odd))


def test_of_mixed_types_those_that_can_be_are_quantized():
    def gathered(model):
        model.unshard()
        return {name: one.detach().float() for name, one in model.named_parameters()}

    def check(rank):
        expected = gathered(make_adapted())
        # as many bytes as the base's, and no less: the adapters are smaller
        found = gathered(thinwire.enable(make_adapted(), "int8:block=64", "int4",
                                         min_bytes=2 * WIDTH * WIDTH))
        assert [name for name in found if not torch.equal(found[name], expected[name])] == ["base.weight"]
        torch.testing.assert_close(found["base.weight"], expected["base.weight"], rtol=0, atol=0.002)
        tally = thinwire.report()["all-gather"]
        assert tally.calls == 1
        assert tally.unquantized == {"smaller than TW_MIN_BYTES": 2, "norms and biases": 2,
                                     str(EIGHT_BITS): 1}
        # of a third of the base, for two others: 16 bits an element without, 8 and a scale for each 64 with
        # the codec
        base = 2 * WIDTH * WIDTH * 2 // 3
        assert 0.45 * base < tally.plain_bytes - tally.sent_bytes < 0.5 * base
        # adapters, too
        smaller = gathered(thinwire.enable(make_adapted(), "int8:block=64", "int4", min_bytes=0))
        assert not torch.equal(smaller["up.weight"], expected["up.weight"])
        assert torch.equal(smaller["norm.bias"], expected["norm.bias"])
        exact = gathered(thinwire.enable(make_adapted(), "plain", "plain", min_bytes=0))
        with thinwire.unquantized():
            in_block = gathered(thinwire.enable(make_adapted(), "int8", "int4", min_bytes=0))
        for other in (exact, in_block):
            assert all(torch.equal(other[name], expected[name]) for name in expected)
        return digest([found["base.weight"], smaller["up.weight"]])

    assert len(set(ranks.run(3, check))) == 1


def test_training_of_mixed_types_is_near():
    def check(rank):
        expected = train(make_adapted(), rank, 4)
        assert train(plainly(make_adapted()), rank, 4) == expected
        assert train(thinwire.enable(make_adapted()), rank, 4) == expected
        near = train(thinwire.enable(make_adapted(), "int8:block=64", "int8:block=64", min_bytes=0), rank, 4)
        torch.testing.assert_close(torch.tensor(near), torch.tensor(expected), rtol=0.02, atol=0.02)
        return near != expected

    assert all(ranks.run(2, check))


def test_what_lies_between_two_elements_is_plain():
    def check(rank):
        model = thinwire.enable(make_adapted(odd=2), "int8", "int4", min_bytes=0)
        model.unshard()
        assert torch.equal(model.base.weight, make_adapted(odd=2).base.weight.full_tensor())
        return thinwire.report()["all-gather"].unquantized["not aligned"]

    # one byte a rank comes first: of the rest nothing is where its type wants it
    assert ranks.run(2, check) == [3, 3]


class Short(torch.Tensor):
    """A weight whose class says what is gathered: fp8, as torchao's has it."""

    kind = EIGHT_BITS

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), inner.stride(), inner.storage_offset(),
                                                   dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self._inner = inner

    def __tensor_flatten__(self):
        return ["_inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors, _context, _size, _stride):
        return Short(tensors["_inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args, kwargs=None):
        inner = torch.utils._pytree.tree_map_only(cls, lambda one: one._inner, (args, kwargs or {}))
        found = function(*inner[0], **inner[1])
        if function is torch.ops.aten.copy_.default:
            return args[0]
        return torch.utils._pytree.tree_map_only(torch.Tensor, cls, found)

    def fsdp_pre_all_gather(self, mesh):
        return (self._inner.to(self.kind),), ()

    def fsdp_post_all_gather(self, gathered, _metadata, param_dtype, *, out=None):
        whole = gathered[0].to(param_dtype)
        return out.copy_(whole) if out is not None else (whole, gathered)


def make_short():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)])
    for layer in model:
        layer.weight = nn.Parameter(Short(layer.weight.detach()))
        fully_shard(layer, mp_policy=BF16)
    return fully_shard(model, mp_policy=BF16)


def test_what_a_class_of_tensors_gathers_goes_as_bytes():
    """gloo has no fp8."""

    @torch.no_grad()
    def outputs(*codecs):
        model = thinwire.enable(make_short(), *codecs, min_bytes=0)
        return [model(batch(0, step)) for step in range(3)]

    def is_the_same(kind):
        Short.kind = kind
        expected = outputs("plain", "plain")
        near, changes = outputs("int8"), outputs()
        assert thinwire.report()["all-gather"].unquantized[comms.OWN_GATHER % "Short"] > 0
        assert not thinwire.report().elsewhere
        return all(torch.equal(one, other) and torch.equal(one, third)
                   for one, other, third in zip(expected, near, changes))

    def check(_rank):
        return all(map(is_the_same, (EIGHT_BITS, torch.float8_e5m2, torch.float8_e4m3fnuz,
                                     torch.float8_e5m2fnuz)))

    assert all(ranks.run(2, check))


@pytest.mark.parametrize("norms", [0, 1])
def test_of_fp8_that_a_class_gathers_only_changes_are_sent(norms):
    @torch.no_grad()
    def outputs(rank, codec):
        """(what each step computes, bytes to other nodes by the report, had they been plain) without the
        first step, which sends weights as they are"""
        torch.manual_seed(0)
        model, found, sent = nn.Sequential(nn.Linear(256, 256, bias=False)), [], []
        model.extend(nn.LayerNorm(256) for _ in range(norms))
        model[0].weight = nn.Parameter(Short(model[0].weight.detach()))
        thinwire.enable(fully_shard(model, mp_policy=BF16), codec, min_bytes=0)
        for step in range(6):
            found.append(model(torch.eye(256)))
            model.reshard()
            tally = thinwire.report()["all-gather"]
            sent.append((tally.sent_bytes, tally.plain_bytes))
            generator = torch.Generator().manual_seed(10 * step + rank)
            for one in (param.to_local() for param in model.parameters()):
                one = getattr(one, "_inner", one)
                one.add_(1e-4 * torch.randn(one.shape, generator=generator))
        return torch.stack(found), sent[-1][0] - sent[0][0], sent[-1][1] - sent[0][1]

    def check(rank):
        expected, plain_bytes, _ = outputs(rank, "plain")
        found, n_bytes, if_plain = outputs(rank, "delta")
        assert not torch.equal(found[0], found[-1]) and torch.equal(found, expected)
        assert n_bytes < 0.15 * plain_bytes and plain_bytes == if_plain
        report = thinwire.report()
        return report.counted_bytes == report["all-gather"].sent_bytes and not report.elsewhere

    assert all(ranks.run(2, check))


class Same(nn.Module):
    """A matrix and a vector of as many elements, used in turn."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.vector = nn.Parameter(torch.randn(WIDTH * WIDTH))
        self.which = "matrix"

    def forward(self, x):
        return x @ (self.matrix if self.which == "matrix" else self.vector.view(WIDTH, WIDTH))


@pytest.mark.parametrize("first", ["matrix", "vector"])
def test_a_vector_with_the_size_of_a_matrix_stays_plain(first):
    def gradients(rank, enable):
        torch.manual_seed(0)
        model = enable(fully_shard(Same()))
        for model.which in (first, "vector" if first == "matrix" else "matrix"):
            loss_of(model, rank, 0).backward()
        return [one.grad.full_tensor() for one in (model.matrix, model.vector)]

    def check(rank):
        matrix, vector = gradients(rank, lambda model: model)
        own_matrix, own_vector = gradients(
            rank, lambda model: thinwire.enable(model, "plain", "int4:columns=no", min_bytes=0))
        assert torch.equal(own_vector, vector) and not torch.equal(own_matrix, matrix)
        return thinwire.report()["reduce-scatter"].unquantized["norms and biases"]

    assert ranks.run(2, check) == [1, 1]


def test_replicas_reduce_over_thinwire():
    """HSDP with shards in the node: only what goes between the replicas leaves it."""

    def hybrid():
        return make(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))

    def check(rank):
        expected = train(hybrid(), rank, 4)
        assert train(plainly(hybrid()), rank, 4) == expected
        before = thinwire.report()["all-reduce"]
        assert before.calls == 8 and before.sent_bytes == before.plain_bytes > 0
        assert train(thinwire.enable(hybrid()), rank, 4) == expected
        tally = thinwire.report()["all-reduce"]
        assert tally.sent_bytes - before.sent_bytes < before.sent_bytes
        model = thinwire.enable(hybrid(), "int8", "int4:columns=no", min_bytes=1024)
        near = train(model, rank, 4)
        torch.testing.assert_close(torch.tensor(near), torch.tensor(expected), rtol=0.05, atol=0.05)
        found = thinwire.report()
        sent, plain = (getattr(found["all-reduce"], name) - getattr(tally, name)
                       for name in ("sent_bytes", "plain_bytes"))
        assert near != expected and sent < 0.2 * plain
        assert found["all-reduce"].unquantized["norms and biases"] == 8 * 4
        assert found["all-gather"].plain_bytes == found["reduce-scatter"].plain_bytes == 0
        assert found.counted_bytes == found["all-reduce"].sent_bytes and not found.elsewhere
        return digest(weights(model))

    assert len(set(ranks.run(4, check, nodes=[0, 0, 1, 1], **ranks.SLOW))) == 1


def test_replicas_accumulate_without_a_reduction():
    def losses(rank, enable):
        model = enable(make(mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))))
        optimizer, found = torch.optim.SGD(model.parameters(), 1e-1), []
        for step in range(4):
            model.set_requires_all_reduce(step % 2 == 1)
            loss = loss_of(model, rank, step)
            loss.backward()
            found.append(loss.item())
            if step % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
        return found

    def check(rank):
        assert losses(rank, plainly) == losses(rank, thinwire.enable) == losses(rank, itself)
        return thinwire.report()["all-reduce"].calls

    assert ranks.run(2, check, **ranks.SLOW) == [8, 8]


def test_replicate():
    from torch.distributed._composable.replicate_with_fsdp import replicate

    def losses(rank, enable):
        torch.manual_seed(0)
        model = nn.Sequential(*[Block() for _ in range(2)])
        for block in model:
            replicate(block)
        return train(enable(replicate(model)), rank)

    def check(rank):
        expected = losses(rank, itself)
        assert losses(rank, plainly) == losses(rank, thinwire.enable) == expected
        near = losses(rank, lambda model: thinwire.enable(model, "int8", "int8:block=64,columns=no",
                                                          min_bytes=1))
        torch.testing.assert_close(torch.tensor(near), torch.tensor(expected), rtol=0.02, atol=0.02)
        tally = thinwire.report()["all-reduce"]
        assert near != expected and tally.calls == 18 and tally.sent_bytes < 0.8 * tally.plain_bytes
        # switched off, torch's own all-reduce is counted: twice half of the gradients are sent
        assert losses(rank, lambda model: thinwire.disable(thinwire.enable(model))) == expected
        (key,), (found,) = zip(*thinwire.report().elsewhere.items())
        whole = 4 * 2 * sum(one.numel() for one in Block().parameters())
        return (key == ("all-reduce", "thinwire is not enabled there")
                and (found.calls, found.sent_bytes) == (6, 3 * whole))

    assert all(ranks.run(2, check, **ranks.SLOW))


def test_activation_checkpointing_and_two_models():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def build(seed, enable):
        torch.manual_seed(seed)
        model = nn.Sequential(*[checkpoint_wrapper(Block()) for _ in range(2)])
        for block in model:
            fully_shard(block, mp_policy=BF16)
        return enable(fully_shard(model, mp_policy=BF16))

    def losses(rank, enable):
        one, two = build(1, enable), build(2, enable)
        return [train(one, rank, 1, first=step) + train(two, rank, 1, first=step) for step in range(2)]

    def check(rank):
        expected = losses(rank, itself)
        return losses(rank, plainly) == losses(rank, thinwire.enable) == expected

    assert all(ranks.run(2, check, **ranks.SLOW))


def test_checkpoints_are_plain(tmp_path):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    def check(rank):
        model = thinwire.enable(make(), "int8", "int4", min_bytes=0)
        train(model, rank)
        before = weights(model)
        checkpoint.save(get_model_state_dict(model), checkpoint_id=str(tmp_path))
        other = thinwire.enable(make(seed=7), "int8", "int4", min_bytes=0)
        state = get_model_state_dict(other)
        checkpoint.load(state, checkpoint_id=str(tmp_path))
        set_model_state_dict(other, state)
        return all(torch.equal(a, b) for a, b in zip(before, weights(other)))

    assert all(ranks.run(2, check))


def test_not_a_number_is_not_hidden():
    def check(rank):
        model = thinwire.enable(make(), "int8", "int4", min_bytes=0)
        if rank == 1:
            with torch.no_grad():
                model[0].up.weight.to_local().view(-1)[0] = float("nan")
        model[0].unshard()
        return torch.isnan(model[0].up.weight).any().item()

    assert ranks.run(2, check) == [True, True]


def test_a_second_job_in_the_process(tmp_path):
    def check(rank):
        found = []
        for number in range(2):
            with ranks.job(str(tmp_path / str(number)), rank, 2):
                found.append(train(thinwire.enable(make(), "plain", "plain"), rank))
                assert len(communicators.running()) == 1
        return found[0] == found[1]

    assert all(ranks.run(2, check, backend=None))


@pytest.fixture
def unprobed():
    """What is known of this torch is found out anew, before and after."""
    inside.difference.cache_clear()
    yield
    inside.difference.cache_clear()


def without(monkeypatch, change):
    """This torch as if something of FSDP2's inside were another way."""
    module = inside.module("_fsdp_param_group")
    if change == "renamed":
        monkeypatch.delattr(module, "foreach_reduce")
    elif change == "other parameters":
        monkeypatch.setattr(module, "foreach_all_gather", lambda group, fsdp_params: None)
    elif change == "moved":
        monkeypatch.delattr(inside.module("_fsdp_collectives"), "dist")
    else:
        monkeypatch.setattr(torch, "__version__", change)


@pytest.mark.parametrize("change, names", [
    ("renamed", r"it has no foreach_reduce\(fsdp_params, unsharded_grads, reduce_scatter_group\)"),
    ("other parameters", r"it has no foreach_all_gather\(fsdp_params, group\)"),
    ("moved", "it has no _fsdp_collectives.dist"),
    ("2.8.1", r"torch 2\.8\.1 is not known here: FSDP2 is known here from torch 2\.9 on"),
    ("1.13.0", "from torch 2.9 on"),
])
def test_a_torch_that_differs_is_refused(monkeypatch, unprobed, change, names):
    without(monkeypatch, change)
    for function in (hooks.patch, lambda: thinwire.enable(nn.Linear(2, 2))):
        with pytest.raises(RuntimeError, match=names):
            function()


@pytest.mark.parametrize("version", ["2.9.0", "2.10.0a0+git", "2.15.0+cu132", "2.16.0", "3.0.0"])
def test_a_torch_with_the_same_inside_is_known(monkeypatch, unprobed, version):
    monkeypatch.setattr(torch, "__version__", version)
    inside.check()


def test_a_job_on_a_torch_that_differs_keeps_its_collectives(monkeypatch, unprobed):
    functions = inside._FUNCTIONS | {("_fsdp_param_group", "foreach_reduce"): ("params",)}
    monkeypatch.setattr(inside, "_FUNCTIONS", functions)

    def check(rank):
        assert train(make(), rank)
        return len(ranks.logged("it has no foreach_reduce(params)")), "all-gather" in thinwire.report()

    assert ranks.run(2, check, TW_FSDP="1") == [(1, False), (0, False)]


def test_default_group_is_needed():
    with pytest.raises((ValueError, RuntimeError)):
        communicators.Use({}).communicator_of("none", [0], 1.0)
    assert not dist.is_initialized()
