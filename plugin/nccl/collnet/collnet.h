/** The collnet: all-reduces, gathers and scatters between nodes, done by the library's collectives. Read in
 *  this order:
 *    collnet.h    the calls from which NCCL's versions are built
 *    options.c    variables
 *    meet.c       how the ranks find each other by NCCL's handles
 *    state.h      what the next two share
 *    worker.c     a thread for each communicator: it owns the transport, encodes, sums and sends
 *    comm.c       connect, operations, test, close
 *    versions.c   NCCL's interface, v8 to v12
 *
 *  All-reduces are encoded where TW_ALLREDUCE_CODEC names a codec, and plain otherwise; everything else is
 *  plain. Ranks that get the same values get the same bits. Any thread may call anything. Only connect and
 *  close wait for other ranks, both for a limited time; everything else waits at most for a lock that is held
 *  for a moment. All errors are logged. */
#pragma once

#include "collectives/collectives.h"
#include "plugin/nccl/net/net.h"

TW_C_BEGIN

/* ---- options ------------------------------------------------------------------------------------------- */

typedef struct tw_collnet_options {
    char *codec;
} tw_collnet_options_t;

#define TW_COLLNET_TOKEN_BYTES 208

/** What TW_ALLREDUCE_CODEC says, and what the net's variables say about who may join. */
typedef struct tw_collnet_settings {
    int has_codec;          /**< 0: plain */
    tw_quant_codec_t codec; /**< codec of all-reduces, if has_codec */
    double timeout_sec;     /**< the net's TW_PEER_TIMEOUT; close waits for the others as long */
    int is_open; /**< 1: the job wants everything sealed (ncclSetEncryption), and this traffic is not */
    char token[TW_COLLNET_TOKEN_BYTES];
} tw_collnet_settings_t;

/** Read the settings. TW_ERR_CONFIG. */
tw_status_t tw_collnet_settings_read(tw_collnet_settings_t *settings);

/* ---- communicators ------------------------------------------------------------------------------------- */

typedef struct tw_collnet_listener tw_collnet_listener_t;
typedef struct tw_collnet_comm tw_collnet_comm_t;

/** Write a handle of TW_NCCL_HANDLE_BYTES. TW_ERR_INVALID (device), TW_ERR_CONFIG, TW_ERR_IO, TW_ERR_INTERNAL
 *  (no random numbers), TW_ERR_NO_MEMORY. */
tw_status_t tw_collnet_listen(int dev, void *handle, tw_collnet_listener_t **out);
/** Accepts NULL. */
void tw_collnet_listener_close(tw_collnet_listener_t *listener);

/** Meet the other ranks: collective; blocks until all are there, for TW_JOIN_TIMEOUT at most. Either all
 *  ranks get a communicator or none does, unless one fails at the very end. The listener stays open.
 *  TW_ERR_INVALID, TW_ERR_FORMAT (handles), TW_ERR_TIMEOUT, TW_ERR_PEER, and as tw_coll_create. */
tw_status_t tw_collnet_connect(void **handles, int world, int rank, tw_collnet_listener_t *listener,
                               tw_collnet_comm_t **out);
/** Waits until what was sent has left, for TW_PEER_TIMEOUT at most. Operations that have not ended are
 *  dropped. Accepts NULL. */
void tw_collnet_close(tw_collnet_comm_t *comm);

/* ---- memory -------------------------------------------------------------------------------------------- */

typedef struct tw_collnet_region tw_collnet_region_t;

/** Register memory. Operations need no registration, but at their end it helps: an operation that NCCL
 *  has given up may still use the memory, see tw_collnet_deregister. TW_ERR_NO_MEMORY. */
tw_status_t tw_collnet_register(tw_collnet_comm_t *comm, void *data, size_t bytes, tw_collnet_region_t **out);
/** Forget memory: nothing touches it after this. An operation that still uses it ends the communicator. */
void tw_collnet_deregister(tw_collnet_region_t *region);

/* ---- operations ---------------------------------------------------------------------------------------- */

typedef struct tw_collnet_request tw_collnet_request_t;

/** An all-reduce adds up n_elems elements from src into dst. A gather and a scatter handle a window, n_elems
 *  from window_first on, of a tensor with elems_per_rank elements of each rank. A gather's src is the own
 *  rank's part of the window, in bytes; it may be empty, and so may a scatter's dst. */
typedef struct tw_collnet_work {
    tw_coll_op_t op;
    tw_type_t type;
    void *src; /**< zeroed afterwards if there is a codec: see tw_collnet_post */
    void *dst;
    size_t n_elems, window_first, elems_per_rank;
} tw_collnet_work_t;

/** Post an operation. TW_OK; TW_IN_PROGRESS: too many are under way, try later; TW_ERR_INVALID; or the
 *  error that has ended the communicator. NCCL reuses its send buffers and passes more bytes than it has
 *  written: what an earlier operation left there would spoil a codec's scales. So with a codec, src is set to
 *  zeros before the operation is done. */
tw_status_t tw_collnet_post(tw_collnet_comm_t *comm, const tw_collnet_work_t *work,
                            tw_collnet_request_t **out);
/** Test an operation. TW_OK: it is done, *bytes is the size of its result. TW_IN_PROGRESS: not yet. After
 *  TW_OK and after an error the request no longer exists. */
tw_status_t tw_collnet_test(tw_collnet_request_t *request, size_t *bytes);

TW_C_END
