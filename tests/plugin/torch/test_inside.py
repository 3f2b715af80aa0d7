"""inside.py: what is private to torch, in one place, and what happens with a torch that has it not."""

import ast
import pathlib

import pytest
import ranks
import thinwire
import torch
from thinwire import ddp, inside
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

# Not torch's: of Python's own modules.
OTHERS = {"_current_frames", "_exit"}
# Public by their names, but of classes that are not.
OF_PRIVATE_CLASSES = {
    "fsdp_params", "comm_ctx", "sharded_state", "param_dtype", "padded_sharded_param_size", "sharded_param",
    "offload_to_cpu", "iter_forward_root", "all_gather_output", "all_gather_work",
}


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def package():
    return {path.name: ast.parse(path.read_text())
            for path in sorted(pathlib.Path(thinwire.__file__).parent.glob("*.py"))}


def defined(tree):
    """Names of functions, classes and variables, and what objects have of their own or are given as a
    mark."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if own or node.attr.startswith("_thinwire"):
                yield node.attr


def private_uses(tree, own):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (is_private(node.attr) and node.attr not in own
                                                or node.attr in OF_PRIVATE_CLASSES):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if any(map(is_private, [*(node.module or "").split("."), *(one.name for one in node.names)])):
                yield node.lineno, ast.unparse(node)
        elif (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
              and node.func.id in ("getattr", "setattr", "hasattr")):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value) and name.value not in own:
                yield node.lineno, ast.unparse(node)


def test_what_is_private_is_in_one_file():
    trees = package()
    own = OTHERS.union(*map(defined, trees.values()))
    found = {name: list(private_uses(tree, own)) for name, tree in trees.items()}
    assert len(found.pop("inside.py")) > 30  # they are seen where they are
    assert not {name: uses for name, uses in found.items() if uses}


@pytest.fixture
def unprobed():
    """What is known of this torch is found out anew, before and after."""

    def forget():
        for one in (inside.base_difference, inside.difference, inside.reduces_later):
            one.cache_clear()

    forget()
    yield
    forget()


def put(monkeypatch, name, value):
    """In the place of what torch has under a dotted name."""
    *path, last = name.split(".")
    owner = torch
    for name in path[1:]:
        owner = getattr(owner, name)
    monkeypatch.setattr(owner, last, value, raising=False)


def with_other_parameters(other=None, *, needed):
    pass


def differences():
    return inside.base_difference(), inside.difference(), inside.reduces_later()


def test_this_torch_is_known(unprobed):
    assert differences() == ("", "", True)


@pytest.mark.parametrize("name", [*inside._ALWAYS, *inside._BESIDE, *inside._BESIDE_LATER])
def test_a_name_that_is_missing(monkeypatch, unprobed, name):
    # An object of C++ cannot be without one of its own.
    put(monkeypatch, name.removesuffix(".queue_callback"), None)
    base, fsdp, later = differences()
    assert (name in base) == (name in inside._ALWAYS)
    assert (name in fsdp) == (name not in inside._BESIDE_LATER)
    assert later == (name not in inside._BESIDE_LATER)


@pytest.mark.parametrize("name", [name for name, known in {**inside._ALWAYS, **inside._BESIDE}.items()
                                  if known is not None])
def test_a_function_with_other_parameters(monkeypatch, unprobed, name):
    put(monkeypatch, name, with_other_parameters)
    assert name + "(" in inside.difference()


@pytest.mark.parametrize("module, path", inside._FUNCTIONS)
@pytest.mark.parametrize("other", [None, with_other_parameters])
def test_a_function_of_fsdp2(monkeypatch, unprobed, module, path, other):
    put(monkeypatch, inside._FOLDER + module + "." + path, other)
    assert path + "(" in inside.difference() and not inside.base_difference()


@pytest.mark.parametrize("module, owner",
                         [(module, owner) for module, owners in inside._CLASSES.items() for owner in owners])
def test_a_class_of_fsdp2(monkeypatch, unprobed, module, owner):
    put(monkeypatch, inside._FOLDER + module + "." + owner, type(owner, (), {}))
    assert owner + "." in inside.difference()
    put(monkeypatch, inside._FOLDER + module + "." + owner, None)
    inside.difference.cache_clear()
    assert owner in inside.difference()


@pytest.mark.parametrize("other", [None, with_other_parameters])
def test_not_traced_in_a_public_way_where_there_is_no_other(monkeypatch, unprobed, other):
    put(monkeypatch, "torch._disable_dynamo", other)
    assert inside.no_dynamo(lambda number: number + 1)(1) == 2
    assert differences() == ("", "", True)
    monkeypatch.setattr(torch.compiler, "disable", lambda function: (function, "disabled"))
    assert inside.no_dynamo(abs) == (abs, "disabled")


def step(rank, make):
    torch.manual_seed(0)
    model = make(nn.Linear(48, 48))
    model(torch.ones(2, 48) * (rank + 1)).sum().backward()
    return dict(thinwire.report())


@pytest.mark.parametrize("variable, make", [("TW_FSDP", fully_shard), ("TW_DDP", DistributedDataParallel)])
def test_a_job_keeps_torchs_collectives_and_is_told_why(monkeypatch, unprobed, variable, make):
    put(monkeypatch, "torch.distributed.distributed_c10d._get_default_store", with_other_parameters)

    def check(rank):
        return step(rank, make), ranks.logged("thinwire is off")

    line = ("thinwire is off: torch %s is not known here: "
            "it has no torch.distributed.distributed_c10d._get_default_store()" % torch.__version__)
    first, second = ranks.run(2, check, **{variable: "1"})
    assert first == ({}, [line]) and second == ({}, [])


def test_a_hook_by_hand_is_an_error_at_once(monkeypatch, unprobed):
    put(monkeypatch, "torch.distributed.ProcessGroup._get_backend", None)
    with pytest.raises(RuntimeError, match="it has no torch.distributed.ProcessGroup._get_backend"):
        ddp.hook()


def test_what_only_the_report_wants_may_be_missing(monkeypatch, unprobed):
    """torch's own hook is not counted then; the job's gradients go as they do."""
    monkeypatch.delattr(DistributedDataParallel, "_register_builtin_comm_hook")
    put(monkeypatch, "torch.distributed.distributed_c10d._resolve_process_group", None)

    def check(rank):
        model = DistributedDataParallel(nn.Linear(48, 48))
        model(torch.ones(2, 48)).sum().backward()
        return "ddp all-reduce" in thinwire.report(), ranks.logged("thinwire is off")

    assert ranks.run(2, check, TW_DDP="1", TW_MIN_BYTES="1") == [(True, [])] * 2
