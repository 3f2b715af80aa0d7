/* A thread for each device in use that moves on what NCCL has stopped asking for. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "plugin/nccl/net/state.h"

/* Soon while something may be left of what was posted; now and then after so many looks that found nothing. */
#define BUSY_NS 500000L
#define IDLE_NS 50000000L
#define QUIET_LOOKS 100

static void wait_for_tick(tw_net_domain_t *domain, long wait_ns)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += wait_ns;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    (void)pthread_cond_timedwait(&domain->tick, &domain->lock, &until);
}

static void *tick(void *arg)
{
    tw_net_domain_t *domain = arg;
    int n_quiet = QUIET_LOOKS;

    pthread_mutex_lock(&domain->lock);
    while (!domain->ends) {
        wait_for_tick(domain, n_quiet < QUIET_LOOKS ? BUSY_NS : IDLE_NS);
        if (domain->ends) {
            break;
        }
        n_quiet = n_quiet < QUIET_LOOKS ? n_quiet + 1 : n_quiet;
        if (tw_p2p_progress(domain->p2p) == TW_OK || domain->n_posted > 0) {
            n_quiet = 0;
        }
        domain->n_posted = 0;
    }
    pthread_mutex_unlock(&domain->lock);
    return NULL;
}

/* The first one since its last look wakes it where it is idle. */
void tw_net_ticker_note(tw_net_domain_t *domain)
{
    if (domain->n_posted++ == 0) {
        (void)pthread_cond_signal(&domain->tick);
    }
}

tw_status_t tw_net_ticker_start(tw_net_domain_t *domain)
{
    pthread_condattr_t attributes;
    int error;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&domain->tick, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    domain->ends = domain->n_posted = 0;
    error = pthread_create(&domain->ticker, NULL, tick, domain);
    if (error != 0) {
        tw_error("net: %s: no thread: %s", domain->device->name, strerror(error));
        (void)pthread_cond_destroy(&domain->tick);
        return TW_ERR_INTERNAL;
    }
    (void)pthread_setname_np(domain->ticker, "thinwire net");
    return TW_OK;
}

void tw_net_ticker_stop(tw_net_domain_t *domain)
{
    pthread_mutex_lock(&domain->lock);
    domain->ends = 1;
    (void)pthread_cond_signal(&domain->tick);
    pthread_mutex_unlock(&domain->lock);
    (void)pthread_join(domain->ticker, NULL);
    (void)pthread_cond_destroy(&domain->tick);
}
