#!/usr/bin/env bash
# format.sh check|fix: clang-format 14 over every tracked C, C++ and CUDA file.
# Under Bazel: //:format_check and //:format.
set -euo pipefail

mode=$1

# The sources themselves, not their copies: `bazel run` names them, a test follows its WORKSPACE.
root=${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f WORKSPACE)")}
cd "$root"

. .ci/skip.sh

# Other versions format differently.
clang_format=
for name in clang-format-14 clang-format; do
    if command -v "$name" >/dev/null && "$name" --version | grep -q 'version 14\.'; then
        clang_format=$name
        break
    fi
done
if [ -z "$clang_format" ]; then
    [ "$mode" = check ] && skip format_check "clang-format 14 is not installed"
    echo "clang-format 14 is not installed" >&2
    exit 1
fi

tracked_files '*.c' '*.h' '*.cc' '*.cu' '*.cuh'
if [ ${#files[@]} -eq 0 ]; then
    echo "no source files found in $root" >&2
    exit 1
fi

if [ "$mode" = fix ]; then
    "$clang_format" -i --style=file "${files[@]}"
    echo "formatted ${#files[@]} files"
    exit 0
fi

# One line for each place: "FILE:LINE:COLUMN: error: ...".
report=$(printf '%s\0' "${files[@]}" |
    xargs -0 -n 32 -P "$(nproc)" "$clang_format" --style=file --dry-run -Werror 2>&1 || true)
mapfile -t bad < <(sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error: .*/\1/p' <<<"$report" | sort -u)
long=$(awk 'length($0) > 110 { print FILENAME ":" FNR ": more than 110 columns" }' "${files[@]}")
if [ -n "$long" ]; then
    head -n 20 <<<"$long"
    exit 1
fi
if [ ${#bad[@]} -gt 0 ] || [ -n "$report" ]; then
    head -n 60 <<<"$report"
    echo "misformatted (./bazelw run //:format fixes them):"
    printf '  %s\n' "${bad[@]}"
    exit 1
fi
echo "${#files[@]} files are well formatted"
