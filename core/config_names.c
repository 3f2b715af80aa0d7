/* The names of the variables that any part of Thinwire reads. A part has only its own table, so without this
 * list it could not know whether another part reads a variable. */
#include "core/config_value.h"

#include <stdatomic.h>

static const char *const names[] = {
    "TW_ALLREDUCE_CODEC",
    "TW_CLUSTER",
    "TW_CLUSTER_NOTE",
    "TW_COLL_CHECK",
    "TW_COLL_CHUNK",
    "TW_COLL_DETERMINISTIC",
    "TW_COLL_EXPLAIN",
    "TW_COLL_GPU_WORKSPACE",
    "TW_COLL_MODEL",
    "TW_COLL_SCRATCH",
    "TW_COLL_TIMEOUT",
    "TW_COLL_WINDOW",
    "TW_DDP",
    "TW_EAGER",
    "TW_FSDP",
    "TW_GRADS",
    "TW_HANDSHAKE_TIMEOUT",
    "TW_HPZ_CHECK_STEPS",
    "TW_INTERPOSE",
    "TW_INTERPOSE_GATHERS",
    "TW_INTERPOSE_MIN_BYTES",
    "TW_INTERPOSE_SUMS",
    "TW_JOB_TOKEN",
    "TW_JOIN_TIMEOUT",
    "TW_LIBRARY",
    "TW_LOG_LEVEL",
    "TW_MIN_BYTES",
    "TW_NET_ALPHA_US",
    "TW_NET_CHUNK",
    "TW_NET_DEVICES",
    "TW_NET_ENCRYPT",
    "TW_NET_GBPS",
    "TW_NET_MERGE",
    "TW_NET_STREAMS",
    "TW_NET_TLS",
    "TW_NODE_ID",
    "TW_NODE_TLS",
    "TW_PEER_TIMEOUT",
    "TW_PYTHON",
    "TW_RENDEZVOUS_PORT",
    "TW_REPLICA_MEM",
    "TW_REPORT",
    "TW_REPORT_SEC",
    "TW_SPIN",
    "TW_TORCH_PYTHON",
    "TW_TUNER_EXPLAIN",
    "TW_TUNER_FILE",
    "TW_WEIGHTS",
};
#define N_NAMES (sizeof(names) / sizeof(names[0]))

const char *tw_config_name_get(size_t index)
{
    return index < N_NAMES ? names[index] : NULL;
}

static atomic_flag was_here = ATOMIC_FLAG_INIT;

void tw_config_leave_names(void)
{
    (void)atomic_flag_test_and_set(&was_here);
}

void tw_config_check_names(void)
{
    if (!atomic_flag_test_and_set(&was_here)) {
        (void)tw_config_check_entries(names, N_NAMES, 1);
    }
}
