/** How the members of a communicator agree on something while it is made, before there are schedules: by
 *  short messages; all calls are collective. No wait exceeds the time limit; the log then names the rank that
 *  is awaited. */
#pragma once

#include "collectives/topology.h"

TW_C_BEGIN

/** What a message is for. Its tag is that of the bootstrap plus this. */
typedef enum tw_bootstrap_tag {
    TW_BOOTSTRAP_DATA,
    TW_BOOTSTRAP_ACK,
    TW_BOOTSTRAP_GATHER,
    TW_BOOTSTRAP_BROADCAST,
    TW_BOOTSTRAP_EXCHANGE,
    TW_BOOTSTRAP_TAGS
} tw_bootstrap_tag_t;

/** The members. In the caller's storage, needs no cleanup. */
typedef struct tw_bootstrap {
    tw_transport_t *transport; /**< borrowed */
    const tw_topo_t *topo;     /**< borrowed */
    uint64_t tag;              /**< the first of TW_BOOTSTRAP_TAGS tags that nobody else uses */
    double timeout_sec;        /**< longest time without any progress; 0: no limit */
    uint64_t moved_ns;         /**< time of the last post or end of a message */
} tw_bootstrap_t;

/** A message under way to or from a member. */
typedef struct tw_bootstrap_message {
    tw_transport_request_t *request; /**< NULL: there is none, or it has ended */
    int member;
} tw_bootstrap_message_t;

tw_status_t tw_bootstrap_send(tw_bootstrap_t *boot, int member, tw_bootstrap_tag_t tag, const void *data,
                              size_t bytes, tw_bootstrap_message_t *message);
tw_status_t tw_bootstrap_recv(tw_bootstrap_t *boot, int member, tw_bootstrap_tag_t tag, void *data,
                              size_t bytes, tw_bootstrap_message_t *message);
/** Test a message; TW_OK if it is done or there is none. */
tw_status_t tw_bootstrap_test(tw_bootstrap_t *boot, tw_bootstrap_message_t *message);
/** Make progress on the transport, or sleep until something may have happened. TW_ERR_TIMEOUT (logged) when
 *  nothing has moved for timeout_sec: `awaited` is the member to name. */
tw_status_t tw_bootstrap_step(tw_bootstrap_t *boot, int awaited);
/** Wait for messages [n]. After an error none of them is under way. */
tw_status_t tw_bootstrap_wait(tw_bootstrap_t *boot, tw_bootstrap_message_t *messages, int n);
void tw_bootstrap_cancel(tw_bootstrap_t *boot, tw_bootstrap_message_t *messages, int n);

/** Gather every member's `bytes` on member 0, in `all` [W][bytes] there; on the others `all` is NULL. */
tw_status_t tw_bootstrap_gather(tw_bootstrap_t *boot, const void *mine, size_t bytes, char *all);
/** Send member 0's `bytes` to every member. */
tw_status_t tw_bootstrap_broadcast(tw_bootstrap_t *boot, void *data, size_t bytes);
/** Return the same flag to all members at the same time: 1 if any member gave 1. */
tw_status_t tw_bootstrap_any(tw_bootstrap_t *boot, int *flag);

TW_C_END
