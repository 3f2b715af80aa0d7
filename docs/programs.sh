#!/usr/bin/env bash
# programs.sh check|fix LABEL=PROGRAM...: docs/programs.md is what the programs say of themselves for --help.
set -euo pipefail

print_page() {
    printf '# Programs\n\n'
    printf 'What each prints for `--help` (`./bazelw run LABEL -- FLAGS`). Written by `./bazelw run //docs:programs`.\n'
    for entry in "$@"; do
        printf '\n## %s\n\n```\n' "${entry%%=*}"
        ARGP_HELP_FMT=rmargin=110 COLUMNS=110 "./${entry#*=}" --help | fold -s -w 116 | sed 's/[[:space:]]*$//'
        printf '```\n'
    done
}

mode=$1
shift
page=$(mktemp)
trap 'rm -f "$page"' EXIT
print_page "$@" >"$page"
if [ "$mode" = fix ]; then
    cp "$page" "$BUILD_WORKSPACE_DIRECTORY/docs/programs.md"
elif ! docs/listed.py "${@%%=*}"; then
    exit 1
elif ! diff -u docs/programs.md "$page"; then
    echo "docs/programs.md is not what the programs say: ./bazelw run //docs:programs" >&2
    exit 1
fi
