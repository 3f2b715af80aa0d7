/** The doctor's data about ranks, links and paths, and the functions that its files share. Read the files in
 *  this order:
 *    doctor.h       the public functions
 *    state.h        this file
 *    facts.c        what a rank knows about itself
 *    codecs.c       how fast it encodes
 *    words.c        messages between the ranks, over the transport
 *    schedule.c     which flows run in which slot
 *    flow.c         one end of a TCP flow, and of probes of a path's MTU
 *    measure.c      a rank's part of the flows and probes
 *    result.c       results that rank 0 collects
 *    findings.[ch]  the list of findings: problems as text
 *    links.c        what is wrong with links, from measured rates alone; tests pass made-up rates
 *    settings.c     what is wrong with settings, from facts alone; tests pass made-up facts
 *    judge.c        all findings, the heaviest first
 *    help.[ch]      whether Thinwire would help
 *    report.c       text and JSON
 *    run.c          runs all of these
 *
 *  Only the first rank of each node sends and receives; the others report their facts. Flows use plain
 *  sockets on the devices that the transport would use: they measure TCP on the links, not Thinwire. A rank
 *  knows only its own flows; each node sends the results of its flows to rank 0. */
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
    /** IPv6, or IPv4 mapped into IPv6; with the port where TCP flows to this rank arrive */
    struct sockaddr_in6 address;
    in_port_t probe_port;    /**< UDP port where probes of paths arrive, in network byte order */
    int32_t mtu, speed_mbps; /**< 0: the device does not report it */
    int32_t numa;            /**< NUMA node; -1: the device does not report it */
} tw_doctor_device_t;

/** What a rank knows about itself. Plain data, which ranks send to each other. */
typedef struct tw_doctor_facts {
    int32_t rank, node, local_rank;
    char host[TW_DOCTOR_NAME_BYTES];
    int32_t n_devices;
    tw_doctor_device_t devices[TW_DOCTOR_DEVICES_MAX];
    /** the first active RDMA port, as in "mlx5_0, 200 Gb/sec (4X HDR)"; "": none */
    char rdma[TW_DOCTOR_NAME_BYTES];
    int32_t is_tcp; /**< 1: TW_NET_TLS selects TCP */
    /** number of cores on which the rank may run; the NUMA node that has all of them, or -1 */
    int32_t cores, numa;
    int64_t descriptors, descriptors_hard;
    int64_t memory_bytes, shm_bytes;     /**< available memory; free bytes in /dev/shm */
    int64_t send_buffer, receive_buffer; /**< the largest buffers that TCP gives a connection, in bytes */
    /** plain gigabytes of bf16 that one thread encodes in a second; 0: not measured */
    double encode_GBps[TW_DOCTOR_CODECS];
    double clock_sec, clock_uncertain_sec; /**< this rank's clock minus rank 0's; its largest error */
} tw_doctor_facts_t;

/** Names of the codecs, in the order of encode_GBps: "int8", "int4", "lossless", "ecdq". */
extern const char *const tw_doctor_codec_names[TW_DOCTOR_CODECS];

/** The conditions under which a flow is measured. */
typedef enum tw_doctor_kind {
    TW_DOCTOR_PAIR,    /**< one stream; with many nodes, every node sends one flow and receives one */
    TW_DOCTOR_STREAMS, /**< several streams, while both nodes have nothing else to do */
    TW_DOCTOR_ALL,     /**< several streams, while every node sends and receives */
} tw_doctor_kind_t;

/** A transfer from one node to another, and its measured results. */
typedef struct tw_doctor_flow {
    int32_t kind, from, to, device, n_streams;
    int32_t slot;  /**< all flows of one slot run at the same time */
    double bps;    /**< bits a second, counted by the receiver; 0: nothing came */
    double rtt_us; /**< smallest round-trip time; 0: not known */
    int64_t segments, repeated;
    int32_t segment_bytes, error; /**< error: errno of connecting or sending, or 0 */
    int32_t skipped;              /**< 1: not measured, because the time was over */
    char congestion[16];
} tw_doctor_flow_t;

/** Probes from one node to another: packets of several sizes, which routers must not fragment. */
typedef struct tw_doctor_path {
    int32_t from, to, device;
    int32_t asked_bytes;  /**< the largest packet that was sent: both devices' MTUs allow it */
    int32_t passed_bytes; /**< the largest packet that arrived; 0: none */
} tw_doctor_path_t;

typedef struct tw_doctor_result {
    int world, n_nodes, n_flows, n_paths;
    /** [world]; a rank other than 0 fills in only the first rank of each node */
    tw_doctor_facts_t *facts;
    int *leader;                 /**< [n_nodes]: each node's first rank */
    tw_doctor_flow_t *flows;     /**< [n_flows]; on rank 0 only */
    tw_doctor_path_t *paths;     /**< [n_paths]; on rank 0 only */
    size_t max_flows, max_paths; /**< number of flows and of paths for which memory is allocated */
    int n_skipped;               /**< flows between pairs that were not measured; they are not in `flows` */
    double n_params;             /**< parameters of the model that the caller asks about; 0: four sizes */
} tw_doctor_result_t;

void tw_doctor_result_cleanup(tw_doctor_result_t *result);
/** The facts of a node's first rank. */
const tw_doctor_facts_t *tw_doctor_node(const tw_doctor_result_t *result, int node);
/** Check the ranks' facts. TW_ERR_INVALID, logged: a rank reports an impossible value. */
tw_status_t tw_doctor_check_facts(const tw_doctor_result_t *result);
/** Add the flows that a node has sent, or the paths on which it has received: arrays of `bytes` bytes. ctx is
 *  the result. TW_ERR_INVALID, logged: an impossible value. TW_ERR_NO_MEMORY, logged. */
tw_status_t tw_doctor_take_flows(void *ctx, int node, const void *flows, size_t bytes);
tw_status_t tw_doctor_take_paths(void *ctx, int node, const void *paths, size_t bytes);
/** Sort flows by slot and sender; paths by device, sender and receiver. */
void tw_doctor_result_sort(tw_doctor_result_t *result);

/* ---- a rank -------------------------------------------------------------------------------------------- */

/** Read this rank's facts, with the devices that `names` lists ("eth0,eth1"), or, if that is NULL or "", the
 *  device on the route to rank 0. TW_ERR_CONFIG, logged: a device does not exist or has no address. */
tw_status_t tw_doctor_facts_read(const tw_job_t *job, const char *names, tw_doctor_facts_t *facts);
/** Measure the codecs, and fill in encode_GBps. TW_ERR_NO_MEMORY, if memory runs out. */
tw_status_t tw_doctor_codecs_measure(tw_doctor_facts_t *facts);

/** A rank's connections to the job during a run of the doctor. */
typedef struct tw_doctor_rank {
    tw_transport_t *transport;
    int rank, world;
    uint64_t tag;
    /** random bytes that mark this run; flows that lack them are dropped */
    uint8_t nonce[TW_DOCTOR_NONCE_BYTES];
    /** one TCP and one UDP socket per device, or -1 */
    int listeners[TW_DOCTOR_DEVICES_MAX], probes[TW_DOCTOR_DEVICES_MAX];
} tw_doctor_rank_t;

/* All ranks call these, in the same order. TW_ERR_PEER, logged by the transport: a rank has failed. */

/** Wait until all ranks have called this. */
tw_status_t tw_doctor_meet(tw_doctor_rank_t *rank);
/** Copy `bytes` bytes of rank 0's data into the data of all ranks. */
tw_status_t tw_doctor_share(tw_doctor_rank_t *rank, void *data, size_t bytes);
/** Gather each rank's `own` on rank 0. all: [world][bytes], used on rank 0 only. */
tw_status_t tw_doctor_collect(tw_doctor_rank_t *rank, const void *own, size_t bytes, void *all);
/** Takes, on rank 0, the data that a node's first rank has sent. If it returns an error, which it has logged,
 *  collecting ends. */
typedef tw_status_t (*tw_doctor_take_t)(void *ctx, int node, const void *data, size_t bytes);
/** Data that each node's first rank sends to rank 0. */
typedef struct tw_doctor_words {
    const void *own;
    size_t bytes, most_bytes; /**< most_bytes: the largest `bytes` of all ranks, the same on all ranks */
    tw_doctor_take_t take;    /**< called on rank 0 */
    void *ctx;                /**< passed to take */
} tw_doctor_words_t;
/** Send each node's words from its first rank to rank 0. */
tw_status_t tw_doctor_collect_nodes(tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                                    const tw_doctor_words_t *words);
/** Fill in clock_sec and clock_uncertain_sec of nodes' first ranks. All ranks of a node use one clock. */
tw_status_t tw_doctor_compare_clocks(tw_doctor_rank_t *rank, const tw_doctor_result_t *result,
                                     tw_doctor_facts_t *facts);

/* ---- links --------------------------------------------------------------------------------------------- */

typedef struct tw_doctor_plan {
    double seconds; /**< about how many seconds all flows together take */
    int n_streams;
} tw_doctor_plan_t;

/** What each of a flow's two ends needs to run it. */
typedef struct tw_doctor_end {
    const tw_doctor_rank_t *rank;
    tw_doctor_flow_t *flow;
    struct sockaddr_in6 to;
    double seconds;
    const volatile int *stop; /**< 1: the job has failed */
} tw_doctor_end_t;

/** Open sockets on the devices of a node's first rank; `facts` gets their ports. TW_ERR_IO, logged. */
tw_status_t tw_doctor_listen(tw_doctor_rank_t *rank, tw_doctor_facts_t *facts);
void tw_doctor_close(tw_doctor_rank_t *rank);

/** Send until the receiver ends the flow. Fills in the flow's rate and the other measured members. */
void tw_doctor_send(tw_doctor_end_t *end);
/** Receive, and send the measured rate to the sender. */
void tw_doctor_receive(tw_doctor_end_t *end);

/** Send probes of a path: three of each size up to asked_bytes. */
void tw_doctor_probe_send(const tw_doctor_rank_t *rank, const tw_doctor_path_t *path,
                          const struct sockaddr_in6 *to);
/** Wait for `seconds`. Returns the bytes of the largest probe since the last call, or 0. */
int tw_doctor_probe_receive(const tw_doctor_rank_t *rank, int device, double seconds);

/** The flows that one node sends or receives. Node -1 has none. The slots are the same on all ranks. */
typedef struct tw_doctor_schedule {
    int node; /**< -1: only count the slots */
    int n, n_slots;
    size_t room; /**< number of flows for which memory is allocated */
    /** how many first slots always run; later slots, all for pairs, are skipped when time is over */
    int n_first;
    tw_doctor_flow_t *flows; /**< [n] */
    int n_sent_most;         /**< the most flows that any node sends */
    int failed;              /**< 1: memory ran out */
} tw_doctor_schedule_t;

/** The caller frees `schedule` by tw_doctor_schedule_cleanup, even after TW_ERR_NO_MEMORY (not logged). */
tw_status_t tw_doctor_schedule_init(const tw_doctor_plan_t *plan, int n_nodes, int n_devices, int node,
                                    tw_doctor_schedule_t *schedule);
void tw_doctor_schedule_cleanup(tw_doctor_schedule_t *schedule);
double tw_doctor_slot_seconds(const tw_doctor_plan_t *plan, const tw_doctor_schedule_t *schedule);
/** Time limit of all slots together, in seconds. After it the remaining pairs are skipped. It is longer than
 *  the plan's seconds, since pairs that cannot connect take longer than others. */
double tw_doctor_limit_seconds(const tw_doctor_plan_t *plan, const tw_doctor_schedule_t *schedule);

/** Measure everything between nodes, by rank 0's plan. All ranks call it. Afterwards rank 0's result has all
 *  flows and paths. */
tw_status_t tw_doctor_measure(tw_doctor_rank_t *rank, const tw_doctor_plan_t *plan,
                              tw_doctor_result_t *result);

/* ---- judgement ----------------------------------------------------------------------------------------- */

#define TW_DOCTOR_FINDINGS_MAX 32
#define TW_DOCTOR_TEXT_BYTES 320

/** One problem, and what to do about it. */
typedef struct tw_doctor_finding {
    double weight; /**< about how many times this makes a job slower; 1: not slower at present */
    char what[TW_DOCTOR_TEXT_BYTES], why[TW_DOCTOR_TEXT_BYTES], change[TW_DOCTOR_TEXT_BYTES];
} tw_doctor_finding_t;

typedef struct tw_doctor_findings {
    int n;
    tw_doctor_finding_t list[TW_DOCTOR_FINDINGS_MAX];
    tw_doctor_finding_t beyond; /**< where a finding is written that is not kept in `list` */
} tw_doctor_findings_t;

void tw_doctor_judge(const tw_doctor_result_t *result, tw_doctor_findings_t *out);

/** The usual rate of one stream between two nodes (TW_DOCTOR_PAIR), in bits a second: the median of all
 *  nodes' best rates of sending and receiving. With two nodes it is the better direction's rate. 0: nothing
 *  was measured. */
double tw_doctor_usual_bps(const tw_doctor_result_t *result, int device);

/** Print the report on stdout. Its last four lines are a summary. */
void tw_doctor_print(const tw_doctor_result_t *result, const tw_doctor_findings_t *findings);
/** Write the report as JSON. TW_ERR_IO, logged. */
tw_status_t tw_doctor_write_json(const tw_doctor_result_t *result, const tw_doctor_findings_t *findings,
                                 FILE *out, const char *path);

TW_C_END
