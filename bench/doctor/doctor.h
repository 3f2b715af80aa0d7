/** What is wrong with a cluster, before a job is slow on it. Read in this order:
 *    doctor.h     this: what is known of ranks, links and paths
 *    facts.c      what a rank knows of itself
 *    codecs.c     how fast it encodes
 *    words.c      ranks tell each other, over the transport
 *    flow.c       one end of a TCP flow, and of probes of a path's MTU
 *    measure.c    which flows when
 *    judge.[ch]   what is wrong: of figures alone, so tested with made-up ones
 *    settings.c   the same of what is set, and differs
 *    report.c     text and JSON
 *    main.c       options
 *
 *  One rank of each node, its first, sends and receives; the others say how they are placed. Plain sockets,
 *  on the devices that the transport would use: what TCP makes of the links, not what Thinwire makes of
 *  TCP. */
#ifndef TW_BENCH_DOCTOR_DOCTOR_H
#define TW_BENCH_DOCTOR_DOCTOR_H

#include <netinet/in.h>

#include "core/core.h"
#include "transport/transport.h"

TW_C_BEGIN

#define DOCTOR_DEVICES_MAX 8
#define DOCTOR_STREAMS_MAX 32
#define DOCTOR_NAME_BYTES 64
#define DOCTOR_NONCE_BYTES 16
#define DOCTOR_CODECS 3

/** A network device of a rank. */
typedef struct doctor_device {
    char name[16];
    struct sockaddr_in6 address; /**< IPv4 mapped into IPv6; where flows to this rank meet: TCP, and UDP */
    int32_t mtu, speed_mbps;     /**< 0: the device does not say */
    int32_t numa;                /**< -1: the device does not say */
} doctor_device_t;

/** What a rank knows of itself. Plain data: ranks send it to each other. */
typedef struct doctor_facts {
    int32_t rank, node, local_rank;
    char host[DOCTOR_NAME_BYTES];
    int32_t n_devices;
    doctor_device_t devices[DOCTOR_DEVICES_MAX];
    char rdma[DOCTOR_NAME_BYTES]; /**< "mlx5_0, 200 Gb/sec (4X HDR)": the first port that is active; "" */
    int32_t is_tcp;               /**< TW_NET_TLS is */
    int32_t cores, numa;          /**< that it may run on; numa -1: several, or not known */
    int64_t descriptors, descriptors_hard;
    int64_t memory_bytes, shm_bytes;       /**< available; free in /dev/shm */
    int64_t send_buffer, receive_buffer;   /**< the most that TCP gives a connection */
    double encode_GBps[DOCTOR_CODECS];     /**< of bf16 numbers, one thread; 0: not measured */
    double clock_sec, clock_uncertain_sec; /**< ahead of rank 0's; give or take */
} doctor_facts_t;

/** "int8", "int4", "lossless". */
extern const char *const doctor_codec_names[DOCTOR_CODECS];

/** What for a flow is there. */
typedef enum doctor_kind {
    DOCTOR_PAIR,    /**< one stream from one node to another, which have nothing else to do */
    DOCTOR_STREAMS, /**< several streams likewise */
    DOCTOR_ALL,     /**< several streams; every node sends, and receives, at the same time */
} doctor_kind_t;

/** Data from one node to another. */
typedef struct doctor_flow {
    int32_t kind, from, to, device, n_streams;
    int32_t slot;  /**< flows of one slot run at the same time */
    double bps;    /**< as the receiver counts; 0: nothing came */
    double rtt_us; /**< the smallest; 0: not known */
    int64_t segments, repeated;
    int32_t segment_bytes, error; /**< error: an errno, of connecting or sending; 0: none */
    char congestion[16];
} doctor_flow_t;

/** Packets of growing size from one node to another that routers must not cut. */
typedef struct doctor_path {
    int32_t from, to, device;
    int32_t asked_bytes;  /**< the largest that was sent: what both devices allow */
    int32_t passed_bytes; /**< the largest that came; 0: none did */
} doctor_path_t;

typedef struct doctor_result {
    int n_ranks, n_nodes, n_flows, n_paths;
    doctor_facts_t *facts; /**< [n_ranks] */
    int *leader;           /**< [n_nodes]: its first rank */
    doctor_flow_t *flows;  /**< [n_flows] */
    doctor_path_t *paths;  /**< [n_paths] */
} doctor_result_t;

void doctor_result_cleanup(doctor_result_t *result);
const doctor_facts_t *doctor_node(const doctor_result_t *result, int node);

/* ---- a rank -------------------------------------------------------------------------------------------- */

/** The devices that `names` ("eth0,eth1") says, or the one on the way to rank 0. TW_ERR_CONFIG, logged: one
 *  is not there or has no address. */
tw_status_t doctor_facts_read(const tw_job_t *job, const char *names, doctor_facts_t *facts);
/** Fills encode_GBps. TW_ERR_NO_MEMORY. */
tw_status_t doctor_codecs_measure(doctor_facts_t *facts);

/** Of a rank in the job. */
typedef struct doctor_rank {
    tw_transport_t *transport;
    int rank, world;
    uint64_t tag;
    uint8_t nonce[DOCTOR_NONCE_BYTES]; /**< of this run: flows of strangers are dropped */
    int listeners[DOCTOR_DEVICES_MAX], probes[DOCTOR_DEVICES_MAX]; /**< sockets of its devices, or -1 */
} doctor_rank_t;

/* All ranks call these, in the same order. TW_ERR_PEER when one has failed, logged by the transport. */

/** All have come here. */
tw_status_t doctor_meet(doctor_rank_t *rank);
/** Rank 0's bytes become everybody's. */
tw_status_t doctor_share(doctor_rank_t *rank, void *data, size_t bytes);
/** all: on rank 0, [world][bytes]. */
tw_status_t doctor_collect(doctor_rank_t *rank, const void *own, size_t bytes, void *all);
/** take: on rank 0, what each node's first rank has said, one after the other. */
typedef void (*doctor_take_t)(void *ctx, int node, const void *data);
tw_status_t doctor_collect_nodes(doctor_rank_t *rank, const doctor_result_t *result, const void *own,
                                 size_t bytes, doctor_take_t take, void *ctx);
/** Fills clock_sec and clock_uncertain_sec. */
tw_status_t doctor_compare_clocks(doctor_rank_t *rank, doctor_facts_t *facts);

/* ---- links --------------------------------------------------------------------------------------------- */

typedef struct doctor_plan {
    double seconds; /**< for all flows together, about */
    int n_streams;
} doctor_plan_t;

/** What both ends of a flow know. */
typedef struct doctor_end {
    const doctor_rank_t *rank;
    doctor_flow_t *flow;
    struct sockaddr_in6 to;
    double seconds;
    const volatile int *stop; /**< 1: the job has failed */
} doctor_end_t;

/** Sockets of a leader's devices, whose ports go into `facts`. TW_ERR_IO, logged. */
tw_status_t doctor_listen(doctor_rank_t *rank, doctor_facts_t *facts);
void doctor_close(doctor_rank_t *rank);

/** Send until the receiver has seen enough; fills all of the flow but what it is about. */
void doctor_send(doctor_end_t *end);
/** Receive, and tell the sender how fast it came. */
void doctor_receive(doctor_end_t *end);

/** Send probes of a path, each size up to asked_bytes three times. */
void doctor_probe_send(const doctor_rank_t *rank, const doctor_path_t *path, const struct sockaddr_in6 *to);
/** The largest that has come on a device since the last call, waiting for it for a while. */
int doctor_probe_receive(const doctor_rank_t *rank, int device, double seconds);

/** Everything between nodes, as rank 0's plan says. All ranks; on rank 0 the result has flows and paths
 *  then. */
tw_status_t doctor_measure(doctor_rank_t *rank, const doctor_plan_t *plan, doctor_result_t *result);

/* ---- judgement ----------------------------------------------------------------------------------------- */

#define DOCTOR_FINDINGS_MAX 32
#define DOCTOR_TEXT_BYTES 320

/** Something that is wrong, worst first. */
typedef struct doctor_finding {
    double weight; /**< by which factor it slows a job down, about; 1: it does not, as things are */
    char what[DOCTOR_TEXT_BYTES], why[DOCTOR_TEXT_BYTES], change[DOCTOR_TEXT_BYTES];
} doctor_finding_t;

typedef struct doctor_findings {
    int n;
    doctor_finding_t list[DOCTOR_FINDINGS_MAX];
} doctor_findings_t;

void doctor_judge(const doctor_result_t *result, doctor_findings_t *out);

/** Rates between nodes alone, one stream: the median over nodes of the best that each sends and receives, of
 *  two nodes the better direction; 0: there are none. */
double doctor_usual_bps(const doctor_result_t *result, int device);

/** Text on stdout, three lines at the end. */
void doctor_print(const doctor_result_t *result, const doctor_findings_t *findings);
/** TW_ERR_IO, TW_ERR_NO_MEMORY; logged. */
tw_status_t doctor_write_json(const doctor_result_t *result, const doctor_findings_t *findings, FILE *out,
                              const char *path);

TW_C_END

#endif
