#include "collectives/model/bootstrap.h"

#include <string.h>

#define NS_PER_SEC 1e9
#define SLEEP_SEC 0.1 /**< longest sleep between two checks of the time limit */

tw_status_t tw_bootstrap_send(tw_bootstrap_t *boot, int member, tw_bootstrap_tag_t tag, const void *data,
                              size_t bytes, tw_bootstrap_message_t *message)
{
    *message = (tw_bootstrap_message_t){.member = member};
    boot->moved_ns = tw_time_ns();
    return tw_transport_send_post(boot->transport, boot->topo->peer[member], boot->tag + (uint64_t)tag, data,
                                  bytes, &message->request);
}

tw_status_t tw_bootstrap_recv(tw_bootstrap_t *boot, int member, tw_bootstrap_tag_t tag, void *data,
                              size_t bytes, tw_bootstrap_message_t *message)
{
    *message = (tw_bootstrap_message_t){.member = member};
    boot->moved_ns = tw_time_ns();
    return tw_transport_recv_post(boot->transport, boot->topo->peer[member], boot->tag + (uint64_t)tag, data,
                                  bytes, &message->request);
}

tw_status_t tw_bootstrap_test(tw_bootstrap_t *boot, tw_bootstrap_message_t *message)
{
    if (!message->request) {
        return TW_OK;
    }
    tw_status_t status = tw_transport_test(boot->transport, message->request);
    if (status != TW_IN_PROGRESS) {
        message->request = NULL;
        boot->moved_ns = tw_time_ns();
    }
    return status;
}

tw_status_t tw_bootstrap_step(tw_bootstrap_t *boot, int awaited)
{
    double limit_sec = boot->timeout_sec;
    tw_status_t status = tw_transport_progress(boot->transport);
    if (status != TW_IN_PROGRESS) {
        return status;
    }
    double still_sec = (double)(tw_time_ns() - boot->moved_ns) / NS_PER_SEC;
    TW_FAIL_IF(limit_sec > 0 && still_sec > limit_sec, TW_ERR_TIMEOUT,
               "rank %d: making a communicator: nothing has come from rank %d for %.1f s (TW_COLL_TIMEOUT)",
               tw_transport_rank(boot->transport), boot->topo->peer[awaited], still_sec);
    status = tw_transport_sleep(boot->transport,
                                limit_sec > 0 && limit_sec / 4 < SLEEP_SEC ? limit_sec / 4 : SLEEP_SEC);
    return status < 0 ? status : TW_OK;
}

void tw_bootstrap_cancel(tw_bootstrap_t *boot, tw_bootstrap_message_t *messages, int n)
{
    for (int i = 0; i < n; i++) {
        if (messages[i].request) {
            tw_transport_cancel(boot->transport, messages[i].request);
            messages[i].request = NULL;
        }
    }
}

tw_status_t tw_bootstrap_wait(tw_bootstrap_t *boot, tw_bootstrap_message_t *messages, int n)
{
    tw_status_t status = TW_OK;
    for (int i = 0; i < n && status == TW_OK; i++) {
        while ((status = tw_bootstrap_test(boot, &messages[i])) == TW_IN_PROGRESS) {
            status = tw_bootstrap_step(boot, messages[i].member);
            if (status != TW_OK) {
                break;
            }
        }
    }
    if (status != TW_OK) {
        tw_bootstrap_cancel(boot, messages, n);
    }
    return status;
}

/** Send `bytes` from each member to member 0, or from member 0 to each. On member 0, the bytes of member i
 *  are at data + i * stride. */
static tw_status_t run_star(tw_bootstrap_t *boot, tw_bootstrap_tag_t tag, int to_first, char *data,
                            size_t bytes, size_t stride)
{
    int is_first = boot->topo->rank == 0, n = is_first ? boot->topo->world - 1 : 1;
    tw_bootstrap_message_t messages[n + 1];
    tw_status_t status = TW_OK;
    memset(messages, 0, sizeof(messages));
    for (int i = 0; i < n && status == TW_OK; i++) {
        int member = is_first ? i + 1 : 0;
        char *at = is_first ? data + (size_t)member * stride : data;
        status = is_first == to_first ? tw_bootstrap_recv(boot, member, tag, at, bytes, &messages[i])
                                      : tw_bootstrap_send(boot, member, tag, at, bytes, &messages[i]);
    }
    if (status != TW_OK) {
        tw_bootstrap_cancel(boot, messages, n);
        return status;
    }
    return tw_bootstrap_wait(boot, messages, n);
}

tw_status_t tw_bootstrap_gather(tw_bootstrap_t *boot, const void *mine, size_t bytes, char *all)
{
    if (boot->topo->rank == 0 && bytes > 0) { /* with 0 bytes both may be NULL */
        memcpy(all, mine, bytes);
    }
    return run_star(boot, TW_BOOTSTRAP_GATHER, 1, boot->topo->rank == 0 ? all : (char *)mine, bytes, bytes);
}

tw_status_t tw_bootstrap_broadcast(tw_bootstrap_t *boot, void *data, size_t bytes)
{
    return run_star(boot, TW_BOOTSTRAP_BROADCAST, 0, data, bytes, 0);
}

tw_status_t tw_bootstrap_any(tw_bootstrap_t *boot, int *flag)
{
    char wishes[boot->topo->world], wish = *flag != 0;
    tw_status_t status = tw_bootstrap_gather(boot, &wish, 1, wishes);
    if (status == TW_OK && boot->topo->rank == 0) {
        for (int i = 0; i < boot->topo->world; i++) {
            wish |= wishes[i];
        }
    }
    status = status == TW_OK ? tw_bootstrap_broadcast(boot, &wish, 1) : status;
    *flag = wish != 0;
    return status;
}
