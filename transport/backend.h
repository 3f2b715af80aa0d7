/** What a transport backend implements, and the part of a transport that all backends have. Private to the
 *  folder. */
#pragma once

#include "transport/transport.h"

TW_C_BEGIN

#define TW_TRANSPORT_DESCRIBE_BYTES 512

#define TW_TRANSPORT_MEMS 2 /**< kinds of memory: tw_mem_t */

/** The calls of transport.h, with the same contracts; transport.c has checked the messages already.
 *  `failed_rank` may be called at any time. It returns -1 if no rank has failed. */
typedef struct tw_transport_ops {
    const char *name;
    void (*destroy)(tw_transport_t *transport);
    tw_status_t (*send_post)(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **request);
    tw_status_t (*recv_post)(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **request);
    /** `bytes` is never NULL here. */
    tw_status_t (*test)(tw_transport_t *transport, tw_transport_request_t *request, size_t *bytes);
    void (*cancel)(tw_transport_t *transport, tw_transport_request_t *request);
    tw_status_t (*progress)(tw_transport_t *transport);
    tw_status_t (*sleep)(tw_transport_t *transport, double timeout_sec);
    void (*wake)(tw_transport_t *transport);
    void (*abort)(tw_transport_t *transport, const char *reason);
    int (*failed_rank)(const tw_transport_t *transport);
} tw_transport_ops_t;

/** First member of every backend's struct. */
struct tw_transport {
    const tw_transport_ops_t *ops;
    unsigned n_forks; /**< tw_fork_count when the transport was made, to detect use after a fork */
    int rank, world, n_nodes;
    int *node_of;                  /**< [world] */
    tw_transport_counters_t *sent; /**< [world] */
    int takes[TW_TRANSPORT_MEMS];
    tw_transport_hook_t *hook; /**< NULL: none */
    char describe[TW_TRANSPORT_DESCRIBE_BYTES];
};

/** Initialize the shared part, for messages in host memory. node_ids: [world], equal for ranks of one node;
 *  NULL: each rank is a separate node. */
tw_status_t tw_transport_base_init(tw_transport_t *transport, const tw_transport_ops_t *ops, int rank,
                                   int world, const uint64_t *node_ids);
void tw_transport_base_cleanup(tw_transport_t *transport);

TW_C_END
