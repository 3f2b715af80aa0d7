"""What is installed."""

load("//quant:defs.bzl", QUANT_HEADERS = "PUBLIC_HEADERS")

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
    "//transport:transport.h",
] + ["//quant:" + header for header in QUANT_HEADERS]

# The interface's version: it changes when programs have to be compiled again.
SONAME = "libthinwire.so.0"

# Linked in, and seen by nobody outside, so that glibc is all that has to be where the library runs, and UCX
# where ranks share a node: it is loaded then. After --as-needed the
# shared ones, which come later, are not needed.
LINKED_IN = [
    "-Wl,--as-needed",
    "-l:libsodium.a",
    "-l:libjansson.a",
    "-l:libxxhash.a",
    "-l:libstdc++.a",
    "-static-libgcc",
]

INSTALL_ARGS = [
    "--library",
    "$(rootpath //package:libthinwire.so)",
    "--soname",
    SONAME,
    "--pc",
    "$(rootpath //package:thinwire.pc.in)",
] + ["--header=$(rootpath %s)" % header for header in PUBLIC_HEADERS] + ["--"]

INSTALL_DATA = [
    "//package:thinwire.pc.in",
    "//package:libthinwire.so",
] + PUBLIC_HEADERS
