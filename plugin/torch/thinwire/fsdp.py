"""FSDP2: its all-gather of weights and its reduce-scatter of gradients, over Thinwire.

FSDP2 has a place for either on every group of parameters; the boundaries of parameters in its flat buffers are read from the
group. Private names of torch are used in this file alone; SUPPORTED says for which versions they were read."""

from __future__ import annotations

import functools
import itertools
import logging
import types
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

from . import capi, operations, policy, segments
from .engine import TYPES, Communicator, Request, Use

log = logging.getLogger("thinwire")
SUPPORTED = ((2, 9), (2, 15))
UNKNOWN = "unknown boundaries"


def check_version() -> None:
    """RuntimeError for a torch that this file was not read against."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not SUPPORTED[0] <= version <= SUPPORTED[1]:
        raise RuntimeError("FSDP2 of torch %s is not known here, only that of %d.%d to %d.%d"
                           % ((torch.__version__,) + SUPPORTED[0] + SUPPORTED[1]))


def _modules() -> tuple[types.ModuleType, types.ModuleType]:
    check_version()
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group

    return _fsdp_collectives, _fsdp_param_group


class _Comm:
    """What both directions share: the parameters, the policy, the shapes that have occurred."""

    def __init__(self, group: object, rules: policy.Policy):
        super().__init__()
        self._group, self._rules, self._use = group, rules, Use(rules.settings())
        self._shapes: dict[object, operations.Shape] = {}
        self._steps = itertools.count()
        self._native = False

    def _communicator(self, group: dist.ProcessGroup, tensor: torch.Tensor) -> Communicator | None:
        """None: torch's own way. GPU memory can be refused by a library that was built without CUDA, too."""
        if self._native or tensor.dtype not in TYPES:
            return None
        try:
            return self._use.communicator(group, tensor.is_cuda)
        except capi.ThinwireError as error:
            if not tensor.is_cuda or error.status != capi.UNSUPPORTED:
                raise
            log.warning("not over thinwire: %s", error)
            self._native = True
            return None

    def _pieces(self, params: Sequence[object], sizes: Sequence[int], run: int, world: int, itemsize: int) -> list[segments.Piece]:
        if sum(sizes) != run:
            return [segments.Piece(run, UNKNOWN)]
        return [segments.Piece(n, policy.why_exact(self._rules, len(param._orig_size), n * world * itemsize))
                for param, n in zip(params, sizes)]

    def _shape(self, communicator: Communicator, params: Sequence[object], sizes: list[int], run: int, itemsize: int) -> operations.Shape:
        key = (communicator.world, communicator.rank, itemsize, run, tuple(sizes))
        if key not in self._shapes:
            pieces = self._pieces(params, sizes, run, communicator.world, itemsize)
            table = segments.RankMajor(communicator.world, communicator.rank, pieces, itemsize)
            self._shapes[key] = operations.shape(table, pieces)
        return self._shapes[key]


class _Forward:
    """The forward pass of a tree of FSDP2 modules: while one group of parameters computes, the next one is gathered. On CPUs
    FSDP2 does so by itself in the backward pass alone. The order is that of the pass before."""

    def __init__(self) -> None:
        self._before: list[object] = []
        self._now: list[object] = []
        self._place = 0  # in _before
        self._ahead: list[object] = []  # asked for, not yet used
        self._off = False

    def used(self, group: object) -> None:
        """A group's parameters are whole: ask for those of the one that comes next."""
        if self._off or torch._C._current_graph_task_id() != -1:  # backward: what is computed again has an order of its own
            return
        self._now.append(group)
        if group in self._ahead:
            self._ahead.remove(group)
        if group in self._before[self._place :]:
            self._place = self._before.index(group, self._place) + 1
            for following in self._before[self._place : self._place + 1]:
                self._ask(following)

    def _ask(self, group: object) -> None:
        if group._all_gather_result is None:
            type(group)._prefetch_unshard(group, "forward")
            if group._all_gather_result is not None:
                self._ahead.append(group)

    def end(self) -> None:
        """What was asked for in vain is dropped, as weights may change before it is used, and then nothing is asked for again."""
        self._off = self._off or bool(self._ahead)
        for group in self._ahead:
            result, group._all_gather_result = group._all_gather_result, None
            if result is not None and result.all_gather_work is not None:
                result.all_gather_work.wait()
        self._before, self._now, self._place, self._ahead = self._now or self._before, [], 0, []


class _Gathering(operations.Work):
    """An all-gather of a group of parameters under way."""

    def __init__(self, request: Request, group: object):
        super().__init__(request, "all-gather")
        self._group = group

    def wait(self, timeout: object = None) -> bool:
        super().wait(timeout)
        if self._group._training_state.name == "FORWARD":
            _forward(self._group.comm_ctx).used(self._group)
        return True


def _forward(context: object) -> _Forward:
    """That of the tree to which this context of FSDP2's belongs."""
    if not hasattr(context, "_thinwire"):
        context._thinwire = _Forward()
    return context._thinwire


def _gathered_size(param: object) -> int:
    """Elements of a parameter in this rank's run: of its shard, or of what it keeps between forward and backward."""
    after = getattr(param, "_sharded_post_forward_param_data", None)
    data = after if param.sharded_state.name == "SHARDED_POST_FORWARD" and after is not None else param._sharded_param_data
    return data.numel()


@functools.cache
def _classes() -> tuple[type, type]:
    """(all-gather, reduce-scatter): torch's own are their bases, so that torch may put its own in their place again."""
    collectives, _ = _modules()

    class AllGather(_Comm, collectives.DefaultAllGather):
        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            ranks = self._communicator(group, output_tensor)
            if ranks is None:
                return super().__call__(output_tensor, input_tensor, group, async_op)
            params = self._group.fsdp_params
            shape = self._shape(ranks, params, [_gathered_size(one) for one in params],
                                input_tensor.numel(), output_tensor.itemsize)
            shape.table.gather(output_tensor.data_ptr())
            request = operations.Operation(
                "all-gather", capi.ALLGATHER, output_tensor.dtype, shape, self._rules.weights,
                (output_tensor,), step=next(self._steps)).post(ranks)
            if ranks.cuda:
                return operations.StreamWork() if async_op else None
            # FSDP2 waits where it copies out, so that a prefetched gather runs beside the computation.
            return _Gathering(request, self._group)

    class ReduceScatter(_Comm, collectives.DefaultReduceScatter):
        params: Sequence[object] = ()  # of the reduction under way

        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            reduction = operations.reduction(op)
            fits = reduction is not None and output_tensor.is_floating_point()
            ranks = self._communicator(group, output_tensor) if fits else None
            if ranks is None:
                return super().__call__(output_tensor, input_tensor, group, op, async_op)
            shape = self._shape(ranks, self.params, [one.padded_sharded_param_size.numel() for one in self.params],
                                output_tensor.numel(), output_tensor.itemsize)
            shape.table.scatter(input_tensor.data_ptr(), output_tensor.data_ptr())
            request = operations.Operation(
                "reduce-scatter", capi.REDUCE_SCATTER, output_tensor.dtype, shape, self._rules.grads,
                (output_tensor, input_tensor), reduction, next(self._steps)).post(ranks)
            if ranks.cuda:
                return operations.StreamWork() if async_op else None
            # FSDP2 reads the result at once and drops what is returned here.
            operations.wait(request, "reduce-scatter")
            return None

    return AllGather, ReduceScatter


def _watch_reductions() -> None:
    """Tell a reduce-scatter which parameters have gradients: FSDP2 passes only a flat buffer."""
    _, module = _modules()
    original = module.foreach_reduce
    if hasattr(original, "_thinwire"):
        return

    @functools.wraps(original)
    def foreach_reduce(fsdp_params, unsharded_grads, group, stream, comm, *args, **kwargs):
        if isinstance(comm, _classes()[1]):
            comm.params = list(fsdp_params)
        return original(fsdp_params, unsharded_grads, group, stream, comm, *args, **kwargs)

    foreach_reduce._thinwire = True
    module.foreach_reduce = foreach_reduce


def _watch_forwards() -> None:
    """Know when a forward pass is over: the last that FSDP2 does with each module's output, the root's at the end."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    original = FSDPState._register_pre_backward_hook
    if hasattr(original, "_thinwire"):
        return

    @functools.wraps(original)
    def _register_pre_backward_hook(self, output):
        if self._state_ctx.iter_forward_root is self:
            _forward(self._comm_ctx).end()
        return original(self, output)

    _register_pre_backward_hook._thinwire = True
    FSDPState._register_pre_backward_hook = _register_pre_backward_hook


def _attach(group: object, rules: policy.Policy) -> None:
    gather, scatter = _classes()
    group._all_gather_comm, group._reduce_scatter_comm = gather(group, rules), scatter(group, rules)


def _ours_or_default(group: object) -> bool:
    """Whether nobody else has put something in that place."""
    collectives, _ = _modules()
    known = (collectives.DefaultAllGather,) + _classes()
    return isinstance(group._all_gather_comm, known)


def _groups(model: torch.nn.Module) -> Iterator[object]:
    """The groups of parameters of all FSDP2 modules of a model."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            yield from groups if groups is not None else [one for one in [state._fsdp_param_group] if one is not None]


def enable(model: torch.nn.Module, weights: str | None = None, grads: str | None = None,
           min_bytes: int | None = None) -> torch.nn.Module:
    """Send this model's weights and gradients over Thinwire; call it after fully_shard, on all ranks. What is not given is
    the environment's. Returns the model. ValueError for a codec that makes no sense or a model without FSDP2."""
    check_version()
    rules, groups = policy.make(weights, grads, min_bytes), list(_groups(model))
    if not groups:
        raise ValueError("no module of this model has been given to fully_shard")
    _watch_reductions()
    _watch_forwards()
    for group in groups:
        if _ours_or_default(group):
            _attach(group, rules)
        else:
            log.warning("a custom all-gather of FSDP2 is left as it is: %s", type(group._all_gather_comm).__name__)
    return model


def disable(model: torch.nn.Module) -> torch.nn.Module:
    """Back to torch's own collectives. On all ranks. Returns the model."""
    collectives, _ = _modules()
    for group in _groups(model):
        if isinstance(group._all_gather_comm, _classes()[0]):
            group._all_gather_comm = collectives.DefaultAllGather()
        if isinstance(group._reduce_scatter_comm, _classes()[1]):
            group._reduce_scatter_comm = collectives.DefaultReduceScatter()
    return model


def patch() -> None:
    """Every FSDP2 model from now on."""
    rules = policy.from_environment()
    _, module = _modules()
    _watch_reductions()
    _watch_forwards()
    original: Callable[..., None] = module.FSDPParamGroup.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        _attach(self, rules)

    module.FSDPParamGroup.__init__ = __init__
    log.info("FSDP2 over thinwire: %s", rules)
