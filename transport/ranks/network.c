/** The ranks of a job as peers: their devices, addresses and connections. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "transport/control/socket.h"
#include "transport/ranks/state.h"

/** Number of descriptors that the process needs for other things. */
#define SPARE_DESCRIPTORS 32
/** Longest sleep while connections are being opened, before sending is tried again. */
#define HELLO_SLEEP_SEC 0.001
/** UCX's transport posix keeps its segments in this folder: 6 MB per rank were seen. With SHM_OTHER_TLS as
 *  TW_NODE_TLS, UCX does not need the folder. */
#define SHM_FOLDER "/dev/shm"
#define SHM_RANK_BYTES ((size_t)7 << 20)
#define SHM_OTHER_TLS "sysv,cma"

/* ---- devices ------------------------------------------------------------------------------------------- */

/** Return the devices that the user names; if there are none, the device that leads to rank 0. If that is
 *  loopback inside rank 0's node, return the device by which other nodes reach rank 0. */
const char *tw_ranks_device_list(const tw_ranks_t *ranks)
{
    const tw_rendezvous_t *rendezvous = &ranks->rendezvous;
    const tw_msg_member_t *members = rendezvous->members;
    if (ranks->options.net_devices[0]) {
        return ranks->options.net_devices;
    }
    const int inside =
        !strcmp(rendezvous->device, "lo") && members[ranks->base.rank].node_id == members[0].node_id;
    return inside && rendezvous->settings.device[0] ? rendezvous->settings.device : rendezvous->device;
}

int tw_ranks_shares_memory(const tw_ranks_t *ranks, int rank)
{
    const tw_msg_member_t *members = ranks->rendezvous.members;
    return members[rank].shm_id == members[ranks->base.rank].shm_id;
}

static void descriptors_check(const tw_ranks_t *ranks)
{
    struct rlimit limit;
    int n_devices = 1;
    for (const char *at = tw_ranks_device_list(ranks); (at = strchr(at, ',')); at++) {
        n_devices++;
    }
    const int lowest_free = dup(tw_monitor_event_fd(ranks->monitor));
    if (lowest_free >= 0) {
        close(lowest_free);
    }
    const size_t n_connections =
        (size_t)ranks->n_far * (1 + (size_t)n_devices * ranks->rendezvous.settings.streams);
    if (getrlimit(RLIMIT_NOFILE, &limit)) {
        return;
    }
    const size_t n_open = lowest_free >= 0 ? (size_t)lowest_free : (size_t)limit.rlim_cur;
    if (limit.rlim_cur < n_open + n_connections + SPARE_DESCRIPTORS) {
        tw_warn("rank %d: up to %zu connections to other nodes, with what is open already, may need %zu "
                "descriptors, and RLIMIT_NOFILE is %zu: raise it (ulimit -n)",
                ranks->base.rank, n_connections, n_open + n_connections + SPARE_DESCRIPTORS,
                (size_t)limit.rlim_cur);
    }
}

/* ---- shared memory ------------------------------------------------------------------------------------- */

/** Return 1 if SHM_FOLDER has room for UCX's segments of n_ranks ranks; else `why` says why not. */
static int shm_folder_serves(int n_ranks, char *why, size_t why_bytes)
{
    struct statvfs folder;
    char there[32], needed[32];
    if (statvfs(SHM_FOLDER, &folder)) {
        snprintf(why, why_bytes, "is not there");
        return 0;
    }
    if (folder.f_flag & ST_RDONLY || access(SHM_FOLDER, W_OK)) {
        snprintf(why, why_bytes, "cannot be written to");
        return 0;
    }
    const size_t free_bytes = tw_size_mul(folder.f_bavail, folder.f_frsize);
    const size_t needed_bytes = SHM_RANK_BYTES * (size_t)n_ranks;
    snprintf(why, why_bytes, "has %s free of %s for %d ranks",
             tw_format_bytes(free_bytes, there, sizeof(there)),
             tw_format_bytes(needed_bytes, needed, sizeof(needed)), n_ranks);
    return free_bytes >= needed_bytes;
}

/** Check that /dev/shm has room for all ranks of the node, none of which uses it yet. If it has not, change
 *  TW_NODE_TLS. UCX would only say that it is out of resources. */
static tw_status_t shm_check(tw_ranks_t *ranks)
{
    char why[128];
    if (!ranks->n_near || strcmp(ranks->options.node_tls, "posix,sysv,cma") != 0 ||
        shm_folder_serves(ranks->n_near + 1, why, sizeof(why))) {
        return TW_OK;
    }
    tw_warn("rank %d: " SHM_FOLDER " %s: TW_NODE_TLS=" SHM_OTHER_TLS
            " is used inside the node, which is slower",
            ranks->base.rank, why);
    return tw_config_set(&tw_transport_config_table, &ranks->options, "TW_NODE_TLS", SHM_OTHER_TLS);
}

/* ---- what the job decides ------------------------------------------------------------------------------ */

/* The hooks. When the transport is destroyed, they may be called after the monitor is gone. */

static int is_over(void *arg)
{
    const tw_ranks_t *ranks = arg;
    return !ranks->monitor || tw_ranks_job_failed(ranks);
}

static void on_lost(void *arg, int id, const char *why)
{
    const tw_ranks_t *ranks = arg;
    if (ranks->monitor) {
        tw_monitor_suspect(ranks->monitor, id, why);
    }
}

/** End the job, because a peer or this rank (id -1) has failed. */
static void on_failed(void *arg, int id, const char *why)
{
    const tw_ranks_t *ranks = arg;
    if (ranks->monitor) {
        tw_monitor_fail(ranks->monitor, id < 0 ? ranks->base.rank : id, why);
    }
}

static int has_left(void *arg, int id)
{
    const tw_ranks_t *ranks = arg;
    uint64_t count;
    return ranks->monitor && tw_monitor_gone(ranks->monitor, id, &count);
}

static const tw_p2p_hooks_t hooks = {
    .is_over = is_over, .lost = on_lost, .failed = on_failed, .has_left = has_left};

static tw_status_t open_own_end(tw_ranks_t *ranks, const char *token)
{
    char name[32];
    const tw_msg_settings_t *settings = &ranks->rendezvous.settings;
    const tw_p2p_params_t params = {.name = name,
                                    .hooks = &hooks,
                                    .arg = ranks,
                                    .n_peers = ranks->base.world,
                                    .node_tls = ranks->n_near ? ranks->options.node_tls : NULL,
                                    .net_tls = ranks->n_far ? ranks->options.net_tls : NULL,
                                    .net_devices = tw_ranks_device_list(ranks),
                                    .streams = (int)settings->streams,
                                    .token = token,
                                    .encrypt = ranks->options.net_encrypt,
                                    .chunk_bytes = settings->chunk_bytes,
                                    .eager_bytes = settings->eager_bytes,
                                    /* An announced message waits for RTS and CTS, and RTS waits behind the
                                     * data that fills the link: at 1 Gb/s all-gathers of 64 KB to 4 MB take
                                     * up to 1.2 times as long. */
                                    .eager_alone_bytes = settings->chunk_bytes,
                                    .spin_sec = ranks->options.spin,
                                    .timeout_sec = ranks->peer_timeout_sec};
    snprintf(name, sizeof(name), "rank %d", ranks->base.rank);
    if (ranks->n_far) {
        descriptors_check(ranks);
    }
    tw_status_t status = tw_p2p_create(&params, &ranks->p2p);
    ranks->base.takes[TW_MEM_CUDA] = !status && tw_p2p_takes_cuda(ranks->p2p);
    return status;
}

/* ---- everyone's addresses ------------------------------------------------------------------------------ */

static void count_others(tw_ranks_t *ranks)
{
    for (int r = 0; r < ranks->base.world; r++) {
        const int near = tw_ranks_shares_memory(ranks, r);
        ranks->n_near += near && r != ranks->base.rank;
        ranks->n_far += !near;
    }
}

static tw_status_t peers_add(tw_ranks_t *ranks, const tw_msg_blob_t *cards)
{
    tw_status_t status = TW_OK;
    for (int r = 0; r < ranks->base.world && !status; r++) {
        tw_p2p_peer_t *peer = NULL;
        const tw_p2p_peer_params_t params = {.id = r,
                                             .known_as = ranks->base.rank,
                                             .is_near = tw_ranks_shares_memory(ranks, r),
                                             .is_self = r == ranks->base.rank,
                                             .connects = ranks->base.rank < r,
                                             .card = cards[r].data,
                                             .card_bytes = cards[r].bytes};
        status = tw_p2p_peer_add(ranks->p2p, &params, &peer);
        ranks->base.takes[TW_MEM_CUDA] &= !status && tw_p2p_peer_takes_cuda(peer);
    }
    return status;
}

static tw_status_t exchange_cards(tw_ranks_t *ranks, tw_msg_blob_t *all)
{
    void *card = NULL;
    size_t bytes = 0;
    tw_status_t status = tw_p2p_card(ranks->p2p, &card, &bytes);
    const tw_msg_blob_t own = {card, (uint32_t)bytes};
    status = status ? status : tw_monitor_exchange(ranks->monitor, &own, all);
    free(card);
    return status ? status : peers_add(ranks, all);
}

/* ---- connections --------------------------------------------------------------------------------------- */

/** Return a rank with connections that are not open yet; -1 if there is none. */
static int awaited(const tw_ranks_t *ranks)
{
    for (int r = 0; r < ranks->base.world; r++) {
        if (!tw_p2p_peer_is_open(tw_p2p_peer_find(ranks->p2p, r))) {
            return r;
        }
    }
    return -1;
}

static tw_status_t greet(tw_ranks_t *ranks)
{
    for (int r = 0; r < ranks->base.world; r++) {
        TW_TRY(tw_p2p_peer_greet(tw_p2p_peer_find(ranks->p2p, r)));
    }
    return TW_OK;
}

/** Open all connections, and then accept no more. If a rank fails meanwhile, later calls report it. */
static tw_status_t greet_all(tw_ranks_t *ranks)
{
    const uint64_t until_ns = tw_connection_deadline(ranks->options.join_timeout);
    tw_status_t status = greet(ranks);
    for (int late; !status && (late = awaited(ranks)) >= 0;) {
        if (tw_time_ns() > until_ns) {
            tw_monitor_fail(ranks->monitor, late, "its connections were not open in time");
        }
        status = tw_p2p_progress(ranks->p2p);
        if (status == TW_IN_PROGRESS) {
            status = tw_ranks_nap(ranks, HELLO_SLEEP_SEC);
        }
        status = status == TW_IN_PROGRESS ? TW_OK : status;
    }
    tw_p2p_shut(ranks->p2p);
    return status == TW_ERR_PEER ? TW_OK : status;
}

tw_status_t tw_ranks_network_open(tw_ranks_t *ranks, const char *token)
{
    tw_msg_blob_t *all = calloc((size_t)ranks->base.world, sizeof(*all));
    count_others(ranks);
    tw_status_t status = all ? shm_check(ranks) : TW_ERR_NO_MEMORY;
    status = status ? status : open_own_end(ranks, token);
    status = status ? status : exchange_cards(ranks, all);
    free(all);
    return status ? status : greet_all(ranks);
}
