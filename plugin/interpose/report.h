/** What was saved, and what was left alone, by reason: of this process (lines.h), at exit and every
 *  TW_REPORT_SEC. Any thread. */
#ifndef TW_PLUGIN_INTERPOSE_REPORT_H
#define TW_PLUGIN_INTERPOSE_REPORT_H

#include "plugin/interpose/policy.h"

TW_C_BEGIN

/** A rank of a communicator, of which it is not known yet where its ranks are; and one that has learned that
 *  they share a node. A process that knows of nothing else but nodes of its own has nothing to tell. */
void tw_ip_report_member(int rank);
void tw_ip_report_one_node(void);
/** A communicator spans nodes: says once what will be quantized. From here on this process reports, not one
 *  that it forks. */
void tw_ip_report_begin(int rank, int world, int n_nodes);
/** A call was quantized. bytes: what this rank sends to other nodes; before: as a ring of NCCL's would. */
void tw_ip_report_replaced(tw_ip_kind_t kind, double bytes_before, uint64_t bytes_after);
/** Not all ranks of a communicator have the interposer, and why that is thought. The same is said once. */
void tw_ip_report_absent(int rank, int world, const char *why);
/** It took so long on its stream. */
void tw_ip_report_time(tw_ip_kind_t kind, double sec);
/** A call was left to NCCL. */
void tw_ip_report_left(tw_ip_kind_t kind, tw_ip_reason_t why);

/** Ways past the net plugin: nothing of it is seen here but that a job begins with it. */
typedef enum tw_ip_bypass {
    TW_IP_WINDOWS,     /**< memory that NCCL's own collectives may take other ways from */
    TW_IP_DEVICE_COMM, /**< the job's kernels move data */
    TW_IP_ONE_SIDED,   /**< the job writes into other ranks' windows */
    TW_IP_BYPASSES
} tw_ip_bypass_t;

/** The job begins with one: each is said once. */
void tw_ip_report_bypass(tw_ip_bypass_t bypass);

TW_C_END

#endif
