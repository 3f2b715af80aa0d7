"""Changes of weights as messages: from a trainer to inference servers, or a fine-tuned model as a change.

    message = thinwire.delta.encode(old, new)          tensors, or state dicts: {name: tensor}
    new = thinwire.delta.decode(old, message)          in_place=True: old's own memory becomes new
    thinwire.delta.diff("old.safetensors", "new.safetensors", "change.twd")
    thinwire.delta.patch("old.safetensors", "change.twd", "new.safetensors")

No bit is lost. How the values of a tensor are sent depends on its type:
- bf16, fp16 and types of one byte: the change in units in the last place, entropy-coded;
- fp32: the upper 16 bits likewise, the lower 16 bits plain;
- new tensors: by the lossless codec, or, for types of one byte, entropy-coded;
- other types, and all that coding would not shorten: plain;
- an unchanged tensor: nothing but 17 bytes of checksums.
A message is at most as long as the weights, plus 17 bytes for each tensor (for each 2 M elements of a large
one), 13 bytes for each chunk, and a list of names. docs/delta-format.md describes every byte.

A DeltaError names the tensor if the message was made from other old weights, or if its bytes are damaged.

Publisher and Subscriber are the ends of a stream of messages: they number versions, and send all weights if
needed. shards() and ShardsSubscriber are for sharded weights, unfused() for servers with q, k and v fused."""

from .files import Summary, diff, patch
from .message import Progress, Version
from .sharded import ShardsSubscriber, shards, unfused
from .sources import DeltaError, TornError
from .stream import Publisher, Subscriber
from .tensors import decode, encode

__all__ = ["DeltaError", "Progress", "Publisher", "ShardsSubscriber", "Subscriber", "Summary", "TornError",
           "Version", "decode", "diff", "encode", "patch", "shards", "unfused"]
