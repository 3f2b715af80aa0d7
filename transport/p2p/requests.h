/** Messages on their way out and in: requests, and the operations that they are made of. Private to the
 *  folder. */
#pragma once

#include <sys/queue.h>

#include "transport/p2p.h"
#include "transport/p2p/brief.h"
#include "transport/p2p/carrier.h"
#include "transport/p2p/protocol.h"

TW_C_BEGIN

TAILQ_HEAD(tw_p2p_request_list, tw_p2p_request);
TAILQ_HEAD(tw_p2p_arrival_list, tw_p2p_arrival);
TAILQ_HEAD(tw_p2p_op_list, tw_p2p_op);

/** A message that came before its receive. */
typedef struct tw_p2p_arrival {
    TAILQ_ENTRY(tw_p2p_arrival) entry;
    uint64_t tag;
    size_t bytes;
    uint64_t id;                    /**< RTS: the sender's number */
    tw_p2p_request_t *self;         /**< the send, if it comes from this end itself */
    struct tw_p2p_landing *landing; /**< EAGER: where the rest of it lands; NULL: all is here */
    uint8_t data[];                 /**< EAGER: the data */
} tw_p2p_arrival_t;

/** Where the data of an incoming message goes. Zeroed: nowhere, it is thrown away. */
typedef struct tw_p2p_landing {
    uint8_t *to;
    size_t bytes; /**< bytes in all */
    size_t done;  /**< bytes that are there */
    /** the receive whose buffer gets the data, and which counts this as an operation; or NULL */
    tw_p2p_request_t *request;
    tw_p2p_arrival_t *arrival; /**< or the arrival that keeps the data */
} tw_p2p_landing_t;

/** How far a request has come. */
typedef enum tw_p2p_stage {
    /** receive: in `receives`; send: RTS is sent, or it waits in this end's own `arrivals` */
    TW_P2P_STAGE_UNMATCHED,
    TW_P2P_STAGE_MOVING, /**< the message's data is under way */
    TW_P2P_STAGE_DONE
} tw_p2p_stage_t;

struct tw_p2p_request {
    TAILQ_ENTRY(tw_p2p_request) owned, queued;
    struct tw_p2p_request_list *queue; /**< the list that has the request: `receives` or `sending` */
    tw_p2p_peer_t *peer;
    int is_send, may_be_shorter;
    tw_p2p_stage_t stage;
    tw_status_t status; /**< valid once it is done */
    tw_mem_t mem;
    int keep; /**< send: the receiver wants chunks that UCX keeps */
    uint64_t tag;
    uint8_t *buffer;
    size_t bytes;          /**< of a receive: the message's length, once matched */
    size_t moved;          /**< send: bytes handed to a stream; receive: bytes that have arrived */
    size_t landed;         /**< receive, long: bytes that have arrived or are arriving */
    uint64_t number;       /**< the number by which the peer knows the request; 0: none */
    uint64_t their_number; /**< the counterpart's number, once matched */
    int n_ops;             /**< operations that use its buffer */
    int lost;              /**< 1: one of its operations failed, so it will never be complete */
};

/** Something to send, or to fetch, that could not be finished at once. Its request may be freed (NULL). */
typedef struct tw_p2p_op {
    TAILQ_ENTRY(tw_p2p_op) entry;
    /** the list that has the operation: a stream's `waiting`, or `ops`, those that UCX has */
    struct tw_p2p_op_list *list;
    size_t sent;       /**< TCP: bytes of its frame's head and data that have gone */
    const void *head;  /**< TCP: `header` or `brief`, whichever is sent */
    size_t head_bytes; /**< TCP: decided when the first byte is sent */
    tw_p2p_brief_t brief;
    void *copy;         /**< TCP: a copy of the data that is left, owned by this */
    size_t copied_from; /**< `data` then begins at this byte of the copy */
    tw_p2p_t *p2p;
    tw_p2p_request_t *request;
    tw_p2p_stream_t *stream; /**< the stream of a send */
    const void *data;
    size_t bytes;
    tw_mem_t mem; /**< kind of memory that holds the data */
    int keep;
    tw_p2p_header_t header; /**< UCX reads it until the operation has finished */
} tw_p2p_op_t;

/** Numbers for requests, never used twice: an index into `entries`, and how often that was used. */
typedef struct tw_p2p_numbers {
    struct tw_p2p_number {
        tw_p2p_request_t *request;
        uint32_t generation, next_free;
    } * entries;
    uint32_t n_entries, first_free;
} tw_p2p_numbers_t;

/* ---- message.c ----------------------------------------------------------------------------------------- */
tw_p2p_op_t *tw_p2p_op_create(tw_p2p_t *p2p);
/** Note that UCX has the operation now. */
void tw_p2p_op_hand_over(tw_p2p_op_t *op);
/** Finish an operation. why: NULL if it was sent, else what was wrong with the connection. */
void tw_p2p_op_finish(tw_p2p_op_t *op, const char *why);
/** Detach an operation that is not finished from its request, which no longer needs it. */
void tw_p2p_op_disown(tw_p2p_op_t *op);
/** Give the operation the n-th number (from 0) of those that are still free, and return the one after it.
 *  The number counts as used only once the message is sure to be sent. */
uint32_t tw_p2p_op_number(tw_p2p_op_t *op, uint32_t n);
void tw_p2p_op_count(tw_p2p_op_t *op);
/** Send a message on a stream; `request` (EAGER, else NULL) is counted as busy until its buffer is free.
 *  TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_stream_say(tw_p2p_stream_t *stream, const tw_p2p_header_t *header,
                              tw_p2p_request_t *request);
/** The same for a control message, on the stream that its kind travels on. */
tw_status_t tw_p2p_control_send(tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                                tw_p2p_request_t *request);
/** Send BYE on all streams. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_say_bye(tw_p2p_peer_t *peer);
/** Send what waits on a stream, as far as it goes now. Not from inside a carrier: it may be delivering a
 *  message of the very connection that a send breaks, or that a new endpoint takes over. Messages that arise
 *  there are sent right after. */
void tw_p2p_stream_flush(tw_p2p_stream_t *stream);
/** Note whether a stream may take more. */
void tw_p2p_stream_set_busy(tw_p2p_stream_t *stream, int is_busy);
/** Send what waits on streams that are free again, then hand them chunks of what is in `sending`. */
void tw_p2p_pump(tw_p2p_t *p2p);
/** Take back a request's operations. Its buffer is free then, except for those that UCX has: they end, or are
 *  disowned. */
void tw_p2p_ops_take_back(tw_p2p_request_t *request);
/** Let operations that UCX has go on without their request. */
void tw_p2p_ops_disown(tw_p2p_t *p2p, const tw_p2p_request_t *request);

/* ---- arrive.c ------------------------------------------------------------------------------------------ */
/** Whether a message may stay with the system until a receive is posted: it is long, and nobody waits for it
 *  or for anything behind it. */
int tw_p2p_message_can_wait(const tw_p2p_peer_t *peer, const tw_p2p_header_t *header);
/** Begin to take a message. A control message is handled at once, all others when they end. Returns NULL, or
 *  what is wrong with it. `landing` is set up for its data of `bytes`, and must not move until the end. */
const char *tw_p2p_message_begin(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, size_t bytes,
                                 tw_p2p_landing_t *landing);
/** End a message, all of which has come in. Returns NULL, or what is wrong. */
const char *tw_p2p_message_end(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, tw_p2p_landing_t *landing);
/** Give up a landing: the rest will not come, as the connection is lost. */
void tw_p2p_landing_lose(tw_p2p_peer_t *peer, tw_p2p_landing_t *landing);
/** Let a receive take an arrival: EAGER is copied, RTS is answered. */
void tw_p2p_arrival_accept(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_arrival_t *arrival);

/* ---- request.c ----------------------------------------------------------------------------------------- */
tw_p2p_request_t *tw_p2p_number_find(const tw_p2p_numbers_t *numbers, uint64_t number);
tw_status_t tw_p2p_number_take(tw_p2p_numbers_t *numbers, tw_p2p_request_t *request);
void tw_p2p_number_release(tw_p2p_numbers_t *numbers, tw_p2p_request_t *request);
void tw_p2p_request_queue(tw_p2p_request_t *request, struct tw_p2p_request_list *queue);
void tw_p2p_request_unqueue(tw_p2p_request_t *request);
/** The first receive that waits for a message with this tag, or NULL. */
tw_p2p_request_t *tw_p2p_receive_find(const tw_p2p_peer_t *peer, uint64_t tag);
/** Finish a request whose data has moved, if that was all of it. */
void tw_p2p_request_settle(tw_p2p_t *p2p, tw_p2p_request_t *request);
/** Decide with which status a request ends; UCX may still be using its buffer. */
void tw_p2p_request_finish(tw_p2p_t *p2p, tw_p2p_request_t *request, tw_status_t status);

TW_C_END
