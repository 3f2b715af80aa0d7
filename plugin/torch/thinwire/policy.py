"""Decides which tensors have which codec: the variables, the arguments, and the rules for a tensor."""

from __future__ import annotations

import contextlib
import ctypes as C
import dataclasses
import hashlib
import typing
from collections.abc import Iterator, Mapping

from . import capi, names, switches

MIN_BYTES = 64 << 10
DELTA = "delta"
_INT = "int"  # delta4 rounds changes with the codec int4
SETTING_CHARS = 120  # longest text that ranks compare; a longer one is cut, and its checksum is added
LOSSLESS = "lossless"  # default codec of gradients; with delta also that of weights without replicas

# (name, default, unit, meaning, type), as in the library's own tables of variables
VARIABLES = [
    ("TW_FSDP", "n", "", "Patch FSDP2 when torch is imported. require: and end the job where a rank cannot.",
     capi.CONFIG_ENUM),
    ("TW_DDP", "n", "", "Give each DistributedDataParallel the hook. require: likewise.", capi.CONFIG_ENUM),
    ("TW_WEIGHTS", DELTA, "",
     "Codec of weights that are gathered, plain, or delta: what has changed, without loss; "
     "delta4, delta2: with. Exceptions by name: int8;*.embed=plain.", capi.CONFIG_STRING),
    ("TW_GRADS", LOSSLESS, "",
     "Codec of gradients that are reduced, or plain; with loss ecdq, int4, int8. Exceptions by name: "
     "int4;*.embed=lossless.", capi.CONFIG_STRING),
    ("TW_MIN_BYTES", "64K", "bytes", "Tensors below this size, over all ranks, stay plain.",
     capi.CONFIG_BYTES),
    ("TW_REPLICA_MEM", "0", "bytes", "Most host memory that a process takes for delta's replicas. 0: any.",
     capi.CONFIG_BYTES),
    ("TW_JOIN_TIMEOUT", "60s", "s", "How long to wait for all ranks at the start.", capi.CONFIG_TIME),
    ("TW_REPORT", "", "", "File that rank 0 writes at the end: the report, as a page.", capi.CONFIG_STRING),
    ("TW_LIBRARY", "", "", "Path of the shared library.", capi.CONFIG_STRING),
    ("TW_CLUSTER", "", "", "Set by the cluster in a box.", capi.CONFIG_STRING),
    ("TW_CLUSTER_NOTE", "", "", "Set by the cluster in a box.", capi.CONFIG_STRING),
]
SWITCH = ("n", "y", switches.REQUIRE, *switches.OFF[3:], *switches.ON[1:], "0", "")
_FIELD: dict[int, typing.Any] = {
    capi.CONFIG_ENUM: C.c_int, capi.CONFIG_STRING: C.c_char_p, capi.CONFIG_BYTES: C.c_size_t,
    capi.CONFIG_TIME: C.c_double}


class Options(C.Structure):
    """The values of VARIABLES. The library parses them and fills them in."""

    _fields_ = [(name, _FIELD[kind]) for name, _, _, _, kind in VARIABLES]


def _table() -> capi.ConfigTable:
    fields = (capi.ConfigField * len(VARIABLES))()
    choices = (C.c_char_p * (len(SWITCH) + 1))(*map(str.encode, SWITCH))
    for field, (name, default, unit, doc, kind) in zip(fields, VARIABLES):
        field.name, field.dflt = name.encode(), default.encode()
        field.unit, field.doc = unit.encode(), doc.encode()
        field.type, field.offset, field.choices = kind, getattr(Options, name).offset, choices
    return capi.ConfigTable(b"torch", fields, len(VARIABLES), C.sizeof(Options))


@dataclasses.dataclass(frozen=True)
class Policy:
    """weights, grads: the codecs (None: plain). min_bytes: smaller tensors are not quantized. The size
    is that over all ranks. keeps: nodes keep replicas of weights, and gathers send only changes; `weights` is
    then for groups of parameters without a replica."""

    weights: capi.Codec | None
    grads: capi.Codec | None
    min_bytes: int = MIN_BYTES
    keeps: bool = False
    replica_bytes: int = 0  # most host memory for replicas of a process; 0: no limit
    rounds: capi.Codec | None = None  # codec that rounds changes of replicas; None: changes are lossless
    weights_by_name: names.Rules = names.Rules()
    grads_by_name: names.Rules = names.Rules()

    def codes_weights(self) -> bool:
        """Returns whether any weights without a replica have a codec."""
        return self.weights is not None or any(one.codec is not None for one in self.weights_by_name.rules)

    def weights_text(self) -> str:
        usual = DELTA if self.keeps else str(self.weights or "plain")
        if self.rounds is not None:
            usual = DELTA + str(self.rounds).removeprefix(_INT)
        return usual + str(self.weights_by_name)

    def grads_text(self) -> str:
        return str(self.grads or "plain") + str(self.grads_by_name)

    def __str__(self) -> str:
        return "weights %s, gradients %s" % (self.weights_text(), self.grads_text())

    def settings(self) -> dict[str, str]:
        """Returns the settings that must be equal on all ranks: {variable: text}."""
        found = {"TW_WEIGHTS": self.weights_text(), "TW_GRADS": self.grads_text(),
                 "TW_MIN_BYTES": str(self.min_bytes), "TW_REPLICA_MEM": str(self.replica_bytes)}
        return {name: _shortened(text) for name, text in found.items()}

    def of(self, variable: str) -> tuple[capi.Codec | None, names.Rules]:
        """Returns (codec, exceptions by name) for TW_WEIGHTS or for TW_GRADS."""
        if variable == "TW_WEIGHTS":
            return self.weights, self.weights_by_name
        return self.grads, self.grads_by_name


def _shortened(text: str) -> str:
    if len(text) <= SETTING_CHARS:
        return text
    return "%s... (checksum %s)" % (text[:SETTING_CHARS], hashlib.sha256(text.encode()).hexdigest()[:12])


def check_environment() -> None:
    """Warn of each TW_ variable that Thinwire does not have, and name the most similar one that it has."""
    library, own = capi.lib(), _table()
    names = ("tw_log_config_table", "tw_transport_config_table", "tw_coll_config_table",
             "tw_hpz_config_table")
    tables = [capi.ConfigTable.in_dll(library, name) for name in names] + [own]
    pointers = (C.POINTER(capi.ConfigTable) * len(tables))(*[C.pointer(table) for table in tables])
    library.tw_config_check_environment(pointers, len(tables))


@contextlib.contextmanager
def _options() -> Iterator[Options]:
    """Read VARIABLES from the environment. ThinwireError names a variable with an invalid value."""
    table, options, library = _table(), Options(), capi.lib()
    capi.check(library.tw_config_init(C.byref(table), C.byref(options)), "variables")
    try:
        yield options
    finally:
        library.tw_config_cleanup(C.byref(table), C.byref(options))


def _exact_changes(text: str) -> capi.Codec | None:
    """Parse the codec of an exception to delta4 or delta2: `delta`. ValueError for others."""
    if text != DELTA:
        raise ValueError("%r: an exception from delta4 or delta2 is delta, from delta there is none" % text)
    return capi.parse_codec(LOSSLESS)


def _weights(text: str) -> capi.Codec | None:
    """Parse a codec for weights. ValueError for codecs such as ecdq, which are only for gradients: their
    error may be as large as a value, and only averages out in sums."""
    codec = capi.parse_codec(text)
    if codec is not None and codec.says_length and not codec.lossless:
        raise ValueError("%r is for gradients: a weight's error would be as large as the weight" % text)
    return codec


def _with_weights(rules: Policy, text: str) -> Policy:
    """Returns the policy, changed by a text like TW_WEIGHTS."""
    keeps = (text.partition(";")[0].strip() or DELTA).startswith(DELTA)
    usual, by_name = names.parse(text, _exact_changes if keeps else _weights)
    bits = usual.removeprefix(DELTA) if keeps else ""
    if keeps and not bits and by_name.rules:
        raise ValueError("delta loses nothing of any parameter: %r is of no use" % str(by_name)[1:])
    return dataclasses.replace(
        rules, weights=_weights(LOSSLESS if keeps else usual), keeps=keeps,
        rounds=capi.parse_codec(_INT + bits) if bits else None, weights_by_name=by_name)


def _gradients(text: str) -> capi.Codec | None:
    """Parse a codec for gradients. A codec with blocks scales columns unless its text has columns=no."""
    name, colon, rest_of_text = text.partition(":")
    options = rest_of_text.split(",") if colon else []
    rest = [one for one in options if one not in ("columns", "columns=no")]
    codec = capi.parse_codec(name + (":" + ",".join(rest) if rest else ""))
    if codec is not None and not codec.says_length:
        codec.columns = "columns=no" not in options
    elif rest != options:
        raise ValueError("%r: scales of columns are for what rounds blocks" % text)
    return codec


def _with_grads(rules: Policy, text: str) -> Policy:
    """Returns the policy, changed by a text like TW_GRADS."""
    usual, by_name = names.parse(text, _gradients)
    return dataclasses.replace(rules, grads=_gradients(usual or LOSSLESS), grads_by_name=by_name)


def from_environment() -> Policy:
    """Returns the policy of the TW_ variables. ValueError or ThinwireError for an invalid value."""
    with _options() as options:
        rules = Policy(None, None, options.TW_MIN_BYTES, replica_bytes=options.TW_REPLICA_MEM)
        for name, change in (("TW_WEIGHTS", _with_weights), ("TW_GRADS", _with_grads)):
            try:
                rules = change(rules, (getattr(options, name) or b"").decode())
            except ValueError as error:
                raise ValueError("%s: %s" % (name, error)) from None
        return rules


def join_timeout() -> float:
    """Returns the value of TW_JOIN_TIMEOUT, in seconds."""
    with _options() as options:
        return options.TW_JOIN_TIMEOUT


ByName = str | Mapping[str, str]  # a codec with or without exceptions, or {pattern of names: codec}


def make(weights: ByName | None = None, grads: ByName | None = None,
         min_bytes: int | None = None) -> Policy:
    """Returns the environment's policy, changed by the arguments that are not None."""
    rules = from_environment()
    if weights is not None:
        rules = _with_weights(rules, names.text_of(weights, rules.weights_text()))
    if grads is not None:
        rules = _with_grads(rules, names.text_of(grads, rules.grads_text()))
    return rules if min_bytes is None else dataclasses.replace(rules, min_bytes=min_bytes)


class _Unquantized:
    """Counts this process's open unquantized() contexts: not by thread, as autograd has its own threads."""

    depth = 0


@contextlib.contextmanager
def unquantized() -> Iterator[None]:
    """Context in which nothing is quantized: for a checkpoint or an evaluation. All ranks must open it."""
    _Unquantized.depth += 1
    try:
        yield
    finally:
        _Unquantized.depth -= 1


exact = unquantized  # the name of unquantized() until version 0.2


def is_unquantized() -> bool:
    return _Unquantized.depth > 0


def why_unquantized(policy: Policy, codec: capi.Codec | None, dims: int, whole_bytes: int) -> str:
    """Returns why a tensor is not quantized; "" if it is, or if its codec is lossless. dims: its dimensions.
    whole_bytes: its size over all ranks."""
    if codec is not None and codec.lossless:
        return ""
    if dims <= 1:
        return "norms and biases"
    return "smaller than TW_MIN_BYTES" if whole_bytes < policy.min_bytes else ""
