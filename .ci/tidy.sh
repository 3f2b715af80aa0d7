#!/usr/bin/env bash
# clang-tidy over the C files named (default: every tracked one). Under Bazel: //:tidy.
set -euo pipefail

cd "${BUILD_WORKSPACE_DIRECTORY:-.}"
if [ $# -eq 0 ]; then
    mapfile -t files < <(git ls-files -- '*.c')
else
    files=("$@")
fi
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || {
    echo "clang-tidy is not installed (Debian: clang-tidy-14)" >&2
    exit 1
}
exec "$tidy" --quiet "${files[@]}" -- -std=c11 -D_GNU_SOURCE -I. -mavx2 -mfma -mf16c
