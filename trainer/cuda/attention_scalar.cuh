/** Part of attention.cuh: kernels in tiles of 64 queries by 64 keys, without tensor cores: for fp32, and for
 *  heads of more than 128 channels.
 *
 *  Arithmetic is fp32 for both types, at most 67 TFLOPS on sm_90. A tile reads 64 D * 3 elements from the L2
 *  cache for 64 * 64 * D * 4 FLOPs: 43 FLOPs a byte of bf16, four times what the cache's bandwidth requires.
 *  So FLOPs are the limit.
 *
 *  A thread (x, y) of 16 x 16 holds 4 x 4 scores (rows 4 y + i, columns x + 16 j), and 4 rows of D / 16
 *  columns of a sum: 64 registers at D = 256, 32 at 128, 16 at 64. Up to D = 128 threads have at most 128
 *  registers, so two blocks (16 warps) fit on a multiprocessor; only one fits for dk and dv at D >= 128, and
 *  for dq at 256. Shared memory is 35 KB, so six blocks would fit. */
#pragma once

#include "trainer/cuda/attention_tiles.cuh"

namespace tw_trainer_kernels
{

/* ---- forwards ------------------------------------------------------------------------------------------ */

/** Kernel: q, k, v -> y, lse. */
template <class T, uint32_t COLUMNS>
struct ScalarForward {
    /** State of each of the thread's rows: the largest score so far (most); sum of exp(score - most). */
    struct State {
        float most[patch], total[patch];
        Sum<COLUMNS> sum;
    };

    /* Replace scores by exponentials, and correct the sums if a row's maximum has grown. */
    static TW_DEVICE void soften(const TileHead<T> &head, uint32_t query, uint32_t key, Patch *s,
                                 State *state)
    {
        TW_UNROLL
        for (uint32_t i = 0; i < patch; i++) {
            bool seen[patch];
            float most = state->most[i];
            TW_UNROLL
            for (uint32_t j = 0; j < patch; j++) {
                seen[j] = head.sees(query + i, key + side * j);
                most = Larger()(seen[j] ? s->at[i][j] : -INFINITY, most);
            }
            most = combine_lanes<side>(most, Larger());
            const float correction = most == state->most[i] ? 1 : tw_dev_exp(state->most[i] - most);
            float total = 0;
            TW_UNROLL
            for (uint32_t j = 0; j < patch; j++) {
                s->at[i][j] = seen[j] ? tw_dev_exp(s->at[i][j] - most) : 0;
                total += s->at[i][j];
            }
            state->total[i] = state->total[i] * correction + combine_lanes<side>(total, Plus());
            state->most[i] = most;
            TW_UNROLL
            for (uint32_t k = 0; k < COLUMNS / side; k++) {
                state->sum.at[i][k] *= correction;
            }
        }
    }

    static TW_DEVICE void run(const AttentionArgs &a)
    {
        __shared__ AttentionShared shared;
        const size_t heads = a.attention.heads, tiles = ceil_div(a.attention.seq_len, tile);
        const TileHead<T> head(a, blockIdx.x / heads % a.attention.batch, blockIdx.x % heads);
        /* the last queries attend to most keys, so their blocks start first */
        const uint32_t first = (uint32_t)(tiles - 1 - blockIdx.x / heads / a.attention.batch) * tile;
        const float factor = head.a.factor;
        State state = {};
        TW_UNROLL
        for (uint32_t i = 0; i < patch; i++) {
            state.most[i] = -INFINITY;
        }
        for (uint32_t key = head.first_seen(first) / tile * tile; key <= first; key += tile) {
            Patch s = multiply_tile<T>(head, &shared, head.q(), first, head.k(), key, factor);
            soften(head, first + patch * head.y, key + head.x, &s, &state);
            share_tile(&shared, head.x, head.y, s);
            add_product<T>(head, &shared, head.v(), key, &state.sum);
        }
        finish(head, first, &state);
    }

    static TW_DEVICE void finish(const TileHead<T> &head, uint32_t first, State *state)
    {
        float inverse[patch];
        TW_UNROLL
        for (uint32_t i = 0; i < patch; i++) {
            const uint32_t row = first + patch * head.y + i;
            inverse[i] = 1.0f / state->total[i];
            if (head.x == 0 && row < head.seq_len) {
                head.a.attention.lse[head.statistic(row)] = state->most[i] + logf(state->total[i]);
            }
        }
        write_sum(head, state->sum, inverse, head.rows(head.a.y, head.a.y_stride, head.head), first);
    }
};

/* ---- backwards ----------------------------------------------------------------------------------------- */

/** A query's values for the backward pass. */
struct Query {
    float lse, dot;
    uint32_t first_seen, at;
    bool exists;
};

template <class T>
TW_DEVICE Query query_at(const TileHead<T> &head, uint32_t row)
{
    Query query = {0, 0, 0, row, row < head.seq_len};
    if (query.exists) {
        query.lse = head.a.attention.lse[head.statistic(row)];
        query.dot = head.a.gradients.workspace[head.statistic(row)];
        query.first_seen = head.first_seen(row);
    }
    return query;
}

/** Turns a score into its probability, and dp into the gradient of the dot product of q and k. */
TW_DEVICE void differentiate(const Query &query, uint32_t key, float factor, float *s, float *dp)
{
    const bool seen = query.exists && key <= query.at && key >= query.first_seen;
    *s = seen ? tw_dev_exp(*s - query.lse) : 0;
    *dp = seen ? *s * (*dp - query.dot) * factor : 0;
}

/** Kernel: q, k, v, dy, lse, workspace -> dq. A block takes 64 queries. */
template <class T, uint32_t COLUMNS>
struct ScalarQueries {
    static TW_DEVICE void run(const AttentionArgs &a)
    {
        __shared__ AttentionShared shared;
        const size_t heads = a.attention.heads, tiles = ceil_div(a.attention.seq_len, tile);
        const TileHead<T> head(a, blockIdx.x / heads % a.attention.batch, blockIdx.x % heads);
        const uint32_t first = (uint32_t)(tiles - 1 - blockIdx.x / heads / a.attention.batch) * tile;
        const float factor = a.factor, ones[patch] = {1, 1, 1, 1};
        Query queries[patch];
        TW_UNROLL
        for (uint32_t i = 0; i < patch; i++) {
            queries[i] = query_at(head, first + patch * head.y + i);
        }
        Sum<COLUMNS> dq = {};
        for (uint32_t key = head.first_seen(first) / tile * tile; key <= first; key += tile) {
            Patch s = multiply_tile<T>(head, &shared, head.q(), first, head.k(), key, factor);
            Patch dp = multiply_tile<T>(head, &shared, head.dy(), first, head.v(), key, 1);
            TW_UNROLL
            for (uint32_t i = 0; i < patch; i++) {
                TW_UNROLL
                for (uint32_t j = 0; j < patch; j++) {
                    differentiate(queries[i], key + head.x + side * j, factor, &s.at[i][j], &dp.at[i][j]);
                }
            }
            share_tile(&shared, head.x, head.y, dp);
            add_product<T>(head, &shared, head.k(), key, &dq);
        }
        write_sum(head, dq, ones, head.rows(a.gradients.dq, a.gradients.dq_stride, head.head), first);
    }
};

/** Kernel: q, k, v, dy, lse, workspace -> dk, dv. A block takes 64 keys of a k/v head; rows are keys. */
template <class T, uint32_t COLUMNS>
struct ScalarKeys {
    struct State {
        Sum<COLUMNS> dk, dv;
    };

    static TW_DEVICE void add_queries(const TileHead<T> &head, AttentionShared *shared, uint32_t key,
                                      uint32_t first, State *state)
    {
        const float factor = head.a.factor;
        Patch s = multiply_tile<T>(head, shared, head.k(), key, head.q(), first, factor);
        Patch dp = multiply_tile<T>(head, shared, head.v(), key, head.dy(), first, 1);
        TW_UNROLL
        for (uint32_t j = 0; j < patch; j++) {
            const Query query = query_at(head, first + head.x + side * j);
            TW_UNROLL
            for (uint32_t i = 0; i < patch; i++) {
                differentiate(query, key + patch * head.y + i, factor, &s.at[i][j], &dp.at[i][j]);
            }
        }
        share_tile(shared, head.x, head.y, s);
        add_product<T>(head, shared, head.dy(), first, &state->dv);
        share_tile(shared, head.x, head.y, dp);
        add_product<T>(head, shared, head.q(), first, &state->dk);
    }

    static TW_DEVICE void run(const AttentionArgs &a)
    {
        __shared__ AttentionShared shared;
        const size_t kv_heads = a.attention.kv_heads, group = a.attention.heads / kv_heads;
        const size_t batch = blockIdx.x / kv_heads % a.attention.batch, kv_head = blockIdx.x % kv_heads;
        const uint32_t key = (uint32_t)(blockIdx.x / kv_heads / a.attention.batch) * tile;
        const float ones[patch] = {1, 1, 1, 1};
        State state = {};
        for (size_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            const TileHead<T> head(a, batch, h);
            for (uint32_t first = key; first < head.seq_len; first += tile) {
                if (head.first_seen(first) >= key + tile) {
                    break; /* later queries do not attend to the block's keys, either */
                }
                add_queries(head, &shared, key, first, &state);
            }
        }
        const TileHead<T> head(a, batch, kv_head * group);
        write_sum(head, state.dk, ones, head.rows(a.gradients.dk, a.gradients.dk_stride, kv_head), key);
        write_sum(head, state.dv, ones, head.rows(a.gradients.dv, a.gradients.dv_stride, kv_head), key);
    }
};

} // namespace tw_trainer_kernels
