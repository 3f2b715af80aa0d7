/* The ticker, a thread for each domain in use: it makes progress when NCCL does not. */
#include <string.h>
#include <time.h>

#include "plugin/nccl/net/state.h"

/* Sleeps between turns: SOON_NS while there is something to do, then doubling up to LATER_NS. */
#define SOON_NS 500000L
#define LATER_NS 50000000L

/** Sleep for *sleep_ns, or until woken: *sleep_ns is then SOON_NS. Returns 0 if the ticker must end. */
static int sleep_for(tw_net_domain_t *domain, long *sleep_ns)
{
    struct timespec until;
    int ends;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += *sleep_ns;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&domain->tick_lock);
    if (!domain->is_woken && !domain->ends) {
        (void)pthread_cond_timedwait(&domain->tick, &domain->tick_lock, &until);
    }
    *sleep_ns = domain->is_woken ? SOON_NS : *sleep_ns;
    domain->is_woken = 0;
    ends = domain->ends;
    pthread_mutex_unlock(&domain->tick_lock);
    return !ends;
}

/** Make progress, unless NCCL's threads do: one holds the lock, or has tested requests since the last turn.
 *  Returns the length of the next sleep. */
static long ticker_turn(tw_net_domain_t *domain, long sleep_ns)
{
    if (pthread_mutex_trylock(&domain->lock) != 0) {
        return sleep_ns;
    }
    if (domain->n_open > 0 && domain->n_turned > 0) {
        sleep_ns = LATER_NS;
    } else if (tw_p2p_progress(domain->p2p) == TW_OK || tw_p2p_has_unsent(domain->p2p)) {
        sleep_ns = SOON_NS;
    } else {
        sleep_ns = 2 * sleep_ns < LATER_NS ? 2 * sleep_ns : LATER_NS;
    }
    domain->n_turned = 0;
    domain->is_idle = sleep_ns > SOON_NS;
    pthread_mutex_unlock(&domain->lock);
    return sleep_ns;
}

static void *tick(void *arg)
{
    tw_net_domain_t *domain = arg;
    long sleep_ns = LATER_NS;
    while (sleep_for(domain, &sleep_ns)) {
        sleep_ns = ticker_turn(domain, sleep_ns);
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

/** Wakes the ticker only once, from a long sleep: waking costs a system call and a context switch. */
void tw_net_ticker_wake(tw_net_domain_t *domain)
{
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
    locks_init(domain);
    domain->ends = domain->is_woken = domain->n_turned = domain->n_open = 0;
    domain->is_idle = 1;
    int error = pthread_create(&domain->ticker, NULL, tick, domain);
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
