"""delta: changes of weights as messages and files."""

import base64
import json
import os
import random
import shutil
import struct
import subprocess
import sys

import pytest
import torch
from thinwire import __main__, __version__, delta
from thinwire.delta import chunks, files, message
from torch import nn

FLOATS = [torch.bfloat16, torch.float16, torch.float32]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def all_same(a, b):
    return list(a) == list(b) and all(same(a[name], b[name]) for name in a)


def weights(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (0.02 * torch.randn(*shape, generator=generator)).to(dtype)


def stepped(tensor, lr=1e-5, seed=1):
    """As after a step of AdamW from masters in fp32."""
    generator = torch.Generator().manual_seed(seed)
    return (tensor.float() + lr * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several of them in tensors of a test's size."""
    monkeypatch.setattr(chunks, "ELEMS", 5000)
    monkeypatch.setattr(message.Head.__init__, "__defaults__", (5000, None))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 1023, 1024, 5000, 5001, 23456])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_tensor_comes_back(dtype, n, threads):
    old = weights(n, dtype=dtype)
    new = stepped(old)
    data = delta.encode(old, new, threads=threads)
    assert same(delta.decode(old, data, threads=threads), new)
    assert data == delta.encode(old, new, threads=1)
    kept = old.clone()
    there = delta.decode(kept, data, in_place=True)
    assert there is kept and same(kept, new)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_any_bits_come_back(dtype):
    generator = random.Random(0)
    size = 2 if dtype != torch.float32 else 4
    old, new = [torch.frombuffer(bytearray(generator.randbytes(20000 * size)), dtype=dtype) for _ in range(2)]
    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-42, 6e-8]).to(dtype)
    for before, after in ((old, new), (old, old), (special.repeat(900), special.flip(0).repeat(900))):
        data = delta.encode(before, after)
        assert same(delta.decode(before, data), after)
        assert len(data) <= after.nbytes + 17 * 5 + 13 * 5 + 300


@pytest.mark.parametrize("dtype, most",
                         [(torch.bfloat16, 0.07), (torch.float16, 0.22), (torch.float32, 0.55)], ids=str)
def test_messages_are_small(dtype, most):
    old = weights(300, 300, dtype=dtype)
    assert len(delta.encode(old, stepped(old))) < most * old.nbytes
    assert len(delta.encode(old, old)) < 1000


FP8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
BYTES = [*FP8, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.uint8, torch.int8]


def scaled(n, dtype, rate=0.0):
    """Weights with a scale in that type, perhaps after a step of this size beside them."""
    generator = torch.Generator().manual_seed(1)
    one, two = (torch.randn(n, generator=generator) for _ in range(2))
    return (torch.finfo(dtype).max / 5 * (one + rate * two)).to(dtype)


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("n", [0, 1, 1024, 5001, 23456])
def test_fp8_comes_back(dtype, n):
    old, new = scaled(n, dtype), scaled(n, dtype, 0.01)
    data = delta.encode(old, new)
    assert same(delta.decode(old, data), new)
    if n > 5000:
        assert len(data) < 0.25 * n
    kept = old.clone()
    assert delta.decode(kept, data, in_place=True) is kept and same(kept, new)
    alone = delta.encode({}, {"a": new})
    assert same(delta.decode({}, alone)["a"], new)
    if n > 5000:
        assert len(alone) < 0.95 * n


@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_any_bytes_come_back(dtype):
    generator = random.Random(0)
    old, new = [torch.frombuffer(bytearray(generator.randbytes(6000)), dtype=torch.uint8).view(50, 120)
                for _ in range(2)]
    near = torch.where(torch.rand(50, 120) < 0.1, new, old)
    for after in (new, near, old):
        before, after = old.view(dtype), after.view(dtype)
        data = delta.encode({"a": before}, {"a": after})
        assert all_same(delta.decode({"a": before}, data), {"a": after})
        assert len(data) <= after.nbytes + 17 * 2 + 13 * 2 + 300


# What a thinwire without the form of 8 bits has written.
RECORDED = base64.b85decode(
    b'R98erOjJPuu>b%700000xXuyEJsAF@c${sI!485j42EBY^z309h|{Bq+<XGIkikYE4loXkhV0$#;D(&q|Nq;s=?ryije|>+='
    b'KzNYW&ui|#Hz>d(}Z5YHKVD(Sb%HPYUT-%!O&_{#ZcGIjBfGCA>u^(kd^<WEM{8}-{)`yQOZ_QwL{{?ExE^A8cp|ch(aFY(t'
    b'D6N0;O`x<1-$Bm+6ML(P1!TZLiG-ML$`KvTCOOQ5b8wu)xUqM32n>0H5AmTL4f1007mYh|2eEhOq!hC|)_C&l=z8q|_J?vs?'
    b'rK0Ej#YJxo1_J*qv-J?=dSJ{dkLK07{4K3zU;K7T%lK9N3|KB7LVKC?c%KEyuEKGi<mKIT5|KKDNVJ_J7qKMX$+KNUY2KOH|'
    b'JKPEo_AOHXW5+*C&A7c2o0I74E0&Vc*GSEO==hDo3es2<kI=wBcJ~ZqqKgA$`KXA*cKN@z`KVlF7K(}QTKmZT`004gw{<I{+'
    b'#6$qwa2NKb<5h!d4@EMX>sspp0s{mE1_uZU3JVMk4i69'
)


def test_messages_of_before_are_read():
    codes = torch.arange(17, dtype=torch.uint8).view(torch.float8_e4m3fn)
    old = {"a": (torch.arange(40) / 64).bfloat16(), "b": torch.arange(8) / 3, "c": codes[:16]}
    new = {"a": (torch.arange(40) / 64 + 0.001 * torch.arange(40)).bfloat16(),
           "b": torch.arange(8) / 3 + 1e-3, "c": codes[1:]}
    assert all_same(delta.decode(old, RECORDED), new)


def test_a_form_that_is_not_known_is_named(monkeypatch):
    old, new = scaled(3000, FP8[0]), scaled(3000, FP8[0], 0.01)
    with monkeypatch.context() as later:
        later.setattr(chunks, "DELTA8", 9)
        data = delta.encode({"layer": old}, {"layer": new})
    with pytest.raises(delta.DeltaError, match="^layer: in form 9, which this thinwire does not know"):
        delta.decode({"layer": old}, data)


def state(seed=0):
    return {
        "embed.weight": weights(50, 64, seed=seed), "norm.weight": weights(64, seed=seed + 1),
        "norm.bias": weights(64, dtype=torch.float32),
        "layer.weight": weights(128, 64, dtype=torch.float16, seed=seed + 2), "ids": torch.arange(100),
        "flag": torch.tensor(True), "empty": torch.empty(0, 4), "scalar": torch.tensor(3.0),
        "double": weights(10, dtype=torch.float64),
    }


def after(old):
    new = {name: stepped(one) if one.is_floating_point() else one.clone() for name, one in old.items()}
    new["ids"] = new["ids"] + 1
    del new["double"]
    new["head.weight"] = weights(70, 64, seed=9)
    new["model.layer.weight"] = new.pop("layer.weight")
    return new


@pytest.mark.parametrize("in_place", [False, True])
def test_a_state_dict_comes_back(in_place):
    old = state()
    new = after(old)
    data, kept = delta.encode(old, new), {name: one.clone() for name, one in old.items()}
    found = delta.decode(kept, data, in_place=in_place)
    assert all_same(found, new)
    assert all_same(kept, old) != in_place
    assert (found["embed.weight"] is kept["embed.weight"]) == in_place and kept["double"].equal(old["double"])


def test_a_model_is_changed_in_place():
    torch.manual_seed(0)
    model, other = nn.Linear(64, 64).bfloat16(), nn.Linear(64, 64).bfloat16()
    delta.decode(model.state_dict(), delta.encode(model.state_dict(), other.state_dict()), in_place=True)
    assert all_same(model.state_dict(), other.state_dict())


def test_tensors_that_share_memory_in_place():
    whole = weights(200, 64)
    old = {"embed": whole, "head": whole, "part": whole[50:60], "columns": weights(64, 64).t()}
    new = {name: stepped(one) for name, one in old.items()}
    new["part"] = new["embed"][50:60]
    data = delta.encode(old, new)
    found = delta.decode(old, data, in_place=True)
    assert all_same(found, new) and found["embed"] is whole
    assert same(old["columns"], new["columns"])


def test_a_tensor_with_another_name():
    a, b = weights(64, 64, seed=1), weights(64, 64, seed=2)
    old = {"x": a, "y": b, "model.w": weights(10, 64)}
    new = {"one": b, "two": a, "w": stepped(weights(10, 64))}
    data = delta.encode(old, new)
    assert message.read_head(message.taker(data)).bases == {"one": "y", "two": "x", "w": "model.w"}
    assert len(data) < 2000
    assert all_same(delta.decode(old, data), new)


@pytest.mark.parametrize("in_place", [False, True])
def test_wrong_old_weights_are_named(in_place):
    old = state()
    data = delta.encode(old, after(old))
    wrong = {name: one.clone() for name, one in old.items()}
    bits(wrong["layer.weight"].view(-1))[-1] ^= 1
    before = {name: one.clone() for name, one in wrong.items()}
    with pytest.raises(delta.DeltaError, match="^layer.weight: the old values are not those"):
        delta.decode(wrong, data, in_place=in_place)
    assert all_same(wrong, before)
    with pytest.raises(delta.DeltaError,
                       match=r"^embed.weight: the old weights have no such tensor, .* BF16\[50, 64\]"):
        delta.decode({name: one for name, one in old.items() if name != "embed.weight"}, data)
    with pytest.raises(delta.DeltaError, match=r"^scalar: the old weights have F64\[\]"):
        delta.decode(old | {"scalar": old["scalar"].double()}, data)
    # what has not changed is compared, too
    with pytest.raises(delta.DeltaError, match="^flag: "):
        delta.decode(old | {"flag": torch.tensor(False)}, data)


def test_a_spoilt_message_is_refused():
    old = {name: one for name, one in state().items() if one.is_floating_point()}
    new = after(old | {"ids": torch.arange(3)})
    data = delta.encode(old, {name: one for name, one in new.items() if name != "ids"})
    generator = random.Random(0)
    head = message.FRONT.unpack_from(data)[1] + message.FRONT.size
    places = (list(range(60)) + list(range(head, head + 40))
              + [generator.randrange(len(data)) for _ in range(200)])
    for place in places:
        spoilt = bytearray(data)
        spoilt[place] ^= 1 << (generator.randrange(8) if place != head else 0)
        kept = {name: one.clone() for name, one in old.items()}
        with pytest.raises(delta.DeltaError):
            delta.decode(kept, bytes(spoilt), in_place=True)
        assert all_same(kept, old), place
    for n in [0, 7, 23, 24, len(data) // 2, len(data) - 1]:
        with pytest.raises(delta.DeltaError):
            delta.decode(old, data[:n])
    with pytest.raises(delta.DeltaError, match="left behind"):
        delta.decode(old, data + b"x")
    with pytest.raises(delta.DeltaError, match="version 2"):
        delta.decode(old, data[:7] + b"\x02" + data[8:])


def test_what_is_no_plain_tensor_is_refused():
    one = weights(4)
    for wrong, what in (({"a": 3}, "a: a int"), ({3: one}, "3: not a name"),
                        ({"a": one.to("meta")}, "a: a tensor without plain memory"),
                        ({"a": one.to_sparse()}, "a: a tensor without"), (one, "one is a tensor")):
        with pytest.raises(TypeError, match=what):
            delta.encode({"a": one}, wrong)


# ---- files


def raw(tensor):
    return bits(tensor).numpy().tobytes()


NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
         torch.int64: "I64", torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8",
         torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
         torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
         torch.float4_e2m1fn_x2: "F4"}


def save(path, tensors, padding=0, **metadata):
    """A safetensors file: u64 bytes of the header, the header, the data."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, one in tensors.items():
        shape = list(one.shape)
        if one.dtype == torch.float4_e2m1fn_x2:  # pairs, of which safetensors counts each
            shape[-1] *= 2
        header[name] = {"dtype": NAMES[one.dtype], "shape": shape,
                        "data_offsets": [len(data), len(data) + one.nbytes]}
        data += raw(one)
    text = json.dumps(header).encode() + b" " * padding
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def run(*args, good=True, **environment):
    done = subprocess.run([sys.executable, "-m", "thinwire", *map(str, args)], capture_output=True, text=True,
                          env=os.environ | environment)
    assert (done.returncode == 0) == good, done.stderr
    return done.stdout if good else done.stderr


def test_files_by_commands(tmp_path):
    old = state()
    first = save(tmp_path / "old.safetensors", old)
    second = save(tmp_path / "new.safetensors", after(old), 5, format="pt", note="änder")
    said = run("diff", first, second, "-o", tmp_path / "change")
    assert "; 9 tensors, 1 added, 1 renamed, 1 removed" in said
    run("patch", first, tmp_path / "change", "-o", tmp_path / "made")
    assert (tmp_path / "made").read_bytes() == second.read_bytes()
    # a file is a message, too
    assert all_same(delta.decode(old, (tmp_path / "change").read_bytes()), after(old))
    # and the other way round
    (tmp_path / "message").write_bytes(delta.encode(old, after(old)))
    delta.patch(first, tmp_path / "message", tmp_path / "made")
    assert (tmp_path / "made").read_bytes()[-1000:] == second.read_bytes()[-1000:]


def test_files_of_fp8(tmp_path):
    codes = torch.arange(12000, dtype=torch.int32).to(torch.uint8).view(60, 200)
    old = {"%s" % one: codes.view(one) for one in BYTES}
    new = {"%s" % one: torch.where(codes % 7 == 0, codes + 1, codes).view(one) for one in BYTES}
    first, second = save(tmp_path / "old.safetensors", old), save(tmp_path / "new.safetensors", new)
    run("diff", first, second, "-o", tmp_path / "change")
    assert (tmp_path / "change").stat().st_size < 0.3 * second.stat().st_size
    run("patch", first, tmp_path / "change", "-o", tmp_path / "made")
    assert (tmp_path / "made").read_bytes() == second.read_bytes()
    assert all_same(delta.decode(old, (tmp_path / "change").read_bytes()), new)
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(new, tmp_path / "theirs")
    run("diff", first, tmp_path / "theirs", "-o", tmp_path / "change")
    found = delta.decode(old, (tmp_path / "change").read_bytes())
    assert all_same({name: found[name] for name in new}, new)


def test_wrong_files_are_named(tmp_path):
    old = state()
    first, second = save(tmp_path / "old", old), save(tmp_path / "new", after(old))
    delta.diff(first, second, tmp_path / "change")
    old["norm.bias"][3] += 1
    before = sorted(tmp_path.iterdir()) + [save(tmp_path / "wrong", old)]
    said = run("patch", tmp_path / "wrong", tmp_path / "change", "-o", tmp_path / "made", good=False)
    assert said == "thinwire patch: norm.bias: the old values are not those that the message was made from\n"
    said = run("patch", second, tmp_path / "change", "-o", tmp_path / "made", good=False)
    assert "layer.weight: the old weights have no such" in said
    spoilt = bytearray((tmp_path / "change").read_bytes())
    for n in (30, len(spoilt) - 5):
        (tmp_path / "spoilt").write_bytes(spoilt[:n] + bytes([spoilt[n] ^ 1]) + spoilt[n + 1 :])
        assert "spoilt" in run("patch", first, tmp_path / "spoilt", "-o", tmp_path / "made", good=False)
    (tmp_path / "spoilt").unlink()
    assert "nowhere" in run("diff", first, tmp_path / "nowhere", "-o", tmp_path / "made", good=False)
    assert sorted(tmp_path.iterdir()) == sorted(before)


HEADERS = {
    "no number": b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
    "no json": b"{", "no dictionary": b"[]",
    "a type": b'{"a": {"dtype": "F3", "shape": [1], "data_offsets": [0, 4]}}',
    "a size": b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
    "a gap": b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}}',
    "too long": b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_no_safetensors_file(tmp_path, header):
    good = save(tmp_path / "good", {"a": torch.ones(1)})
    (tmp_path / "bad").write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
    with pytest.raises(delta.DeltaError, match="bad: "):
        delta.diff(good, tmp_path / "bad", tmp_path / "out")
    (tmp_path / "bad").write_bytes(struct.pack("<Q", 1 << 60))
    with pytest.raises(delta.DeltaError, match="bad: not a safetensors file"):
        delta.diff(good, tmp_path / "bad", tmp_path / "out")


def save_parts(folder, tensors, parts):
    folder.mkdir()
    names, of = list(tensors), {}
    for part in range(parts):
        file = "model-%05d-of-%05d.safetensors" % (part + 1, parts)
        save(folder / file, {name: tensors[name] for name in names[part::parts]}, format="pt")
        of |= {name: file for name in names[part::parts]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": of}))
    return folder


def contents(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def test_weights_in_parts(tmp_path):
    old = state()
    first, second = save_parts(tmp_path / "old", old, 2), save_parts(tmp_path / "new", after(old), 3)
    single = save(tmp_path / "single", old)
    for before in (first, first / "model.safetensors.index.json", single):
        run("diff", before, second, "-o", tmp_path / "change")
        run("patch", before, tmp_path / "change", "-o", tmp_path / "made")
        assert contents(tmp_path / "made") == contents(second)
        said = run("patch", before, tmp_path / "change", "-o", tmp_path / "made", good=False)
        assert "there is such a folder" in said
        shutil.rmtree(tmp_path / "made")
    delta.diff(second, single, tmp_path / "back")
    delta.patch(second, tmp_path / "back", tmp_path / "single again")
    assert (tmp_path / "single again").read_bytes() == single.read_bytes()
    # folders are not left through a message's names
    data = message.Head([("../x.safetensors", "{}")], {}, [], ("i", "{}")).write()
    (tmp_path / "change").write_bytes(data)
    with pytest.raises(delta.DeltaError, match="head makes no sense"):
        delta.patch(first, tmp_path / "change", tmp_path / "made")


def test_a_diff_is_read_back(tmp_path, monkeypatch, capsys):
    old = state()
    first, second = save_parts(tmp_path / "old", old, 2), save_parts(tmp_path / "new", after(old), 3)
    assert "read back" not in run("diff", first, second, "-o", tmp_path / "change")
    assert "s; read back and compared\n" in run("diff", first, second, "-o", tmp_path / "change", "--verify")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["change", "new", "old"]
    assert delta.patch(first, tmp_path / "change", None) == delta.patch(first, tmp_path / "change",
                                                                       tmp_path / "made")
    # a disk that gives back other bytes than it was given
    def read(handle, n, as_it_is=files._read):
        data = as_it_is(handle, n)
        return data[:-1] + bytes([data[-1] ^ 1]) if n > 500 else data

    monkeypatch.setattr(files, "_read", read)
    assert __main__.main(["diff", str(first), str(second), "-o", str(tmp_path / "again"), "--verify"]) == 1
    assert "spoilt" in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["change", "made", "new", "old"]


def test_files_larger_than_the_memory_that_is_used(tmp_path):
    """64 MB each, by a process that may have no more than a part of them."""
    n = 32 << 20
    values = weights(1 << 16).repeat(n >> 16)
    save(tmp_path / "old", {"a": values})
    save(tmp_path / "new", {"a": stepped(values)})
    program = """
import pathlib, resource, sys
from thinwire import delta
delta.encode  # what is loaded later is small
import thinwire.capi; thinwire.capi.lib()
def peak(): return int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
before, folder = peak(), pathlib.Path(sys.argv[1])
delta.diff(folder / "old", folder / "new", folder / "change", threads=1)
delta.patch(folder / "old", folder / "change", folder / "made", threads=1)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True,
                          check=True)
    assert int(done.stdout) < n
    assert (tmp_path / "made").read_bytes() == (tmp_path / "new").read_bytes()


def test_progress(tmp_path):
    seen, old = [], weights(20000)
    delta.encode(old, stepped(old), progress=lambda done, whole: seen.append((done, whole)))
    assert [done for done, _ in seen] == [10000, 20000, 30000, 40000]
    assert {whole for _, whole in seen} == {40000}


def test_info():
    said = run("info", TW_WEIGHTS="int5", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert said.split()[:2] == ["thinwire", __version__]
    assert torch.__version__ in said and "libthinwire.so" in said
    assert "not usable: TW_WEIGHTS: 'int5' is not a codec" in said
    assert "not hooked: TORCH_DEVICE_BACKEND_AUTOLOAD=0" in said
    assert "not usable: cannot load /nowhere" in run("info", TW_LIBRARY="/nowhere")
