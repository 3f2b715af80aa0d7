/** The collnet plugin: it runs NCCL's all-reduces, all-gathers and reduce-scatters between nodes by the
 *  library's collectives. Here a rank is one of NCCL's collnet ranks, which has a node to itself. Read in
 *  this order:
 *    collnet.h    the calls from which each version's interface is built
 *    options.c    variables
 *    meet.c       how the ranks find each other by NCCL's handles
 *    state.h      structs that the next two share
 *    worker.c     a thread for each communicator: it owns the transport, encodes, sums and sends
 *    comm.c       connect, operations, test, close
 *    versions.c   NCCL's interface, v8 to v12
 *
 *  All-reduces are encoded if TW_ALLREDUCE_CODEC names a codec. All other data are sent plain. The result of
 *  an all-reduce has the same bits on all ranks. Any thread may call any function. Only connect and close
 *  wait for other ranks, and tw_collnet_deregister may wait for a canceled operation; other calls do not
 *  block. All errors are logged. */
#pragma once

#include "collectives/collectives.h"
#include "plugin/nccl/net/net.h"

TW_C_BEGIN

/* ---- options ------------------------------------------------------------------------------------------- */

typedef struct tw_collnet_options {
    char *codec;
} tw_collnet_options_t;

#define TW_COLLNET_TOKEN_BYTES 208

/** Values of TW_ALLREDUCE_CODEC, and of those variables of the net that the collnet also obeys. */
typedef struct tw_collnet_settings {
    int has_codec;          /**< 0: plain */
    tw_quant_codec_t codec; /**< codec of all-reduces, if has_codec */
    double timeout_sec;     /**< TW_PEER_TIMEOUT; also the longest time that close waits for other ranks */
    int is_open;            /**< 1: the job called ncclSetEncryption, which does not encrypt the collnet */
    char token[TW_COLLNET_TOKEN_BYTES]; /**< TW_JOB_TOKEN; "" if is_open */
} tw_collnet_settings_t;

/** Read the settings from the environment. TW_ERR_CONFIG. */
tw_status_t tw_collnet_settings_read(tw_collnet_settings_t *settings);

/* ---- communicators ------------------------------------------------------------------------------------- */

typedef struct tw_collnet_listener tw_collnet_listener_t;
typedef struct tw_collnet_comm tw_collnet_comm_t;

/** Listen on a device, and write a handle of TW_NCCL_HANDLE_BYTES for the other ranks. TW_ERR_INVALID
 *  (device), TW_ERR_CONFIG, TW_ERR_IO, TW_ERR_INTERNAL (no random numbers), TW_ERR_NO_MEMORY. */
tw_status_t tw_collnet_listen(int dev, void *handle, tw_collnet_listener_t **out);
/** Close and free a listener. Accepts NULL. */
void tw_collnet_listener_close(tw_collnet_listener_t *listener);

/** Connect all ranks. Collective: blocks until all ranks have called it, for TW_JOIN_TIMEOUT at most. Either
 *  all ranks get a communicator or none does, unless one fails in the last step. The caller still closes the
 *  listener. TW_ERR_INVALID, TW_ERR_FORMAT (handles), TW_ERR_TIMEOUT, TW_ERR_PEER, and as tw_coll_create. */
tw_status_t tw_collnet_connect(void **handles, int world, int rank, tw_collnet_listener_t *listener,
                               tw_collnet_comm_t **out);
/** Close a communicator. Waits until all posted bytes are sent, for TW_PEER_TIMEOUT at most. Operations that
 *  have not ended are dropped. Accepts NULL. */
void tw_collnet_close(tw_collnet_comm_t *comm);

/* ---- memory -------------------------------------------------------------------------------------------- */

typedef struct tw_collnet_region tw_collnet_region_t;

/** Register memory. Operations work without it. It lets tw_collnet_deregister find operations that NCCL has
 *  given up and that still use the memory. TW_ERR_NO_MEMORY. */
tw_status_t tw_collnet_register(tw_collnet_comm_t *comm, void *data, size_t bytes, tw_collnet_region_t **out);
/** Deregister memory: no operation touches it afterwards. If one still uses it, the communicator ends. */
void tw_collnet_deregister(tw_collnet_region_t *region);

/* ---- operations ---------------------------------------------------------------------------------------- */

typedef struct tw_collnet_request tw_collnet_request_t;

/** An operation. An all-reduce sums n_elems elements of src over the ranks into dst. A gather or
 *  reduce-scatter handles a window of a tensor that has elems_per_rank elements for each rank: n_elems
 *  elements from window_first on. A gather's src and a reduce-scatter's dst are this rank's elements of the
 *  window, which may be none. The elements of a gather are bytes. */
typedef struct tw_collnet_work {
    tw_coll_op_t op;
    tw_type_t type;
    void *src; /**< set to zeros at the end if there is a codec: see tw_collnet_post */
    void *dst;
    size_t n_elems, window_first, elems_per_rank;
} tw_collnet_work_t;

/** Post an operation. TW_IN_PROGRESS: too many operations are running, try later. TW_ERR_INVALID, or the
 *  error that has ended the communicator.
 *
 *  With a codec, src is set to zeros when the operation ends. NCCL reuses its send buffers and passes more
 *  bytes than it has written. Old values in the rest would spoil the codec's scales. */
tw_status_t tw_collnet_post(tw_collnet_comm_t *comm, const tw_collnet_work_t *work,
                            tw_collnet_request_t **out);
/** Test an operation. Returns TW_OK once it has ended, and sets *bytes to n_elems in bytes. Returns
 *  TW_IN_PROGRESS while it runs. After any other result the request no longer exists. */
tw_status_t tw_collnet_test(tw_collnet_request_t *request, size_t *bytes);

TW_C_END
