"""Changes of weights as messages: from a trainer to those that infer, or a fine-tune beside the model it was
made from.

    message = thinwire.delta.encode(old, new)          tensors, or state dicts: {name: tensor}
    new = thinwire.delta.decode(old, message)          in_place=True: old's own memory becomes new
    thinwire.delta.diff("old.safetensors", "new.safetensors", "change.twd")
    thinwire.delta.patch("old.safetensors", "change.twd", "new.safetensors")

No bit is lost. bf16, fp16 and fp8 are sent as the change in units in the last place, entropy-coded, and so is
any other type of one byte where that is shorter; fp32 so in its upper half, the lower one plain; new tensors
by the lossless codec, or with the codes of one byte entropy-coded; other types plain; what has not changed
takes 17 bytes a tensor. Checksums: old weights that a message was not made from, and bytes that are spoilt,
are a DeltaError that names the tensor. Messages have no more than the weights' bytes, 17 for each tensor or 2
M elements, 13 for each run of tensors of a type, and a list of names. docs/delta-format.md has every byte.

For a stream of them Publisher and Subscriber name versions, and know when all weights are wanted; shards()
and ShardsSubscriber are for weights that ranks have shards of; unfused() for servers that have q, k and v in
one tensor."""

from .files import Summary, diff, patch
from .message import Progress, Version
from .sharded import ShardsSubscriber, shards, unfused
from .sources import DeltaError, TornError
from .stream import Publisher, Subscriber
from .tensors import decode, encode

__all__ = ["DeltaError", "Progress", "Publisher", "ShardsSubscriber", "Subscriber", "Summary", "TornError",
           "Version", "decode", "diff", "encode", "patch", "shards", "unfused"]
