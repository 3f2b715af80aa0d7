/** The tuner plugin: it chooses NCCL's algorithm and protocol by the speed of the links. Read in this order:
 *    tuner.h      this
 *    options.c    variables, and the default constants
 *    file.c       TW_TUNER_FILE
 *    model.c      the expected time of an operation
 *    choose.c     fills NCCL's cost table, and logs the reason of a choice
 *    versions.c   NCCL's interface, v2 to v7
 *
 *  All ranks must make the same decision. It depends only on the constants, the operation and the numbers of
 *  ranks and nodes. So the variables and the file must be the same on all ranks. Each rank logs its
 *  constants, so that users can compare them. */
#pragma once

#include "core/core.h"
#include "plugin/nccl/abi/tuner.h"

TW_C_BEGIN

/* ---- constants ----------------------------------------------------------------------------------------- */

/** Speed of the links between nodes (inter), or inside a node (node). */
typedef struct tw_tuner_tier {
    double alpha_us; /**< time from one rank's send to the next one's, for a small message */
    double gbps;     /**< Gb/s each way, all links of a node together; 0 (only between nodes): not known */
} tw_tuner_tier_t;

typedef struct tw_tuner_proto {
    double alpha_us; /**< time of a round in addition to the tier's alpha_us */
    double bytes;    /**< bytes on the wire for each byte of data */
} tw_tuner_proto_t;

typedef struct tw_tuner_constants {
    tw_tuner_tier_t inter, node;
    tw_tuner_proto_t proto[TW_NCCL_PROTOS];
    /** part of the links' speed that an algorithm reaches with long messages, 0 to 1 */
    double share[TW_NCCL_ALGOS];
    /** all-reduces below this size do not use the collnet, because it always sends whole chunks */
    size_t collnet_min_bytes;
    /** Bytes that the collnet sends between nodes for each byte of a bf16 all-reduce; 1 if TW_ALLREDUCE_CODEC
     *  is plain. bf16 is assumed because NCCL does not tell a tuner the type; fp32 would save more. */
    double collnet_bytes;
} tw_tuner_constants_t;

/** Set the defaults: 1 Gb/s Ethernet between nodes and PCIe inside. Costs of protocols and algorithms are
 *  those of NCCL 2.28. */
void tw_tuner_constants_init(tw_tuner_constants_t *constants);
/** Read a JSON file, and replace the constants that it has. On TW_ERR_NOT_FOUND, TW_ERR_IO or TW_ERR_FORMAT
 *  the constants stay unchanged. The error is logged with the file's name, and the line or key; for an
 *  unknown key also the most similar known one. All keys are optional:
 *    {"inter": {"alpha_us": 50, "gbps": 1}, "node": {"alpha_us": 5, "gbps": 100},
 *     "protocols": {"ll": {"alpha_us": 0, "bytes": 2}, "ll128": {...}, "simple": {...}},
 *     "shares": {"tree": 0.92, "ring": 1, "collnet_direct": 1, "collnet_chain": 1, "nvls": 1, "nvls_tree": 1,
 *     "pat": 0.75}, "collnet_min_bytes": 1048576} */
tw_status_t tw_tuner_file_read(const char *path, tw_tuner_constants_t *constants);

typedef struct tw_tuner_options {
    char *file;
    double alpha_us, gbps; /**< 0: the file's or the default value holds */
    int explain;
} tw_tuner_options_t;

/** Read the variables and the file; TW_NET_ALPHA_US and TW_NET_GBPS override the file. If neither gives the
 *  speed between nodes, it is 0 (not known), and NCCL's own times stay, which follow the slowest node. The
 *  speed of this node's devices is not used instead: other nodes may have other devices, and ranks that
 *  choose differently hang. TW_ERR_CONFIG, and as tw_tuner_file_read; logged. */
tw_status_t tw_tuner_configure(tw_tuner_constants_t *constants, int *explain);

/* ---- decisions ----------------------------------------------------------------------------------------- */

typedef struct tw_tuner {
    tw_tuner_constants_t constants;
    size_t world, n_nodes;
    int explain;
    uint64_t explained[TW_NCCL_FUNCS]; /**< bit b: a choice for 2^b to 2^(b+1) - 1 bytes was logged */
} tw_tuner_t;

typedef struct tw_tuner_op {
    int func;     /**< tw_nccl_func_t, or another value of ncclFunc_t, which the tuner ignores */
    size_t bytes; /**< total of all ranks' shards */
    int n_ops;    /**< operations that NCCL runs as one */
} tw_tuner_op_t;

/** Estimate an operation's microseconds; negative if not known for this algorithm, function or protocol. */
double tw_tuner_time_us(const tw_tuner_t *tuner, const tw_tuner_op_t *op, int algo, int proto);

/** Fill NCCL's table [n_algos][n_protos] with expected times, if the speed between nodes is known. Forbidden
 *  entries, and entries for which no time is known, stay unchanged. An all-reduce below collnet_min_bytes is
 *  forbidden for algorithms with collnet, if another algorithm is possible. A communicator inside one node is
 *  left to NCCL, which knows it better. */
void tw_tuner_fill(tw_tuner_t *tuner, const tw_tuner_op_t *op, float *table, int n_algos, int n_protos);

/** Find the entry that NCCL uses: the first of the lowest non-negative ones. Returns 0 if there is none. */
int tw_tuner_lowest(const float *table, int n_algos, int n_protos, int *algo, int *proto);

/** Names for logs, like "all_reduce", "ring", "ll128"; "?" for an unknown value. */
const char *tw_tuner_func_name(int func);
const char *tw_tuner_algo_name(int algo);
const char *tw_tuner_proto_name(int proto);

TW_C_END
