/** Short messages between the members of a communicator while it is made, before there are schedules. All
 *  calls are collective. No wait exceeds the time limit; the log then names the rank that did not answer. */
#pragma once

#include "collectives/topology.h"

TW_C_BEGIN

/** The purpose of a message. It is added to the bootstrap's first tag. */
typedef enum tw_bootstrap_tag {
    TW_BOOTSTRAP_DATA,
    TW_BOOTSTRAP_ACK,
    TW_BOOTSTRAP_GATHER,
    TW_BOOTSTRAP_BROADCAST,
    TW_BOOTSTRAP_EXCHANGE,
    TW_BOOTSTRAP_TAGS
} tw_bootstrap_tag_t;

/** The members of a communicator that is being made. In the caller's storage, needs no cleanup. */
typedef struct tw_bootstrap {
    tw_transport_t *transport; /**< borrowed */
    const tw_topo_t *topo;     /**< borrowed */
    uint64_t tag;              /**< the first of TW_BOOTSTRAP_TAGS tags that have no other user */
    double timeout_sec;        /**< longest time without any progress; 0: no limit */
    uint64_t moved_ns;         /**< time of the last post or end of a message */
} tw_bootstrap_t;

/** A message under way to or from a member. */
typedef struct tw_bootstrap_message {
    tw_transport_request_t *request; /**< NULL: there is no message, or it has ended */
    int member;
} tw_bootstrap_message_t;

tw_status_t tw_bootstrap_send(tw_bootstrap_t *boot, int member, tw_bootstrap_tag_t tag, const void *data,
                              size_t bytes, tw_bootstrap_message_t *message);
tw_status_t tw_bootstrap_recv(tw_bootstrap_t *boot, int member, tw_bootstrap_tag_t tag, void *data,
                              size_t bytes, tw_bootstrap_message_t *message);
/** Test a message. Returns TW_OK if it has ended or there is none. */
tw_status_t tw_bootstrap_test(tw_bootstrap_t *boot, tw_bootstrap_message_t *message);
/** Make progress on the transport, or sleep until something may have happened. TW_ERR_TIMEOUT (logged) if
 *  nothing has moved for timeout_sec; the log names member `awaited`. */
tw_status_t tw_bootstrap_step(tw_bootstrap_t *boot, int awaited);
/** Wait for messages [n]. After an error all of them are canceled. */
tw_status_t tw_bootstrap_wait(tw_bootstrap_t *boot, tw_bootstrap_message_t *messages, int n);
void tw_bootstrap_cancel(tw_bootstrap_t *boot, tw_bootstrap_message_t *messages, int n);

/** Gather every member's `bytes` into `all` [W][bytes] on member 0. On the others, `all` is NULL. */
tw_status_t tw_bootstrap_gather(tw_bootstrap_t *boot, const void *mine, size_t bytes, char *all);
/** Send the `bytes` bytes of member 0 to every member. */
tw_status_t tw_bootstrap_broadcast(tw_bootstrap_t *boot, void *data, size_t bytes);
/** Combine all members' flags: *flag becomes 1 on all members if any member gave 1. Also a barrier. */
tw_status_t tw_bootstrap_any(tw_bootstrap_t *boot, int *flag);

TW_C_END
