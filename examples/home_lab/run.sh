#!/usr/bin/env bash
# run.sh HOST... -- JOB.py ARG...: torchrun on each host, by ssh, in this folder. The first host is where they meet.
set -euo pipefail

hosts=()
while [ "${1:---}" != -- ]; do
    hosts+=("$1")
    shift
done
shift
job=$(printf '%q ' "$(command -v torchrun)" --nnodes "${#hosts[@]}" --nproc-per-node "${RANKS:-1}" \
    --rdzv-backend c10d --rdzv-id "run-$$" --rdzv-endpoint "${hosts[0]}:${MASTER_PORT:-29500}" "$@")
settings=$(declare -x | grep -E '^declare -x (TW|NCCL|GLOO|OMP)_' || true)
: "${TW_JOB_TOKEN:=$(openssl rand -hex 32)}" # keeps strangers on the network out
for host in "${hosts[@]}"; do
    # by standard input, as all users of a machine see its command lines
    ssh "$host" bash -s <<SCRIPT &
$settings
export TW_JOB_TOKEN=$TW_JOB_TOKEN
cd $(printf '%q' "$PWD") && exec $job
SCRIPT
done
status=0
for _ in "${hosts[@]}"; do
    wait -n || status=1
done
exit $status
