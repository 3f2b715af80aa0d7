/** How the ranks of a job meet: rank 0 listens, the others connect, each proves that it has the job's token.
 *  Private to the folder.
 *
 *  Strangers, which send garbage, a wrong hash, a message too long or too short, or nothing, are dropped with
 *  a line at info level and change nothing. A rank that has the token but contradicts the job (another world
 *  size, a rank that is taken or out of range) ends the attempt for everyone, with an error that says so. */
#pragma once

#include "transport/control/connection.h"
#include "transport/options.h"
#include "transport/transport.h"

TW_C_BEGIN

typedef struct tw_rendezvous {
    int rank, world;
    tw_msg_settings_t settings;   /**< decided by rank 0 */
    tw_msg_member_t *members;     /**< [world] */
    tw_connection_t *connections; /**< on rank 0 [world], its own one closed; on others [1], to rank 0 */
    /** device towards rank 0; on rank 0, towards the first rank of another node */
    char device[TW_MSG_DEVICE_BYTES];
} tw_rendezvous_t;

/** Meet the other ranks. own: this rank; its settings' device is filled in. Blocks until all are there.
 *  TW_ERR_TIMEOUT, TW_ERR_CONFIG, TW_ERR_PEER, TW_ERR_AUTH, TW_ERR_IO, each logged. The caller cleans up in
 *  any case. */
tw_status_t tw_rendezvous_join(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                               const tw_transport_options_t *options, const tw_msg_member_t *own);

/** Take the connections, for the monitor: [n_connections], the caller owns them from now on. */
tw_connection_t *tw_rendezvous_take_connections(tw_rendezvous_t *rendezvous, int *n_connections);

void tw_rendezvous_cleanup(tw_rendezvous_t *rendezvous);

/** The two sides of tw_rendezvous_join: server.c on rank 0, client.c on the others. */
tw_status_t tw_rendezvous_serve(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                                const tw_transport_options_t *options, const tw_token_key_t *key);
tw_status_t tw_rendezvous_connect(tw_rendezvous_t *rendezvous, const tw_job_t *job,
                                  const tw_transport_options_t *options, const tw_token_key_t *key);

TW_C_END
