# skip NAME WHY: end the test NAME, seen as skipped.
skip() {
    echo "skipped: $2"
    if [ -n "${XML_OUTPUT_FILE:-}" ]; then
        cat >"$XML_OUTPUT_FILE" <<EOF
<testsuites><testsuite name="$1" tests="1" skipped="1">
<testcase name="$1" status="run" result="skipped"><skipped message="$2"/></testcase>
</testsuite></testsuites>
EOF
    fi
    exit 0
}

# tracked_files PATTERN...: `files` becomes the tracked files of these names; in a source archive, all.
tracked_files() {
    local file pattern find_args=()
    for pattern in "$@"; do
        find_args+=(-o -name "$pattern")
    done
    files=()
    while IFS= read -r -d '' file; do
        # Listed by git, but deleted in the work tree.
        if [ -f "$file" ]; then
            files+=("$file")
        fi
    done < <(git -c safe.directory='*' ls-files -z -- "$@" 2>/dev/null ||
        find . -name 'bazel-*' -prune -o -type f \( "${find_args[@]:1}" \) -print0)
}
