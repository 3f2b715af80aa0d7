/** What is known about ranks, links and paths, and what the doctor's files call of each other. Read in this
 *  order:
 *    doctor.h       what others call
 *    state.h        this
 *    facts.c        what a rank knows of itself
 *    codecs.c       how fast it encodes
 *    words.c        how ranks tell each other, over the transport
 *    schedule.c     which flows when
 *    flow.c         one end of a TCP flow, and of probes of a path's MTU
 *    measure.c      a rank's part in them
 *    result.c       what rank 0 is told
 *    findings.[ch]  what is found, in words
 *    links.c        what is wrong with links: of figures alone, so tested with made-up ones
 *    settings.c     what is wrong with settings, likewise
 *    judge.c        all that is wrong, worst first
 *    help.[ch]      whether Thinwire would help
 *    report.c       text and JSON
 *    run.c          all of it
 *
 *  One rank of each node, its first, sends and receives; the others say how they are placed. It measures with
 *  plain sockets, on the devices that the transport would use: what TCP makes of the links, not what Thinwire
 *  makes of TCP. A rank knows its own flows alone; rank 0 is told what each node has sent. */
#pragma once

#include <netinet/in.h>

#include "doctor/doctor.h"
#include "transport/transport.h"

TW_C_BEGIN

#define TW_DOCTOR_DEVICES_MAX 8
#define TW_DOCTOR_NAME_BYTES 64
#define TW_DOCTOR_NONCE_BYTES 16
#define TW_DOCTOR_CODECS 4

/** A network device of a rank. */
typedef struct tw_doctor_device {
    char name[16];
    struct sockaddr_in6 address; /**< IPv4 mapped into IPv6; where flows to this rank arrive, by TCP */
    in_port_t probe_port;        /**< port at which probes of paths arrive, by UDP; in the network's order */
    int32_t mtu, speed_mbps;     /**< 0: the device does not say */
    int32_t numa;                /**< -1: the device does not say */
} tw_doctor_device_t;

/** What a rank knows of itself. Plain data: ranks send it to each other. */
typedef struct tw_doctor_facts {
    int32_t rank, node, local_rank;
    char host[TW_DOCTOR_NAME_BYTES];
    int32_t n_devices;
    tw_doctor_device_t devices[TW_DOCTOR_DEVICES_MAX];
    char rdma[TW_DOCTOR_NAME_BYTES]; /**< first active port, "mlx5_0, 200 Gb/sec (4X HDR)"; "" */
    int32_t is_tcp;                  /**< 1: TW_NET_TLS is tcp */
    int32_t cores, numa; /**< cores that the rank may run on; their NUMA node, -1: several, or not known */
    int64_t descriptors, descriptors_hard;
    int64_t memory_bytes, shm_bytes;     /**< available memory; free bytes in /dev/shm */
    int64_t send_buffer, receive_buffer; /**< the most that TCP gives a connection */
    /** rate of encoding bf16 numbers, with one thread; 0: not measured */
    double encode_GBps[TW_DOCTOR_CODECS];
    double clock_sec, clock_uncertain_sec; /**< this rank's clock minus rank 0's; give or take */
} tw_doctor_facts_t;

/** "int8", "int4", "lossless", "ecdq". */
extern const char *const tw_doctor_codec_names[TW_DOCTOR_CODECS];

/** What a flow measures. */
typedef enum tw_doctor_kind {
    TW_DOCTOR_PAIR,    /**< one stream, while both nodes have nothing else to do */
    TW_DOCTOR_STREAMS, /**< several streams, while both nodes have nothing else to do */
    TW_DOCTOR_ALL,     /**< several streams; every node sends, and receives, at the same time */
} tw_doctor_kind_t;

/** Data from one node to another. */
typedef struct tw_doctor_flow {
    int32_t kind, from, to, device, n_streams;
    int32_t slot;  /**< flows of one slot run at the same time */
    double bps;    /**< bits a second, counted by the receiver; 0: nothing came */
    double rtt_us; /**< smallest round-trip time; 0: not known */
    int64_t segments, repeated;
    int32_t segment_bytes, error; /**< error: the errno of connecting or sending; 0: none */
    int32_t skipped;              /**< 1: not measured, as the time was over */
    char congestion[16];
} tw_doctor_flow_t;

/** Packets of growing size from one node to another, which routers must not fragment. */
typedef struct tw_doctor_path {
    int32_t from, to, device;
    int32_t asked_bytes;  /**< the largest that was sent: what both devices allow */
    int32_t passed_bytes; /**< the largest that came; 0: none did */
} tw_doctor_path_t;

typedef struct tw_doctor_result {
    int world, n_nodes, n_flows, n_paths;
    tw_doctor_facts_t *facts;    /**< [world]; if rank is not 0, only those of first ranks */
    int *leader;                 /**< [n_nodes]: each node's first rank */
    tw_doctor_flow_t *flows;     /**< [n_flows]; on rank 0 alone */
    tw_doctor_path_t *paths;     /**< [n_paths] likewise */
    size_t max_flows, max_paths; /**< for how many there is memory */
    int n_skipped;               /**< flows of pairs that were not measured, and are not in `flows` */
    double n_params;             /**< parameters of the model that the caller asks about; 0: some sizes */
} tw_doctor_result_t;

void tw_doctor_result_cleanup(tw_doctor_result_t *result);
/** The facts of a node's first rank. */
const tw_doctor_facts_t *tw_doctor_node(const tw_doctor_result_t *result, int node);
/** Check what ranks say of themselves. TW_ERR_INVALID, logged: one says what cannot be. */
tw_status_t tw_doctor_check_facts(const tw_doctor_result_t *result);
/** Add flows that a node has sent, [bytes / sizeof]; paths on which it has received. ctx: the result, as
 *  tw_doctor_take_t has it. TW_ERR_INVALID, logged: what cannot be. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_doctor_take_flows(void *ctx, int node, const void *flows, size_t bytes);
tw_status_t tw_doctor_take_paths(void *ctx, int node, const void *paths, size_t bytes);
/** Sort flows by slot and sender; paths by device, sender and receiver. */
void tw_doctor_result_sort(tw_doctor_result_t *result);

/* ---- a rank -------------------------------------------------------------------------------------------- */

/** Read this rank's facts, with the devices that `names` ("eth0,eth1") lists, or else the one on the way to
 *  rank 0. TW_ERR_CONFIG, logged: a device is not there or has no address. */
tw_status_t tw_doctor_facts_read(const tw_job_t *job, const char *names, tw_doctor_facts_t *facts);
/** Measure the codecs and fill in encode_GBps. TW_ERR_NO_MEMORY. */
tw_status_t tw_doctor_codecs_measure(tw_doctor_facts_t *facts);

/** What the doctor knows of a rank in the job. */
typedef struct tw_doctor_rank {
    tw_transport_t *transport;
    int rank, world;
    uint64_t tag;
    uint8_t nonce[TW_DOCTOR_NONCE_BYTES]; /**< random bytes of this run: flows that lack them are dropped */
    int listeners[TW_DOCTOR_DEVICES_MAX], probes[TW_DOCTOR_DEVICES_MAX]; /**< sockets of its devices, or -1 */
} tw_doctor_rank_t;

/* All ranks call these, in the same order. TW_ERR_PEER when one has failed, logged by the transport. */

/** Wait until all ranks have come here. */
tw_status_t tw_doctor_meet(tw_doctor_rank_t *rank);
/** Send rank 0's bytes to all ranks. */
tw_status_t tw_doctor_share(tw_doctor_rank_t *rank, void *data, size_t bytes);
/** Send all ranks' bytes to rank 0. all: [world][bytes], on rank 0. */
tw_status_t tw_doctor_collect(tw_doctor_rank_t *rank, const void *own, size_t bytes, void *all);
/** Takes, on rank 0, what a node's first rank has said. If it returns an error, which it logs, the collecting
 *  ends. */
typedef tw_status_t (*tw_doctor_take_t)(void *ctx, int node, const void *data, size_t bytes);
/** What a node's first rank tells rank 0. */
typedef struct tw_doctor_words {
    const void *own;
    size_t bytes, most_bytes; /**< most_bytes: the largest of all ranks', which all of them know */
    tw_doctor_take_t take;    /**< called on rank 0 */
    void *ctx;                /**< passed to take */
} tw_doctor_words_t;
/** Each node's first rank tells rank 0 its words. */
tw_status_t tw_doctor_collect_nodes(tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                                    const tw_doctor_words_t *words);
/** Fill clock_sec and clock_uncertain_sec of nodes' first ranks: a node's other ranks have the same clock. */
tw_status_t tw_doctor_compare_clocks(tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                                     tw_doctor_facts_t *facts);

/* ---- links --------------------------------------------------------------------------------------------- */

typedef struct tw_doctor_plan {
    double seconds; /**< how long all flows together take, about */
    int n_streams;
} tw_doctor_plan_t;

/** What both ends of a flow know. */
typedef struct tw_doctor_end {
    const tw_doctor_rank_t *rank;
    tw_doctor_flow_t *flow;
    struct sockaddr_in6 to;
    double seconds;
    const volatile int *stop; /**< 1: the job has failed */
} tw_doctor_end_t;

/** Open sockets on a leader's devices; their ports go into `facts`. TW_ERR_IO, logged. */
tw_status_t tw_doctor_listen(tw_doctor_rank_t *rank, tw_doctor_facts_t *facts);
void tw_doctor_close(tw_doctor_rank_t *rank);

/** Send until the receiver has seen enough; fills in what was measured of the flow. */
void tw_doctor_send(tw_doctor_end_t *end);
/** Receive, and tell the sender how fast it came. */
void tw_doctor_receive(tw_doctor_end_t *end);

/** Send probes of a path, each size up to asked_bytes three times. */
void tw_doctor_probe_send(const tw_doctor_rank_t *rank, const tw_doctor_path_t *path,
                          const struct sockaddr_in6 *to);
/** Returns the largest probe that has come on a device since the last call, after waiting for a while. */
int tw_doctor_probe_receive(const tw_doctor_rank_t *rank, int device, double seconds);

/** The flows that a node sends or receives, of a plan that is the same on all ranks. */
typedef struct tw_doctor_schedule {
    int node; /**< -1: no node; only slots are counted */
    int n, n_slots;
    size_t room;             /**< for how many flows there is memory */
    int n_first;             /**< slots that are run however late it is; behind them are only pairs */
    tw_doctor_flow_t *flows; /**< [n] */
    int n_sent_most;         /**< the most flows that any node sends */
    int failed;              /**< 1: memory ran out */
} tw_doctor_schedule_t;

/** The caller frees it with tw_doctor_schedule_cleanup, even after TW_ERR_NO_MEMORY, which is not logged. */
tw_status_t tw_doctor_schedule_init(const tw_doctor_plan_t *plan, int n_nodes, int n_devices, int node,
                                    tw_doctor_schedule_t *schedule);
void tw_doctor_schedule_cleanup(tw_doctor_schedule_t *schedule);
double tw_doctor_slot_seconds(const tw_doctor_plan_t *plan, const tw_doctor_schedule_t *schedule);
/** Time limit of the measuring. After it the remaining pairs are skipped: pairs that cannot meet take longer
 *  than others. */
double tw_doctor_limit_seconds(const tw_doctor_plan_t *plan, const tw_doctor_schedule_t *schedule);

/** Measure everything between nodes, as rank 0's plan says. All ranks call it; on rank 0 the result has all
 *  flows and paths then. */
tw_status_t tw_doctor_measure(tw_doctor_rank_t *rank, const tw_doctor_plan_t *plan,
                              tw_doctor_result_t *result);

/* ---- judgement ----------------------------------------------------------------------------------------- */

#define TW_DOCTOR_FINDINGS_MAX 32
#define TW_DOCTOR_TEXT_BYTES 320

/** Something that is wrong, worst first. */
typedef struct tw_doctor_finding {
    double weight; /**< by about which factor this slows a job down; 1: it does not at present */
    char what[TW_DOCTOR_TEXT_BYTES], why[TW_DOCTOR_TEXT_BYTES], change[TW_DOCTOR_TEXT_BYTES];
} tw_doctor_finding_t;

typedef struct tw_doctor_findings {
    int n;
    tw_doctor_finding_t list[TW_DOCTOR_FINDINGS_MAX];
    tw_doctor_finding_t beyond; /**< where findings go that are not kept */
} tw_doctor_findings_t;

void tw_doctor_judge(const tw_doctor_result_t *result, tw_doctor_findings_t *out);

/** The usual rate of one stream between two nodes that have nothing else to do: the median, over nodes, of
 *  the best rates at which each sends and receives; with two nodes that of the better direction. 0: nothing
 *  was measured. */
double tw_doctor_usual_bps(const tw_doctor_result_t *result, int device);

/** Print the report on stdout, with four lines at the end. */
void tw_doctor_print(const tw_doctor_result_t *result, const tw_doctor_findings_t *findings);
/** Write the report as JSON. TW_ERR_IO, logged. */
tw_status_t tw_doctor_write_json(const tw_doctor_result_t *result, const tw_doctor_findings_t *findings,
                                 FILE *out, const char *path);

TW_C_END
