/** The lossless encoder: the sample, and the tables made from it. */
#pragma once

#include "quant/cuda/lossless_scales.cuh"

/* ---- the sample ---------------------------------------------------------------------------------------- */

template <int TYPE>
struct tw_lossless_kernel_sample {
    using element = tw_lossless_element<TYPE>;
    static const uint32_t counters = sizeof(tw_lossless_counts_t) / 4 * TW_LOSSLESS_CLASSES;
    static const uint32_t tail_counters = TYPE == TW_TYPE_FP32 ? sizeof(tw_lossless_tail_counts_t) / 4 : 1;

    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        __shared__ tw_lossless_counts_t counts[TW_LOSSLESS_CLASSES];
        __shared__ uint32_t tails[tail_counters];
        uint32_t *own = (uint32_t *)counts, *all = (uint32_t *)job.counts;
        for (uint32_t i = threadIdx.x; i < counters; i += TW_ENTROPY_CUDA_THREADS) {
            own[i] = 0;
        }
        for (uint32_t i = threadIdx.x; i < tail_counters; i += TW_ENTROPY_CUDA_THREADS) {
            tails[i] = 0;
        }
        __syncthreads();
        const uint32_t n_live = job.state->n_live, run_elems = TW_LOSSLESS_SAMPLE_RUN;
        const uint32_t distance = tw_lossless_sample_distance(n_live ? n_live : 1);
        const uint32_t rest = n_live % distance;
        const uint32_t n = n_live / distance * run_elems + (rest < run_elems ? rest : run_elems);
        tw_lossless_cursor cursor = {0, 0, 0};
        for (uint32_t j = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x; j < n;
             j += gridDim.x * TW_ENTROPY_CUDA_THREADS) {
            count(job, j / run_elems * distance + j % run_elems, cursor, counts, tails);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < counters; i += TW_ENTROPY_CUDA_THREADS) {
            if (own[i]) {
                atomicAdd(&all[i], own[i]);
            }
        }
        for (uint32_t i = threadIdx.x; i < tail_counters; i += TW_ENTROPY_CUDA_THREADS) {
            if (tails[i]) {
                atomicAdd(&job.tail_counts[i], tails[i]);
            }
        }
    }

    /** Count coded element x in its class's counts, and its tail in `tails`. */
    static TW_DEVICE void count(const tw_lossless_cuda_job_t &job, uint32_t x, tw_lossless_cursor &cursor,
                                tw_lossless_counts_t *counts, uint32_t *tails)
    {
        const tw_lossless_place at = tw_lossless_place_of(job, x);
        uint32_t bits = tw_lossless_load<element::bytes>(job, at.element, cursor);
        uint16_t head = element::head(bits);
        bool columns = at.piece.flags & TW_LOSSLESS_FLAG_COLUMNS;
        int32_t scale = tw_lossless_scale_of(at.row);
        int32_t expected = scale + (columns ? job.columns[at.piece.first_column + at.column] : 0);
        int32_t above = (int32_t)tw_lossless_magnitude(head) - expected + 128;
        if (TYPE == TW_TYPE_FP32) {
            atomicAdd(&tails[tw_lossless_tail_octave(head, expected) * TW_LOSSLESS_TAIL_SYMBOLS +
                             tw_lossless_tail_symbol(element::tail(bits))],
                      1u);
        }
        tw_lossless_counts_t &of_class = counts[at.row >> TW_LOSSLESS_CLASS_SHIFT];
        if (tw_lossless_coded(head)) {
            atomicAdd(&of_class.above[above < 0 ? 0 : above > 255 ? 255 : above], 1u);
        } else {
            atomicAdd(&of_class.zeros, 1u);
        }
        for (uint32_t phase = 0; phase < TW_LOSSLESS_PHASES; phase++) {
            uint32_t share = columns ? 1 : (uint32_t)(scale & 3) == phase ? 4 : 0;
            if (share) {
                atomicAdd(&of_class.phases[phase], share);
            }
        }
        atomicAdd(&of_class.n, 1u);
    }
};

struct tw_lossless_kernel_model {
    static TW_DEVICE void run(const tw_lossless_cuda_job_t &job)
    {
        __shared__ uint32_t above[256];
        __shared__ uint32_t by_context[TW_LOSSLESS_TAIL_CONTEXTS][TW_LOSSLESS_TAIL_SYMBOLS];
        tw_lossless_cuda_state_t *state = job.state;
        const uint32_t t = threadIdx.x;
        uint32_t sum = 0;
        for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
            sum += job.counts[c].above[t];
        }
        above[t] = sum;
        __syncthreads();
        if (t == 0) {
            state->window = tw_lossless_window(above);
            tw_lossless_tails_choose((const uint32_t(*)[TW_LOSSLESS_TAIL_SYMBOLS])job.tail_counts,
                                     state->window, state->n_live, by_context, &state->tails);
        }
        __syncthreads();
        if (t < TW_LOSSLESS_CLASSES) {
            uint64_t in_sample = 0;
            for (uint32_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
                in_sample += job.counts[c].n;
            }
            int own = tw_lossless_table_of(&job.counts[t], t, state->window, state->n_live, in_sample,
                                           (tw_lossless_table_t *)state->tables[t]);
            atomicOr(&state->own, (uint32_t)own << t);
        }
        __syncthreads();
        if (t < TW_LOSSLESS_CONTEXTS) {
            uint16_t freq[TW_ENTROPY_SYMBOLS];
            tw_lossless_freq((const tw_lossless_table_t *)state->tables[t / TW_LOSSLESS_PHASES],
                             t % TW_LOSSLESS_PHASES, freq);
            tw_entropy_encode_table(freq, job.encode + t * TW_ENTROPY_SYMBOLS);
        }
        if (t < state->tails.n_tables) {
            uint16_t freq[TW_ENTROPY_SYMBOLS];
            tw_lossless_tail_freq(&state->tails.tables[t], freq);
            tw_entropy_encode_table(freq, job.encode_tails + t * TW_ENTROPY_SYMBOLS);
        }
    }
};
