/* A rank: its tensors, and the library's communicator. */
#include <stdlib.h>

#include <xxhash.h>

#include "bench/collnet/collnet.h"

/** Bell-shaped enough: the sum of four uniform numbers. */
static float rank_value(uint64_t rank, uint64_t i)
{
    uint64_t key[2] = {rank, i}, bits = XXH3_64bits(key, sizeof(key));

    return (float)((double)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) /
                       65536.0 -
                   2.0);
}

static void rank_fill(collnet_rank_t *rank)
{
    for (size_t i = 0; i < rank->n_elems; i++) {
        rank->sum[i] = 0;
        for (int r = 0; r < rank->world; r++) {
            float value = rank_value((uint64_t)r, i);
            uint16_t stored;
            tw_convert_from_fp32(TW_TYPE_BF16, &value, 1, &stored, 1);
            tw_convert_to_fp32(TW_TYPE_BF16, &stored, &value, 1);
            rank->sum[i] += value;
            if (r == rank->rank) {
                rank->input[i] = stored;
            }
        }
    }
}

tw_status_t collnet_rank_init(collnet_rank_t *rank, const collnet_options_t *options)
{
    size_t n = options->bytes / sizeof(*rank->send);

    *rank = (collnet_rank_t){.options = options, .n_elems = n};
    TW_TRY(tw_coll_world_create(NULL, &rank->coll));
    rank->rank = tw_coll_rank(rank->coll);
    rank->world = tw_coll_size(rank->coll);
    TW_FAIL_IF(rank->world > COLLNET_RANKS_MAX, TW_ERR_UNSUPPORTED, "collnet: %d ranks, at most %d can be",
               rank->world, COLLNET_RANKS_MAX);
    rank->input = malloc(n * sizeof(*rank->input));
    rank->send = malloc(n * sizeof(*rank->send));
    rank->recv = malloc(n * sizeof(*rank->recv));
    rank->sum = malloc(n * sizeof(*rank->sum));
    TW_FAIL_IF(!rank->input || !rank->send || !rank->recv || !rank->sum, TW_ERR_NO_MEMORY,
               "rank %d: out of memory for %zu elements", rank->rank, n);
    rank_fill(rank);
    return TW_OK;
}

void collnet_rank_cleanup(collnet_rank_t *rank)
{
    tw_coll_destroy(rank->coll);
    free(rank->input);
    free(rank->send);
    free(rank->recv);
    free(rank->sum);
}
