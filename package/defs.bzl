"""What is installed."""

load("//quant:defs.bzl", QUANT_HEADERS = "PUBLIC_HEADERS")
load("@local_cuda//:defs.bzl", "CUDA_FOUND", "NCCL_FOUND")

# The whole C interface. Whoever adds a public header adds it here.
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

# The interface's version: it changes when programs have to be compiled again. Until 1.0 that is with each 0.N; what
# the headers declare is held by tests/package/abi-VERSION.txt.
ABI = "0.3"
SONAME = "libthinwire.so." + ABI

# Linked in, and seen by nobody outside, so that glibc and the compiler's libgcc_s, which every system has that
# runs C++ or threads, are all that has to be where the library runs, and UCX where ranks share a node: it is
# loaded then. After --as-needed the shared ones, which come later, are not needed. libgcc's own archive would
# be one more, but its unwinder needs glibc 2.35, and all else here 2.34.
LINKED_IN = [
    "-Wl,--as-needed",
    "-l:libsodium.a",
    "-l:libjansson.a",
    "-l:libxxhash.a",
    "-l:libstdc++.a",
]

# What NCCL opens, and what stands between a job and NCCL, with the target of each.
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
