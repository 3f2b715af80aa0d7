/** The door's side: one thread serves all meetings of this process. */
#include "plugin/interpose/door.h"

#include <errno.h>
#include <fcntl.h>
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
#define GUESTS_MAX 1024
#define PAUSE_MS 50
#define DEAF_SEC 0.1
#define TALK_SEC 10.0 /**< for a guest to say what he wants */
#define WORLD_MAX (1u << 20)

typedef struct meeting {
    LIST_ENTRY(meeting) link;
    uint8_t name[TW_IP_NAME_BYTES], key[TW_IP_KEY_BYTES];
    uint32_t world; /**< 0: nobody has come yet */
    uint32_t n_here;
    tw_ip_guest_t *guests; /**< [world], until there is a verdict; world 0: he has not come */
    tw_ip_answer_t answer; /**< verdict 0: not yet */
} meeting_t;

typedef enum step { HELLO, QUESTION, WAITS, ANSWERED } step_t;

/** Somebody at the door. */
typedef struct visitor {
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
} visitor_t;

typedef struct door {
    pid_t process;
    int listener;
    uint8_t address[16];
    uint16_t port;
    /** of the list: meetings come from any thread, and stay; what is in one is the door's thread's */
    pthread_mutex_t lock;
    LIST_HEAD(, meeting) meetings;
    visitor_t visitors[GUESTS_MAX];
    int n_visitors;
    double deaf_sec; /**< nobody is let in before: there was no descriptor for him */
} door_t;

/* ---- verdicts ------------------------------------------------------------------------------------------ */

static void decide(meeting_t *m, tw_ip_verdict_t verdict, const char *said)
{
    m->answer.verdict = (uint32_t)verdict;
    (void)snprintf(m->answer.said, sizeof(m->answer.said), "%s", said);
    m->answer.speaker = 0;
    while (m->guests && m->answer.speaker + 1 < m->world && m->guests[m->answer.speaker].world == 0) {
        m->answer.speaker++;
    }
    free(m->guests);
    m->guests = NULL;
}

static void decide_who_lacks(meeting_t *m)
{
    char said[TW_IP_SAID_BYTES] = "";
    size_t n = 0;
    int n_said = 0;

    for (uint32_t r = 0; r < m->world && n_said < 8; r++) {
        if (m->guests[r].world == 0) {
            n += (size_t)snprintf(said + n, sizeof(said) - n, "%s%u", n_said++ > 0 ? ", " : "rank ", r);
        }
    }
    n += (size_t)snprintf(said + n, sizeof(said) - n, "%s: no interposer there",
                          m->world - m->n_here > 8 ? " and others" : "");
    decide(m, TW_IP_NOT_ALL, said);
}

static int compare_processes(const void *a, const void *b)
{
    const tw_ip_guest_t *first = *(tw_ip_guest_t *const *)a, *second = *(tw_ip_guest_t *const *)b;

    return first->process < second->process ? -1 : first->process > second->process;
}

/** 1, and decided: two ranks are one process. */
static int shares_process(meeting_t *m)
{
    tw_ip_guest_t **sorted = calloc(m->world, sizeof(tw_ip_guest_t *)); /* too little memory: said to share */
    char said[TW_IP_SAID_BYTES] = "out of memory";
    int shares = !sorted;

    for (uint32_t r = 0; sorted && r < m->world; r++) {
        sorted[r] = &m->guests[r];
    }
    if (sorted) {
        qsort(sorted, m->world, sizeof(tw_ip_guest_t *), compare_processes);
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

/** All have come. */
static void judge(meeting_t *m)
{
    char said[TW_IP_SAID_BYTES];

    for (uint32_t r = 0; r < m->world; r++) {
        if (m->guests[r].cannot) {
            (void)snprintf(said, sizeof(said), "rank %u cannot do it: its log says why", r);
            decide(m, TW_IP_ONE_CANNOT, said);
            return;
        }
        if (m->guests[r].terms != m->guests[0].terms) {
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

static void come_in(meeting_t *m, const tw_ip_guest_t *guest)
{
    if (m->answer.verdict != 0 || guest->rank >= guest->world || guest->world > WORLD_MAX) {
        return;
    }
    if (m->world == 0) {
        m->guests = calloc(guest->world, sizeof(*m->guests));
        m->world = m->guests ? guest->world : 0;
    }
    if (guest->world != m->world) {
        decide(m, TW_IP_TERMS_DIFFER, "ranks speak of communicators of different sizes, or out of memory");
        return;
    }
    m->n_here += m->guests[guest->rank].world == 0;
    if (m->guests[guest->rank].world != 0 && m->guests[guest->rank].process != guest->process) {
        decide(m, TW_IP_TERMS_DIFFER, "two processes say that they are the same rank");
        return;
    }
    m->guests[guest->rank] = *guest;
}

/** Returns 1 once there is a verdict. */
static int settle(meeting_t *m, double end_sec)
{
    if (m->answer.verdict == 0 && m->world > 0 && m->n_here == m->world) {
        judge(m);
    } else if (m->answer.verdict == 0 && tw_time_sec() >= end_sec) {
        decide_who_lacks(m);
    }
    return m->answer.verdict != 0;
}

/* ---- visitors ------------------------------------------------------------------------------------------ */

static meeting_t *find(door_t *door, const uint8_t *name)
{
    meeting_t *m;

    (void)pthread_mutex_lock(&door->lock);
    LIST_FOREACH(m, &door->meetings, link)
    {
        if (memcmp(m->name, name, sizeof(m->name)) == 0) {
            break;
        }
    }
    (void)pthread_mutex_unlock(&door->lock);
    return m;
}

/** What fits into an empty socket. */
static int send_all(int fd, const void *message, size_t bytes)
{
    return send(fd, message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

static int welcome(door_t *door, visitor_t *v)
{
    tw_ip_welcome_t out;

    v->meeting = find(door, v->in.hello.name);
    if (!v->meeting) {
        return 0;
    }
    memcpy(v->session.key, v->meeting->key, sizeof(v->session.key));
    memcpy(v->session.guest_nonce, v->in.hello.nonce, sizeof(v->session.guest_nonce));
    randombytes_buf(v->session.door_nonce, sizeof(v->session.door_nonce));
    memcpy(out.nonce, v->session.door_nonce, sizeof(out.nonce));
    tw_ip_sign(&v->session, 'w', out.nonce, sizeof(out.nonce), out.mac);
    v->step = QUESTION;
    v->n_bytes = 0;
    return send_all(v->fd, &out, sizeof(out));
}

static int answer(visitor_t *v)
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

static int hear(visitor_t *v)
{
    const tw_ip_question_t *q = &v->in.question;

    if (!tw_ip_is_signed(&v->session, 'q', q, offsetof(tw_ip_question_t, mac), q->mac)) {
        return 0;
    }
    if (q->what == TW_IP_REGISTER) {
        come_in(v->meeting, &q->guest);
        return answer(v);
    }
    v->step = WAITS;
    v->end_sec = tw_time_sec() + q->guest.wait_ms * 1e-3;
    return 1;
}

/** Returns 0 once he is to go. */
static int listen_to(door_t *door, visitor_t *v)
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
    return v->step == HELLO ? welcome(door, v) : hear(v);
}

static int attend(door_t *door, visitor_t *v, int can_read)
{
    if (v->step == WAITS) {
        return settle(v->meeting, v->end_sec) ? answer(v) : 1;
    }
    if (tw_time_sec() >= v->end_sec || (can_read && !listen_to(door, v))) {
        return 0;
    }
    return v->step != WAITS || attend(door, v, 0);
}

static void let_in(door_t *door)
{
    int fd = accept4(door->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0) {
        door->visitors[door->n_visitors++] =
            (visitor_t){.fd = fd, .step = HELLO, .end_sec = tw_time_sec() + TALK_SEC};
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        door->deaf_sec = tw_time_sec() + DEAF_SEC;
    }
}

static void attend_all(door_t *door, const struct pollfd *fds)
{
    int n = door->n_visitors, kept = 0;

    for (int i = 0; i < n; i++) {
        visitor_t v = door->visitors[i];
        if (attend(door, &v, fds[i + 1].revents != 0)) {
            door->visitors[kept++] = v;
        } else {
            (void)close(v.fd);
        }
    }
    door->n_visitors = kept;
}

/** What waits for others is looked at after whatever has happened, and now and then for its end. */
static int pause_ms(const door_t *door)
{
    return door->n_visitors == 0 && tw_time_sec() >= door->deaf_sec ? -1 : PAUSE_MS;
}

static void *serve(void *arg)
{
    door_t *door = arg;
    struct pollfd fds[GUESTS_MAX + 1];

    for (;;) {
        int is_full = door->n_visitors == GUESTS_MAX || tw_time_sec() < door->deaf_sec;
        fds[0] = (struct pollfd){.fd = is_full ? -1 : door->listener, .events = POLLIN};
        for (int i = 0; i < door->n_visitors; i++) {
            int waits = door->visitors[i].step == WAITS;
            fds[i + 1] = (struct pollfd){.fd = waits ? -1 : door->visitors[i].fd, .events = POLLIN};
        }
        if (poll(fds, (nfds_t)door->n_visitors + 1, pause_ms(door)) < 0 && errno != EINTR) {
            return NULL;
        }
        attend_all(door, fds);
        if (fds[0].revents != 0) {
            let_in(door);
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

/** NULL: there is none to be had. */
static door_t *create(const tw_ip_place_t *place)
{
    door_t *door = calloc(1, sizeof(*door));
    pthread_t thread;

    if (!door || sodium_init() < 0) {
        free(door);
        return NULL;
    }
    door->process = getpid();
    memcpy(door->address, place->address, sizeof(door->address));
    LIST_INIT(&door->meetings);
    (void)pthread_mutex_init(&door->lock, NULL);
    door->listener = listen_at(place->address, place->port, &door->port);
    if (door->listener >= 0 && pthread_create(&thread, NULL, serve, door) == 0) {
        (void)pthread_setname_np(thread, "thinwire door");
        (void)pthread_detach(thread);
        return door;
    }
    if (door->listener >= 0) {
        (void)close(door->listener);
    }
    (void)pthread_mutex_destroy(&door->lock);
    free(door);
    return NULL;
}

/** Doors stay until the process ends. One for each address that NCCL has, and one at a port that was asked
 *  for. */
static door_t *doors[8];
static pthread_mutex_t doors_lock = PTHREAD_MUTEX_INITIALIZER;

static int serves(const door_t *door, const tw_ip_place_t *place)
{
    return memcmp(door->address, place->address, sizeof(door->address)) == 0 &&
           (place->port == 0 || place->port == door->port);
}

/** A forked process has none of its parent's threads. With the lock. */
static door_t *door_for(const tw_ip_place_t *place)
{
    size_t n = sizeof(doors) / sizeof(doors[0]);

    for (size_t i = 0; i < n; i++) {
        if (doors[i] && doors[i]->process != getpid()) {
            (void)close(doors[i]->listener);
            doors[i] = NULL; /* its memory may be in use by a thread that was not forked */
        }
        if (doors[i] && serves(doors[i], place)) {
            return doors[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (!doors[i]) {
            doors[i] = create(place);
            return doors[i];
        }
    }
    return NULL;
}

tw_status_t tw_ip_door_open(tw_ip_place_t *place)
{
    meeting_t *meeting = calloc(1, sizeof(*meeting));

    if (!meeting) {
        return TW_ERR_IO;
    }
    (void)pthread_mutex_lock(&doors_lock);
    door_t *door = door_for(place);
    (void)pthread_mutex_unlock(&doors_lock);
    if (!door) {
        free(meeting);
        return TW_ERR_IO;
    }
    memcpy(meeting->name, place->name, sizeof(meeting->name));
    memcpy(meeting->key, place->key, sizeof(meeting->key));
    (void)pthread_mutex_lock(&door->lock);
    LIST_INSERT_HEAD(&door->meetings, meeting, link);
    (void)pthread_mutex_unlock(&door->lock);
    place->port = door->port;
    return TW_OK;
}
