/** Thinwire doctor: finds what would make a job slow on a cluster, before the job starts. */
#ifndef TW_DOCTOR_DOCTOR_H
#define TW_DOCTOR_DOCTOR_H

#include "core/core.h"

TW_C_BEGIN

#define TW_DOCTOR_SECONDS_MAX 3600
#define TW_DOCTOR_STREAMS_MAX 32
#define TW_DOCTOR_PARAMS_MAX 1e15
#define TW_DOCTOR_NODES_MAX 65536

/** How to examine a cluster. Only rank 0's values count. Plain data; 0 selects each member's default. */
typedef struct tw_doctor_params {
    /** About how many seconds all measurements of links take together, up to TW_DOCTOR_SECONDS_MAX. One time
     *  slot of flows takes at least 0.3 s. Default: 60 */
    double seconds;
    /** TCP streams that are compared with a single one: 2 to TW_DOCTOR_STREAMS_MAX. Default: 4 */
    int n_streams;
    /** File to which rank 0 writes the whole report as a JSON object. NULL: no file */
    const char *json;
    /** Parameters of the model for which a step's communication is estimated: the seconds that weights and
     *  gradients take on these links, without and with Thinwire. Default: models of four sizes */
    double n_params;
} tw_doctor_params_t;

/** Examine the cluster of the job that the environment describes (tw_job_from_env): measure every link with
 *  plain TCP, read the settings that matter, and judge both. Collective over the job; blocks. Rank 0 prints a
 *  report on stdout. Its last four lines say what is slow, why it might be slow, what to change, and what
 *  Thinwire would save. Returns TW_OK however slow the cluster is. Errors, which are logged: TW_ERR_INVALID,
 *  wrong params; TW_ERR_CONFIG, a wrong environment; TW_ERR_IO, a socket, the file or stdout failed;
 *  TW_ERR_TIMEOUT, some ranks did not join; TW_ERR_PEER, a rank failed; TW_ERR_NO_MEMORY. */
tw_status_t tw_doctor_run(const tw_doctor_params_t *params);

/** A cluster that the caller describes, for an estimate without measuring its links. Plain data. */
typedef struct tw_doctor_cluster {
    int n_nodes, ranks_per_node; /**< 1 to TW_DOCTOR_NODES_MAX */
    double link_bps;             /**< bits a second that a node's link carries in each direction */
    double n_params;             /**< parameters of the model. 0: models of four sizes */
} tw_doctor_cluster_t;

/** Estimate how long the links of this cluster take for a step of FSDP or ZeRO-3, plain and with Thinwire.
 *  Times the codecs on this machine, for about half a second. Prints the estimate and the command that turns
 *  Thinwire on. Not collective. Errors, logged: TW_ERR_INVALID, TW_ERR_NO_MEMORY, TW_ERR_IO (stdout). */
tw_status_t tw_doctor_plan(const tw_doctor_cluster_t *cluster);

TW_C_END

#endif
