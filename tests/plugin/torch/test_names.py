"""names.py: codecs by the names of parameters."""

import pytest
import ranks
import thinwire
import torch
from models import WIDTH, Block, loss_of, train
from thinwire import capi, names, policy
from thinwire.fsdp import hooks
from torch import nn
from torch.distributed.fsdp import fully_shard


@pytest.mark.parametrize("pattern, name, matches", [
    ("*.embed", "model.embed.weight", True),
    ("*.embed", "embed.weight", True),
    ("*.embed", "embedding.weight", False),
    ("*.norm", "layers.3.norm.bias", True),
    ("*.weight", "layers.3.weight", True),
    ("*.weight", "weight", True),
    ("layers.[0-2]", "layers.2.up.weight", True),
    ("layers.[0-2]", "layers.3.up.weight", False),
    ("layers.1", "layers.11.weight", False),
    ("*.Norm", "norm.weight", False),
    ("*", "any", True),
])
def test_a_pattern_is_for_a_parameter_or_a_module(pattern, name, matches):
    rules = names.Rules((names.Rule(pattern, None, "plain"),))
    assert (rules.codec(name, capi.Codec(kind=8)) is None) == matches
    assert rules.unmatched() == ([] if matches else [pattern])


def test_wrappers_are_not_in_names():
    assert names.cleaned("_orig_mod.layers.0._checkpoint_wrapped_module.up.weight") == "layers.0.up.weight"


def parsed(text):
    usual, rules = names.parse(text, lambda codec: None if codec == "plain" else capi.Codec(int(codec[3:])))
    return usual, [(one.pattern, one.codec and one.codec.kind) for one in rules.rules]


def test_text(monkeypatch):
    monkeypatch.setattr(capi.Codec, "__str__", lambda self: "int%d" % self.kind)
    assert parsed("int4") == ("int4", [])
    assert parsed("int4 ; *.a = int8;b=plain;") == ("int4", [("*.a", 8), ("b", None)])
    assert parsed(";b=plain") == ("", [("b", None)])
    for wrong in ("int4;b", "int4;=int8"):
        with pytest.raises(ValueError, match="is not PATTERN=CODEC"):
            parsed(wrong)
    assert names.text_of("int4;b=plain", "int8") == "int4;b=plain"
    assert names.text_of({"b": "int4:block=64", "*": "int8"}, "plain") == "int8;b=int4:block=64"
    assert names.text_of({"b": "int4"}, "int8;c=plain") == "int8;b=int4"
    for wrong in ("a;b", "a=b", ""):
        with pytest.raises(ValueError, match="is not a pattern"):
            names.text_of({wrong: "int4"}, "int8")


def test_the_last_that_matches_holds():
    rules = names.Rules(tuple(names.Rule(pattern, capi.Codec(kind=kind), "") for pattern, kind in
                              (("*", 8), ("*.up", 4), ("0.*", 2))))
    assert [rules.codec(name, None).kind for name in ("1.down.weight", "1.up.weight", "0.up.weight")] == [
        8, 4, 2]


def test_policies():
    def check(_rank):
        rules = policy.from_environment()
        assert rules.grads_text() == "int8:block=2048,columns;*.up=lossless;*.norm=plain"
        for given in ({"*": "int8", "*.up": "plain"}, {"*.up": "plain"}):
            assert policy.make(grads=given).grads_text() == "int8:block=2048,columns;*.up=plain"
        assert policy.make(grads="int8").grads_text() == "int8:block=2048,columns"
        assert policy.make(grads=";b=plain").grads_text() == "lossless;b=plain"
        assert policy.make("delta4;*.up=delta").weights_text() == "delta4:block=128;*.up=lossless"
        for wrong in ("delta;*.up=delta", "delta;*.up=plain", ";*.up=plain", "delta4;*.up=int8"):
            with pytest.raises(ValueError, match="exception|delta loses nothing"):
                policy.make(wrong)
        with pytest.raises(ValueError, match="TW_GRADS: 'int8;up' is not|'up' is not PATTERN=CODEC"):
            policy.make(grads="int8;up")
        long = policy.make(grads={"*.%d" % i: "plain" for i in range(100)}).settings()["TW_GRADS"]
        other = policy.make(grads={"*.%d" % i: "plain" for i in range(101)}).settings()["TW_GRADS"]
        return len(long) < 200 and long != other

    assert ranks.run(1, check, backend=None, TW_GRADS="int8;*.up=lossless;*.norm=plain") == [True]


def make():
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def gradients(model, rank):
    loss_of(model, rank, 0).backward()
    return {name: one.grad.full_tensor() for name, one in model.named_parameters()}


def differing(one, other):
    return {name for name in one if not torch.equal(one[name], other[name])}


def test_gradients_by_name():
    """What a pattern exempts has the plain one's bits, the rest has not."""

    def check(rank):
        expected = gradients(thinwire.enable(make(), "plain", "plain"), rank)
        everything = gradients(thinwire.enable(make(), "plain", "int8:columns=no", min_bytes=0), rank)
        assert differing(everything, expected) == {"%d.%s.weight" % (i, name)
                                                   for i in (0, 1) for name in ("up", "down")}
        some = {"*": "int8:columns=no", "*.up": "lossless", "1.down": "plain"}
        found = gradients(thinwire.enable(make(), "plain", some, min_bytes=0), rank)
        assert differing(found, expected) == {"0.down.weight"}
        assert thinwire.report()["reduce-scatter"].unquantized[names.BY_NAME] == 2
        one = {"*": "lossless", "0.up": "int8:columns=no"}
        return differing(gradients(thinwire.enable(make(), "plain", one, min_bytes=0), rank),
                         expected) == {"0.up.weight"}

    assert all(ranks.run(3, check))


def test_by_the_variables():
    def check(rank):
        expected = gradients(thinwire.enable(make(), "plain", "plain"), rank)
        hooks.patch()
        return differing(gradients(make(), rank), expected), ranks.logged("FSDP2 over thinwire")

    (found, said), (others, _) = ranks.run(2, check, TW_MIN_BYTES="1", TW_WEIGHTS="delta",
                                           TW_GRADS="int8:columns=no;0=lossless;*.down=plain")
    assert found == others == {"1.up.weight"}
    assert said[-1].endswith("gradients int8:block=2048,columns=no;0=lossless;*.down=plain")


@torch.no_grad()
def gathered(model):
    """Whole, as FSDP2 computes with them."""
    model(torch.ones(2, WIDTH))  # torch names its parameters now
    for block in model:
        block.unshard()
    found = {name: one.detach().clone() for name, one in model.named_parameters()}
    for block in model:
        block.reshard()
    return found


@pytest.mark.parametrize("weights, differ", [
    ({"*": "int8", "*.up": "plain", "1": "lossless"}, {"0.down.weight"}),
    ({"*": "plain", "*.up": "int8"}, {"0.up.weight", "1.up.weight"}),
])
def test_weights_by_name(weights, differ):
    def check(rank):
        ours = gathered(thinwire.enable(make(), weights, "plain", min_bytes=0))
        return differing(ours, gathered(make())) == differ

    assert all(ranks.run(2, check))


def test_changes_that_are_not_rounded_by_name():
    def check(rank):
        model = thinwire.enable(make(), {"*": "delta4", "*.up": "delta"}, "plain", min_bytes=0)
        train(model, rank, 3)
        found = gathered(model)
        own = {name: one.full_tensor() for name, one in model.named_parameters()}
        assert thinwire.report()["all-gather"].unquantized[names.EXACT_BY_NAME] > 0
        return differing(found, own) == {"0.down.weight", "1.down.weight"}

    assert all(ranks.run(2, check))


def test_ranks_compare_patterns_and_a_pattern_in_vain_is_told():
    def check(rank):
        model = thinwire.enable(make(), "plain", {"*": "int8", "*.upp": "plain", "*.up": "plain"})
        train(model, rank, 3)
        told = ranks.logged("matches the name of no parameter")
        other = thinwire.enable(make(), "plain", {"*": "int8", "0" if rank else "1": "plain"})
        train(other, rank, 1)
        return told, ranks.logged("TW_GRADS=int8:block=2048,columns;1=plain")

    (told, compared), (silent, _) = ranks.run(2, check)
    assert told == ["the pattern *.upp of TW_GRADS matches the name of no parameter so far"] and not silent
    assert len(compared) == 1
