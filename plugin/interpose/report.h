/** Reports how many bytes quantized calls have saved in this process, and how many calls were left to NCCL
 *  for which reason. Prints every TW_REPORT_SEC and at exit (lines.h). Any thread. */
#pragma once

#include "plugin/interpose/policy.h"

TW_C_BEGIN

/** Count a communicator that this process uses (member). Count it again if its ranks turn out to share a node
 *  (one_node). A process that has only communicators inside one node prints no report. */
void tw_ip_report_member(int rank);
void tw_ip_report_one_node(void);
/** Tell that a communicator spans nodes. The first call prints what will be quantized. From then on this
 *  process reports, but a process that it forks does not. */
void tw_ip_report_begin(int rank, int world, int n_nodes);
/** Count a quantized call. This rank sent bytes_after to other nodes; NCCL's ring would send bytes_before. */
void tw_ip_report_replaced(tw_ip_kind_t kind, double bytes_before, uint64_t bytes_after);
/** Print that nothing is quantized on a communicator, and `why`. Never prints a line twice in a row. */
void tw_ip_report_absent(int rank, int world, const char *why);
/** Print that a communicator's ranks cannot use a registry. Only a process's first such line is printed. */
void tw_ip_report_no_registry(const char *line);
/** Add the time that a quantized call took on its stream. */
void tw_ip_report_time(tw_ip_kind_t kind, double sec);
/** Count a call that was left to NCCL. */
void tw_ip_report_left(tw_ip_kind_t kind, tw_ip_reason_t why);

/** Ways in which data bypass the net plugin. The interposer sees only that the job begins to use one. */
typedef enum tw_ip_bypass {
    TW_IP_WINDOWS,     /**< memory windows: NCCL's collectives on them may bypass the net plugin */
    TW_IP_DEVICE_COMM, /**< the job's kernels move data */
    TW_IP_ONE_SIDED,   /**< the job writes into other ranks' windows */
    TW_IP_BYPASSES
} tw_ip_bypass_t;

/** Note that the job begins to use a bypass. Each is logged once. */
void tw_ip_report_bypass(tw_ip_bypass_t bypass);

TW_C_END
