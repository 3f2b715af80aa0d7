/** Requests (a caller's messages to send or to receive), and the operations that they consist of. Private to
 *  the folder. */
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
    uint64_t id;                    /**< RTS: the sender's number of the message */
    tw_p2p_request_t *self;         /**< the send request, if this end itself is the sender */
    struct tw_p2p_landing *landing; /**< EAGER: landing of data still arriving; NULL: all is here */
    uint8_t data[];                 /**< EAGER: the data */
} tw_p2p_arrival_t;

/** A landing: where the data of an incoming message goes. If zeroed, the data is thrown away. */
typedef struct tw_p2p_landing {
    uint8_t *to;
    size_t bytes; /**< length of the data */
    size_t done;  /**< bytes that have arrived */
    /** the receive that gets the data and counts this landing as one of its operations; or NULL */
    tw_p2p_request_t *request;
    tw_p2p_arrival_t *arrival; /**< the arrival that stores the data; or NULL */
} tw_p2p_landing_t;

/** Progress of a request. */
typedef enum tw_p2p_stage {
    /** receive: queued in `receives`; send: RTS is sent, or the message waits in this end's own `arrivals` */
    TW_P2P_STAGE_UNMATCHED,
    TW_P2P_STAGE_MOVING, /**< the message's data is being transferred */
    TW_P2P_STAGE_DONE
} tw_p2p_stage_t;

struct tw_p2p_request {
    TAILQ_ENTRY(tw_p2p_request) owned, queued;
    struct tw_p2p_request_list *queue; /**< list that it is in: `receives` or `sending`; NULL: none */
    tw_p2p_peer_t *peer;
    int is_send, may_be_shorter;
    tw_p2p_stage_t stage;
    tw_status_t status; /**< result, valid in TW_P2P_STAGE_DONE */
    tw_mem_t mem;
    int keep; /**< send: 1: the receiver wants chunks that its UCX keeps (receive in GPU memory) */
    uint64_t tag;
    uint8_t *buffer;
    size_t bytes;          /**< receive: becomes the message's length when matched */
    size_t moved;          /**< send: bytes handed to a stream; receive: bytes that have arrived */
    size_t landed;         /**< receive of a long message: bytes that have arrived or are arriving */
    uint64_t number;       /**< number by which the peer names this request; 0: none */
    uint64_t their_number; /**< number of the peer's request, once matched */
    int n_ops;             /**< number of operations that use its buffer */
    int lost;              /**< 1: one of its operations failed, so it will never be complete */
};

/** An operation: a message to send, or data to fetch from UCX. `request` is NULL if there is none (control
 *  messages), or if it was freed before. */
typedef struct tw_p2p_op {
    TAILQ_ENTRY(tw_p2p_op) entry;
    /** the list that the operation is in: a stream's `waiting`, or `ops` (operations that UCX executes) */
    struct tw_p2p_op_list *list;
    size_t sent;       /**< TCP: bytes of the frame's header and data that are written */
    const void *head;  /**< TCP: `header` or `brief`, whichever header is sent */
    size_t head_bytes; /**< TCP: length of `head`, decided when the first byte is sent */
    tw_p2p_brief_t brief;
    void *copy;         /**< TCP: a copy of the remaining data, owned by the operation */
    size_t copied_from; /**< byte of the original data that the copy begins at */
    tw_p2p_t *p2p;
    tw_p2p_request_t *request;
    tw_p2p_stream_t *stream; /**< send: its stream */
    const void *data;
    size_t bytes;
    tw_mem_t mem; /**< kind of memory that holds the data */
    int keep;
    tw_p2p_header_t header; /**< UCX reads it until the operation has finished */
} tw_p2p_op_t;

/** Unique numbers for requests: an index into `entries`, and how many times that entry was used before. */
typedef struct tw_p2p_numbers {
    struct tw_p2p_number {
        tw_p2p_request_t *request;
        uint32_t generation, next_free;
    } * entries;
    uint32_t n_entries, first_free;
} tw_p2p_numbers_t;

/* ---- message.c ----------------------------------------------------------------------------------------- */
tw_p2p_op_t *tw_p2p_op_create(tw_p2p_t *p2p);
/** Move the operation to `ops`, as UCX executes it now. */
void tw_p2p_op_hand_over(tw_p2p_op_t *op);
/** Finish an operation. why: NULL if it was sent, else the connection's error. */
void tw_p2p_op_finish(tw_p2p_op_t *op, const char *why);
/** Detach an unfinished operation from its request, which may then end. */
void tw_p2p_op_disown(tw_p2p_op_t *op);
/** Give the operation the n-th (from 0) of the sequence numbers that are not used yet. Returns the n for the
 *  next operation. tw_p2p_op_count marks op's number as used, once op's message is sure to be sent. */
uint32_t tw_p2p_op_number(tw_p2p_op_t *op, uint32_t n);
void tw_p2p_op_count(tw_p2p_op_t *op);
/** Send a message on a stream. `request` is NULL except for EAGER; it counts as busy until its buffer is
 *  free. TW_ERR_NO_MEMORY (logged). */
tw_status_t tw_p2p_stream_say(tw_p2p_stream_t *stream, const tw_p2p_header_t *header,
                              tw_p2p_request_t *request);
/** Do what tw_p2p_stream_say does, on the stream that messages of this kind use. */
tw_status_t tw_p2p_control_send(tw_p2p_peer_t *peer, const tw_p2p_header_t *header,
                                tw_p2p_request_t *request);
/** Send BYE on all streams. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_p2p_say_bye(tw_p2p_peer_t *peer);
/** Send a stream's waiting operations as far as possible now. Must not be called while a carrier delivers a
 *  message, because the send could break that message's connection or replace its endpoint. Messages posted
 *  during a delivery are sent right after it. */
void tw_p2p_stream_flush(tw_p2p_stream_t *stream);
/** Set whether the stream is in the list of streams with something to send. */
void tw_p2p_stream_set_busy(tw_p2p_stream_t *stream, int is_busy);
/** Send the waiting operations of busy streams. Then hand chunks of `sending` to free streams. */
void tw_p2p_pump(tw_p2p_t *p2p);
/** Remove a request's operations from the streams. Its buffer is then free, except for operations that UCX
 *  executes: they must end, or be disowned. */
void tw_p2p_ops_take_back(tw_p2p_request_t *request);
/** Let the operations that UCX executes for a request go on without it. */
void tw_p2p_ops_disown(tw_p2p_t *p2p, const tw_p2p_request_t *request);

/* ---- arrive.c ------------------------------------------------------------------------------------------ */
/** Return 1 if a message may stay in the socket buffer until a receive is posted: it is long, and no request
 *  waits for it or for anything behind it. */
int tw_p2p_message_can_wait(const tw_p2p_peer_t *peer, const tw_p2p_header_t *header);
/** Begin to receive a message. A control message is handled at once, all others in tw_p2p_message_end. Sets
 *  up `landing` for its data of `bytes`; `landing` must not move until the end. Returns NULL, or the
 *  error. */
const char *tw_p2p_message_begin(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, size_t bytes,
                                 tw_p2p_landing_t *landing);
/** Finish a message after all of its data has arrived. Returns NULL, or what is wrong with it. */
const char *tw_p2p_message_end(tw_p2p_peer_t *peer, const tw_p2p_header_t *header, tw_p2p_landing_t *landing);
/** Drop a landing, as the rest of its data will not come: the connection is lost. */
void tw_p2p_landing_lose(tw_p2p_peer_t *peer, tw_p2p_landing_t *landing);
/** Let a receive take an arrival. EAGER: copy the data; RTS: answer with CTS. */
void tw_p2p_arrival_accept(tw_p2p_t *p2p, tw_p2p_request_t *receive, tw_p2p_arrival_t *arrival);

/* ---- request.c ----------------------------------------------------------------------------------------- */
tw_p2p_request_t *tw_p2p_number_find(const tw_p2p_numbers_t *numbers, uint64_t number);
tw_status_t tw_p2p_number_take(tw_p2p_numbers_t *numbers, tw_p2p_request_t *request);
void tw_p2p_number_release(tw_p2p_numbers_t *numbers, tw_p2p_request_t *request);
void tw_p2p_request_queue(tw_p2p_request_t *request, struct tw_p2p_request_list *queue);
void tw_p2p_request_unqueue(tw_p2p_request_t *request);
/** Return the first receive that waits for a message with this tag, or NULL. */
tw_p2p_request_t *tw_p2p_receive_find(const tw_p2p_peer_t *peer, uint64_t tag);
/** Finish a request if all of its data has moved. */
void tw_p2p_request_settle(tw_p2p_t *p2p, tw_p2p_request_t *request);
/** Set the status with which a request ends. UCX may still be using its buffer. */
void tw_p2p_request_finish(tw_p2p_t *p2p, tw_p2p_request_t *request, tw_status_t status);

TW_C_END
