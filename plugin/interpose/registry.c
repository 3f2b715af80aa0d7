/** The registry: a listening socket and one thread, which serve all meetings of one address. */
#include "plugin/interpose/registry.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 4096
#define CLIENTS_MAX 1024
#define PAUSE_MS 50
#define DEAF_SEC 0.1
#define TALK_SEC 10.0 /**< longest time between a connection and its question */
#define WORLD_MAX (1u << 20)

typedef struct meeting {
    LIST_ENTRY(meeting) link;
    uint8_t name[TW_IP_NAME_BYTES], key[TW_IP_KEY_BYTES];
    uint32_t world; /**< ranks of the communicator; 0: none has registered */
    uint32_t n_here;
    tw_ip_entry_t *entries; /**< [world], freed at the verdict; entry r has world 0 until rank r registers */
    tw_ip_answer_t answer;  /**< its verdict is 0 until one is made */
} meeting_t;

typedef enum step { HELLO, QUESTION, WAITS, ANSWERED } step_t;

/** A connection to the registry. Until its question's hash was checked, it may come from anybody. */
typedef struct client {
    int fd;
    step_t step;
    double end_sec;
    size_t n_bytes;
    union {
        tw_ip_hello_t hello;
        tw_ip_question_t question;
    } in;
    tw_ip_session_t session;
    meeting_t *meeting;
} client_t;

typedef struct registry {
    pid_t process;
    int listener;
    uint8_t address[16];
    uint16_t port;
    /** guards the list: any thread adds meetings, none is removed. Only the registry's thread reads and
     *  changes a meeting */
    pthread_mutex_t lock;
    LIST_HEAD(, meeting) meetings;
    client_t clients[CLIENTS_MAX];
    int n_clients;
    double deaf_sec; /**< time until which no connection is accepted, because accept has failed */
} registry_t;

/* ---- verdicts ------------------------------------------------------------------------------------------ */

static void decide(meeting_t *m, tw_ip_verdict_t verdict, const char *said)
{
    m->answer.verdict = (uint32_t)verdict;
    (void)snprintf(m->answer.said, sizeof(m->answer.said), "%s", said);
    m->answer.speaker = 0;
    while (m->entries && m->answer.speaker + 1 < m->world && m->entries[m->answer.speaker].world == 0) {
        m->answer.speaker++;
    }
    free(m->entries);
    m->entries = NULL;
}

static void decide_who_lacks(meeting_t *m)
{
    char said[TW_IP_SAID_BYTES] = "";
    size_t n = 0;
    int n_said = 0;
    for (uint32_t r = 0; r < m->world && n_said < 8; r++) {
        if (m->entries[r].world == 0) {
            n += (size_t)snprintf(said + n, sizeof(said) - n, "%s%u", n_said++ > 0 ? ", " : "rank ", r);
        }
    }
    n += (size_t)snprintf(said + n, sizeof(said) - n, "%s: no interposer there",
                          m->world - m->n_here > 8 ? " and others" : "");
    decide(m, TW_IP_NOT_ALL, said);
}

static int compare_processes(const void *a, const void *b)
{
    const tw_ip_entry_t *first = *(tw_ip_entry_t *const *)a, *second = *(tw_ip_entry_t *const *)b;
    return first->process < second->process ? -1 : first->process > second->process;
}

/** Returns 1 and decides the meeting if two ranks share a process, or memory is short; otherwise 0. */
static int shares_process(meeting_t *m)
{
    tw_ip_entry_t **sorted = calloc(m->world, sizeof(tw_ip_entry_t *));
    char said[TW_IP_SAID_BYTES] = "out of memory";
    int shares = !sorted;
    for (uint32_t r = 0; sorted && r < m->world; r++) {
        sorted[r] = &m->entries[r];
    }
    if (sorted) {
        qsort(sorted, m->world, sizeof(tw_ip_entry_t *), compare_processes);
    }
    for (uint32_t r = 1; sorted && r < m->world && !shares; r++) {
        shares = sorted[r]->process == sorted[r - 1]->process;
        (void)snprintf(said, sizeof(said), "ranks %u and %u are one process: each needs its own",
                       sorted[r - 1]->rank, sorted[r]->rank);
    }
    free(sorted);
    if (shares) {
        decide(m, TW_IP_SHARED_PROCESS, said);
    }
    return shares;
}

/** Decide a meeting whose ranks have all registered. */
static void meeting_judge(meeting_t *m)
{
    char said[TW_IP_SAID_BYTES];
    for (uint32_t r = 0; r < m->world; r++) {
        if (m->entries[r].cannot) {
            (void)snprintf(said, sizeof(said), "rank %u cannot do it: its log says why", r);
            decide(m, TW_IP_ONE_CANNOT, said);
            return;
        }
        if (m->entries[r].terms != m->entries[0].terms) {
            (void)snprintf(said, sizeof(said),
                           "ranks 0 and %u differ in the interposer's version, in how they got it, or in "
                           "TW_INTERPOSE_GATHERS, _SUMS or _MIN_BYTES",
                           r);
            decide(m, TW_IP_TERMS_DIFFER, said);
            return;
        }
    }
    if (!shares_process(m)) {
        decide(m, TW_IP_ALL_HERE, "");
    }
}

static void add_entry(meeting_t *m, const tw_ip_entry_t *entry)
{
    if (m->answer.verdict != 0 || entry->rank >= entry->world || entry->world > WORLD_MAX) {
        return;
    }
    if (m->world == 0) {
        m->entries = calloc(entry->world, sizeof(*m->entries));
        m->world = m->entries ? entry->world : 0;
    }
    if (entry->world != m->world) {
        decide(m, TW_IP_TERMS_DIFFER, "ranks speak of communicators of different sizes, or out of memory");
        return;
    }
    m->n_here += m->entries[entry->rank].world == 0;
    if (m->entries[entry->rank].world != 0 && m->entries[entry->rank].process != entry->process) {
        decide(m, TW_IP_TERMS_DIFFER, "two processes say that they are the same rank");
        return;
    }
    m->entries[entry->rank] = *entry;
}

/** Decide the meeting if all ranks have registered, or end_sec has passed. Returns 1 if it has a verdict. */
static int meeting_settle(meeting_t *m, double end_sec)
{
    if (m->answer.verdict == 0 && m->world > 0 && m->n_here == m->world) {
        meeting_judge(m);
    } else if (m->answer.verdict == 0 && tw_time_sec() >= end_sec) {
        decide_who_lacks(m);
    }
    return m->answer.verdict != 0;
}

/* ---- clients ------------------------------------------------------------------------------------------- */

static meeting_t *meeting_find(registry_t *registry, const uint8_t *name)
{
    meeting_t *m;
    (void)pthread_mutex_lock(&registry->lock);
    LIST_FOREACH(m, &registry->meetings, link)
    {
        if (memcmp(m->name, name, sizeof(m->name)) == 0) {
            break;
        }
    }
    (void)pthread_mutex_unlock(&registry->lock);
    return m;
}

/** Returns 1 if the socket took the whole message. It fits the empty buffer, so less is a failure. */
static int send_all(int fd, const void *message, size_t bytes)
{
    return send(fd, message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

static int welcome(registry_t *registry, client_t *v)
{
    tw_ip_welcome_t out;
    v->meeting = meeting_find(registry, v->in.hello.name);
    if (!v->meeting) {
        return 0;
    }
    memcpy(v->session.key, v->meeting->key, sizeof(v->session.key));
    memcpy(v->session.rank_nonce, v->in.hello.nonce, sizeof(v->session.rank_nonce));
    randombytes_buf(v->session.registry_nonce, sizeof(v->session.registry_nonce));
    memcpy(out.nonce, v->session.registry_nonce, sizeof(out.nonce));
    tw_ip_sign(&v->session, 'w', out.nonce, sizeof(out.nonce), out.mac);
    v->step = QUESTION;
    v->n_bytes = 0;
    return send_all(v->fd, &out, sizeof(out));
}

static int answer(client_t *v)
{
    tw_ip_reply_t out;
    memset(&out, 0, sizeof(out));
    if (v->in.question.what == TW_IP_ASK) {
        out.answer = v->meeting->answer;
    }
    tw_ip_sign(&v->session, 'a', &out.answer, sizeof(out.answer), out.mac);
    v->step = ANSWERED;
    (void)send_all(v->fd, &out, sizeof(out));
    return 0;
}

static int client_hear(client_t *v)
{
    const tw_ip_question_t *q = &v->in.question;
    if (!tw_ip_is_signed(&v->session, 'q', q, offsetof(tw_ip_question_t, mac), q->mac)) {
        return 0;
    }
    if (q->what == TW_IP_REGISTER) {
        add_entry(v->meeting, &q->entry);
        return answer(v);
    }
    v->step = WAITS;
    v->end_sec = tw_time_sec() + q->entry.wait_ms * 1e-3;
    return 1;
}

/** Read a client's message, and act on it once it is whole. Returns 0 if the connection must be closed. */
static int listen_to(registry_t *registry, client_t *v)
{
    size_t whole = v->step == HELLO ? sizeof(v->in.hello) : sizeof(v->in.question);
    ssize_t n = recv(v->fd, (char *)&v->in + v->n_bytes, whole - v->n_bytes, MSG_DONTWAIT);
    if (n <= 0) {
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    }
    v->n_bytes += (size_t)n;
    if (v->n_bytes < whole) {
        return 1;
    }
    return v->step == HELLO ? welcome(registry, v) : client_hear(v);
}

static int attend(registry_t *registry, client_t *v, int can_read)
{
    if (v->step == WAITS) {
        return meeting_settle(v->meeting, v->end_sec) ? answer(v) : 1;
    }
    if (tw_time_sec() >= v->end_sec || (can_read && !listen_to(registry, v))) {
        return 0;
    }
    return v->step != WAITS || attend(registry, v, 0);
}

static void accept_client(registry_t *registry)
{
    int fd = accept4(registry->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        registry->clients[registry->n_clients++] =
            (client_t){.fd = fd, .step = HELLO, .end_sec = tw_time_sec() + TALK_SEC};
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        registry->deaf_sec = tw_time_sec() + DEAF_SEC;
    }
}

static void attend_all(registry_t *registry, const struct pollfd *fds)
{
    int n = registry->n_clients, kept = 0;
    for (int i = 0; i < n; i++) {
        client_t v = registry->clients[i];
        if (attend(registry, &v, fds[i + 1].revents != 0)) {
            registry->clients[kept++] = v;
        } else {
            (void)close(v.fd);
        }
    }
    registry->n_clients = kept;
}

/** Returns poll's timeout in ms; -1: none. With clients, waiting questions are tested every PAUSE_MS. */
static int pause_ms(const registry_t *registry)
{
    return registry->n_clients == 0 && tw_time_sec() >= registry->deaf_sec ? -1 : PAUSE_MS;
}

static void *registry_serve(void *arg)
{
    registry_t *registry = arg;
    struct pollfd fds[CLIENTS_MAX + 1];
    for (;;) {
        int is_full = registry->n_clients == CLIENTS_MAX || tw_time_sec() < registry->deaf_sec;
        fds[0] = (struct pollfd){.fd = is_full ? -1 : registry->listener, .events = POLLIN};
        for (int i = 0; i < registry->n_clients; i++) {
            int waits = registry->clients[i].step == WAITS;
            fds[i + 1] = (struct pollfd){.fd = waits ? -1 : registry->clients[i].fd, .events = POLLIN};
        }
        if (poll(fds, (nfds_t)registry->n_clients + 1, pause_ms(registry)) < 0 && errno != EINTR) {
            return NULL;
        }
        attend_all(registry, fds);
        if (fds[0].revents != 0) {
            accept_client(registry);
        }
    }
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static int listen_at(const uint8_t address[16], uint16_t port, uint16_t *got)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    socklen_t bytes = sizeof(at);
    int off = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(&at.sin6_addr, address, 16);
    if (fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0 &&
        bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, BACKLOG) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &bytes) == 0) {
        *got = ntohs(at.sin6_port);
        return fd;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return -1;
}

/** Open a registry. Returns NULL if there is no memory, socket or thread. */
static registry_t *registry_create(const tw_ip_place_t *place)
{
    registry_t *registry = calloc(1, sizeof(*registry));
    pthread_t thread;
    if (!registry || sodium_init() < 0) {
        free(registry);
        return NULL;
    }
    registry->process = getpid();
    memcpy(registry->address, place->address, sizeof(registry->address));
    LIST_INIT(&registry->meetings);
    (void)pthread_mutex_init(&registry->lock, NULL);
    registry->listener = listen_at(place->address, place->port, &registry->port);
    if (registry->listener >= 0 && pthread_create(&thread, NULL, registry_serve, registry) == 0) {
        (void)pthread_setname_np(thread, "thinwire meet");
        (void)pthread_detach(thread);
        return registry;
    }
    if (registry->listener >= 0) {
        (void)close(registry->listener);
    }
    (void)pthread_mutex_destroy(&registry->lock);
    free(registry);
    return NULL;
}

/** All registries, which live as long as the process: one per address in ids, and the job's on its port. */
static registry_t *registries[8];
static pthread_mutex_t registries_lock = PTHREAD_MUTEX_INITIALIZER;

static int serves(const registry_t *registry, const tw_ip_place_t *place)
{
    return memcmp(registry->address, place->address, sizeof(registry->address)) == 0 &&
           (place->port == 0 || place->port == registry->port);
}

/** Find or open the registry for a place. The caller holds registries_lock. Registries that this process has
 *  from its parent by fork are dropped, because their threads do not exist here. */
static registry_t *registry_for(const tw_ip_place_t *place)
{
    size_t n = sizeof(registries) / sizeof(registries[0]);
    for (size_t i = 0; i < n; i++) {
        if (registries[i] && registries[i]->process != getpid()) {
            (void)close(registries[i]->listener);
            registries[i] = NULL; /* not freed: at the fork, the parent's thread may have been changing it */
        }
        if (registries[i] && serves(registries[i], place)) {
            return registries[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (!registries[i]) {
            registries[i] = registry_create(place);
            return registries[i];
        }
    }
    return NULL;
}

tw_status_t tw_ip_registry_open(tw_ip_place_t *place)
{
    meeting_t *meeting = calloc(1, sizeof(*meeting));
    if (!meeting) {
        return TW_ERR_IO;
    }
    (void)pthread_mutex_lock(&registries_lock);
    registry_t *registry = registry_for(place);
    (void)pthread_mutex_unlock(&registries_lock);
    if (!registry) {
        free(meeting);
        return TW_ERR_IO;
    }
    memcpy(meeting->name, place->name, sizeof(meeting->name));
    memcpy(meeting->key, place->key, sizeof(meeting->key));
    (void)pthread_mutex_lock(&registry->lock);
    LIST_INSERT_HEAD(&registry->meetings, meeting, link);
    (void)pthread_mutex_unlock(&registry->lock);
    place->port = registry->port;
    return TW_OK;
}
