"""Thinwire's C library for Python (ctypes): its functions and structures, as its public headers declare them.

Every call of the library releases the GIL. The structures are those of one interface version, which is part
of the library's file name. A test compares them with the headers."""

from __future__ import annotations

import contextlib
import ctypes as C
import functools
import importlib
import logging
import os
import pathlib
import sys
import threading
import time
import typing
from collections.abc import Iterator

from .switches import log

LIBRARY = "libthinwire.so.0.3"

# tw_status_t
OK, IN_PROGRESS, UNSUPPORTED, TIMEOUT = 0, 1, -3, -10
# tw_type_t
FP32, BF16, FP16, BYTE = range(4)
# tw_coll_op_t
ALLGATHER, REDUCE_SCATTER, ALLREDUCE, BROADCAST, ALLTOALL, BARRIER = range(6)
# tw_coll_reduction_t
SUM, MEAN = range(2)
# tw_mem_t and tw_coll_wire_t
HOST, CUDA = range(2)
AS_IS, BLOCKS, MESSAGE, CHANGE = range(4)  # tw_quant_form_t
WIRE_TRANSPORT, WIRE_NCCL = range(2)
# tw_config_type_t
CONFIG_BYTES, CONFIG_TIME, CONFIG_STRING, CONFIG_ENUM = 5, 6, 8, 10


_KINDS = {"int": C.c_int, "size_t": C.c_size_t, "double": C.c_double, "float": C.c_float,
          "uint32_t": C.c_uint32, "uint64_t": C.c_uint64, "void*": C.c_void_p, "text": C.c_char_p,
          "char256": C.c_char * 256, "int*": C.POINTER(C.c_int), "double*": C.POINTER(C.c_double),
          "text*": C.POINTER(C.c_char_p)}


def _fields(text: str, *pointed: type[C.Structure]) -> list[tuple[str, typing.Any]]:
    """Parse fields of a structure, such as "int rank, world; Job* job". pointed: what fields point to."""
    kinds = _KINDS | {one.__name__ + "*": C.POINTER(one) for one in pointed}
    return [(name, kinds[kind]) for kind, *names in (one.replace(",", "").split() for one in text.split(";"))
            for name in names]


class Codec(C.Structure):
    """tw_quant_codec_t"""

    _fields_ = _fields("int kind, block, scale, round, hadamard, step")
    columns: bool | None = None  # whether gradients' columns are scaled (columns.py); not a field in C

    @functools.cached_property
    def lossless(self) -> bool:
        return lib().tw_quant_loses(C.byref(self)) == 0

    @functools.cached_property
    def says_length(self) -> bool:
        """Whether messages of this codec vary in length. Each such message says its own length."""
        return lib().tw_quant_form(C.byref(self)) == MESSAGE

    def __str__(self) -> str:
        text = C.create_string_buffer(128)
        found = lib().tw_quant_codec_format(C.byref(self), text, len(text)).decode()
        return found + {None: "", True: ",columns", False: ",columns=no"}[self.columns]


def says_length(*codecs: Codec | None) -> bool:
    """Returns whether messages of any of these codecs vary in length."""
    return any(one is not None and one.says_length for one in codecs)


class Job(C.Structure):
    """tw_job_t"""

    _fields_ = _fields("int rank, world, local_rank, local_world; char256 master_addr; int master_port; "
                       "char256 token; text launcher")


class TransportParams(C.Structure):
    """tw_transport_params_t"""

    _fields_ = _fields("Job* job; int listener; text net_devices, node_id; double peer_timeout_sec", Job)


class Params(C.Structure):
    """tw_coll_params_t"""

    _fields_ = _fields("void* transport; int* ranks; int n_ranks, id, mem, wire, deterministic, "
                       "progress_thread, patient; double timeout_sec")


class NcclParams(C.Structure):
    """tw_coll_nccl_params_t"""

    _fields_ = _fields("void* comm; int shared; void* gate; uint64_t terms; int deterministic; "
                       "double timeout_sec")


class Segment(C.Structure):
    """tw_coll_segment_t"""

    _fields_ = _fields("void* src, dst; size_t n_elems; void* counts, recv_counts; uint32_t tensor; "
                       "uint64_t first_elem; Codec* codec; int unquantized; size_t row_elems", Codec)


class Args(C.Structure):
    """tw_coll_args_t"""

    _fields_ = _fields("int op, type; Segment* segments; size_t n_segments; int reduction; float factor; "
                       "int root; Codec* codec, inner_codec; uint64_t seed; uint32_t step; text algo; "
                       "int force_codec; void* stream; double* elapsed_sec; int patient", Segment, Codec)


class Plan(C.Structure):
    """tw_coll_plan_t"""

    _fields_ = _fields("text algo; int quantized; double model_sec; size_t chunk_bytes; text reason")


class Loss(C.Structure):
    """tw_quant_loss_t"""

    _fields_ = _fields("double squares, errors; uint64_t n_values, n_vanished")


class Counters(C.Structure):
    """tw_coll_counters_t"""

    _fields_ = _fields("uint64_t inter_node_bytes, inter_node_messages, in_node_bytes, in_node_messages, "
                       "inter_node_spared_bytes")


class DeltaSegment(C.Structure):
    """tw_quant_delta_segment_t"""

    _fields_ = _fields("void* base, src, dst, state; size_t n_elems")


class LosslessSegment(C.Structure):
    """tw_quant_lossless_segment_t"""

    _fields_ = _fields("void* src, dst; size_t n_elems, row_elems; uint64_t first_elem")


class Part(C.Structure):
    """tw_hpz_part_t"""

    _fields_ = _fields("size_t offset_bytes, n_elems; int type, rounded")


class KeptParams(C.Structure):
    """tw_hpz_kept_params_t"""

    _fields_ = _fields("text name; size_t run_bytes; Part* parts; size_t n_parts; int has_room; Codec* codec",
                       Part, Codec)


class Gathered(C.Structure):
    """tw_hpz_gathered_t"""

    _fields_ = _fields("uint64_t inter_node_bytes, changed_bytes, rounded_bytes; double elapsed_sec")


class ConfigField(C.Structure):
    """tw_config_field_t"""

    _fields_ = _fields("text name, dflt, unit, doc; int type; size_t offset; double min, max; text* choices")


class ConfigTable(C.Structure):
    """tw_config_table_t"""

    _fields_ = _fields("text module; ConfigField* fields; size_t n_fields, options_bytes", ConfigField)


class DoctorParams(C.Structure):
    """tw_doctor_params_t"""

    _fields_ = _fields("double seconds; int n_streams; text json; double n_params")


class DoctorCluster(C.Structure):
    """tw_doctor_cluster_t"""

    _fields_ = _fields("int n_nodes, ranks_per_node; double link_bps, n_params")


# {name of a structure in C: its class here}
STRUCTURES = {one.__doc__: one for one in C.Structure.__subclasses__() if one.__module__ == __name__}

LOG_SINK = C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_char_p, C.c_int, C.c_char_p)
_P = C.c_void_p
_FUNCTIONS = {
    "tw_status_string": (C.c_char_p, C.c_int),
    "tw_log_set_sink": (None, _P, _P),
    "tw_config_init": (C.c_int, _P, _P),
    "tw_config_cleanup": (None, _P, _P),
    "tw_config_check_environment": (C.c_size_t, _P, C.c_size_t),
    "tw_quant_backends": (C.c_size_t, C.c_int, _P, C.c_size_t),
    "tw_checksum": (C.c_uint64, _P, C.c_size_t, C.c_uint64),
    "tw_quant_delta_create": (C.c_int, C.c_char_p, _P),
    "tw_quant_delta_destroy": (None, _P),
    "tw_quant_delta_bound_bytes": (C.c_size_t, C.c_size_t),
    "tw_quant_delta_encode": (C.c_int, _P, _P, C.c_size_t, _P, C.c_size_t, _P),
    "tw_quant_delta_decode": (C.c_int, _P, _P, C.c_size_t, _P, C.c_size_t),
    "tw_quant_delta8_bound_bytes": (C.c_size_t, C.c_size_t),
    "tw_quant_delta8_encode": (C.c_int, _P, _P, C.c_size_t, _P, C.c_size_t, _P),
    "tw_quant_delta8_decode": (C.c_int, _P, _P, C.c_size_t, _P, C.c_size_t),
    "tw_quant_lossless_create": (C.c_int, C.c_char_p, _P),
    "tw_quant_lossless_destroy": (None, _P),
    "tw_quant_lossless_bound_bytes": (C.c_size_t, C.c_int, C.c_size_t),
    "tw_quant_lossless_encode": (C.c_int, _P, C.c_int, _P, C.c_size_t, _P, C.c_size_t, _P),
    "tw_quant_lossless_decode": (C.c_int, _P, C.c_int, _P, C.c_size_t, _P, C.c_size_t),
    "tw_quant_sampler_create": (C.c_int, _P, _P),
    "tw_quant_loss_add": (C.c_int, _P, C.c_int, _P, C.c_size_t, _P),
    "tw_quant_codec_parse": (C.c_int, C.c_char_p, _P),
    "tw_quant_form": (C.c_int, _P),
    "tw_quant_loses": (C.c_int, _P),
    "tw_quant_codec_format": (C.c_char_p, _P, _P, C.c_size_t),
    "tw_sealed_create": (C.c_int, C.c_char_p, C.c_int, C.c_int, _P, _P),
    "tw_sealed_meet": (C.c_int, _P, _P),
    "tw_sealed_wrap": (None, _P, _P, C.c_size_t, _P),
    "tw_sealed_unwrap": (C.c_int, _P, _P, C.c_size_t, _P),
    "tw_sealed_destroy": (None, _P),
    "tw_transport_create_with": (C.c_int, _P, _P),
    "tw_transport_listen": (C.c_int, C.c_char_p, _P),
    "tw_transport_destroy": (None, _P),
    "tw_transport_describe": (C.c_char_p, _P),
    "tw_transport_failed_rank": (C.c_int, _P),
    "tw_transport_ucx_knows": (C.c_int, C.c_int),
    "tw_transport_needs_ucx": (C.c_int, _P),
    "tw_coll_create": (C.c_int, _P, _P),
    "tw_coll_nccl_create": (C.c_int, _P, _P),
    "tw_coll_destroy": (None, _P),
    "tw_coll_abort": (None, _P),
    "tw_coll_timeout_set": (None, _P, C.c_double),
    "tw_coll_n_nodes": (C.c_int, _P),
    "tw_coll_link_byte_sec": (C.c_double, _P),
    "tw_coll_post": (C.c_int, _P, _P, _P),
    "tw_coll_test": (C.c_int, _P),
    "tw_coll_wait": (C.c_int, _P),
    "tw_coll_progress": (C.c_int, _P),
    "tw_coll_request_plan": (None, _P, _P),
    "tw_coll_planned_inter_node_bytes": (C.c_int, _P, _P, _P),
    "tw_coll_counters_get": (None, _P, _P),
    "tw_coll_nonfinite_blocks": (C.c_uint64, _P),
    "tw_hpz_keeper_create": (C.c_int, _P, _P),
    "tw_hpz_keeper_destroy": (None, _P),
    "tw_hpz_keeper_timeout_set": (None, _P, C.c_double),
    "tw_hpz_keeper_inter_node_bytes": (C.c_uint64, _P),
    "tw_hpz_kept_memory_bytes": (C.c_size_t, _P, _P),
    "tw_hpz_kept_create": (C.c_int, _P, _P, _P, _P),
    "tw_hpz_kept_destroy": (None, _P),
    "tw_hpz_kept_gather_post": (C.c_int, _P, _P, C.c_int),
    "tw_hpz_kept_test": (C.c_int, _P, _P),
    "tw_hpz_kept_wait": (C.c_int, _P, _P),
    "tw_doctor_run": (C.c_int, _P),
    "tw_doctor_plan": (C.c_int, _P),
    "tw_parse_rate": (C.c_int, C.c_char_p, _P),
}
TIMEOUT_HINT = ("the limit is the process group's, init_process_group(timeout=...), "
                "unless TW_COLL_TIMEOUT is set")
# If one rank fails, others log that it gave the job up. An error line that contains FOLLOWING is therefore
# taken for a consequence of another error line of the last FOLLOWS_SEC seconds.
FOLLOWING, FOLLOWS_SEC = "gave the job up", 5.0
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG)


class ThinwireError(RuntimeError):
    """A call of the library failed. status: the call's tw_status_t. failed_rank: the job's rank that caused
    the failure; -1 if no rank is known to have caused it."""

    def __init__(self, what: str, status: int, failed_rank: int = -1, detail: str = ""):
        self.status, self.failed_rank = status, failed_rank
        text = "%s: %s" % (what, lib().tw_status_string(status).decode())
        if failed_rank >= 0:
            text += ", rank %d" % failed_rank
        notes = [one for one in (detail, TIMEOUT_HINT if status == TIMEOUT else "") if one]
        super().__init__(text + (" (%s)" % "; ".join(notes) if notes else ""))


class _Log:
    """Passes the library's log lines to Python's logger, and keeps the last error line for exceptions."""

    def __init__(self) -> None:
        self.last_error = ""
        self._since = -FOLLOWS_SEC
        self.sink = LOG_SINK(self._line)

    def _keep(self, text: str) -> None:
        """Keep an error line, unless it is only a consequence of the one that is kept (FOLLOWING)."""
        now = time.monotonic()
        if FOLLOWING not in text or now - self._since > FOLLOWS_SEC:
            self.last_error, self._since = text, now

    def _line(self, _ctx: int, level: int, _file: bytes, _number: int, message: bytes) -> None:
        text = message.decode(errors="replace")
        if level == 0:
            self._keep(text)
        log.log(_LEVELS[level], "%s", text)


_loaded: C.CDLL | None = None
_loading = threading.Lock()
_log = _Log()


def path() -> str:
    """Returns the library's path, or its bare name if the loader has to search for it."""
    given = os.environ.get("TW_LIBRARY")
    beside = pathlib.Path(__file__).parent / LIBRARY
    return given or (str(beside) if beside.exists() else LIBRARY)


@contextlib.contextmanager
def _no_signal_handlers() -> Iterator[None]:
    """Keep UCX from installing signal handlers: the job may have its own. The user's UCX variables win."""
    quiet = {"UCX_HANDLE_ERRORS": "none", "UCX_DEBUG_SIGNO": "0"}
    ours = [name for name in quiet if name not in os.environ]
    os.environ.update((name, quiet[name]) for name in ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


UCX_MISSING = "UCX is missing, which ranks of one node need: install Debian's libucx0, or `pip install %s`"


def _ucx_of_pypi() -> bool:
    """Load UCX from PyPI's libucx, whose folder the loader does not search. Returns False without libucx."""
    try:
        importlib.import_module("libucx").load_library()
    except (ImportError, OSError, AttributeError) as error:
        log.debug("no libucx from PyPI: %s", error)
        return False
    return True


def _open() -> C.CDLL:
    where = path()
    try:
        return C.CDLL(where)
    except OSError as error:
        raise ImportError("cannot load %s (%s)" % (where, error)) from error


def find_ucx() -> bool:
    """Load UCX. Returns False if UCX is not installed."""
    knows = lib().tw_transport_ucx_knows
    with _no_signal_handlers():
        return bool(knows(HOST) or (_ucx_of_pypi() and knows(HOST)))


def check_ucx() -> None:
    """Raise ImportError, before ranks connect, if this job needs UCX and UCX is not installed."""
    if not find_ucx() and lib().tw_transport_needs_ucx(None):
        cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None) or "13"
        raise ImportError(UCX_MISSING % ("libucx-cu" + cuda.split(".")[0]))


def _load() -> C.CDLL:
    library = _open()
    for name, (result, *arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError("%s is of another version than this package: it has no %s"
                              % (path(), name)) from None
        function.restype, function.argtypes = result, arguments
    library.tw_log_set_sink(_log.sink, None)
    return library


def lib() -> C.CDLL:
    """Returns the library. The first call loads it, but not UCX. ImportError if it cannot be loaded."""
    global _loaded
    if _loaded is None:
        with _loading:
            _loaded = _loaded or _load()
    return _loaded


def last_error() -> str:
    """The last error line that the library has logged."""
    return _log.last_error


def stop_logging() -> None:
    """Let the library log to stderr itself: its threads may still log when the interpreter has ended."""
    if _loaded is not None:
        _loaded.tw_log_set_sink(None, None)


def check(status: int, what: str, failed_rank: int = -1) -> None:
    """Raise ThinwireError if `status` is a failure. what: the operation, for the error's text."""
    if status < 0:
        raise ThinwireError(what, status, failed_rank, _log.last_error)


@functools.cache
def lossless() -> Codec:
    """The lossless codec."""
    return typing.cast(Codec, parse_codec("lossless"))


def parse_codec(text: str | None) -> Codec | None:
    """Parse a codec's text, such as "int4:hadamard". Returns None for "plain", "" and None, and for "exact",
    the name of "plain" until version 0.2. ValueError for a text that is not a codec."""
    if text in (None, "", "plain", "exact"):
        return None
    codec = Codec()
    if lib().tw_quant_codec_parse(text.encode(), C.byref(codec)) < 0:
        raise ValueError("%r is not a codec: %s" % (text, _log.last_error))
    return codec
