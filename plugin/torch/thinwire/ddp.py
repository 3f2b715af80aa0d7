"""DistributedDataParallel: a communication hook that averages buckets of gradients over Thinwire. A program
registers it. Or, with TW_DDP, every model that has no other hook gets it at its first use."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from . import capi, inside, muon, names, policy
from .collectives import operations, shapes, staging
from .engine import segments
from .engine.communicators import Use
from .reporting import report, unused
from .telemetry import tally

KIND = "ddp all-reduce"  # the report's name


class _Hook:
    """The hook of one model. torch stores it in the model. Unpickling a model makes a new hook."""

    _thinwire = True

    def __init__(self, rules: policy.Policy, model: DistributedDataParallel | None = None,
                 named: DistributedDataParallel | None = None):
        """model: the model, if TW_DDP registers the hook. None if the program does: then the hook's state is
        a process group or None. named: the model that a program gave to hook(), for names of parameters."""
        self.__name__ = self.__qualname__ = "thinwire_hook"
        self._rules, self._use = rules, Use(rules.settings())
        self._model, self._named = (weakref.ref(one) if one is not None else lambda: None
                                    for one in (model, model or named))
        # (state, hook) that the program registers later. Calls then go to that hook.
        self.theirs: tuple[object, Callable] | None = None
        self._usual, self._by_name = rules.of("TW_GRADS")
        self._names: dict[int, str] = {}  # {id of a parameter: its name}
        self._says_length = capi.says_length(self._usual, *(one.codec for one in self._by_name.rules))
        self._shapes: dict[object, list[shapes.Shaped]] = {}
        self._steps = itertools.count()

    def __reduce__(self) -> tuple[object, ...]:
        return _Hook, (self._rules,)

    def _name(self, param: torch.Tensor) -> str:
        model = self._named()
        if not self._names and model is not None:
            self._names = {id(one): names.cleaned(name) for name, one in model.module.named_parameters()}
        if id(param) not in self._names and self._by_name.rules:
            raise ValueError("patterns of names need the model: ddp_hook(grads, model=model)")
        return self._names.get(id(param), "a parameter of " + " x ".join(map(str, param.shape)))

    def _codec(self, name: str) -> capi.Codec | None:
        return self._by_name.codec(name, self._usual)

    def _bucket(self, bucket: dist.GradBucket) -> list[shapes.Shaped]:
        """Returns a bucket's operations, one for each codec."""
        params, gradients = bucket.parameters(), bucket.gradients()
        key = (gradients[0].dtype, tuple(map(id, params)))
        if key not in self._shapes:
            pieces = [self._piece(one, self._name(param)) for param, one in zip(params, gradients)]
            itemsize = gradients[0].itemsize
            offsets = segments.offsets_of(pieces, itemsize)
            self._shapes[key] = [
                shapes.Shaped(
                    gradients[0].dtype,
                    shapes.Shape.of(segments.Plain(mine, itemsize, at), mine,
                                    shapes.scaling(codec, mine, at, itemsize, 1)), codec)
                for codec, mine, at in shapes.by_codec(pieces, offsets, self._codec)]
        elif self._by_name.rules:
            tally.warn_of_patterns("TW_GRADS", self._by_name.unmatched())
        return self._shapes[key]

    def _piece(self, gradient: torch.Tensor, name: str) -> segments.Piece:
        codec, dims = self._codec(name), gradient.dim()
        why = policy.why_unquantized(self._rules, codec, dims, gradient.nbytes)
        if codec is None and self._usual is not None:
            why = names.BY_NAME
        row, columns = (gradient.shape[-1], gradient.shape[1:].numel()) if dims > 1 else (0, 0)
        return segments.Piece(gradient.numel(), why, row, name, columns)

    # No annotations: torch checks that they are certain types, and in this file annotations are strings.
    def __call__(self, state, bucket):
        if self.theirs is not None:
            return self.theirs[1](self.theirs[0], bucket)
        model, buffer = self._model(), bucket.buffer()
        group = state or (model.process_group if model is not None else dist.group.WORLD)
        left = _ranks_left(model)
        shaped = functools.cache(lambda: self._bucket(bucket))
        ranks, staged = staging.carrier(
            functools.partial(operations.carrier, KIND, self._use, group, buffer, dist.ReduceOp.AVG), buffer,
            self._says_length, lambda _ranks: shaped())
        if ranks is None:
            _divide(buffer, left or group.size())
            return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(_first)
        if left:
            _divide(buffer, left)
        if ranks.n_nodes > 1:
            tally.announce("DDP over thinwire: gradients %s" % self._rules.grads_text())
        step, reduction = next(self._steps), (capi.SUM if left else capi.MEAN, 1.0)

        def together(_source, result):
            return [shapes.Operation(
                KIND, capi.ALLREDUCE, dtype, shape, lambda table: table.reduce(result.data_ptr()), codec,
                (result,), reduction, step, "bucket %d" % bucket.index(), source=result, result=result)
                for dtype, shape, codec in shaped()]

        if staged:
            return operations.future_of(staging.operate(together, buffer, buffer, ranks, 0), KIND, buffer)
        request = operations.post(together(buffer, buffer), ranks)
        if ranks.cuda:
            future = inside.future(buffer)
            future.set_result(buffer)
            return future
        return operations.future_of(request, KIND, buffer)


def _first(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]


def _divide(buffer: torch.Tensor, n: int) -> None:
    """Divide the buffer before the sum. The result has the same bits as in DDP without a hook."""
    buffer.div_(n) if buffer.is_sparse else buffer.mul_(1.0 / n)


# {model: torch's all-reduce of the number of ranks that still have batches}
_counts: weakref.WeakKeyDictionary[DistributedDataParallel, dist.Work] = weakref.WeakKeyDictionary()


def _ranks_left(model: DistributedDataParallel | None) -> int:
    """Returns the number by which gradients are divided. In join(divide_by_initial_world_size=False) this is
    the number of ranks that still have batches. Elsewhere 0, which stands for all ranks. A rank without
    batches gets 1, which is harmless: its gradients are zeros."""
    if model is None or not inside.joins_unevenly(model):
        return 0
    return inside.sum_of(_counts[model]) if model in _counts else 1


def hook(grads: policy.ByName | None = None, min_bytes: int | None = None,
         model: DistributedDataParallel | None = None) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """Make a hook for model.register_comm_hook(group or None, hook). Each model needs its own, on all ranks.
    model: needed for rules by parameter name and for names in the report. RuntimeError if this version of
    torch is not supported. ValueError for an invalid codec."""
    inside.check_base()
    report.asked()
    rules = policy.make(None, grads, min_bytes)
    if rules.grads_by_name.rules and model is None:
        raise ValueError("%s: patterns of names need the model: ddp_hook(grads, model=model)"
                         % rules.grads_text())
    return _Hook(rules, named=model)


# {model that has not been used yet: handle of its first-use hook}
_new: weakref.WeakKeyDictionary[DistributedDataParallel, torch.utils.hooks.RemovableHandle] = (
    weakref.WeakKeyDictionary())


@inside.no_dynamo
def _first_use(model: DistributedDataParallel, _args: object) -> None:
    """Register the hook with a model before its first forward pass, unless the model already has a hook."""
    handle = _new.pop(model, None)
    if handle is not None:
        handle.remove()
        if unused.is_left_alone(model):
            return
        ours = _Hook(policy.from_environment(), model)
        try:
            model.register_comm_hook(None, ours)
            unused.may_give_way(model, ours)
        except RuntimeError as error:  # the model has a hook that was not registered in the usual way
            unused.leave_alone(model, str(error).splitlines()[0])


def _counting(original: Callable) -> Callable:
    def notify_join_context(joinable):
        work = original(joinable)
        if work is not None and isinstance(joinable, DistributedDataParallel):
            _counts[joinable] = work
        return work

    return notify_join_context


def _joining(original: Callable) -> Callable:
    def join_hook(self, **kwargs):
        _first_use(self, None)  # even a rank without any batch takes part in the other ranks' all-reduces
        return original(self, **kwargs)

    return join_hook


def patch() -> None:
    """Register the hook with every DDP model that is made from now on, at its first use."""
    inside.check_base()
    report.asked()
    muon.watch()
    unused.watch()
    inside.wrap(Join, "notify_join_context", _counting)
    inside.wrap(DistributedDataParallel, "join_hook", _joining)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if self.process_group.size() > 1:
            _new[self] = self.register_forward_pre_hook(_first_use, prepend=True)

    DistributedDataParallel.__init__ = __init__
