/** Writes the registry's address into an id, registers this rank, asks whether all ranks have registered. */
#include "plugin/interpose/meet.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "plugin/interpose/gpu.h"
#include "plugin/interpose/registry.h"
#include "plugin/interpose/report.h"
#include "plugin/nccl/interposer_options.h"
#include "transport/transport.h"

#define CONNECT_SEC 10.0
#define PROTOCOL 1 /**< version of the messages of the registry, and of those between ranks */

struct tw_ip_meeting {
    LIST_ENTRY(tw_ip_meeting) link;
    pthread_mutex_t lock; /**< guards all below */
    tw_ip_place_t place;
    tw_ip_entry_t own;
    int is_decided;
    int is_of_job;
    int is_alone; /**< 1: the communicator has one rank, and so has each one split off it */
    tw_ip_reason_t why;
    ncclResult_t error; /**< the result of registering and asking, which later calls return again */
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, tw_ip_meeting) meetings = LIST_HEAD_INITIALIZER(meetings);
static tw_ip_meeting_t *of_job; /**< from tw_ip_meeting_of_job; NULL: this process was not redirected */

static tw_ip_meeting_t *meeting_create(void)
{
    tw_ip_meeting_t *meeting = calloc(1, sizeof(*meeting));
    TW_FAIL_IF(!meeting, NULL, "nccl: out of memory");
    (void)pthread_mutex_init(&meeting->lock, NULL);
    (void)pthread_mutex_lock(&list_lock);
    LIST_INSERT_HEAD(&meetings, meeting, link);
    (void)pthread_mutex_unlock(&list_lock);
    return meeting;
}

static void meeting_decide(tw_ip_meeting_t *meeting, tw_ip_reason_t why)
{
    meeting->is_decided = 1;
    meeting->why = why;
}

tw_ip_meeting_t *tw_ip_meeting_settled(tw_ip_reason_t why)
{
    tw_ip_meeting_t *meeting = meeting_create();
    if (meeting) {
        meeting_decide(meeting, why);
    }
    return meeting;
}

/* ---- the mark in an id --------------------------------------------------------------------------------- */

#define MARK 0x4431784e77546970u
#define NCCL_ADDRESS_AT 8 /**< offset in an id of NCCL's struct sockaddr, which follows a magic number */

/** The registry's address, as written into the last bytes of an id. */
typedef struct mark {
    uint64_t magic;
    uint64_t sum; /**< hash of the rest of the mark, and of NCCL's own bytes */
    uint8_t address[16];
    uint16_t port, unused[3];
    uint8_t secret[16]; /**< random; the meeting's name and key are derived from it */
} mark_t;

#define MARK_AT (NCCL_UNIQUE_ID_BYTES - sizeof(mark_t))
_Static_assert(MARK_AT >= 48, "NCCL has room for its own");

static uint64_t mark_sum(const ncclUniqueId *id, const mark_t *mark)
{
    mark_t bare = *mark;
    bare.sum = 0;
    return XXH3_64bits_withSeed(&bare, sizeof(bare), XXH3_64bits(id->internal, MARK_AT));
}

static void name_place(tw_ip_place_t *place, const void *secret, size_t bytes)
{
    (void)crypto_generichash(place->name, sizeof(place->name), secret, bytes,
                             (const uint8_t *)"thinwire name ..", 16);
    (void)crypto_generichash(place->key, sizeof(place->key), secret, bytes,
                             (const uint8_t *)"thinwire key ...", 16);
}

/** Read from an id the address that NCCL's ranks connect to. Returns 0 if other hosts cannot reach it. */
static int read_address(const ncclUniqueId *id, uint8_t address[16])
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;

    memcpy(&at, id->internal + NCCL_ADDRESS_AT, sizeof(at));
    if (at.any.sa_family == AF_INET) {
        memset(address, 0, 10);
        memset(address + 10, 0xff, 2);
        memcpy(address + 12, &at.v4.sin_addr, 4);
        return 1;
    }
    memcpy(address, &at.v6.sin6_addr, 16);
    return at.any.sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&at.v6.sin6_addr);
}

static int is_free(const ncclUniqueId *id)
{
    for (size_t i = MARK_AT; i < sizeof(id->internal); i++) {
        if (id->internal[i] != 0) {
            return 0;
        }
    }
    return 1;
}

void tw_ip_meeting_invite(ncclUniqueId *id)
{
    mark_t mark = {.magic = MARK};
    tw_ip_place_t place = {.port = 0};
    if (getenv("NCCL_COMM_ID") || !is_free(id) || !read_address(id, place.address) ||
        getrandom(mark.secret, sizeof(mark.secret), 0) != (ssize_t)sizeof(mark.secret)) {
        tw_warn("nccl: a communicator is left alone: NCCL_COMM_ID is set, or its id has no room, or no "
                "address of a "
                "usable kind");
        return;
    }
    name_place(&place, mark.secret, sizeof(mark.secret));
    if (tw_ip_registry_open(&place) != TW_OK) {
        tw_warn("nccl: a communicator is left alone: no socket or thread to meet its ranks");
        return;
    }
    memcpy(mark.address, place.address, sizeof(mark.address));
    mark.port = place.port;
    mark.sum = mark_sum(id, &mark);
    memcpy(id->internal + MARK_AT, &mark, sizeof(mark));
}

static int read_mark(const ncclUniqueId *id, tw_ip_place_t *place)
{
    mark_t mark;
    memcpy(&mark, id->internal + MARK_AT, sizeof(mark));
    if (mark.magic != MARK || mark.sum != mark_sum(id, &mark)) {
        return 0;
    }
    memcpy(place->address, mark.address, sizeof(place->address));
    place->port = mark.port;
    name_place(place, mark.secret, sizeof(mark.secret));
    return 1;
}

/* ---- this rank ----------------------------------------------------------------------------------------- */

/** Returns a random number that identifies this process. A forked process gets another one. */
static uint64_t own_process(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pid_t known;
    static uint64_t number;
    (void)pthread_mutex_lock(&lock);
    if (known != getpid()) {
        known = getpid();
        randombytes_buf(&number, sizeof(number));
    }
    uint64_t own = number;
    (void)pthread_mutex_unlock(&lock);
    return own;
}

/** Hash the settings that must be the same on all ranks. is_redirected is one of them: a redirected process
 *  does not see the communicators that were made before. */
static uint64_t own_terms(int is_redirected)
{
    char text[96];
    int n = snprintf(text, sizeof(text), "%s %d %d %llx", TW_VERSION, PROTOCOL, is_redirected,
                     (unsigned long long)tw_ip_policy_hash());
    return XXH3_64bits(text, (size_t)n);
}

static double join_timeout(void)
{
    tw_ip_options_t options;
    double sec = 60;
    if (tw_ip_options_init(&options) == TW_OK) {
        sec = options.join_sec;
        tw_ip_options_cleanup(&options);
    }
    return sec;
}

static tw_ip_entry_t introduce(int rank, int world)
{
    (void)pthread_mutex_lock(&list_lock);
    int is_redirected = of_job != NULL;
    (void)pthread_mutex_unlock(&list_lock);
    return (tw_ip_entry_t){
        .rank = (uint32_t)rank,
        .world = (uint32_t)world,
        .cannot = !tw_ip_gpu_works(),
        .terms = own_terms(is_redirected),
        .process = own_process(),
    };
}

/* ---- registering --------------------------------------------------------------------------------------- */

ncclResult_t tw_ip_meeting_begin(const ncclUniqueId *id, int rank, int world, tw_ip_meeting_t **out)
{
    tw_ip_meeting_t *meeting = meeting_create();
    tw_status_t status = TW_ERR_NOT_FOUND;
    *out = meeting;
    if (!meeting || sodium_init() < 0) {
        return ncclSystemError;
    }
    meeting_decide(meeting, TW_IP_ABSENT);
    meeting->is_alone = world <= 1 || rank < 0 || rank >= world; /* one rank, or a rank that NCCL refuses */
    if (meeting->is_alone) {
        return ncclSuccess;
    }
    meeting->own = introduce(rank, world);
    if (read_mark(id, &meeting->place)) {
        status = tw_ip_registry_register(&meeting->place, &meeting->own, CONNECT_SEC);
        meeting->is_decided = status != TW_OK;
    }
    if (status == TW_ERR_NOT_FOUND) {
        tw_ip_report_no_registry("nothing is quantized between the ranks of a communicator: the process that "
                                 "made its id has no interposer, or is not reached");
    }
    meeting->error = status == TW_OK || status == TW_ERR_NOT_FOUND ? ncclSuccess : ncclSystemError;
    return meeting->error;
}

void tw_ip_meeting_drop(tw_ip_meeting_t *meeting)
{
    (void)pthread_mutex_lock(&list_lock);
    LIST_REMOVE(meeting, link);
    (void)pthread_mutex_unlock(&list_lock);
    (void)pthread_mutex_destroy(&meeting->lock);
    free(meeting);
}

/* ---- the job ------------------------------------------------------------------------------------------- */

#define JOB_PORT_FIRST 20000
#define JOB_PORTS 12000
#define JOB_TRIES 8
#define POLL_NS 50000000

static int find_host(const char *host, uint8_t address[16])
{
    const struct addrinfo hints = {
        .ai_family = AF_INET6, .ai_socktype = SOCK_STREAM, .ai_flags = AI_V4MAPPED | AI_ALL};
    struct addrinfo *found = NULL;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return 0;
    }
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)at->ai_addr)->sin6_addr;
        memcpy(address, in6, 16);
        if (IN6_IS_ADDR_V4MAPPED(in6)) {
            break; /* prefer IPv4 */
        }
    }
    freeaddrinfo(found);
    return 1;
}

/** Returns the port of try number `try`. Rank 0 takes the first free port; the other ranks try all ports. */
static uint16_t job_port(const tw_ip_place_t *place, int try)
{
    uint64_t hash = XXH3_64bits(place->name, sizeof(place->name));
    return (uint16_t)(JOB_PORT_FIRST + (hash + 101 * (uint64_t)try) % JOB_PORTS);
}

/** Open the job's registry on all addresses: other hosts may resolve MASTER_ADDR to another address. */
static tw_status_t open_job_registry(const tw_ip_place_t *place)
{
    tw_status_t status = TW_ERR_IO;
    for (int i = 0; i < JOB_TRIES && status != TW_OK; i++) {
        tw_ip_place_t at = *place;
        memset(at.address, 0, sizeof(at.address));
        at.port = job_port(place, i);
        status = tw_ip_registry_open(&at);
    }
    return status;
}

/** Register at rank 0's registry, which may open later: tries all ports again until TW_JOIN_TIMEOUT. */
static tw_status_t register_at_job(tw_ip_meeting_t *meeting)
{
    const struct timespec nap = {.tv_nsec = POLL_NS};
    double end_sec = tw_time_sec() + join_timeout();
    tw_status_t status = TW_ERR_NOT_FOUND;
    for (int i = 0; status == TW_ERR_NOT_FOUND && tw_time_sec() < end_sec; i = (i + 1) % JOB_TRIES) {
        meeting->place.port = job_port(&meeting->place, i);
        status = tw_ip_registry_register(&meeting->place, &meeting->own, 1);
        if (status == TW_ERR_NOT_FOUND && i == JOB_TRIES - 1) {
            (void)nanosleep(&nap, NULL);
        }
    }
    return status;
}

static tw_status_t meet_job(tw_ip_meeting_t *meeting)
{
    char secret[2 * TW_JOB_NAME_BYTES + 64];
    tw_job_t job;
    if (!tw_job_launched() || tw_job_from_env(&job) != TW_OK ||
        !find_host(job.master_addr, meeting->place.address)) {
        tw_ip_report_no_registry(
            "communicators that were made before the interposer came are left alone: where rank 0 is, a "
            "launcher's variables (RANK, WORLD_SIZE, MASTER_ADDR) would say; LD_PRELOAD needs none");
        return TW_OK;
    }
    int n = snprintf(secret, sizeof(secret), "%s %s %d %d", job.token, job.master_addr, job.master_port,
                     job.world);
    name_place(&meeting->place, secret, (size_t)n);
    meeting->own = introduce(job.rank, job.world);
    if (job.rank == 0 && open_job_registry(&meeting->place) != TW_OK) {
        tw_ip_report_no_registry("communicators that were made before the interposer came are left alone: "
                                 "rank 0 has no port for the others");
        return TW_OK;
    }
    tw_status_t status = register_at_job(meeting);
    if (status == TW_ERR_NOT_FOUND) {
        tw_ip_report_no_registry(
            "nothing is quantized between ranks that NCCL had joined before the interposer came: "
            "that of rank 0 is not reached (none there, or later than TW_JOIN_TIMEOUT)");
    }
    meeting->is_decided = status != TW_OK;
    return status == TW_ERR_NOT_FOUND ? TW_OK : status;
}

tw_status_t tw_ip_meeting_of_job(void)
{
    tw_ip_meeting_t *meeting = meeting_create();
    if (!meeting || sodium_init() < 0) {
        return TW_ERR_INTERNAL;
    }
    meeting->is_of_job = 1;
    meeting_decide(meeting, TW_IP_ABSENT);
    (void)pthread_mutex_lock(&list_lock);
    of_job = meeting;
    (void)pthread_mutex_unlock(&list_lock);
    return meet_job(meeting);
}

/* ---- asking the registry ------------------------------------------------------------------------------- */

static tw_ip_reason_t reason_of(uint32_t verdict)
{
    switch (verdict) {
    case TW_IP_ALL_HERE:
        return TW_IP_REPLACED;
    case TW_IP_TERMS_DIFFER:
        return TW_IP_DIFFERENT;
    case TW_IP_SHARED_PROCESS:
        return TW_IP_ONE_PROCESS;
    default:
        return TW_IP_ABSENT;
    }
}

/** Ask the registry. The caller holds m->lock. */
static void meeting_ask(tw_ip_meeting_t *m)
{
    tw_ip_answer_t answer;
    tw_ip_entry_t entry = m->own;
    entry.wait_ms = m->is_of_job ? (uint32_t)(join_timeout() * 1e3) : 0;
    m->is_decided = 1;
    if (tw_ip_registry_ask(&m->place, &entry, &answer) != TW_OK) {
        m->error = ncclSystemError;
        return;
    }
    m->why = reason_of(answer.verdict);
    if (m->why != TW_IP_REPLACED && answer.speaker == m->own.rank) {
        tw_ip_report_absent((int)m->own.rank, (int)m->own.world, answer.said);
    }
}

static ncclResult_t ask_once(tw_ip_meeting_t *m, tw_ip_reason_t *why)
{
    (void)pthread_mutex_lock(&m->lock);
    if (!m->is_decided) {
        meeting_ask(m);
    }
    *why = m->why;
    ncclResult_t error = m->error;
    (void)pthread_mutex_unlock(&m->lock);
    return error;
}

ncclResult_t tw_ip_meeting_ask(tw_ip_meeting_t *meeting, tw_ip_reason_t *why)
{
    (void)pthread_mutex_lock(&list_lock);
    tw_ip_meeting_t *asked = meeting ? meeting : of_job;
    (void)pthread_mutex_unlock(&list_lock);
    *why = TW_IP_ABSENT;
    return asked ? ask_once(asked, why) : ncclSuccess;
}
