"""Lists of what is built for installation: public headers, linked libraries, libraries for NCCL."""

load("//quant:defs.bzl", QUANT_HEADERS = "PUBLIC_HEADERS")
load("@local_cuda//:defs.bzl", "CUDA_FOUND", "NCCL_FOUND")

# The headers of the whole C interface. Add every new public header here.
PUBLIC_HEADERS = [
    "//collectives:collectives.h",
    "//collectives:setup.h",
    "//core:base.h",
    "//core:core.h",
    "//doctor:doctor.h",
    "//hpz:hpz.h",
    "//hpz:keeper.h",
    "//hpz:layout.h",
    "//hpz:memory.h",
    "//quant:loss.h",
    "//transport:sealed.h",
    "//transport:transport.h",
] + ["//quant:" + header for header in QUANT_HEADERS]

# The interface's version. It changes when programs have to be compiled again: until 1.0 with each 0.N. A test
# compares what the headers declare with tests/package/abi-VERSION.txt.
ABI = "0.3"
SONAME = "libthinwire.so." + ABI

# Static libraries that are linked into ours, with their names hidden. So ours needs only glibc and libgcc_s,
# which practically every system has, and UCX if ranks share a node, which it loads itself. --as-needed drops
# the shared versions of these libraries, which dependencies name later. libgcc_s stays shared: its static
# version needs glibc 2.35, while all else here needs 2.34.
LINKED_IN = [
    "-Wl,--as-needed",
    "-l:libsodium.a",
    "-l:libjansson.a",
    "-l:libxxhash.a",
    "-l:libstdc++.a",
]

# {library: its target}: the net plugin, which NCCL loads, and the interposer, which replaces NCCL's functions.
NCCL_LIBRARIES = dict([("libnccl-net-thinwire.so", "//plugin/nccl:libnccl-net-thinwire.so")] + (
    [("libthinwire-nccl.so", "//plugin/interpose:libthinwire-nccl.so")] if CUDA_FOUND and NCCL_FOUND else []
))

INSTALL_ARGS = [
    "--library",
    "$(rootpath //package:libthinwire.so)",
    "--archive",
    "$(rootpath //package:libthinwire.a)",
    "--soname",
    SONAME,
    "--pc",
    "$(rootpath //package:thinwire.pc.in)",
] + ["--nccl=$(rootpath //package:nccl/%s)" % library for library in NCCL_LIBRARIES] + [
    "--header=$(rootpath %s)" % header
    for header in PUBLIC_HEADERS
] + ["--"]

INSTALL_DATA = [
    "//package:thinwire.pc.in",
    "//package:libthinwire.a",
    "//package:libthinwire.so",
] + ["//package:nccl/" + library for library in NCCL_LIBRARIES] + PUBLIC_HEADERS
