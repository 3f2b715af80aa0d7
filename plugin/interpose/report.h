/** Tells what this process has saved, and what it has left alone for which reason, every TW_REPORT_SEC and at
 *  exit (lines.h). Any thread. */
#pragma once

#include "plugin/interpose/policy.h"

TW_C_BEGIN

/** Note that this process is a rank of a communicator on which it makes calls (member), and whose nodes
 *  are not known yet; that a communicator has learned that all its ranks share a node (one_node). A process
 *  that has only such communicators says nothing. */
void tw_ip_report_member(int rank);
void tw_ip_report_one_node(void);
/** A communicator spans nodes: the first time, say what will be quantized. From now on this process reports;
 *  one that it forks does not. */
void tw_ip_report_begin(int rank, int world, int n_nodes);
/** A call was quantized. bytes_after: what this rank sends to other nodes; bytes_before: what NCCL's ring
 *  would send. */
void tw_ip_report_replaced(tw_ip_kind_t kind, double bytes_before, uint64_t bytes_after);
/** Not all ranks of a communicator have the interposer; `why` says how that shows. A text is printed once. */
void tw_ip_report_absent(int rank, int world, const char *why);
/** The ranks of a communicator cannot tell each other that they have the interposer: no registry can be
 *  reached, or none answers. A process prints the first such line, and no other. */
void tw_ip_report_no_registry(const char *line);
/** Count how long a call took on its stream. */
void tw_ip_report_time(tw_ip_kind_t kind, double sec);
/** A call was left to NCCL. */
void tw_ip_report_left(tw_ip_kind_t kind, tw_ip_reason_t why);

/** Ways in which data bypass the net plugin. All that can be seen here is that the job begins to use one. */
typedef enum tw_ip_bypass {
    TW_IP_WINDOWS,     /**< NCCL's own collectives may take other ways for this memory */
    TW_IP_DEVICE_COMM, /**< the job's kernels move data */
    TW_IP_ONE_SIDED,   /**< the job writes into other ranks' windows */
    TW_IP_BYPASSES
} tw_ip_bypass_t;

/** Note that the job begins to use such a way; each way is logged once. */
void tw_ip_report_bypass(tw_ip_bypass_t bypass);

TW_C_END
