"""python -m thinwire info | plan | doctor | nccl | diff OLD NEW -o FILE | patch OLD FILE -o NEW"""

from __future__ import annotations

import argparse
import ctypes as C
import os
import signal
import sys
import time

from . import capi, delta, info, switches
from .version import __version__


class _Progress:
    """Prints progress on stderr. On a terminal each line overwrites the last one; elsewhere lines follow."""

    def __init__(self, quiet: bool):
        self._terminal = sys.stderr.isatty()
        self._every_sec = float("inf") if quiet else 0.5 if self._terminal else 10.0
        self._begin = self._last = time.monotonic()
        self._said = False

    def __call__(self, done: int, whole: int) -> None:
        now = time.monotonic()
        if now - self._last < self._every_sec:
            return
        self._last, self._said = now, True
        text = "%.1f of %.1f GB, %.2f GB/s" % (done / 1e9, whole / 1e9, done / 1e9 / (now - self._begin))
        print(("\r%s " if self._terminal else "%s\n") % text, end="", file=sys.stderr, flush=True)

    def end(self) -> float:
        """End the progress line. Returns the seconds since this object was made."""
        if self._said and self._terminal:
            print(file=sys.stderr)
        return time.monotonic() - self._begin


def _describe(out: str, found, seconds: float) -> str:
    changes = [(found.added, "added"), (found.renamed, "renamed"), (found.removed, "removed")]
    text = "".join(", %d %s" % (n, word) for n, word in changes if n)
    share = 100 * found.message_bytes / max(found.weights_bytes, 1)
    return "%s: a message of %d bytes is %.2f %% of %d bytes of weights; %d tensors%s; %.1f s" % (
        out, found.message_bytes, share, found.weights_bytes, found.tensors, text, seconds)


def _transfer(args: argparse.Namespace) -> int:
    progress = _Progress(args.quiet)
    if args.command == "diff":
        found = delta.diff(args.old, args.new, args.out, args.threads, progress, args.verify)
    else:
        found = delta.patch(args.old, args.change, args.out, args.threads, progress)
    seconds = progress.end()
    if not args.quiet:
        print(_describe(args.out, found, seconds) + ("; read back and compared" if args.verify else ""))
    return 0


def _info(_args: argparse.Namespace) -> int:
    print(info.text())
    return 0


def _nccl(args: argparse.Namespace) -> int:
    folder = info.NCCL
    if not (folder / info.PLUGIN).exists():
        raise OSError("%s: no libraries for NCCL: this is not the wheel" % folder)
    if args.path or args.plugin:
        print(folder / info.PLUGIN if args.plugin else folder)
        return 0
    if not (folder / info.INTERPOSER).exists():
        print("# " + info.NO_INTERPOSER)
    print("export LD_LIBRARY_PATH=%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} NCCL_NET_PLUGIN=thinwire\n"
          "export NCCL_NET=Thinwire NCCL_NET_PLUGIN_REF_COUNT=1" % folder)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    switches.set_up_logging()  # the library logs what is wrong
    try:
        library = capi.lib()
        capi.check_ucx()
    except ImportError as error:  # say on which node
        raise ImportError("%s: %s" % (os.uname().nodename, error)) from None
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # let Ctrl-C end the call: Python would wait for its end
    params = capi.DoctorParams(args.seconds, args.streams, os.fsencode(args.json) if args.json else None,
                               args.params)
    sys.stdout.flush()
    return 0 if library.tw_doctor_run(C.byref(params)) == capi.OK else 1


def _plan(args: argparse.Namespace) -> int:
    switches.set_up_logging()
    link = C.c_double()
    if capi.lib().tw_parse_rate(args.link.encode(), C.byref(link)) != capi.OK:
        raise ValueError("--link %s: no rate such as 10gbit" % args.link)
    cluster = capi.DoctorCluster(args.nodes, args.ranks_per_node, link, args.params)
    sys.stdout.flush()
    return 0 if capi.lib().tw_doctor_plan(C.byref(cluster)) == capi.OK else 1


def _seconds(text: str) -> float:
    """Parse seconds: "60" or "60s"."""
    return float(text.removesuffix("s"))


def _count(text: str) -> float:
    """Parse a count: "124M", "7G" or "7e9"."""
    unit = {"K": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:].upper(), 1)
    return float(text[:-1] if unit > 1 else text) * unit


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m thinwire",
        description="What is here; what is wrong with a cluster; changes of weights as files.")
    parser.add_argument("--version", action="version", version="thinwire " + __version__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info", help="versions, devices, what of torch is used, and why something is not")
    info.set_defaults(run=_info)
    plan = commands.add_parser(
        "plan", help="whether Thinwire would help, from three numbers and this machine's speed",
        description="Says what the links take of a step of FSDP or ZeRO-3, plain and with Thinwire, and what "
        "to type. Links and model are as they are told; how fast codecs are is measured here. The doctor "
        "measures links, too. Example: python -m thinwire plan --params 7G --nodes 4 --link 10gbit")
    plan.add_argument("--params", type=_count, default=0.0, metavar="N",
                      help="parameters of the model, 7e9 or 7G (default: some sizes)")
    plan.add_argument("--nodes", type=int, required=True, metavar="N", help="nodes of the job")
    plan.add_argument("--link", required=True, metavar="RATE",
                      help="what a node's link carries each way: 10gbit, 1gbit, 200mbit")
    plan.add_argument("--ranks-per-node", type=int, default=1, metavar="N",
                      help="ranks of a node, each with a core for the codecs (default: 1)")
    plan.set_defaults(run=_plan)
    doctor = commands.add_parser(
        "doctor", help="what is wrong with a cluster, started on every node by the launcher of the jobs",
        description="Measures every link and reads the settings that matter; rank 0 says in four lines what "
        "is slow, why it might be, what to change, and whether Thinwire helps. Example: torchrun --nnodes 8 "
        "--nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint node0:29500 -m thinwire doctor")
    doctor.add_argument("--seconds", type=_seconds, default=60.0, metavar="TIME",
                        help="for all links together, about, up to 3600; not less than 0.3 for each step "
                        "(default: 60)")
    doctor.add_argument("--streams", type=int, default=4, metavar="N",
                        help="where several streams are measured, so many, 2 to 32 (default: 4)")
    doctor.add_argument("--params", type=_count, default=0.0, metavar="N",
                        help="parameters of your model, 7e9 or 7G: what a step of it takes on these links, "
                        "and would with Thinwire (default: some sizes)")
    doctor.add_argument("--json", metavar="FILE", help="write everything as a JSON object, on rank 0")
    doctor.set_defaults(run=_doctor)
    nccl = commands.add_parser(
        "nccl", help="where the libraries for NCCL are, as lines for a shell",
        description="Lines for a shell that have NCCL load the net plugin; what else there is: docs/nccl.md.")
    nccl.add_argument("--path", action="store_true", help="the folder alone")
    nccl.add_argument("--plugin", action="store_true",
                      help="the net plugin's path alone, which NCCL_NET_PLUGIN may be")
    nccl.set_defaults(run=_nccl)
    diff = commands.add_parser("diff", help="write what makes NEW of OLD")
    diff.add_argument("old", metavar="OLD",
                      help="a .safetensors file, an index of one in parts, or the folder with it")
    diff.add_argument("new", metavar="NEW", help="likewise")
    diff.add_argument("--verify", action="store_true",
                      help="read FILE back, and compare what it makes of OLD with NEW by checksums")
    patch = commands.add_parser("patch", help="make NEW of OLD and FILE, the same bytes as it was")
    patch.add_argument("old", metavar="OLD", help="the weights that FILE was made from")
    patch.add_argument("change", metavar="FILE", help="what diff has written")
    for one, out in ((diff, "FILE"), (patch, "NEW")):
        one.add_argument("-o", dest="out", metavar=out, required=True,
                         help="what is written; a folder for weights in parts")
        one.add_argument("--threads", type=int, help="default: one a core")
        one.add_argument("--quiet", action="store_true", help="no progress, no summary")
        one.set_defaults(run=_transfer, verify=False)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns the exit status: 1, and a line on stderr, for wrong weights or files."""
    args = _parser().parse_args(arguments)
    try:
        return args.run(args)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print("thinwire %s: %s" % (args.command, error), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
