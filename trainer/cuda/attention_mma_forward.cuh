/** Part of attention.cuh: the forward pass on tensor cores. */
#pragma once

#include "trainer/cuda/attention_mma.cuh"

namespace tw_trainer_kernels
{

/** Kernel: q, k, v -> y, lse. A block takes 128 queries of a head and loops over the keys they attend to. */
template <uint32_t COLUMNS>
struct MmaForward {
    static constexpr uint32_t tile = COLUMNS <= 64 ? 64 : 32;
    using Shared = MmaShared<COLUMNS, tile>;

    /** State of the lane's two rows: largest score (most); the lane's part of the sum of exp(score -
     *  most). */
    struct State {
        float most[2], total[2];
        MmaSum<COLUMNS> sum;
    };

    /* Replace scores by exponentials. If a row's maximum grows (rare after some tiles), correct its sums. */
    static TW_DEVICE void soften(const MmaQueries<tile> &queries, uint32_t key, float factor, MmaSum<tile> *s,
                                 State *state)
    {
        const bool see_all = queries.see_all(key);
        float corrections[2];
        TW_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            float most = state->most[i], total = 0;
            TW_UNROLL
            for (uint32_t e = 0; e < 2 * (tile / 8); e++) {
                float *of = &s->at[e / 2][2 * i + e % 2];
                if (!see_all && !queries.sees(i, key + queries.place.column(e / 2, e % 2))) {
                    *of = -INFINITY;
                }
                most = Larger()(*of, most);
            }
            most = combine_lanes<4>(most, Larger());
            const float base = most == -INFINITY ? 0 : most * factor;
            TW_UNROLL
            for (uint32_t e = 0; e < 2 * (tile / 8); e++) {
                float *of = &s->at[e / 2][2 * i + e % 2];
                *of = tw_dev_exp2(tw_dev_fma(*of, factor, -base));
                total += *of;
            }
            corrections[i] =
                most == state->most[i] ? 1 : tw_dev_exp2(tw_dev_fma(state->most[i], factor, -base));
            state->total[i] = tw_dev_fma(state->total[i], corrections[i], total);
            state->most[i] = most;
        }
        if (tw_dev_ballot(corrections[0] != 1 || corrections[1] != 1)) {
            TW_UNROLL
            for (uint32_t n = 0; n < COLUMNS / 8; n++) {
                state->sum.at[n][0] *= corrections[0], state->sum.at[n][1] *= corrections[0];
                state->sum.at[n][2] *= corrections[1], state->sum.at[n][3] *= corrections[1];
            }
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
        /* the last queries attend to most keys, so their blocks start first */
        const uint32_t first = (uint32_t)(blocks - 1 - blockIdx.x / heads / a.attention.batch) * mma_rows;
        const uint32_t end = first + mma_rows < head.seq_len ? first + mma_rows : head.seq_len;
        const MmaRows<COLUMNS> q = take_rows<COLUMNS>(head, head.q(), first, shared.rows);
        const MmaQueries<tile> queries(head, first);
        State state = {{-INFINITY, -INFINITY}, {}, {}};
        uint32_t turn = 0, key = head.first_seen(first) / tile * tile;
        for (begin(head, key, shared.tiles[turn]); key < end; key += tile, turn ^= 1) {
            tw_dev_copy_wait();
            __syncthreads(); /* this tile is complete, and no thread reads the previous tile any more */
            if (key + tile < end) {
                begin(head, key + tile, shared.tiles[turn ^ 1]);
            }
            if (queries.see_some(key)) {
                MmaSum<tile> s = multiply_rows<COLUMNS, tile>(q, shared.tiles[turn][0]);
                soften(queries, key, a.factor * log2_e, &s, &state);
                add_rows<COLUMNS, tile>(s, shared.tiles[turn][1], &state.sum);
            }
        }
        finish(head, queries.place, &state);
    }

    static TW_DEVICE void finish(const AttentionHead<Bf16> &head, const MmaPlace &place, State *state)
    {
        float inverse[2];
        TW_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const float total = combine_lanes<4>(state->total[i], Plus());
            inverse[i] = 1.0f / total;
            if (place.t == 0 && place.row(i) < head.seq_len) {
                head.a.attention.lse[head.statistic(place.row(i))] =
                    state->most[i] * head.a.factor + logf(total);
            }
        }
        write_rows(head, place, state->sum, inverse, head.rows(head.a.y, head.a.y_stride, head.head));
    }
};

} // namespace tw_trainer_kernels
