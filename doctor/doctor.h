/** Thinwire doctor: what is wrong with a cluster, before a job is slow on it. */
#ifndef TW_DOCTOR_DOCTOR_H
#define TW_DOCTOR_DOCTOR_H

#include "core/core.h"

TW_C_BEGIN

#define TW_DOCTOR_SECONDS_MAX 3600
#define TW_DOCTOR_STREAMS_MAX 32
#define TW_DOCTOR_PARAMS_MAX 1e15
#define TW_DOCTOR_NODES_MAX 65536

/** How to examine a cluster. Only rank 0's values count. Plain data; 0 is the default of each. */
typedef struct tw_doctor_params {
    /** How long to measure all links, about, up to TW_DOCTOR_SECONDS_MAX; a step takes 0.3 s at least. 0:
     *  60 */
    double seconds;
    /** How many TCP streams are measured beside a single one: 2 to TW_DOCTOR_STREAMS_MAX. 0: 4 */
    int n_streams;
    /** Rank 0 writes everything to this file as a JSON object. NULL: nobody does */
    const char *json;
    /** Parameters of the model whose step is estimated: the time that its weights and gradients take on these
     *  links, without and with Thinwire. 0: models of four sizes */
    double n_params;
} tw_doctor_params_t;

/** Examine the cluster of the job that the environment says (tw_job_from_env): measure every link with plain
 *  TCP, read the settings that matter, and judge. Collective over the job, blocks; rank 0 prints on stdout
 *  what there is, and ends in four lines: what is slow, why it might be, what to change, and what Thinwire
 *  would save. Returns TW_OK whatever is found. Errors, which are logged: TW_ERR_INVALID, params;
 *  TW_ERR_CONFIG, the environment; TW_ERR_IO, a socket, the file or stdout; TW_ERR_TIMEOUT, ranks that did
 *  not come; TW_ERR_PEER, one that failed; TW_ERR_NO_MEMORY. */
tw_status_t tw_doctor_run(const tw_doctor_params_t *params);

/** A cluster that the caller describes, for an estimate without measuring. Plain data. */
typedef struct tw_doctor_cluster {
    int n_nodes, ranks_per_node; /**< 1 to TW_DOCTOR_NODES_MAX */
    double link_bps;             /**< bits a second that a node's link carries each way */
    double n_params;             /**< parameters of the model. 0: models of four sizes */
} tw_doctor_cluster_t;

/** Estimate what the links of such a cluster take of a step of FSDP or ZeRO-3, plain and with Thinwire, whose
 *  codecs are timed on this machine, for about half a second; print that on stdout, and what to type to use
 *  it. Not collective. TW_ERR_INVALID, TW_ERR_NO_MEMORY, TW_ERR_IO: stdout; logged. */
tw_status_t tw_doctor_plan(const tw_doctor_cluster_t *cluster);

TW_C_END

#endif
