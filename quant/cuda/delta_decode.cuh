/** The kernels that decode the lossless delta, in the order of their launches. Columns: kernel, bytes of
 *  memory read and written per element (as in delta_encode.cuh), what it does, threads:
 *
 *    read    -           reads the header, tables of 18 KB and offsets of blocks,        one thread block
 *                        all untrusted
 *    check   2           computes the checksum of a plain message                        parts of it
 *    decode  3 + 0.3 + 3 makes values and states of a coded message                   a warp a block (65,536)
 *    apply   5 + 3       makes values and states of a plain message                      a thread an element
 *    close   -           writes the outcome                                              one thread block
 *  A coded message takes 6.3 bytes an element in all, the least possible: at 4.8 TB/s 1.3 us for a million
 *  elements. A step of the coder, 32 elements, is 150 PTX instructions. 50 of these wait for the previous
 *  step: two look-ups in shared memory, a ballot, a prefetched word. A warp makes 2,048 steps for a block;
 *  beside their tables, 12 warps fit on a multiprocessor. */
#pragma once

#include "quant/cuda/delta_encode.cuh"

TW_DEVICE bool tw_delta_is_good(const tw_delta_cuda_job_t &job)
{
    return job.state->status == TW_OK;
}

/* ---- the header ---------------------------------------------------------------------------------------- */

/** Read the head. The checks and their order are the host decoder's, so that both return the same error. */
struct tw_delta_kernel_read {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        __shared__ int32_t verdict;
        __shared__ tw_delta_stats_t stats;
        tw_delta_cuda_state_t *state = job.state;
        if (threadIdx.x == 0) {
            verdict = judge(job, *state);
        }
        __syncthreads();
        if (verdict == TW_OK && state->coded) {
            const uint32_t taken = statistics(job, state->bytes, stats);
            const uint64_t end = taken + (uint64_t)job.n_blocks * sizeof(tw_entropy_entry_t);
            bool good = taken && end <= state->bytes;
            if (good) {
                tables(job, stats);
                good = blocks(job, taken, end) == state->bytes;
            }
            if (threadIdx.x == 0 && !good) {
                verdict = TW_ERR_FORMAT;
            }
        }
        if (threadIdx.x == 0) {
            state->status = verdict;
        }
    }

    static TW_DEVICE int32_t judge(const tw_delta_cuda_job_t &job, tw_delta_cuda_state_t &state)
    {
        const uint8_t *src = job.src;
        const uint32_t header_bytes = sizeof(tw_delta_header_t);
        if (job.src_bytes < header_bytes) {
            return TW_ERR_TRUNCATED;
        }
        if (src[0] != TW_DELTA_MAGIC || src[1] != TW_DELTA_VERSION || src[3] ||
            src[2] > (TW_DELTA_FLAG_CODED | TW_DELTA_FLAG_SECOND)) {
            return TW_ERR_FORMAT;
        }
        state.bytes = tw_entropy_get32(src + 4);
        if (state.bytes > job.src_bytes) {
            return TW_ERR_TRUNCATED;
        }
        if (state.bytes < header_bytes || (state.bytes < job.src_bytes && !job.at_most)) {
            return TW_ERR_FORMAT;
        }
        if (!(src[2] & TW_DELTA_FLAG_SECOND) != !job.second) {
            return TW_ERR_MISMATCH;
        }
        state.coded = src[2] & TW_DELTA_FLAG_CODED;
        if (state.bytes < TW_DELTA_CUDA_BODY) {
            return TW_ERR_FORMAT;
        }
        bool fits = state.coded ? tw_entropy_get32(src + 8) == job.n_elems
                                : (state.bytes - TW_DELTA_CUDA_BODY) == 2 * (uint64_t)job.n_elems;
        return fits ? TW_OK : TW_ERR_MISMATCH;
    }

    /** Read the statistics. Returns the offset of their end, or 0 if they are invalid. One thread reads them,
     *  from shared memory, because each number's length tells where the next one begins. */
    static TW_DEVICE uint32_t statistics(const tw_delta_cuda_job_t &job, uint32_t bytes,
                                         tw_delta_stats_t &stats)
    {
        __shared__ uint8_t head[TW_DELTA_STATS_BYTES_MAX];
        __shared__ uint32_t taken;
        const uint32_t left = bytes - TW_DELTA_CUDA_BODY, n = left < sizeof(head) ? left : sizeof(head);
        for (uint32_t i = threadIdx.x; i < n; i += TW_ENTROPY_CUDA_THREADS) {
            head[i] = job.src[TW_DELTA_CUDA_BODY + i];
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            tw_delta_source_t source = {head, head + n, 0};
            tw_delta_contexts_read(&stats, (int)job.second, &source);
            bool good = true;
            for (uint32_t table = 0; good && table < TW_DELTA_TABLES; table++) {
                good = tw_delta_freq_read(&source, stats.freq[table]);
            }
            taken = good ? TW_DELTA_CUDA_BODY + (uint32_t)(source.at - head) : 0;
        }
        __syncthreads();
        return taken;
    }

    static TW_DEVICE void tables(const tw_delta_cuda_job_t &job, const tw_delta_stats_t &stats)
    {
        if (threadIdx.x < TW_DELTA_EXPONENTS) {
            job.state->rows[threadIdx.x] = tw_delta_row_of(&stats, threadIdx.x);
        }
        if (threadIdx.x == 0) {
            job.state->base = stats.base;
        }
        tw_entropy_lookup_fill({job.symbols, job.slots}, stats.freq[0], TW_DELTA_TABLES);
    }

    /** Read the blocks' entries and compute the blocks' offsets. Returns where the last block ends. */
    static TW_DEVICE uint64_t blocks(const tw_delta_cuda_job_t &job, uint32_t entries_at, uint64_t at)
    {
        const uint8_t *entries = job.src + entries_at;
        return tw_entropy_place(job.blocks, job.n_blocks, at, [&](uint32_t b) {
            const uint32_t sizes = tw_entropy_get32(entries + 8 * (size_t)b);
            return tw_entropy_cuda_block_t{
                sizes, tw_entropy_get32(entries + 8 * (size_t)b + 4), 0,
                tw_delta_block_bytes(sizes, tw_entropy_block_elems(job.n_elems, b))};
        });
    }
};

/* ---- values -------------------------------------------------------------------------------------------- */

/** Store a new value that was sent as it is, and update its element's state. The old value is read first,
 *  because the new one may overwrite it. */
TW_DEVICE void tw_delta_apply(const tw_delta_cuda_job_t &job, tw_delta_cursor &cursor, uint32_t element,
                              uint32_t new_bits)
{
    cursor.seek(job, element);
    cursor.put_state(element, tw_delta_state(tw_delta_change(cursor.get_old(element), (uint16_t)new_bits)));
    cursor.put_new(element, new_bits);
}

struct tw_delta_kernel_check {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        if (tw_delta_is_good(job) && !job.state->coded) {
            const uint32_t first = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x;
            tw_entropy_add(&job.state->check,
                           tw_entropy_check_words<true>(job.src + TW_DELTA_CUDA_BODY, job.n_elems, first,
                                                        gridDim.x * TW_ENTROPY_CUDA_THREADS));
        }
    }
};

/** Decode blocks, one warp for each, from the last element to the first. To hide the latency of memory, the
 *  elements of the next AHEAD steps are loaded before the current AHEAD steps are decoded. */
struct tw_delta_kernel_decode {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        alignas(4) __shared__ uint8_t symbols[TW_DELTA_TABLES * TW_ENTROPY_FREQ_SUM];
        __shared__ uint32_t slots[TW_DELTA_TABLES * TW_ENTROPY_SYMBOLS], rows[TW_DELTA_EXPONENTS];
        if (!tw_delta_is_good(job) || !job.state->coded) {
            return;
        }
        const tw_entropy_cuda_block_t block = job.blocks[blockIdx.x];
        bool good;
        if (block.sizes == TW_ENTROPY_RAW) {
            good = raw(job, block);
        } else {
            const tw_entropy_lookup lookup = {symbols, slots};
            tw_entropy_lookup_copy(lookup, {job.symbols, job.slots}, TW_DELTA_TABLES);
            rows[threadIdx.x] = job.state->rows[threadIdx.x];
            __syncthreads();
            good =
                coded(job, block, tw_entropy_decoder_of(lookup, job.src + block.offset, block.sizes), rows);
        }
        if (!good && threadIdx.x == 0) {
            job.state->failed = 1;
        }
    }

    /** Decode a block whose values were sent as they are: check their checksum, then store them. */
    static TW_DEVICE bool raw(const tw_delta_cuda_job_t &job, const tw_entropy_cuda_block_t &block)
    {
        const uint32_t first = blockIdx.x * TW_DELTA_BLOCK_ELEMS, n = block.bytes / 2;
        const uint8_t *values = job.src + block.offset;
        tw_delta_cursor cursor = {};
        if (tw_entropy_total(tw_entropy_check_words<false>(values, n, threadIdx.x, 32)) != block.check) {
            return false;
        }
        for (uint32_t i = threadIdx.x; i < n; i += 32) {
            tw_delta_apply(job, cursor, first + i, tw_entropy_get16(values + 2 * (size_t)i));
        }
        return true;
    }

    static TW_DEVICE bool coded(const tw_delta_cuda_job_t &job, const tw_entropy_cuda_block_t &block,
                                tw_entropy_decoder coder, const uint32_t *rows)
    {
        const uint32_t first = blockIdx.x * TW_DELTA_BLOCK_ELEMS, lane = threadIdx.x;
        const uint32_t n = tw_entropy_block_elems(job.n_elems, blockIdx.x),
                       chunk = 32 * TW_ENTROPY_CUDA_AHEAD;
        const uint32_t base = job.state->base;
        uint32_t check = 0, i = (n + chunk - 1) / chunk * chunk;
        tw_delta_cursor loads = {}, stores = {};
        tw_delta_ahead now = {}, next = {};
        bool good = true;
        /* `whole` is constant where this is called, which saves most elements the comparisons */
        const auto decode = [&](bool whole) {
            TW_UNROLL
            for (uint32_t k = 1; k <= TW_ENTROPY_CUDA_AHEAD; k++) {
                const uint32_t s = TW_ENTROPY_CUDA_AHEAD - k, at = i - 32 * k + lane;
                if (good && (whole || at - lane < n)) {
                    good = step(coder, rows, base, now.elements[s], whole || at < n);
                    check += whole || at < n ? tw_entropy_check(at, now.elements[s].new_bits()) : 0;
                }
            }
        };
        next.load<false>(job, loads, first, i - chunk, n);
        for (; good && i > 0; i -= chunk) {
            now = next;
            tw_entropy_prefetch(coder);
            next.load<false>(job, loads, first, i - 2 * chunk, i > chunk ? n : 0);
            if (i <= n) {
                decode(true);
            } else {
                decode(false);
            }
            now.store<true>(job, stores, first, i - chunk, good ? n : 0);
        }
        check = tw_entropy_total(check);
        return good && !tw_dev_ballot(coder.x != TW_ENTROPY_START) && !coder.n_words && !coder.n_escapes &&
               check == block.check;
    }

    /** Decode one element per lane; the whole warp must call it. Returns false if words or escapes run
     *  out. */
    static TW_DEVICE bool step(tw_entropy_decoder &coder, const uint32_t *rows, uint32_t base,
                               tw_delta_loaded &element, bool there)
    {
        const uint16_t old_bits = element.old_bits();
        const tw_delta_belief belief(rows, base, old_bits, (uint8_t)element.state);
        tw_entropy_taken taken = {};
        if (!tw_entropy_take_warp<false>(coder, there, belief.table, belief.raw_bits, taken)) {
            return false;
        }
        int16_t change = belief.change_of(taken.symbol << belief.raw_bits | taken.raw);
        uint16_t new_bits = tw_delta_changed(old_bits, change);
        if (taken.symbol == TW_ENTROPY_ESCAPE) {
            new_bits = (uint16_t)taken.escape;
            change = tw_delta_change(old_bits, new_bits);
        }
        element.values = (uint32_t)new_bits << 16;
        element.state = tw_delta_state(change);
        return true;
    }
};

struct tw_delta_kernel_apply {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        const tw_delta_cuda_state_t *state = job.state;
        tw_delta_cursor cursor = {};
        if (!tw_delta_is_good(job) || state->coded || state->check != tw_entropy_get32(job.src + 8)) {
            return;
        }
        for (uint32_t e = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x; e < job.n_elems;
             e += gridDim.x * TW_ENTROPY_CUDA_THREADS) {
            tw_delta_apply(job, cursor, e,
                           tw_dev_load_element<2>(job.src + TW_DELTA_CUDA_BODY + 2 * (size_t)e));
        }
    }
};

struct tw_delta_kernel_close {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        tw_delta_cuda_state_t *state = job.state;
        if (threadIdx.x == 0) {
            bool spoilt = state->failed || (tw_delta_is_good(job) && !state->coded &&
                                            state->check != tw_entropy_get32(job.src + 8));
            int32_t status = spoilt ? TW_ERR_FORMAT : state->status;
            job.outcome->bytes = status == TW_OK ? state->bytes : 0;
            job.outcome->status = status;
        }
    }
};
