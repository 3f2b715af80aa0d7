/** Part of attention.cuh: the backward pass on tensor cores. */
#pragma once

#include "trainer/cuda/attention_mma.cuh"

namespace tw_trainer_kernels
{

constexpr uint32_t backward_tile = 32;

/** Kernel: q, k, v, dy, lse, workspace -> dq. A block takes 128 queries, and loops over the keys they see. */
template <uint32_t COLUMNS>
struct MmaQueryGradients {
    static constexpr uint32_t tile = backward_tile;
    using Shared = MmaShared<COLUMNS, tile>;

    /** Statistics of a lane's two rows: log2 of the sum of exponentials; dot product of y and dy. */
    struct Statistics {
        float lse[2], dot[2];
    };

    static TW_DEVICE Statistics statistics(const AttentionHead<Bf16> &head, const MmaPlace &place)
    {
        Statistics of = {};
        TW_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            if (place.row(i) < head.seq_len) {
                of.lse[i] = head.a.attention.lse[head.statistic(place.row(i))] * log2_e;
                of.dot[i] = head.a.gradients.workspace[head.statistic(place.row(i))];
            }
        }
        return of;
    }

    /* Turn dp into the gradient of the scores. */
    static TW_DEVICE void differentiate(const MmaQueries<tile> &queries, uint32_t key, float factor,
                                        const Statistics &of, const MmaSum<tile> &s, MmaSum<tile> *dp)
    {
        const bool see_all = queries.see_all(key);
        TW_UNROLL
        for (uint32_t e = 0; e < 4 * (tile / 8); e++) {
            const uint32_t n = e / 4, i = e % 4 / 2;
            float *d = &dp->at[n][e % 4];
            const bool seen = see_all || queries.sees(i, key + queries.place.column(n, e % 2));
            const float p = tw_dev_exp2(tw_dev_fma(s.at[n][e % 4], factor, -of.lse[i]));
            *d = seen ? p * (*d - of.dot[i]) : 0;
        }
    }

    static TW_DEVICE void begin(const AttentionHead<Bf16> &head, uint32_t key,
                                Bf16 (*tiles)[tile * mma_pitch<COLUMNS>])
    {
        begin_rows<COLUMNS, tile>(head, head.k(), key, tiles[0]);
        begin_rows<COLUMNS, tile>(head, head.v(), key, tiles[1]);
    }

    static TW_DEVICE void run(const AttentionArgs &a)
    {
        __shared__ Shared shared;
        const size_t heads = a.attention.heads, blocks = ceil_div(a.attention.seq_len, mma_rows);
        const AttentionHead<Bf16> head(a, blockIdx.x / heads % a.attention.batch, blockIdx.x % heads);
        const uint32_t first = (uint32_t)(blocks - 1 - blockIdx.x / heads / a.attention.batch) * mma_rows;
        const uint32_t end = first + mma_rows < head.seq_len ? first + mma_rows : head.seq_len;
        const float factors[] = {a.factor, a.factor};
        const MmaRows<COLUMNS> q = take_rows<COLUMNS>(head, head.q(), first, shared.rows);
        const MmaRows<COLUMNS> dy = take_rows<COLUMNS>(head, head.dy(), first, shared.rows);
        const MmaQueries<tile> queries(head, first);
        const Statistics of = statistics(head, queries.place);
        MmaSum<COLUMNS> dq = {};
        uint32_t turn = 0, key = head.first_seen(first) / tile * tile;
        for (begin(head, key, shared.tiles[turn]); key < end; key += tile, turn ^= 1) {
            tw_dev_copy_wait();
            __syncthreads(); /* this tile is complete, and no thread reads the previous tile any more */
            if (key + tile < end) {
                begin(head, key + tile, shared.tiles[turn ^ 1]);
            }
            if (queries.see_some(key)) {
                const MmaSum<tile> s = multiply_rows<COLUMNS, tile>(q, shared.tiles[turn][0]);
                MmaSum<tile> dp = multiply_rows<COLUMNS, tile>(dy, shared.tiles[turn][1]);
                differentiate(queries, key, a.factor * log2_e, of, s, &dp);
                add_rows<COLUMNS, tile>(dp, shared.tiles[turn][0], &dq);
            }
        }
        write_rows(head, queries.place, dq, factors,
                   head.rows(a.gradients.dq, a.gradients.dq_stride, head.head));
    }
};

/** Kernel: q, k, v, dy, lse, workspace -> dk, dv. A block takes 128 keys of a k/v head, and loops over
 *  queries that attend to them, of all query heads that share it. Products are transposed: rows are keys. */
template <uint32_t COLUMNS>
struct MmaKeyGradients {
    static constexpr uint32_t tile = backward_tile;

    /** Statistics of a tile's queries: log of the sum of exponentials; dot product of y and dy. */
    struct Statistics {
        float lse[tile], dot[tile];
        uint32_t starts[tile];
    };
    struct Shared {
        MmaShared<COLUMNS, tile> rows;
        Statistics of[2];
    };
    struct State {
        MmaSum<COLUMNS> dk, dv;
    };

    /** The kernel's position: it loops over the tiles of queries of a head, then of the next head. */
    struct Walk {
        uint32_t head, query;
    };

    /** Returns the end of the queries whose tiles see some of the block's keys, which start at `key`. */
    static TW_DEVICE uint32_t end_of(const AttentionHead<Bf16> &head, uint32_t key)
    {
        uint32_t low = key / tile,
                 high =
                     (uint32_t)ceil_div(head.seq_len, tile); /* low sees some of the keys; high sees none */
        while (low + 1 < high) {
            const uint32_t middle = (low + high) / 2;
            const bool see = head.first_seen(middle * tile) < key + mma_rows;
            low = see ? middle : low;
            high = see ? high : middle;
        }
        return (low + 1) * tile;
    }

    /* Begin to fetch a tile's statistics. No element is both stored and copied, so their order is free. */
    static TW_DEVICE void begin_statistics(const AttentionHead<Bf16> &head, uint32_t query, Statistics *of)
    {
        const uint32_t i = threadIdx.x;
        const int32_t *starts = head.a.attention.starts;
        if (i >= tile) {
            return;
        }
        if (query + i >= head.seq_len) {
            of->lse[i] = 0, of->dot[i] = 0, of->starts[i] = 0;
            return;
        }
        const size_t at = head.statistic(query + i);
        tw_dev_copy_begin<4>(&of->lse[i], head.a.attention.lse + at);
        tw_dev_copy_begin<4>(&of->dot[i], head.a.gradients.workspace + at);
        if (starts) {
            tw_dev_copy_begin<4>(&of->starts[i], starts + head.batch * head.seq_len + query + i);
        } else {
            of->starts[i] = 0;
        }
    }

    static TW_DEVICE void begin(const AttentionArgs &a, size_t batch, const Walk &at, uint32_t turn,
                                Shared *shared)
    {
        const AttentionHead<Bf16> head(a, batch, at.head);
        begin_rows<COLUMNS, tile>(head, head.q(), at.query, shared->rows.tiles[turn][0]);
        begin_rows<COLUMNS, tile>(head, head.dy(), at.query, shared->rows.tiles[turn][1]);
        begin_statistics(head, at.query, &shared->of[turn]);
    }

    /* Turn scores s into probabilities, dp into the gradient of scores. Queries past the end give zeros. */
    static TW_DEVICE void differentiate(const AttentionHead<Bf16> &head, const MmaPlace &place,
                                        uint32_t query, const Statistics &of, bool see_all, MmaSum<tile> *s,
                                        MmaSum<tile> *dp)
    {
        const float factor = head.a.factor * log2_e;
        TW_UNROLL
        for (uint32_t e = 0; e < 2 * (tile / 8); e++) {
            const uint32_t n = e / 2, column = place.column(n, e % 2), at = query + column;
            const float lse = of.lse[column] * log2_e, dot = of.dot[column];
            const uint32_t low = see_all ? 0 : head.first_seen_of(at, of.starts[column]);
            TW_UNROLL
            for (uint32_t i = 0; i < 2; i++) {
                float *p = &s->at[n][2 * i + e % 2], *d = &dp->at[n][2 * i + e % 2];
                const bool seen = see_all || (place.row(i) <= at && place.row(i) >= low);
                *p = seen ? tw_dev_exp2(tw_dev_fma(*p, factor, -lse)) : 0;
                *d = seen ? *p * (*d - dot) : 0;
            }
        }
    }

    static TW_DEVICE void add_queries(const AttentionHead<Bf16> &head, const MmaPlace &place, uint32_t query,
                                      const MmaRows<COLUMNS> &k, const MmaRows<COLUMNS> &v,
                                      Bf16 (*tiles)[tile * mma_pitch<COLUMNS>], const Statistics &of,
                                      State *state)
    {
        const uint32_t end = head.seq_len - 1, last = query + tile - 1 < end ? query + tile - 1 : end;
        const uint32_t first_low = head.first_seen_of(query, of.starts[0]);
        const uint32_t last_low = head.first_seen_of(last, of.starts[last - query]);
        if (place.warp_first > last || place.warp_last() < first_low) {
            return; /* no query of the tile sees any of the warp's keys */
        }
        const bool see_all = query >= place.warp_last() && last_low <= place.warp_first;
        MmaSum<tile> s = multiply_rows<COLUMNS, tile>(k, tiles[0]);
        MmaSum<tile> dp = multiply_rows<COLUMNS, tile>(v, tiles[1]);
        differentiate(head, place, query, of, see_all, &s, &dp);
        add_rows<COLUMNS, tile>(s, tiles[1], &state->dv);
        add_rows<COLUMNS, tile>(dp, tiles[0], &state->dk);
    }

    static TW_DEVICE void run(const AttentionArgs &a)
    {
        __shared__ Shared shared;
        const uint32_t kv_heads = (uint32_t)a.attention.kv_heads;
        const uint32_t group = (uint32_t)a.attention.heads / kv_heads, kv_head = blockIdx.x % kv_heads;
        const size_t batch = blockIdx.x / kv_heads % a.attention.batch;
        const uint32_t key = (uint32_t)(blockIdx.x / kv_heads / a.attention.batch) * mma_rows;
        const AttentionHead<Bf16> head(a, batch, kv_head * group);
        const MmaRows<COLUMNS> k = take_rows<COLUMNS>(head, head.k(), key, shared.rows.rows);
        const MmaRows<COLUMNS> v = take_rows<COLUMNS>(head, head.v(), key, shared.rows.rows);
        const MmaPlace place(key);
        const uint32_t end = end_of(head, key), end_head = (kv_head + 1) * group;
        State state = {};
        Walk at = {kv_head * group, key};
        begin(a, batch, at, 0, &shared);
        for (uint32_t turn = 0; at.head < end_head; turn ^= 1) {
            const bool is_last = at.query + tile >= end; /* true: this is the head's last tile */
            const Walk next = {is_last ? at.head + 1 : at.head, is_last ? key : at.query + tile};
            tw_dev_copy_wait();
            __syncthreads(); /* this tile is complete, and no thread reads the previous tile any more */
            if (next.head < end_head) {
                begin(a, batch, next, turn ^ 1, &shared);
            }
            add_queries(head, place, at.query, k, v, shared.rows.tiles[turn], shared.of[turn], &state);
            at = next;
        }
        const float factors[] = {a.factor, a.factor}, ones[] = {1, 1};
        write_rows(head, place, state.dk, factors, head.rows(a.gradients.dk, a.gradients.dk_stride, kv_head));
        write_rows(head, place, state.dv, ones, head.rows(a.gradients.dv, a.gradients.dv_stride, kv_head));
    }
};

} // namespace tw_trainer_kernels
