/** Makes and destroys a keeper. */
#include "hpz/keeper.h"

#include <stdlib.h>

#include "hpz/keep_state.h"
#include "hpz/state.h"

typedef enum members { ALL, NODE, RAIL } members_t;

static tw_status_t make_group(const tw_hpz_keeper_t *keeper, tw_coll_t *coll, members_t members,
                              tw_coll_t **out)
{
    int n = 0, *ranks = malloc((size_t)keeper->world * sizeof(*ranks));
    TW_FAIL_IF(!ranks, TW_ERR_NO_MEMORY, "rank %d: out of memory for a group", keeper->rank);
    for (int r = 0; r < keeper->world; r++) {
        int is_in_node = tw_coll_node_of(coll, r) == keeper->node;
        int is_in_rail = tw_coll_local_of(coll, r) == keeper->local;
        if (members == ALL || (members == NODE ? is_in_node : is_in_rail)) {
            ranks[n++] = r;
        }
    }
    tw_status_t status = tw_coll_group_create(coll, ranks, n, out);
    free(ranks);
    return status;
}

static tw_status_t make_groups(tw_hpz_keeper_t *keeper, tw_coll_t *coll)
{
    TW_TRY(make_group(keeper, coll, ALL, &keeper->all_ranks));
    TW_TRY(make_group(keeper, coll, NODE, &keeper->in_node));
    TW_TRY(make_group(keeper, coll, RAIL, &keeper->rail));
    TW_TRY(make_group(keeper, coll, RAIL, &keeper->rail_records));
    tw_hpz_keeper_timeout_set(keeper, tw_coll_timeout(coll));
    return TW_OK;
}

static tw_status_t find_places(tw_hpz_keeper_t *keeper, const tw_coll_t *coll)
{
    keeper->rank = tw_coll_rank(coll);
    keeper->world = tw_coll_size(coll);
    keeper->n_nodes = tw_coll_n_nodes(coll);
    keeper->node = tw_coll_node_of(coll, keeper->rank);
    keeper->local = tw_coll_local_of(coll, keeper->rank);
    keeper->rail_ranks = calloc((size_t)keeper->n_nodes, sizeof(*keeper->rail_ranks));
    TW_FAIL_IF(!keeper->rail_ranks, TW_ERR_NO_MEMORY, "rank %d: out of memory for %d nodes", keeper->rank,
               keeper->n_nodes);
    for (int r = 0; r < keeper->world; r++) {
        TW_FAIL_IF(tw_coll_local_of(coll, r) >= keeper->world / keeper->n_nodes, TW_ERR_UNSUPPORTED,
                   "rank %d: %d ranks on %d nodes, but more than %d on node %d: kept units need as many "
                   "ranks on each",
                   keeper->rank, keeper->world, keeper->n_nodes, keeper->world / keeper->n_nodes,
                   tw_coll_node_of(coll, r));
        if (tw_coll_local_of(coll, r) == keeper->local) {
            keeper->rail_ranks[tw_coll_node_of(coll, r)] = r;
        }
    }
    return TW_OK;
}

static tw_status_t make_rooms(tw_hpz_keeper_t *keeper)
{
    size_t ranks = (size_t)keeper->world;
    keeper->segments = calloc(ranks, sizeof(*keeper->segments));
    keeper->in_node_counts =
        calloc(ranks * (ranks / (size_t)keeper->n_nodes), sizeof(*keeper->in_node_counts));
    TW_FAIL_IF(!keeper->segments || !keeper->in_node_counts, TW_ERR_NO_MEMORY,
               "rank %d: out of memory for %d ranks", keeper->rank, keeper->world);
    TW_TRY(tw_hpz_change_create(&keeper->encoder));
    return tw_hpz_change_create(&keeper->decoder);
}

static tw_status_t keep_start(tw_hpz_keeper_t *keeper)
{
    int error = pthread_create(&keeper->thread, NULL, tw_hpz_keeper_run, keeper);
    keeper->has_thread = error == 0;
    if (error != 0) {
        tw_error("rank %d: no thread for gathers: error %d", keeper->rank, error);
    }
    return error == 0 ? TW_OK : tw_status_from_errno(error);
}

static tw_status_t keep_create(tw_hpz_keeper_t *keeper, tw_coll_t *coll)
{
    tw_hpz_options_t options;
    TW_TRY(tw_config_init(&tw_hpz_config_table, &options));
    keeper->check_steps = (uint64_t)options.check_steps;
    TW_TRY(find_places(keeper, coll));
    TW_TRY(make_rooms(keeper));
    TW_TRY(make_groups(keeper, coll));
    return keep_start(keeper);
}

tw_status_t tw_hpz_keeper_create(tw_coll_t *coll, tw_hpz_keeper_t **out)
{
    tw_hpz_keeper_t *keeper = calloc(1, sizeof(*keeper));
    TW_FAIL_IF(!keeper, TW_ERR_NO_MEMORY, "out of memory for a keeper");
    pthread_mutex_init(&keeper->posting, NULL);
    pthread_mutex_init(&keeper->lock, NULL);
    pthread_cond_init(&keeper->changed, NULL);
    STAILQ_INIT(&keeper->queue);
    STAILQ_INIT(&keeper->spare);
    tw_status_t status = keep_create(keeper, coll);
    if (status != TW_OK) {
        tw_hpz_keeper_destroy(keeper);
        return status;
    }
    *out = keeper;
    return TW_OK;
}

static void stop(tw_hpz_keeper_t *keeper)
{
    if (keeper->has_thread) {
        pthread_mutex_lock(&keeper->lock);
        keeper->is_stopping = 1;
        pthread_cond_broadcast(&keeper->changed);
        pthread_mutex_unlock(&keeper->lock);
        pthread_join(keeper->thread, NULL);
    }
}

void tw_hpz_keeper_destroy(tw_hpz_keeper_t *keeper)
{
    if (!keeper) {
        return;
    }
    stop(keeper);
    tw_coll_destroy(keeper->rail_records);
    tw_coll_destroy(keeper->rail);
    tw_coll_destroy(keeper->in_node);
    tw_coll_destroy(keeper->all_ranks);
    for (tw_hpz_gather_t *gather; (gather = STAILQ_FIRST(&keeper->spare));) {
        STAILQ_REMOVE_HEAD(&keeper->spare, link);
        tw_hpz_gather_free(gather);
    }
    tw_hpz_change_destroy(keeper->encoder);
    tw_hpz_change_destroy(keeper->decoder);
    pthread_cond_destroy(&keeper->changed);
    pthread_mutex_destroy(&keeper->lock);
    pthread_mutex_destroy(&keeper->posting);
    free(keeper->segments);
    free(keeper->in_node_counts);
    free(keeper->rail_ranks);
    free(keeper);
}

void tw_hpz_keeper_timeout_set(tw_hpz_keeper_t *keeper, double timeout_sec)
{
    tw_coll_timeout_set(keeper->all_ranks, timeout_sec);
    tw_coll_timeout_set(keeper->in_node, timeout_sec);
    tw_coll_timeout_set(keeper->rail, timeout_sec);
    tw_coll_timeout_set(keeper->rail_records, timeout_sec);
}

static uint64_t sent_bytes(const tw_coll_t *coll)
{
    tw_coll_counters_t counters;
    tw_coll_counters_get((tw_coll_t *)coll, &counters);
    return counters.inter_node_bytes;
}

uint64_t tw_hpz_keeper_inter_node_bytes(const tw_hpz_keeper_t *keeper)
{
    return sent_bytes(keeper->rail) + sent_bytes(keeper->rail_records);
}
