#!/usr/bin/env bash
# aarch64.sh install: Debian's cross compiler, qemu and libraries for arm64.
# aarch64.sh test ARGS...: a short set of tests in qemu-user, with these arguments of Bazel's. Collectives are not
# among them: a case of theirs takes minutes there.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
install)
    dpkg --add-architecture arm64
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user-static \
        lib{gtest,gmock,sodium,jansson,xxhash}-dev:arm64
    ;;
test)
    shift
    ./bazelw build --config=aarch64 "$@" //package:libthinwire.so
    exec ./bazelw test --config=aarch64 "$@" //tests/quant:test_quant_recording \
        //tests/quant/{delta,ecdq,lossless}/...
    ;;
*)
    sed -n '2,4s/^# //p' "$0"
    exit 2
    ;;
esac
