/** How the ranks of a job meet: rank 0 listens, the others connect, and each proves that it has the job's
 *  token. Private to the folder.
 *
 *  Strangers that send garbage, a wrong hash, a message of a wrong length, or nothing, are dropped with a log
 *  line at info level, and change nothing. A rank that has the token but contradicts the job (another world
 *  size, a rank that is taken or out of range) ends the attempt for all ranks, with an error that says so. */
#pragma once

#include "transport/control/connection.h"
#include "transport/options.h"
#include "transport/transport.h"

TW_C_BEGIN

typedef struct tw_rendezvous {
    int rank, world;
    tw_msg_settings_t settings;   /**< decided by rank 0 */
    tw_msg_member_t *members;     /**< [world] */
    tw_connection_t *connections; /**< rank 0: [world], its own one closed; other ranks: [1], to rank 0 */
    /** device that leads to rank 0; on rank 0, to the first rank of another node */
    char device[TW_MSG_DEVICE_BYTES];
} tw_rendezvous_t;

/** Meet the other ranks. own: this rank. Fills in *rendezvous, including settings.device. Blocks until all
 *  ranks have joined. TW_ERR_TIMEOUT, TW_ERR_CONFIG, TW_ERR_PEER, TW_ERR_FORMAT, TW_ERR_IO, TW_ERR_INTERNAL,
 *  each logged; TW_ERR_NO_MEMORY. The caller must call tw_rendezvous_cleanup, also after an error. */
tw_status_t tw_rendezvous_join(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                               const tw_transport_options_t *options, const tw_msg_member_t *own);

/** Take the connections, for the monitor: [n_connections]. The caller owns them from now on. */
tw_connection_t *tw_rendezvous_take_connections(tw_rendezvous_t *rendezvous, int *n_connections);

void tw_rendezvous_cleanup(tw_rendezvous_t *rendezvous);

/** The two sides of tw_rendezvous_join: server.c on rank 0, client.c on the others. */
tw_status_t tw_rendezvous_serve(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                                const tw_transport_options_t *options, const tw_token_key_t *key);
tw_status_t tw_rendezvous_connect(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                                  const tw_transport_options_t *options, const tw_token_key_t *key);

TW_C_END
