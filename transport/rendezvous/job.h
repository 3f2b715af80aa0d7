/** Which rank of which job this process is, parsed from the launchers' variables. Private to the folder. */
#pragma once

#include "transport/transport.h"

TW_C_BEGIN

#define TW_JOB_WORLD_MAX 65536

/** Read a launcher's variables about ranks: everything that tw_job_from_env reads, except the master's
 *  address and the token. TW_ERR_NOT_FOUND (silent): no launcher; TW_ERR_CONFIG (logged). */
tw_status_t tw_job_ranks_from_env(tw_job_t *job);

/** Find the first host of a Slurm host list: "node[01-04,7],gpu3" -> "node01". TW_ERR_FORMAT (silent): not a
 *  host list, or the name does not fit. */
tw_status_t tw_hostlist_first(const char *list, char *host, size_t host_bytes);

/** Return entry `index` of Slurm's run-length list, "4(x2),1" -> 4, 4, 1; -1 if there is no such entry. */
int tw_tasks_per_node(const char *list, int index);

/** Find the first IPv4 address of an Open MPI contact:
 *  "123.0;tcp://10.0.0.1,172.17.0.1:4321;tcp6://[fd00::1]:4321" -> "10.0.0.1". If it has none, find the first
 *  IPv6 address. TW_ERR_FORMAT (silent): it has neither. */
tw_status_t tw_contact_host(const char *contact, char *host, size_t host_bytes);

TW_C_END
