/** The inside of the ucx backend. Read protocol.h (what is on the wire, and why), this header, then, each leaning on those before
 *  it: guard.c (who may reach UCX's port), memory.c (memory of GPUs), worker.c (contexts, peers, endpoints), request.c (a request
 *  and its number), message.c (sending, and what is done when a message comes), wait.c (sleeping), post.c (post, test, cancel),
 *  transport_ucx.c (life and failing).
 *
 *  Peers. A peer is this rank itself, shares memory with it, or is reached over the network; a UCX worker of its own
 *  serves each kind (and each network device), so no message can take a wrong way. A network peer has one control
 *  stream and TW_NET_STREAMS data streams per device (a stream is a UCX endpoint, hence a connection); a peer in shared
 *  memory has one stream for all. */
#ifndef TW_TRANSPORT_UCX_STATE_H
#define TW_TRANSPORT_UCX_STATE_H

#include <sys/queue.h>

#include <ucp/api/ucp.h>

#include "transport/backend.h"
#include "transport/monitor/monitor.h"
#include "transport/options.h"
#include "transport/rendezvous/rendezvous.h"
#include "transport/ucx/guard.h"
#include "transport/ucx/protocol.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tw_ucx_transport tw_ucx_transport_t;
typedef struct tw_ucx_request tw_ucx_request_t;

/** A UCX context and worker: the one for shared memory, or one per network device.
 *
 *  Over TCP a message is sent at once or not at all: what the socket does not take is copied by UCX, and while that waits,
 *  the next message waits here. So UCX never holds on to a buffer, which makes canceling plain; and it needs no handshake
 *  of its own between endpoints, in the midst of which UCX 1.13 aborts the process when the other side dies. */
typedef struct tw_ucx_worker {
    tw_ucx_transport_t *ucx;
    int at_once; /**< as said; else UCX finishes sends when it can */
    int takes_cuda;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    int event_fd;
    tw_ucx_guard_t guard; /**< of its TCP port */
} tw_ucx_worker_t;

TAILQ_HEAD(tw_ucx_request_list, tw_ucx_request);
TAILQ_HEAD(tw_ucx_arrival_list, tw_ucx_arrival);
TAILQ_HEAD(tw_ucx_op_list, tw_ucx_op);
TAILQ_HEAD(tw_ucx_peer_list, tw_ucx_peer);
TAILQ_HEAD(tw_ucx_stream_list, tw_ucx_stream);

/** One connection to a peer, made when it is first used. */
typedef struct tw_ucx_stream {
    struct tw_ucx_peer *peer;
    tw_ucx_worker_t *worker;
    const ucp_address_t *address;
    ucp_ep_h endpoint;
    struct tw_ucx_op_list waiting;   /**< for the connection to take more; in order */
    TAILQ_ENTRY(tw_ucx_stream) busy; /**< in the transport's list of streams where something is waiting */
    int is_busy;
    int n_chunks; /**< on the way: not acknowledged, where chunks are, else not gone yet */
    int broken;   /**< of no use any more */
} tw_ucx_stream_t;

typedef struct tw_ucx_peer {
    tw_ucx_transport_t *ucx;
    int rank;
    int n_streams, n_hellos; /**< HELLOs come, one for each stream over TCP */
    tw_ucx_stream_t
        *streams; /**< [n_streams] control first; data streams are the others, or the same if it is alone */
    size_t chunk_bytes;
    int next_stream;                     /**< where the search for a free one begins */
    struct tw_ucx_request_list receives; /**< posted, no message yet */
    struct tw_ucx_arrival_list arrivals; /**< come, no receive yet */
    struct tw_ucx_request_list sending;  /**< cleared by CTS, chunks left to hand out */
    TAILQ_ENTRY(tw_ucx_peer) busy;
    int is_busy; /**< in the transport's list of peers with something in `sending` */
    uint64_t n_control_sent, n_control_received;
    uint64_t n_sent,
        n_received; /**< all messages: a goodbye names the number, so that the other side knows when all is in */
    uint64_t heard_ns;    /**< noted once the peer has left: when it was last heard of */
    int broken;           /**< a stream is */
    int all_said, silent; /**< once it has left: all its messages are here; nothing came for too long */
} tw_ucx_peer_t;

/** A message that came before its receive. */
typedef struct tw_ucx_arrival {
    TAILQ_ENTRY(tw_ucx_arrival) entry;
    uint64_t tag;
    size_t bytes;
    uint64_t id;            /**< RTS: the sender's slot */
    tw_ucx_request_t *self; /**< from this rank itself */
    uint8_t data[];         /**< EAGER */
} tw_ucx_arrival_t;

/** Where a request stands. */
typedef enum tw_ucx_stage {
    TW_UCX_STAGE_UNMATCHED, /**< receive: in `receives`; send: RTS out, or waiting in this rank's own `arrivals` */
    TW_UCX_STAGE_MOVING, /**< data under way */
    TW_UCX_STAGE_DONE
} tw_ucx_stage_t;

struct tw_ucx_request {
    TAILQ_ENTRY(tw_ucx_request) owned, queued;
    struct tw_ucx_request_list *queue; /**< `receives` or `sending`, while in it */
    tw_ucx_peer_t *peer;
    int is_send;
    tw_ucx_stage_t stage;
    tw_status_t status; /**< once done */
    tw_mem_t mem;
    int keep; /**< send: the receiver wants chunks that UCX keeps */
    uint64_t tag;
    uint8_t *buffer;
    size_t bytes;
    size_t moved;        /**< send: handed to UCX; receive: arrived */
    uint64_t slot;       /**< own number on the wire; 0: none */
    uint64_t their_slot; /**< a matched one's counterpart */
    int n_ops;           /**< operations with its buffer */
    int lost;            /**< one of them failed: this will never be complete */
};

/** Something to send, or to fetch, that has not finished at once. Its request may be gone (NULL). */
typedef struct tw_ucx_op {
    TAILQ_ENTRY(tw_ucx_op) entry;
    struct tw_ucx_op_list
        *list; /**< that it is in: a stream's `waiting`, or the transport's `ops`, those in UCX's hands */
    tw_ucx_transport_t *transport;
    tw_ucx_request_t *request;
    tw_ucx_stream_t *stream; /**< sends */
    const void *data;
    size_t bytes;
    ucs_memory_type_t memory; /**< that the data is in */
    int keep;
    tw_ucx_header_t header; /**< UCX reads it until the operation has finished */
} tw_ucx_op_t;

/** Numbers for requests, never used twice: index and how often the index was used. */
typedef struct tw_ucx_slots {
    struct tw_ucx_slot {
        tw_ucx_request_t *request;
        uint32_t generation, next_free;
    } * slots;
    uint32_t n_slots, first_free;
} tw_ucx_slots_t;

struct tw_ucx_transport {
    tw_transport_t base;
    tw_transport_options_t options;
    tw_monitor_t *monitor;
    tw_rendezvous_t rendezvous;                  /**< keeps the peers' addresses */
    ucs_memory_type_t memory[TW_TRANSPORT_MEMS]; /**< UCX's name of each kind */
    tw_ucx_worker_t
        *workers; /**< [n_workers] shared memory first (may lack: context NULL), then the devices */
    int n_workers;
    tw_ucx_peer_t *peers;     /**< [world] */
    tw_ucx_stream_t *streams; /**< of all peers */
    size_t n_streams;
    struct pollfd *pollfds; /**< [2 + n_workers] */
    int wake_fd;            /**< readable: the next sleep is over before it begins */

    struct tw_ucx_request_list requests; /**< all that the caller holds */
    struct tw_ucx_op_list ops;           /**< in UCX's hands */
    struct tw_ucx_op_list free_ops;
    struct tw_ucx_peer_list busy_peers;
    struct tw_ucx_stream_list busy_streams;
    tw_ucx_slots_t slots;
    uint8_t *admitted; /**< [n_admitted][TW_GUARD_ADDRESS_BYTES] where ranks on other nodes may come from */
    size_t n_admitted;
    double peer_timeout_sec;
    size_t eager_bytes;
    int in_ucx;   /**< UCX is calling back */
    int n_events; /**< what progress has done since it began */
};

static inline tw_ucx_transport_t *tw_ucx_of(tw_transport_t *transport)
{
    return (tw_ucx_transport_t *)transport;
}

static inline int tw_ucx_job_failed(const tw_ucx_transport_t *ucx)
{
    return tw_monitor_failed_rank(ucx->monitor) >= 0;
}

/* ---- worker.c ---------------------------------------------------------------------------------------------- */

/** Which kind of worker serves whom, as all ranks see it. */
#define TW_UCX_SHM_WORKER 0
#define TW_UCX_FIRST_NET_WORKER 1
#define TW_UCX_WORKERS_MAX 17

/** Open the contexts that this rank's peers need. TW_ERR_CONFIG (devices), TW_ERR_UCX, logged. */
tw_status_t tw_ucx_workers_create(tw_ucx_transport_t *ucx);
void tw_ucx_workers_destroy(tw_ucx_transport_t *ucx);
/** Instead of destroying: leave them to the end of the process. To close a TCP connection UCX sends a last message, and waits
 *  for as long as the other side does not read; a rank that has failed, or is not done yet, may never read again. The
 *  workers are not called any more, so they touch nobody's buffers; they cost memory and descriptors. */
void tw_ucx_workers_abandon(tw_ucx_transport_t *ucx);
int tw_ucx_shares_memory(const tw_ucx_transport_t *ucx, int rank);
/** The devices in use between nodes, separated by commas. */
const char *tw_ucx_device_list(const tw_ucx_transport_t *ucx);
/** Lay out peers and streams from everyone's addresses: [world] lists. TW_ERR_FORMAT, TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_ucx_peers_create(tw_ucx_transport_t *ucx, const tw_msg_blob_t *addresses);
void tw_ucx_peers_destroy(tw_ucx_transport_t *ucx);
/** Make the endpoint; the stream is broken if that fails. */
void tw_ucx_stream_open(tw_ucx_transport_t *ucx, tw_ucx_stream_t *stream);
/** Note that a stream is of no use any more, and tell the monitor. What waits on it is forgotten when it is pumped next. */
void tw_ucx_stream_break(tw_ucx_stream_t *stream, ucs_status_t why);
/** Let nobody in any more. */
void tw_ucx_workers_shut(tw_ucx_transport_t *ucx);
/** Returns how much happened. */
unsigned tw_ucx_workers_progress(tw_ucx_transport_t *ucx);
/* ---- memory.c ---------------------------------------------------------------------------------------------- */

/** A value of UCX_TLS: `tls`, and where there are GPUs that UCX knows also its ways to them, unless `tls` decides that by
 *  itself. For the caller to free; NULL: out of memory (logged). */
char *tw_ucx_tls_with_cuda(const char *tls);
/** 1 if it does; 0 also after an error, which is logged. */
int tw_ucx_context_takes_cuda(ucp_context_h context);

/* ---- message.c --------------------------------------------------------------------------------------------- */

/** What is done when a message comes. TW_ERR_UCX, logged. */
tw_status_t tw_ucx_handlers_set(tw_ucx_transport_t *ucx);
/** Send a control message; `request` (EAGER) is counted as busy until UCX is done with its buffer. */
tw_status_t tw_ucx_control_send(tw_ucx_transport_t *ucx, tw_ucx_peer_t *peer, const tw_ucx_header_t *header,
                                tw_ucx_request_t *request);
/** Send HELLO on all streams over TCP. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_ucx_hellos_send(tw_ucx_transport_t *ucx);
/** Send what waits on streams that are free again, then hand them chunks of what is in `sending`. */
void tw_ucx_pump(tw_ucx_transport_t *ucx);
/** Take back from the streams what has not gone yet. */
void tw_ucx_ops_take_back(tw_ucx_request_t *request);
/** What UCX has in hand goes on without its request. */
void tw_ucx_ops_disown(tw_ucx_transport_t *ucx, const tw_ucx_request_t *request);
/** UCX's turn, then ours. */
tw_status_t tw_ucx_progress(tw_transport_t *transport);
/** A receive takes what has come: EAGER is copied, RTS is answered. */
void tw_ucx_accept(tw_ucx_transport_t *ucx, tw_ucx_request_t *receive, tw_ucx_arrival_t *arrival);

/* ---- request.c --------------------------------------------------------------------------------------------- */

tw_ucx_request_t *tw_ucx_slot_find(const tw_ucx_slots_t *slots, uint64_t slot);
tw_status_t tw_ucx_slot_take(tw_ucx_slots_t *slots, tw_ucx_request_t *request);
void tw_ucx_slot_release(tw_ucx_slots_t *slots, tw_ucx_request_t *request);
void tw_ucx_request_queue(tw_ucx_request_t *request, struct tw_ucx_request_list *queue);
void tw_ucx_request_unqueue(tw_ucx_request_t *request);
/** Something has moved: finish the request if that was all. */
void tw_ucx_request_settle(tw_ucx_transport_t *ucx, tw_ucx_request_t *request);
/** Decide how it ends; UCX may still be busy with its buffer. */
void tw_ucx_request_finish(tw_ucx_transport_t *ucx, tw_ucx_request_t *request, tw_status_t status);

/* ---- post.c ------------------------------------------------------------------------------------------------ */

tw_status_t tw_ucx_send_post(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **out);
tw_status_t tw_ucx_recv_post(tw_transport_t *transport, const tw_transport_message_t *message,
                             tw_transport_request_t **out);
tw_status_t tw_ucx_test(tw_transport_t *transport, tw_transport_request_t *opaque);
void tw_ucx_cancel(tw_transport_t *transport, tw_transport_request_t *opaque);

/* ---- wait.c ------------------------------------------------------------------------------------------------ */

/** After the workers are there. TW_ERR_NO_MEMORY, TW_ERR_IO, logged. */
tw_status_t tw_ucx_sleep_init(tw_ucx_transport_t *ucx);
void tw_ucx_sleep_cleanup(tw_ucx_transport_t *ucx);
tw_status_t tw_ucx_sleep(tw_transport_t *transport, double timeout_sec);
void tw_ucx_wake(tw_transport_t *transport);
/** Sleep as the transport's own business: a wake-up is left to the caller's next sleep. */
tw_status_t tw_ucx_nap(tw_ucx_transport_t *ucx, double timeout_sec);

#ifdef __cplusplus
}
#endif

#endif
