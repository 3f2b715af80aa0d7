"""Messages between tensors in memory."""

from __future__ import annotations

import collections
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from . import chunks, message
from .message import Progress, Version, Versions
from .sources import PACKED, DeltaError, Source, Spec, Tensors, TornError

if typing.TYPE_CHECKING:
    import torch

# A message's name for a tensor that the caller gives without a name.
ALONE = "tensor"


def _dtypes() -> dict[torch.dtype, str]:
    import torch

    names = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64",
             "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32",
             "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
             "uint16": "U16", "uint32": "U32", "uint64": "U64", "float8_e8m0fnu": "F8_E8M0",
             "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float4_e2m1fn_x2": "F4"}
    return {getattr(torch, name): short for name, short in names.items() if hasattr(torch, name)}


def on_host(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor as a contiguous one in host memory: a copy, or itself if it already is one."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError("%s: a %s, not a tensor" % (name, type(tensor).__name__))
    if type(tensor).__name__ == "DTensor":
        raise TypeError("%s: a DTensor; give shards(), or its full_tensor()" % name)
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError("%s: a tensor without plain memory" % name)
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _spec(dtype: str, shape: Sequence[int]) -> Spec:
    """Make a Spec. For 4-bit numbers torch's shape counts pairs; the Spec's last dimension is doubled."""
    packed = PACKED.get(dtype, 1)
    return Spec(dtype, tuple(shape) if packed == 1 else (*shape[:-1], packed * shape[-1]))


def _shape(spec: Spec) -> tuple[int, ...]:
    """Returns the shape of a Spec as torch has it; see _spec()."""
    packed = PACKED.get(spec.dtype, 1)
    return spec.shape if packed == 1 else (*spec.shape[:-1], spec.shape[-1] // packed)


def _source(given: Mapping[str, torch.Tensor]) -> tuple[Tensors, dict[str, torch.Tensor]]:
    """Returns (the tensors as a source, {name: tensor in host memory})."""
    names, places, hosts = _dtypes(), {}, {}
    for name, tensor in given.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise TypeError("%r: not a name of a tensor" % (name,))
        hosts[name] = host = on_host(name, tensor)
        if host.dtype not in names:
            raise TypeError("%s: the type %s is not known here" % (name, host.dtype))
        places[name] = _spec(names[host.dtype], host.shape), host.data_ptr()
    return Tensors(places, hosts), hosts


def check_of(weights: Mapping[str, torch.Tensor]) -> str:
    """Returns the checksum of all weights, as 16 hexadecimal digits."""
    source = _source(weights)[0]
    return message.check_of(source.specs, {name: message.whole(source, name) for name in source.specs})


def type_of(tensor: torch.Tensor) -> str:
    """Returns the name of a tensor's type in messages, or torch's name if messages do not have the type."""
    return _dtypes().get(tensor.dtype, str(tensor.dtype))


def _named(weights: torch.Tensor | Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    return weights if isinstance(weights, Mapping) else {ALONE: weights}


def _header(specs: Mapping[str, Spec]) -> str:
    """Returns a safetensors header for these tensors."""
    fields, at = {}, 0
    for name, spec in specs.items():
        fields[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [at, at + spec.n_bytes]}
        at += spec.n_bytes
    return json.dumps(fields)


def encode(old: torch.Tensor | Mapping[str, torch.Tensor], new: torch.Tensor | Mapping[str, torch.Tensor],
           threads: int | None = None, progress: Progress | None = None,
           versions: Versions | None = None) -> bytes:
    """Returns the message that turns `old` into `new`. Both are tensors, or both are {name: tensor}; old={}
    makes a message with all weights. Tensors that are not contiguous in host memory are copied there.
    threads: None for one per core. progress: called with (bytes done, bytes in all). versions: only in a
    stream (Publisher). TypeError for a tensor without plain memory, such as a DTensor."""
    if isinstance(old, Mapping) != isinstance(new, Mapping):
        raise TypeError("old and new weights: one is a tensor, the other has names")
    (before, _), (after, _) = _source(_named(old)), _source(_named(new))
    bases, removed = message.pair(before, after)
    head = message.Head([("", _header(after.specs))], bases, removed, None, versions=versions)
    written: list[bytes] = []
    message.write(head, before, after, written.append, threads, progress)
    return b"".join(written)


class _Arriving:
    """New tensors that come one by one. Each is held until all chunks with a part of it are encoded."""

    def __init__(self, new: Iterable[tuple[str, torch.Tensor]], old: dict[str, Spec]):
        self._new, self._old = new, old
        self.specs: dict[str, Spec] = {}
        self.wholes: dict[str, int] = {}
        self._held: dict[str, Tensors] = {}

    def __iter__(self) -> Iterator[tuple[str, str | None, Spec]]:
        for name, tensor in self._new:
            if name in self.specs:
                raise TypeError("%s: given twice" % name)
            self._held[name] = source = _source({name: tensor})[0]
            self.specs[name] = spec = source.specs[name]
            self.wholes[name] = message.whole(source, name)
            yield name, name if self._old.get(name) == spec else None, spec

    def of(self, chunk: chunks.Chunk) -> Source:
        """Returns a source of the chunk's tensors. Call it once for each chunk, in order: it drops
        tensors without later chunks."""
        found = {run.name: self._held[run.name] for run in chunk}
        for run in chunk:
            if run.first + run.n == run.spec.n_elems:
                del self._held[run.name]
        return Tensors({name: (one.specs[name], one.read(name, 0)) for name, one in found.items()}, found)


def encode_each(old: Mapping[str, torch.Tensor], new: Iterable[tuple[str, torch.Tensor]], base: Version,
                threads: int | None = None) -> tuple[Version, bytes]:
    """Returns the version after `base`, and the message that leads to it. Holds only one new tensor at a
    time, and a few chunks. So a renamed tensor is not found: it counts as one removed and one added."""
    before = _source(old)[0]
    arriving = _Arriving(new, before.specs)
    work = ((chunk, before, arriving.of(chunk)) for chunk in chunks.cut(arriving, chunks.ELEMS))
    written = list(message.in_order(lambda *one: chunks.coder().encode(*one), work, threads))
    specs = arriving.specs
    version = Version(base.number + 1, message.check_of(specs, arriving.wholes))
    head = message.Head([("", _header(specs))],
                        {name: None for name, spec in specs.items() if before.specs.get(name) != spec},
                        sorted(before.specs.keys() - specs.keys()), None, chunks.ELEMS, (base, version))
    return version, b"".join((head.write(), *written))


def decode(old: torch.Tensor | Mapping[str, torch.Tensor], data: bytes, in_place: bool = False,
           threads: int | None = None) -> typing.Any:
    """Returns the new weights, as a tensor or {name: tensor} like `old`, on the old weights' devices.
    in_place: write them into the old tensors' memory, except for added ones; removed ones stay in `old`. All
    of the message is read and compared with `old` before anything is written. DeltaError, with `old`
    unchanged, if the message was made from other old weights, or is damaged or incomplete. TornError, only
    with in_place, if the message's contents contradict its checksums: then some of `old` is overwritten."""
    return checked(old, message.received(data), in_place, threads)()


def checked(old: torch.Tensor | Mapping[str, torch.Tensor], received: message.Received,
            in_place: bool = False, threads: int | None = None) -> Callable[[], typing.Any]:
    """Do all of decode() except writing. Returns a function that writes and returns decode()'s result."""
    given = _named(old)
    (before, hosts), head = _source(given), received.head
    head.check_old(before.specs)
    for _ in message.in_order(lambda *one: chunks.coder().check(*one),
                              ((*one, before) for one in received.chunks()), threads):
        pass

    def make() -> typing.Any:
        result = _targets(head, before.specs, _alone(head, hosts) if in_place else {})
        try:
            _decode_all(received, before, result, threads)
        except DeltaError as error:
            raise (TornError("%s; some old weights are overwritten" % error) if in_place else error) from None
        found = {name: _back(given, _place(head, name), one, in_place) for name, one in result.items()}
        return found if isinstance(old, Mapping) else found[ALONE]

    return make


def _place(head: message.Head, name: str) -> str | None:
    """Returns the name of the old tensor whose memory the new tensor `name` may use, or None."""
    return name if head.is_full else head.bases.get(name, name)


def _alone(head: message.Head, hosts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the old tensors that may be overwritten at once: no other tensor shares their memory, and only
    one new tensor is made from them. The rest must be read before anything is written."""
    reads = collections.Counter(_place(head, name) for name in head.specs)
    found: dict[str, torch.Tensor] = {}
    end, last = 0, ""
    for begin, name in sorted((one.data_ptr(), name) for name, one in hosts.items()):
        if begin < end:
            found.pop(last, None)
        elif reads[name] == 1:
            found[name] = hosts[name]
        if begin + hosts[name].nbytes > end:
            end, last = begin + hosts[name].nbytes, name
    return found


def _targets(head: message.Head, specs: Mapping[str, Spec],
             hosts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns {name: tensor to write into} for the new tensors: an old tensor of `hosts`, or new memory."""
    import torch

    types, found = {short: dtype for dtype, short in _dtypes().items()}, {}
    for name, spec in head.specs.items():
        place = _place(head, name)
        there = hosts.get(place) if place is not None and specs.get(place) == spec else None
        found[name] = there if there is not None else torch.empty(_shape(spec), dtype=types[spec.dtype])
    return found


def _decode_all(received: message.Received, old: Source, new: Mapping[str, torch.Tensor],
                threads: int | None) -> None:
    def place(run: chunks.Run) -> int:
        return new[run.name].data_ptr() + run.first * run.spec.itemsize

    work = ((*one, old, place) for one in received.chunks())
    for _ in message.in_order(lambda *one: chunks.coder().decode(*one), work, threads):
        pass


def _back(given: Mapping[str, torch.Tensor], place: str | None, made: torch.Tensor,
          in_place: bool) -> torch.Tensor:
    """Returns the new tensor `made` as the caller gets it: in the old tensor's memory (in_place), or moved to
    the old tensor's device. place: the old tensor's name."""
    import torch

    old = given.get(place) if place is not None else None
    if old is None or not in_place or (old.shape, old.dtype) != (made.shape, made.dtype):
        return made.to((next(iter(given.values()), made) if old is None else old).device)
    if made.data_ptr() != old.data_ptr():
        with torch.no_grad():
            old.copy_(made)
    return old
