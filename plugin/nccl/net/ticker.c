/* A thread for each device in use that moves on what NCCL has stopped asking for. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "plugin/nccl/net/state.h"

/* Soon while something may be left of what was posted; now and then after so many looks that found nothing. */
#define BUSY_NS 500000L
#define IDLE_NS 50000000L
#define QUIET_LOOKS 100

/* Returns 0 once it is to end. */
static int sleep_for(tw_net_domain_t *domain, long sleep_ns)
{
    struct timespec until;
    int ends;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += sleep_ns;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&domain->tick_lock);
    if (!domain->is_woken && !domain->ends) {
        (void)pthread_cond_timedwait(&domain->tick, &domain->tick_lock, &until);
    }
    domain->is_woken = 0;
    ends = domain->ends;
    pthread_mutex_unlock(&domain->tick_lock);
    return !ends;
}

/* Whoever has the lock moves things on himself. Returns the number of looks in a row that have found nothing. */
static int look(tw_net_domain_t *domain, int n_quiet)
{
    int is_quiet;

    if (pthread_mutex_trylock(&domain->lock) != 0) {
        return 0;
    }
    is_quiet = domain->n_turned == 0 && tw_p2p_progress(domain->p2p) != TW_OK && domain->n_posted == 0;
    n_quiet = !is_quiet ? 0 : n_quiet < QUIET_LOOKS ? n_quiet + 1 : n_quiet;
    domain->n_turned = domain->n_posted = 0;
    domain->is_idle = n_quiet == QUIET_LOOKS;
    pthread_mutex_unlock(&domain->lock);
    return n_quiet;
}

static void *tick(void *arg)
{
    tw_net_domain_t *domain = arg;
    int n_quiet = QUIET_LOOKS;

    while (sleep_for(domain, n_quiet < QUIET_LOOKS ? BUSY_NS : IDLE_NS)) {
        n_quiet = look(domain, n_quiet);
    }
    return NULL;
}

static void wake(tw_net_domain_t *domain, int to_end)
{
    pthread_mutex_lock(&domain->tick_lock);
    domain->is_woken = 1;
    domain->ends = to_end;
    (void)pthread_cond_signal(&domain->tick);
    pthread_mutex_unlock(&domain->tick_lock);
}

/* To wake it costs a system call, and its thread a processor: once, where it is idle. */
void tw_net_ticker_note(tw_net_domain_t *domain)
{
    domain->n_posted++;
    if (domain->is_idle) {
        domain->is_idle = 0;
        wake(domain, 0);
    }
}

static void locks_init(tw_net_domain_t *domain)
{
    pthread_condattr_t attributes;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&domain->tick, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_mutex_init(&domain->tick_lock, NULL);
}

static void locks_cleanup(tw_net_domain_t *domain)
{
    (void)pthread_mutex_destroy(&domain->tick_lock);
    (void)pthread_cond_destroy(&domain->tick);
}

tw_status_t tw_net_ticker_start(tw_net_domain_t *domain)
{
    int error;

    locks_init(domain);
    domain->ends = domain->is_woken = domain->n_posted = domain->n_turned = 0;
    domain->is_idle = 1;
    error = pthread_create(&domain->ticker, NULL, tick, domain);
    if (error != 0) {
        tw_error("net: %s: no thread: %s", domain->device->name, strerror(error));
        locks_cleanup(domain);
        return TW_ERR_INTERNAL;
    }
    (void)pthread_setname_np(domain->ticker, "thinwire net");
    return TW_OK;
}

void tw_net_ticker_stop(tw_net_domain_t *domain)
{
    wake(domain, 1);
    (void)pthread_join(domain->ticker, NULL);
    locks_cleanup(domain);
}
