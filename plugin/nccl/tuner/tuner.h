/** The tuner: it tells NCCL which algorithm and protocol to take, from what the links can do. Read in this
 *  order:
 *    tuner.h      this
 *    options.c    variables, and the constants that they make
 *    file.c       TW_TUNER_FILE
 *    model.c      what an operation is expected to take
 *    choose.c     the table that NCCL gets, and why
 *    versions.c   NCCL's interface, v2 to v7
 *
 *  All ranks decide alike because a decision depends only on the constants, the operation and the number of
 *  ranks and nodes. So the variables and the file must be the same on all ranks; the constants are logged to
 *  show whether they are. */
#pragma once

#include "core/core.h"
#include "plugin/nccl/abi/tuner.h"

TW_C_BEGIN

/* ---- constants ----------------------------------------------------------------------------------------- */

/** Links between nodes, or inside a node. */
typedef struct tw_tuner_tier {
    double alpha_us; /**< time from one rank's send to the next one's, for a small message */
    double gbps;     /**< Gb/s each way, all links of a node together. Between nodes, 0: nobody has said */
} tw_tuner_tier_t;

typedef struct tw_tuner_proto {
    double alpha_us; /**< time of a round beyond the tier's alpha */
    double bytes;    /**< bytes on the wire for each byte of data */
} tw_tuner_proto_t;

typedef struct tw_tuner_constants {
    tw_tuner_tier_t inter, node;
    tw_tuner_proto_t proto[TW_NCCL_PROTOS];
    /** share of the links' speed that an algorithm reaches with long messages, up to 1 */
    double share[TW_NCCL_ALGOS];
    /** shorter all-reduces do not use the collnet, which always sends whole chunks */
    size_t collnet_min_bytes;
    /** Bytes that the collnet sends between nodes for each byte of a plain bf16 all-reduce. A tuner is not
     *  told the type; fp32 saves more. 1: TW_ALLREDUCE_CODEC is plain. */
    double collnet_bytes;
} tw_tuner_constants_t;

/** Set the defaults: 1 Gb/s Ethernet between nodes and PCIe inside. Costs of protocols and algorithms are
 *  those of NCCL 2.28. */
void tw_tuner_constants_init(tw_tuner_constants_t *constants);
/** Read a JSON file onto `constants`. TW_ERR_NOT_FOUND, TW_ERR_IO, TW_ERR_FORMAT: logged with the file's
 *  name, and the line or the key; an unknown key with the nearest one. The constants stay as they were then.
 *  The keys, none of which has to be there:
 *    {"inter": {"alpha_us": 50, "gbps": 1}, "node": {"alpha_us": 5, "gbps": 100},
 *     "protocols": {"ll": {"alpha_us": 0, "bytes": 2}, "ll128": {...}, "simple": {...}},
 *     "shares": {"tree": 0.92, "ring": 1, "collnet_direct": 1, "collnet_chain": 1, "nvls": 1, "nvls_tree": 1,
 *     "pat": 0.75}, "collnet_min_bytes": 1048576} */
tw_status_t tw_tuner_file_read(const char *path, tw_tuner_constants_t *constants);

typedef struct tw_tuner_options {
    char *file;
    double alpha_us, gbps; /**< 0: the file decides */
    int explain;
} tw_tuner_options_t;

/** Read the variables and the file; TW_NET_ALPHA_US and TW_NET_GBPS override the file. If neither gives the
 *  speed between nodes, it is 0, whatever is known of this node's devices: another node's may differ, its
 *  ranks would choose otherwise, and both would wait for ever. NCCL's own times follow the slowest node.
 *  TW_ERR_CONFIG, and as tw_tuner_file_read; logged. */
tw_status_t tw_tuner_configure(tw_tuner_constants_t *constants, int *explain);

/* ---- decisions ----------------------------------------------------------------------------------------- */

typedef struct tw_tuner {
    tw_tuner_constants_t constants;
    size_t world, n_nodes;
    int explain;
    uint64_t explained[TW_NCCL_FUNCS]; /**< bit b: a line about sizes of b bits was logged */
} tw_tuner_t;

typedef struct tw_tuner_op {
    int func;     /**< tw_nccl_func_t, or one that NCCL has besides */
    size_t bytes; /**< total of all ranks' shards */
    int n_ops;    /**< operations that NCCL runs as one */
} tw_tuner_op_t;

/** Estimate an operation's microseconds; negative: not known for this algorithm, function or protocol. */
double tw_tuner_time_us(const tw_tuner_t *tuner, const tw_tuner_op_t *op, int algo, int proto);

/** Fill in [n_algos][n_protos] expected times, if the speed between nodes is known. Forbidden entries stay
 *  forbidden, and those for which no time is known stay as they are. All-reduces that are too short for
 *  collnet are forbidden there if there is another way. Inside one node nothing changes: NCCL knows
 *  better. */
void tw_tuner_fill(tw_tuner_t *tuner, const tw_tuner_op_t *op, float *table, int n_algos, int n_protos);

/** Find the entry that NCCL takes: the first of the lowest that are not negative. 0: there is none. */
int tw_tuner_lowest(const float *table, int n_algos, int n_protos, int *algo, int *proto);

/** "all_reduce", "ring", "ll128"; "?" */
const char *tw_tuner_func_name(int func);
const char *tw_tuner_algo_name(int algo);
const char *tw_tuner_proto_name(int proto);

TW_C_END
