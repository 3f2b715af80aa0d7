#!/usr/bin/env bash
# clang-tidy 14 over C files. Under Bazel: //:tidy, every check over the files named (default: every tracked one), and
# //:tidy_check (tidy.sh check), every tracked file without the static analyzer, which takes minutes.
set -euo pipefail

cd "${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f WORKSPACE)")}"
. .ci/skip.sh

check=0
if [ "${1:-}" = check ]; then
    check=1
    shift
fi
if ! command -v clang-tidy-14 >/dev/null; then
    [ "$check" = 1 ] && skip tidy_check "clang-tidy-14 is not installed"
    echo "clang-tidy-14 is not installed" >&2
    exit 1
fi

files=("$@")
if [ ${#files[@]} -eq 0 ]; then
    tracked_files '*.c'
fi
export options='--quiet'
[ "$check" = 0 ] || options+=' --checks=-clang-analyzer-*'
export flags='-std=c11 -D_GNU_SOURCE -I. -isystem /usr/local/cuda/include -mavx2 -mfma -mf16c'

# A library's header that is not installed is no finding: findings name their check.
found=$(printf '%s\0' "${files[@]}" |
    xargs -0 -n 16 -P "$(nproc)" bash -fc 'clang-tidy-14 $options "$@" -- $flags || true' tidy 2>/dev/null |
    grep -vE '\[clang-diagnostic-|^Error while|^[0-9]+ (warnings?|errors?)' || true)
printf '%s\n' "$found" | cat -s
if grep -qE '\[(bugprone|clang-analyzer|misc|performance|readability)-' <<<"$found"; then
    [ "$check" = 0 ] || echo "./bazelw run //:tidy -- FILE... shows them one by one"
    exit 1
fi
echo "${#files[@]} files are tidy"
