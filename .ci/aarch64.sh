#!/usr/bin/env bash
# aarch64.sh install: Debian's cross compiler, qemu and libraries for arm64.
# aarch64.sh tests: the short set of tests that is run in qemu-user, for .ci/run; nothing, and 1, where it cannot be.
# aarch64.sh test ARGS...: runs it, with these arguments of Bazel's. Of collectives, ranks that are nodes of their
# own: inside a node UCX would be needed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests=(//tests/quant:test_{convert,quant_{recording,segments,stochastic}} //tests/quant/{delta,ecdq,lossless}/...
    //tests/collectives:test_processes_of_nodes //tests/trainer/model:test_{gpt2,kernels,llama,model,products})

case "${1:-}" in
install)
    dpkg --add-architecture arm64
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user-static \
        libstdc++6:arm64 libdnnl2:arm64 lib{gtest,gmock,sodium,jansson,xxhash}-dev:arm64
    ;;
tests)
    command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64-static >/dev/null &&
        [ -e /usr/lib/aarch64-linux-gnu/libgtest.a ] && [ -e /usr/lib/aarch64-linux-gnu/libstdc++.so.6 ] &&
        [ -e /usr/lib/aarch64-linux-gnu/libdnnl.so.2 ] || exit 1
    echo "${tests[@]}"
    ;;
test)
    shift
    ./bazelw build --config=aarch64 "$@" //package:libthinwire.so
    exec ./bazelw test --config=aarch64 "$@" "${tests[@]}"
    ;;
*)
    sed -n '2,5s/^# //p' "$0"
    exit 2
    ;;
esac
