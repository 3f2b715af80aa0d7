"""Thinwire's C library under Python: its functions and structures, as its public headers declare them.

Every call here releases the GIL. Structures have the layout of the library's interface version, which the
name of the library carries; a test compares them with the headers."""

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


class Codec(C.Structure):
    """tw_quant_codec_t"""

    _fields_ = [(name, C.c_int) for name in ("kind", "block", "scale", "round", "hadamard", "step")]
    columns: bool | None = None  # whether gradients' columns are scaled; the library has no such field

    @functools.cached_property
    def lossless(self) -> bool:
        return lib().tw_quant_loses(C.byref(self)) == 0

    @functools.cached_property
    def says_length(self) -> bool:
        """Whether its messages are as long as they come, and not of blocks."""
        return lib().tw_quant_form(C.byref(self)) == MESSAGE

    def __str__(self) -> str:
        text = C.create_string_buffer(128)
        found = lib().tw_quant_codec_format(C.byref(self), text, len(text)).decode()
        return found + {None: "", True: ",columns", False: ",columns=no"}[self.columns]


class Job(C.Structure):
    """tw_job_t"""

    _fields_ = [
        ("rank", C.c_int),
        ("world", C.c_int),
        ("local_rank", C.c_int),
        ("local_world", C.c_int),
        ("master_addr", C.c_char * 256),
        ("master_port", C.c_int),
        ("token", C.c_char * 256),
        ("launcher", C.c_char_p),
    ]


class TransportParams(C.Structure):
    """tw_transport_params_t"""

    _fields_ = [
        ("job", C.POINTER(Job)),
        ("listener", C.c_int),
        ("net_devices", C.c_char_p),
        ("node_id", C.c_char_p),
        ("peer_timeout_sec", C.c_double),
    ]


class Params(C.Structure):
    """tw_coll_params_t"""

    _fields_ = [
        ("transport", C.c_void_p),
        ("ranks", C.POINTER(C.c_int)),
        ("n_ranks", C.c_int),
        ("id", C.c_int),
        ("mem", C.c_int),
        ("wire", C.c_int),
        ("deterministic", C.c_int),
        ("progress_thread", C.c_int),
        ("patient", C.c_int),
        ("timeout_sec", C.c_double),
    ]


class NcclParams(C.Structure):
    """tw_coll_nccl_params_t"""

    _fields_ = [
        ("comm", C.c_void_p),
        ("shared", C.c_int),
        ("gate", C.c_void_p),
        ("terms", C.c_uint64),
        ("deterministic", C.c_int),
        ("timeout_sec", C.c_double),
    ]


class Segment(C.Structure):
    """tw_coll_segment_t"""

    _fields_ = [
        ("src", C.c_void_p),
        ("dst", C.c_void_p),
        ("n_elems", C.c_size_t),
        ("counts", C.c_void_p),
        ("recv_counts", C.c_void_p),
        ("tensor", C.c_uint32),
        ("first_elem", C.c_uint64),
        ("codec", C.POINTER(Codec)),
        ("unquantized", C.c_int),
        ("row_elems", C.c_size_t),
    ]


class Args(C.Structure):
    """tw_coll_args_t"""

    _fields_ = [
        ("op", C.c_int),
        ("type", C.c_int),
        ("segments", C.POINTER(Segment)),
        ("n_segments", C.c_size_t),
        ("reduction", C.c_int),
        ("factor", C.c_float),
        ("root", C.c_int),
        ("codec", C.POINTER(Codec)),
        ("inner_codec", C.POINTER(Codec)),
        ("seed", C.c_uint64),
        ("step", C.c_uint32),
        ("algo", C.c_char_p),
        ("force_codec", C.c_int),
        ("stream", C.c_void_p),
        ("elapsed_sec", C.POINTER(C.c_double)),
        ("patient", C.c_int),
    ]


class Plan(C.Structure):
    """tw_coll_plan_t"""

    _fields_ = [
        ("algo", C.c_char_p),
        ("quantized", C.c_int),
        ("model_sec", C.c_double),
        ("chunk_bytes", C.c_size_t),
        ("reason", C.c_char_p),
    ]


class QuantParams(C.Structure):
    """tw_quant_params_t"""

    _fields_ = [("codec", Codec), ("mem", C.c_int), ("backend", C.c_char_p)]


class Loss(C.Structure):
    """tw_quant_loss_t"""

    _fields_ = [("squares", C.c_double), ("errors", C.c_double), ("n_values", C.c_uint64),
                ("n_vanished", C.c_uint64)]


class Counters(C.Structure):
    """tw_coll_counters_t"""

    _fields_ = [
        (name, C.c_uint64)
        for name in ("inter_node_bytes", "inter_node_messages", "in_node_bytes", "in_node_messages",
                     "inter_node_spared_bytes")
    ]


class DeltaSegment(C.Structure):
    """tw_quant_delta_segment_t"""

    _fields_ = [
        ("base", C.c_void_p),
        ("src", C.c_void_p),
        ("dst", C.c_void_p),
        ("state", C.c_void_p),
        ("n_elems", C.c_size_t),
    ]


class LosslessSegment(C.Structure):
    """tw_quant_lossless_segment_t"""

    _fields_ = [
        ("src", C.c_void_p),
        ("dst", C.c_void_p),
        ("n_elems", C.c_size_t),
        ("row_elems", C.c_size_t),
        ("first_elem", C.c_uint64),
    ]


class Part(C.Structure):
    """tw_hpz_part_t"""

    _fields_ = [("offset_bytes", C.c_size_t), ("n_elems", C.c_size_t), ("type", C.c_int),
                ("rounded", C.c_int)]


class KeptParams(C.Structure):
    """tw_hpz_kept_params_t"""

    _fields_ = [
        ("name", C.c_char_p),
        ("run_bytes", C.c_size_t),
        ("parts", C.POINTER(Part)),
        ("n_parts", C.c_size_t),
        ("has_room", C.c_int),
        ("codec", C.POINTER(Codec)),
    ]


class Gathered(C.Structure):
    """tw_hpz_gathered_t"""

    _fields_ = [("inter_node_bytes", C.c_uint64), ("changed_bytes", C.c_uint64),
                ("rounded_bytes", C.c_uint64), ("elapsed_sec", C.c_double)]


class ConfigField(C.Structure):
    """tw_config_field_t"""

    _fields_ = [
        ("name", C.c_char_p),
        ("dflt", C.c_char_p),
        ("unit", C.c_char_p),
        ("doc", C.c_char_p),
        ("type", C.c_int),
        ("offset", C.c_size_t),
        ("min", C.c_double),
        ("max", C.c_double),
        ("choices", C.POINTER(C.c_char_p)),
    ]


class ConfigTable(C.Structure):
    """tw_config_table_t"""

    _fields_ = [
        ("module", C.c_char_p),
        ("fields", C.POINTER(ConfigField)),
        ("n_fields", C.c_size_t),
        ("options_bytes", C.c_size_t),
    ]


class DoctorParams(C.Structure):
    """tw_doctor_params_t"""

    _fields_ = [("seconds", C.c_double), ("n_streams", C.c_int), ("json", C.c_char_p),
                ("n_params", C.c_double)]


# {the C name: its class}
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
    "tw_quant_lossless_create": (C.c_int, C.c_char_p, _P),
    "tw_quant_lossless_destroy": (None, _P),
    "tw_quant_lossless_bound_bytes": (C.c_size_t, C.c_int, C.c_size_t),
    "tw_quant_lossless_encode": (C.c_int, _P, C.c_int, _P, C.c_size_t, _P, C.c_size_t, _P),
    "tw_quant_lossless_decode": (C.c_int, _P, C.c_int, _P, C.c_size_t, _P, C.c_size_t),
    "tw_quant_create": (C.c_int, _P, _P),
    "tw_quant_loss_add": (C.c_int, _P, C.c_int, _P, C.c_size_t, C.c_size_t, _P),
    "tw_quant_loss_add_message": (C.c_int, _P, C.c_int, _P, C.c_size_t, _P),
    "tw_quant_messages_create": (C.c_int, _P, C.c_char_p, _P),
    "tw_quant_codec_parse": (C.c_int, C.c_char_p, _P),
    "tw_quant_form": (C.c_int, _P),
    "tw_quant_loses": (C.c_int, _P),
    "tw_quant_codec_format": (C.c_char_p, _P, _P, C.c_size_t),
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
}
TIMEOUT_HINT = ("the limit is the process group's, init_process_group(timeout=...), "
                "unless TW_COLL_TIMEOUT is set")
# A line with FOLLOWING within so many seconds of another error is no cause of its own.
FOLLOWING, FOLLOWS_SEC = "gave the job up", 5.0
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG)


class ThinwireError(RuntimeError):
    """A call of the library failed. status: its tw_status_t; failed_rank: the rank of the job that is to
    blame, or -1."""

    def __init__(self, what: str, status: int, failed_rank: int = -1, detail: str = ""):
        self.status, self.failed_rank = status, failed_rank
        text = "%s: %s" % (what, lib().tw_status_string(status).decode())
        if failed_rank >= 0:
            text += ", rank %d" % failed_rank
        notes = [one for one in (detail, TIMEOUT_HINT if status == TIMEOUT else "") if one]
        super().__init__(text + (" (%s)" % "; ".join(notes) if notes else ""))


class _Log:
    """Passes the library's log lines to Python's logger and keeps the last error for exceptions' texts."""

    def __init__(self) -> None:
        self.last_error = ""
        self._since = -FOLLOWS_SEC
        self.sink = LOG_SINK(self._line)

    def _keep(self, text: str) -> None:
        """Remember an error, unless it only follows from one of just now."""
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
    """The library's path, or the name that the loader is asked for."""
    given = os.environ.get("TW_LIBRARY")
    beside = pathlib.Path(__file__).parent / LIBRARY
    return given or (str(beside) if beside.exists() else LIBRARY)


@contextlib.contextmanager
def _no_signal_handlers() -> Iterator[None]:
    """Keep UCX from catching signals while it is loaded, unless its own variables ask for that: signals are
    the job's."""
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
    """Load PyPI's libucx, which the loader does not find by itself. Returns False if it is not installed."""
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
    """Load UCX. Returns False if there is none."""
    knows = lib().tw_transport_ucx_knows
    with _no_signal_handlers():
        return bool(knows(HOST) or (_ucx_of_pypi() and knows(HOST)))


def check_ucx() -> None:
    """Raise ImportError if this job needs UCX and there is none. The library itself would notice only when it
    connects."""
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
    """The library, which the first call loads, without UCX. ImportError says what is missing."""
    global _loaded
    if _loaded is None:
        with _loading:
            _loaded = _loaded or _load()
    return _loaded


def last_error() -> str:
    """The last error line that the library has logged."""
    return _log.last_error


def stop_logging() -> None:
    """Give the log back to the library: its threads may still log when the interpreter ends."""
    if _loaded is not None:
        _loaded.tw_log_set_sink(None, None)


def check(status: int, what: str, failed_rank: int = -1) -> None:
    """Raise ThinwireError for a failure."""
    if status < 0:
        raise ThinwireError(what, status, failed_rank, _log.last_error)


@functools.cache
def lossless() -> Codec:
    """The lossless codec."""
    return typing.cast(Codec, parse_codec("lossless"))


def parse_codec(text: str | None) -> Codec | None:
    """Parse a codec's text. None for "plain", "", None, and "exact", which is plain's name until 0.2.
    ValueError names what is wrong."""
    if text in (None, "", "plain", "exact"):
        return None
    codec = Codec()
    if lib().tw_quant_codec_parse(text.encode(), C.byref(codec)) < 0:
        raise ValueError("%r is not a codec: %s" % (text, _log.last_error))
    return codec
