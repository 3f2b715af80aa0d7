/** Loads and stores elements for the lossless delta's kernels, and predicts their changes. */
#pragma once

#include "quant/cuda/delta_job.h"
#include "quant/cuda/entropy.cuh"

/* ---- memory -------------------------------------------------------------------------------------------- */

/** The segment that a thread reads and writes. It stays until `seek` gets an element in another segment. */
struct tw_delta_cursor {
    uint64_t first, end, old_values, new_values, states;

    TW_DEVICE void seek(const tw_delta_cuda_job_t &job, uint64_t element)
    {
        if (element - first < end - first) {
            return;
        }
        const tw_delta_cuda_segment_t *segments = job.segments;
        uint32_t s = tw_entropy_last(job.n_segments, element, [&](uint32_t i) { return segments[i].first; });
        first = segments[s].first;
        end = segments[s + 1].first;
        old_values = segments[s].old_values;
        new_values = segments[s].new_values;
        states = segments[s].states;
    }
    /** Seek an element. Returns whether the n elements from it on are all in its segment. */
    TW_DEVICE bool covers(const tw_delta_cuda_job_t &job, uint64_t element, uint32_t n)
    {
        seek(job, element);
        return end - element >= n;
    }
    TW_DEVICE const uint8_t *old_at(uint64_t element) const
    {
        return (const uint8_t *)(uintptr_t)old_values + 2 * (element - first);
    }
    TW_DEVICE uint8_t *new_at(uint64_t element) const
    {
        return (uint8_t *)(uintptr_t)new_values + 2 * (element - first);
    }
    TW_DEVICE uint8_t *state_at(uint64_t element) const
    {
        return (uint8_t *)(uintptr_t)states + (element - first);
    }
    TW_DEVICE uint16_t get_old(uint64_t element) const
    {
        return (uint16_t)tw_dev_load_element<2>(old_at(element));
    }
    TW_DEVICE uint16_t get_new(uint64_t element) const
    {
        return (uint16_t)tw_dev_load_element<2>(new_at(element));
    }
    /** The element's state; 0 if the job has no states. */
    TW_DEVICE uint8_t get_state(uint64_t element) const
    {
        return (uint8_t)(states ? tw_dev_load_element<1>(state_at(element)) : 0);
    }
    TW_DEVICE void put_new(uint64_t element, uint32_t value) const
    {
        tw_dev_store_element<2>(new_at(element), value);
    }
    TW_DEVICE void put_state(uint64_t element, uint32_t state) const
    {
        if (states) {
            tw_dev_store_element<1>(state_at(element), state);
        }
    }
};

/** An element in registers: loaded ahead of its use, or still to be stored. */
struct tw_delta_loaded {
    uint32_t values; /**< old | new << 16 */
    uint32_t state;

    TW_DEVICE uint16_t old_bits() const
    {
        return (uint16_t)values;
    }
    TW_DEVICE uint16_t new_bits() const
    {
        return (uint16_t)(values >> 16);
    }
};

/** A lane's elements in AHEAD steps. The block begins at element `first` and has n elements; the steps begin
 *  at index `at` in it. If the elements are all in one segment, their addresses differ by constants. */
struct tw_delta_ahead {
    tw_delta_loaded elements[TW_ENTROPY_CUDA_AHEAD];

    static TW_DEVICE bool are_near(const tw_delta_cuda_job_t &job, tw_delta_cursor &cursor, uint32_t first,
                                   uint32_t at, uint32_t n)
    {
        return at < n && n - at >= 32 * TW_ENTROPY_CUDA_AHEAD &&
               cursor.covers(job, first + at + tw_entropy_lane(), 32 * (TW_ENTROPY_CUDA_AHEAD - 1) + 1);
    }

    /** Load old values and states, and if NEW also the new values. */
    template <bool NEW>
    TW_DEVICE void load(const tw_delta_cuda_job_t &job, tw_delta_cursor &cursor, uint32_t first, uint32_t at,
                        uint32_t n)
    {
        const uint32_t own = at + tw_entropy_lane();
        if (are_near(job, cursor, first, at, n)) {
            const uint8_t *old_at = cursor.old_at(first + own), *new_at = cursor.new_at(first + own),
                          *state_at = cursor.state_at(first + own);
            TW_UNROLL
            for (uint32_t s = 0; s < TW_ENTROPY_CUDA_AHEAD; s++) {
                elements[s].values = tw_dev_load_element<2>(old_at + 64 * s);
                elements[s].values |= NEW ? tw_dev_load_element<2>(new_at + 64 * s) << 16 : 0;
                elements[s].state = job.second ? tw_dev_load_element<1>(state_at + 32 * s) : 0;
            }
            return;
        }
        TW_UNROLL
        for (uint32_t s = 0; s < TW_ENTROPY_CUDA_AHEAD; s++) {
            const uint32_t i = own + 32 * s;
            if (i < n) {
                cursor.seek(job, first + i);
                elements[s].values = cursor.get_old(first + i);
                elements[s].values |= NEW ? (uint32_t)cursor.get_new(first + i) << 16 : 0;
                elements[s].state = cursor.get_state(first + i);
            }
        }
    }

    /** Store states, and if NEW also the new values. */
    template <bool NEW>
    TW_DEVICE void store(const tw_delta_cuda_job_t &job, tw_delta_cursor &cursor, uint32_t first, uint32_t at,
                         uint32_t n) const
    {
        const uint32_t own = at + tw_entropy_lane();
        if (are_near(job, cursor, first, at, n)) {
            uint8_t *new_at = cursor.new_at(first + own), *state_at = cursor.state_at(first + own);
            TW_UNROLL
            for (uint32_t s = 0; s < TW_ENTROPY_CUDA_AHEAD; s++) {
                if (NEW) {
                    tw_dev_store_element<2>(new_at + 64 * s, elements[s].new_bits());
                }
                if (job.second) {
                    tw_dev_store_element<1>(state_at + 32 * s, elements[s].state);
                }
            }
            return;
        }
        TW_UNROLL
        for (uint32_t s = 0; s < TW_ENTROPY_CUDA_AHEAD; s++) {
            const uint32_t i = own + 32 * s;
            if (i < n) {
                cursor.seek(job, first + i);
                if (NEW) {
                    cursor.put_new(first + i, elements[s].new_bits());
                }
                cursor.put_state(first + i, elements[s].state);
            }
        }
    }
};

/* ---- contexts ------------------------------------------------------------------------------------------ */

/** What an element's state (its previous change) and its old value predict about its change. */
struct tw_delta_belief {
    uint32_t table, raw_bits, factor;
    uint8_t state;

    TW_DEVICE tw_delta_belief(const uint32_t *rows, uint32_t base, uint16_t old_bits, uint8_t of_state)
        : state(of_state)
    {
        uint32_t row = rows[tw_delta_exponent(base, old_bits)];
        table = row >> 4 * tw_delta_state_class(state) & 0xf;
        raw_bits = tw_delta_raw_bits(table);
        factor = row >> 16;
    }
    TW_DEVICE uint32_t z_of(int16_t change) const
    {
        return tw_delta_zigzag(tw_delta_rest(change, state, factor));
    }
    TW_DEVICE int16_t change_of(uint32_t z) const
    {
        return tw_delta_unrest(tw_delta_unzigzag((uint16_t)z), state, factor);
    }
};

/** Bytes of a block. `sizes` is from its entry; n is its number of elements. */
TW_DEVICE uint32_t tw_delta_block_bytes(uint32_t sizes, uint32_t n)
{
    return sizes == TW_ENTROPY_RAW ? 2 * n
                                   : 2 * (sizes & 0xffff) + TW_ENTROPY_LANES_BYTES + 2 * (sizes >> 16);
}

#define TW_DELTA_CUDA_BODY 12 /**< where the statistics begin, or the values of a plain message */
