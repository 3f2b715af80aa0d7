"""capi.py and policy.py: the library as Python sees it."""

import logging
import os
import pathlib
import subprocess
import sys
import types

import pytest
import ranks
import thinwire
import torch
from thinwire import capi, policy
from torch import nn
from torch.distributed.fsdp import fully_shard


def in_child(function, **environment):
    """The library is loaded in a process of its own."""
    return ranks.run(1, lambda _rank: function(), backend=None, **environment)[0]


def declared():
    """{(structure, field): offset} of the C compiler."""
    program = os.path.join(os.environ.get("TEST_SRCDIR", "."), os.environ.get("TEST_WORKSPACE", ""),
                           "tests/plugin/torch/layout")
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    return {tuple(line.split()[:2]): int(line.split()[2]) for line in lines}


def test_structures_are_as_in_the_headers():
    found = {}
    for name, structure in capi.STRUCTURES.items():
        found[name, "-"] = capi.C.sizeof(structure)
        for field in structure._fields_:
            found[name, field[0]] = getattr(structure, field[0]).offset
    assert found == {key: value for key, value in declared().items() if key[0] != "constant"}


def test_constants_are_as_in_the_headers():
    values = {name: value for (what, name), value in declared().items() if what == "constant"}
    assert len(values) > 20
    assert {name: getattr(capi, name) for name in values} == values


def test_codecs():
    def check():
        assert capi.parse_codec(None) is None
        assert capi.parse_codec("plain") is None and capi.parse_codec("exact") is None
        codec = capi.parse_codec("int4:hadamard,block=64")
        assert (codec.block, codec.hadamard) == (64, 1)
        assert str(codec) == "int4:block=64,hadamard"
        with pytest.raises(ValueError, match="int3"):
            capi.parse_codec("int3")
        return True

    assert in_child(check)


def test_policy_of_the_environment():
    def check():
        rules = policy.from_environment()
        assert rules.keeps and str(rules.weights) == "lossless"
        assert rules.grads is None and rules.min_bytes == 2048
        rules = policy.make(weights="plain", grads="int4", min_bytes=1)
        assert rules.weights is None and str(rules.grads).startswith("int4") and rules.min_bytes == 1
        return True

    assert in_child(check, TW_GRADS="plain", TW_MIN_BYTES="2K")


def test_the_default_loses_nothing():
    def check():
        rules = policy.from_environment()
        assert rules.keeps and rules.rounds is None and str(rules.weights) == str(rules.grads) == "lossless"
        return str(rules) == "weights delta, gradients lossless"

    assert in_child(check)


def test_a_wrong_variable_is_named():
    def check():
        with pytest.raises(capi.ThinwireError, match="TW_MIN_BYTES"):
            policy.from_environment()
        return True

    assert in_child(check, TW_MIN_BYTES="many")


def test_unknown_variables_are_logged():
    def check():
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append((record.levelno, record.getMessage()))
        logging.getLogger("thinwire").addHandler(handler)
        policy.check_environment()
        return lines

    lines = in_child(check, TW_WEIGTHS="int8", TW_GRADS="int8")
    assert len(lines) == 1
    assert lines[0][0] == logging.WARNING and "TW_WEIGTHS" in lines[0][1] and "TW_WEIGHTS" in lines[0][1]


def test_what_is_not_quantized():
    rules, codec = policy.Policy(None, None, 1000), types.SimpleNamespace(lossless=False)
    assert policy.why_unquantized(rules, codec, 1, 10**9) == "norms and biases"
    assert policy.why_unquantized(rules, codec, 2, 999) == "smaller than TW_MIN_BYTES"
    assert policy.why_unquantized(rules, codec, 2, 1000) == ""
    assert policy.why_unquantized(rules, types.SimpleNamespace(lossless=True), 1, 1) == ""


def test_unquantized_nests_and_ends_with_an_error():
    assert not policy.is_unquantized()
    with pytest.raises(KeyError), policy.unquantized(), thinwire.exact():  # the older name
        assert policy.is_unquantized()
        raise KeyError
    assert not policy.is_unquantized()


def error_of_loading(library, path="", **variables):
    """Of a rank that shares its node, unless the variables say otherwise."""
    program = "import thinwire.capi as c\ntry: c.check_ucx()\nexcept ImportError as e: print(e)"
    environment = os.environ | variables | {"TW_LIBRARY": str(library),
                                            "PYTHONPATH": os.environ["PYTHONPATH"] + ":" + str(path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True,
                          check=True)
    return done.stdout


def test_a_missing_library_is_named():
    assert "/nowhere/lib.so" in error_of_loading("/nowhere/lib.so")


def without_ucx(folder):
    """The same library, but that it asks for one of UCX's that nobody has."""
    library = pathlib.Path(capi.__file__).parent / capi.LIBRARY
    copy = folder / "lib.so"
    copy.write_bytes(library.read_bytes().replace(b"libucp.so.0", b"libucx.so.9"))
    return copy


def test_a_missing_ucx_is_named_with_its_package(tmp_path):
    assert capi.UCX_MISSING % "libucx-cu13" in error_of_loading(without_ucx(tmp_path))


# What a rank's environment says; whether it needs UCX.
@pytest.mark.parametrize("variables, needs", [
    ({"LOCAL_WORLD_SIZE": "1"}, False), ({"LOCAL_WORLD_SIZE": "2"}, True), ({"TW_NODE_TLS": "none"}, False),
    ({"LOCAL_WORLD_SIZE": "1", "TW_NET_TLS": "rc"}, True)], ids=str)
def test_what_needs_ucx(variables, needs, tmp_path):
    if "LOCAL_WORLD_SIZE" in variables:
        variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"} | variables
    assert bool(error_of_loading(without_ucx(tmp_path), **variables)) == needs


def test_nodes_of_one_rank_do_without_ucx(tmp_path):
    def check(_rank):
        model = fully_shard(nn.Linear(64, 64))
        model(torch.ones(4, 64)).sum().backward()
        loaded = "libucp" in pathlib.Path("/proc/self/maps").read_text()
        return sum(one.calls for one in thinwire.report().values()), loaded

    variables = {"TW_FSDP": "require", "TW_LIBRARY": str(without_ucx(tmp_path)), "TW_MIN_BYTES": "1"}
    alone = ranks.run(2, check, LOCAL_WORLD_SIZE="1", LOCAL_RANK="0", **variables)
    assert [(calls > 0, loaded) for calls, loaded in alone] == [(True, False)] * 2


def test_doctor_names_the_node_that_lacks_ucx(tmp_path):
    done = subprocess.run([sys.executable, "-m", "thinwire", "doctor"],
                          env=os.environ | {"TW_LIBRARY": str(without_ucx(tmp_path))},
                          capture_output=True, text=True)
    assert done.returncode == 1
    missing = capi.UCX_MISSING % "libucx-cu13"
    assert done.stderr == "thinwire doctor: %s: %s\n" % (os.uname().nodename, missing)


def test_ucx_of_pypi_is_taken_where_the_system_has_none(tmp_path):
    def find():
        capi.find_ucx()
        return next(line.split()[-1] for line in open("/proc/self/maps") if "libucp.so" in line)

    # A package libucx as PyPI's is: it loads libraries by their paths, and they are known by their names from
    # then on.
    ucp = pathlib.Path(in_child(find)).read_bytes()
    (tmp_path / "ucp.so").write_bytes(ucp.replace(b"libucp.so.0", b"libucx.so.9"))
    (tmp_path / "libucx.py").write_text("import ctypes\ndef load_library():\n    return [ctypes.CDLL(%r)]\n"
                                        % str(tmp_path / "ucp.so"))
    assert error_of_loading(without_ucx(tmp_path), tmp_path) == ""


def test_a_library_of_another_version_is_named():
    assert "is of another version than this package: it has no tw_" in error_of_loading("libm.so.6")


def test_the_wheel():
    """What is in it besides the modules."""
    site = pathlib.Path(capi.__file__).parent.parent
    info = next(site.glob("thinwire-*.dist-info"))
    metadata = (info / "METADATA").read_text()
    assert "Version: %s\n" % thinwire.__version__ in metadata and "Requires-Dist: torch" in metadata
    assert info.name == "thinwire-%s.dist-info" % thinwire.__version__
    assert (site / "thinwire/py.typed").exists()
    recorded = {line.split(",")[0] for line in (info / "RECORD").read_text().splitlines()}
    there = {str(path.relative_to(site)) for folder in (info, site / "thinwire")
             for path in folder.rglob("*") if path.is_file()}
    assert recorded == {name for name in there if "__pycache__" not in name}
