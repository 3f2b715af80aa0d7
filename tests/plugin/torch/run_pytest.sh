#!/usr/bin/env bash
# run_pytest.sh TEST.py: pytest in an interpreter with PyTorch, or a visible skip.
set -euo pipefail

here=$(dirname "$1")
python=${TW_TORCH_PYTHON:-$(/usr/bin/python3 "$here/torch_venv.py" --find || true)}
if [ -z "$python" ]; then
    reason="no interpreter with PyTorch: run tests/plugin/torch/torch_venv.py once, or set TW_TORCH_PYTHON"
    echo "skipped: $reason"
    cat >"${XML_OUTPUT_FILE:-/dev/null}" <<XML
<testsuites><testsuite name="torch" tests="1" skipped="1">
<testcase name="$(basename "$1")" status="run" result="skipped"><skipped message="$reason"/></testcase>
</testsuite></testsuites>
XML
    exit 0
fi

site=$(mktemp -d "${TEST_TMPDIR:-/tmp}/site.XXXXXX")
trap 'rm -rf "$site"' EXIT
/usr/bin/python3 -m zipfile -e plugin/torch/thinwire-*.whl "$site"
# One thread for each rank: several ranks share this machine.
PYTHONPATH=$site OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -p no:cacheprovider -p no:faulthandler \
    --rootdir "$here" --junitxml="${XML_OUTPUT_FILE:-/dev/null}" "$1"
