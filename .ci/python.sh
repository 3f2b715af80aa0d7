#!/usr/bin/env bash
# python.sh check|fix: ruff over every tracked Python file, mypy over the package, the benchmarks and the
# checks. Under Bazel: //:python_check. Both are of fixed versions, from PyPI, in an environment that is made
# once in the user's cache.
set -euo pipefail

mode=$1
packages=(ruff==0.17.6 mypy==2.4.1)

root=${BUILD_WORKSPACE_DIRECTORY:-$(dirname "$(readlink -f WORKSPACE)")}
cd "$root"
. .ci/skip.sh

home=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
folder=${XDG_CACHE_HOME:-$home/.cache}/thinwire/$(IFS=-; echo "lint-${packages[*]//==/-}")
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if [ ! -e "$folder/done" ]; then
    if ! { /usr/bin/python3 -m venv --clear "$folder/venv" &&
        "$folder/venv/bin/pip" install -q --disable-pip-version-check "${packages[@]}"; }; then
        skip python_check "${packages[*]} cannot be had from PyPI"
    fi
    touch "$folder/done"
fi
flock -u 9
bin=$folder/venv/bin

tracked_files '*.py'
if [ "$mode" = fix ]; then
    "$bin/ruff" check --config .ci/ruff.toml --no-cache --fix "${files[@]}"
    exit
fi
"$bin/ruff" check --config .ci/ruff.toml --no-cache --output-format concise "${files[@]}"
# Programs are checked each on its own: several have a main().
"$bin/mypy" --config-file .ci/mypy.ini --cache-dir "$folder/mypy" --scripts-are-modules \
    --no-error-summary plugin/torch/thinwire bench/*.py .ci/*.py plugin/torch/wheel.py package/backend.py package/targets.py \
    trainer/data/encode.py
echo "${#files[@]} files are clean"
