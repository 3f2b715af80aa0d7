/** Sleeping until there is something to do, and being woken. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "transport/ucx/state.h"

/** Longest sleep while a rank that has left may still be needed: its silence is judged when the caller tests. */
#define LEFT_SLEEP_SEC 0.1

tw_status_t tw_ucx_sleep_init(tw_ucx_transport_t *ucx)
{
    ucx->pollfds = calloc(2 + (size_t)ucx->n_workers, sizeof(*ucx->pollfds));
    if (!ucx->pollfds) {
        tw_error("rank %d: out of memory for what to sleep on", ucx->base.rank);
        return TW_ERR_NO_MEMORY;
    }
    ucx->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (ucx->wake_fd >= 0) {
        return TW_OK;
    }
    const int error = errno;
    tw_error("rank %d: no descriptor to be woken by: %s", ucx->base.rank, strerror(error));
    return tw_status_from_errno(error);
}

void tw_ucx_sleep_cleanup(tw_ucx_transport_t *ucx)
{
    free(ucx->pollfds);
    if (ucx->wake_fd >= 0) {
        close(ucx->wake_fd);
    }
}

/** 1: something is there already, do not sleep. */
static int arm(tw_ucx_transport_t *ucx)
{
    for (int i = 0; i < ucx->n_workers; i++) {
        if (ucx->workers[i].worker && ucp_worker_arm(ucx->workers[i].worker) != UCS_OK) {
            return 1;
        }
    }
    return 0;
}

static tw_status_t spin(tw_ucx_transport_t *ucx, double sec)
{
    const uint64_t until_ns = tw_time_ns() + (uint64_t)(sec * 1e9);
    tw_status_t status;
    do {
        status = tw_ucx_progress(&ucx->base);
    } while (status == TW_IN_PROGRESS && tw_time_ns() < until_ns);
    return status;
}

static int any_left(const tw_ucx_transport_t *ucx)
{
    uint64_t count;
    for (int r = 0; r < ucx->base.world; r++) {
        if (tw_monitor_gone(ucx->monitor, r, &count)) {
            return 1;
        }
    }
    return 0;
}

/** Until a message, a verdict or, unless it is -1, `wake_fd`. */
static tw_status_t sleep_until(tw_ucx_transport_t *ucx, int wake_fd, double timeout_sec)
{
    nfds_t n = 0;
    tw_status_t status = spin(ucx, ucx->options.spin < timeout_sec ? ucx->options.spin : timeout_sec);
    if (status != TW_IN_PROGRESS) {
        return status;
    }
    if (arm(ucx)) {
        return TW_OK;
    }
    if (timeout_sec > LEFT_SLEEP_SEC && any_left(ucx)) {
        timeout_sec = LEFT_SLEEP_SEC;
    }
    ucx->pollfds[n++] = (struct pollfd){.fd = tw_monitor_event_fd(ucx->monitor), .events = POLLIN};
    ucx->pollfds[n++] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    for (int i = 0; i < ucx->n_workers; i++) {
        if (ucx->workers[i].worker) {
            ucx->pollfds[n++] = (struct pollfd){.fd = ucx->workers[i].event_fd, .events = POLLIN};
        }
    }
    const struct timespec timeout = {(time_t)timeout_sec,
                                     (long)((timeout_sec - (double)(time_t)timeout_sec) * 1e9)};
    const int ready = ppoll(ucx->pollfds, n, &timeout, NULL);
    if (ucx->pollfds[0].revents) {
        tw_monitor_clear_event(ucx->monitor);
    }
    if (ucx->pollfds[1].revents) {
        (void)eventfd_read(wake_fd, &(eventfd_t){0});
    }
    if (tw_monitor_failed_rank(ucx->monitor) >= 0) {
        return TW_ERR_PEER;
    }
    return ready > 0 ? TW_OK : TW_IN_PROGRESS;
}

tw_status_t tw_ucx_sleep(tw_transport_t *transport, double timeout_sec)
{
    tw_ucx_transport_t *ucx = tw_ucx_of(transport);
    return sleep_until(ucx, ucx->wake_fd, timeout_sec);
}

tw_status_t tw_ucx_nap(tw_ucx_transport_t *ucx, double timeout_sec)
{
    return sleep_until(ucx, -1, timeout_sec);
}

void tw_ucx_wake(tw_transport_t *transport)
{
    (void)eventfd_write(tw_ucx_of(transport)->wake_fd, 1); /* can only fail where it is readable already */
}
