/** Part of attention.cuh: kernels in tiles of 64 queries by 64 keys for what tensor cores do not do here:
 *  fp32, and heads of more than 128 channels.
 *
 *  Arithmetic is fp32 whatever the type, 67 TFLOPS at most on sm_90. A tile reads 64 D * 3 elements from the
 *  second cache for 64 * 64 * D * 4 FLOPs: 43 a byte of bf16, four times as many as the cache needs to keep
 *  up. So FLOPs are what counts.
 *
 *  A thread has 4 x 4 scores (rows 4 y + i, columns x + 16 j of thread (x, y) of 16 x 16) and 4 rows of
 *  D / 16 columns of a sum: 64 registers at D = 256, 32 at 128, 16 at 64. 128 registers or fewer up to
 *  D = 128, two blocks on a multiprocessor (16 warps); one block for dk and dv from 128 on, and for all but
 *  forwards at 256. Shared memory 35 KB: six blocks would fit. */
#pragma once

#include "trainer/cuda/attention_tiles.cuh"

namespace tw_trainer_kernels
{

/* ---- forwards ------------------------------------------------------------------------------------------ */

/** Kernel, q, k, v -> y, lse. */
template <class T, uint32_t COLUMNS>
struct ScalarForward {
    /** State of each of the thread's rows: the largest score so far, and the sum of exp(score - that). */
    struct State {
        float most[patch], total[patch];
        Sum<COLUMNS> sum;
    };

    /* Turn scores into exponentials, and correct the sums if the maximum has grown. */
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
        /* the last queries see most keys, so they come first */
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

/** What the backward pass needs of a query. */
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

/** Turns a score into its probability, and dp into the gradient by the product of q and k. */
TW_DEVICE void differentiate(const Query &query, uint32_t key, float factor, float *s, float *dp)
{
    const bool seen = query.exists && key <= query.at && key >= query.first_seen;
    *s = seen ? tw_dev_exp(*s - query.lse) : 0;
    *dp = seen ? *s * (*dp - query.dot) * factor : 0;
}

/** Kernel, q, k, v, dy, lse, workspace -> dq: a block takes 64 queries. */
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

/** Kernel, the same inputs -> dk, dv: a block takes 64 keys of a head of k and v. Tiles are transposed: rows
 *  are keys. */
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
                    break; /* later queries do not see the block's keys either */
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
