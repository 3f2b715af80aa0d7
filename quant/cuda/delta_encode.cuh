/** The kernels that encode the lossless delta, in the order of their launches. Each is a struct with the
 *  kernel's body. Columns: kernel, bytes of memory read and written per element (of a value 2, a state 1, a
 *  change 0.3), what it does, threads:
 *
 *    exponents  2 / 16   counts the exponents in the sample                             a thread an element
 *    factors    5 / 16   with states: how much of a change the next step repeats        a thread an element
 *    contexts   5 / 16   sizes of the rest of the change, for each context              a thread an element
 *    symbols    5 / 16   counts the symbols that each table would code                  a thread an element
 *    model      -        makes tables, the coder's look-ups, the statistics to send     one thread block
 *    code       5 + 1 + 0.3: makes words, escapes, states, checksums                    a warp a block of
 *               65,536
 *    layout     -        computes the offset of each block                              one thread block
 *    assemble   0.3 + 0.3: copies the blocks into the message                           parts of a block
 *    finish     -        writes the header and the blocks' entries                      one thread block
 *  Together 7 to 8 bytes (the sample has at most 32,768 elements). The least possible is 6.3, to read the
 *  elements and write states and message: at 4.8 TB/s 1.3 us for a million elements, 1,500 GB/s of bf16. A
 *  step of the coder, 32 elements, is 150 PTX instructions; 40 of these wait for the previous step. A warp
 *  makes 2,048 steps for a block. While the GPU has idle warps, a message takes as long as a block. */
#pragma once

#include "quant/cuda/delta_element.cuh"

/* ---- the sample ---------------------------------------------------------------------------------------- */

/** Intermediate results of the model kernel's thread block, in shared memory. */
struct tw_delta_found {
    tw_delta_stats_t stats;
    uint32_t best;

    /** Choose the window of exponents that covers most elements of the sample; of equal ones the highest. */
    TW_DEVICE void find_base(const tw_delta_cuda_sums_t &sums)
    {
        const uint32_t t = threadIdx.x;
        uint32_t inside = 0;
        if (t == 0) {
            best = 0;
        }
        __syncthreads();
        for (uint32_t e = t; e < t + TW_DELTA_EXPONENTS && t <= 256 - TW_DELTA_EXPONENTS; e++) {
            inside += sums.exponents[e];
        }
        if (t <= 256 - TW_DELTA_EXPONENTS) {
            atomicMax(&best, inside << 8 | t);
        }
        __syncthreads();
        if (t == 0) {
            stats.base = (uint8_t)best;
        }
        __syncthreads();
    }
    TW_DEVICE void find_factors(const tw_delta_cuda_sums_t &sums)
    {
        const uint32_t t = threadIdx.x;
        if (t < TW_DELTA_EXPONENTS) {
            stats.factor[t] = tw_delta_factor_of(sums.parts[t], sums.sizes[t]);
        }
        __syncthreads();
    }
    /** Choose a table for each context. A context that the sample lacks gets the next lower exponent's. */
    TW_DEVICE void find_tables(const tw_delta_cuda_sums_t &sums)
    {
        const uint32_t t = threadIdx.x, lacking = TW_DELTA_TABLES;
        if (t < TW_DELTA_CONTEXTS) {
            stats.table[t] =
                (uint8_t)(sums.contexts[t] ? tw_delta_table_of(sums.z[t], sums.contexts[t]) : lacking);
        }
        __syncthreads();
        uint8_t below = 0;
        for (uint32_t c = t; t < TW_DELTA_SIZES && c < TW_DELTA_CONTEXTS; c += TW_DELTA_SIZES) {
            below = stats.table[c] == lacking ? below : stats.table[c];
            stats.table[c] = below;
        }
        __syncthreads();
    }
};

/** Call COUNT(old bits, new bits, state) for this thread's elements of the sample. */
template <class COUNT>
TW_DEVICE void tw_delta_each_of_sample(const tw_delta_cuda_job_t &job, const COUNT &count)
{
    const uint32_t run = TW_DELTA_SAMPLE_RUN, distance = tw_delta_sample_distance(job.n_elems);
    const uint32_t rest = job.n_elems % distance;
    const uint32_t n = job.n_elems / distance * run + (rest < run ? rest : run);
    tw_delta_cursor cursor = {};
    for (uint32_t j = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x; j < n;
         j += gridDim.x * TW_ENTROPY_CUDA_THREADS) {
        const uint32_t e = j / run * distance + j % run;
        cursor.seek(job, e);
        count(cursor.get_old(e), cursor.get_new(e), cursor.get_state(e));
    }
}

/** Clear a thread block's counters in shared memory. The kernels add them to the global ones at their end. */
TW_DEVICE void tw_delta_counters_clear(uint32_t *counters, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += TW_ENTROPY_CUDA_THREADS) {
        counters[i] = 0;
    }
    __syncthreads();
}

TW_DEVICE void tw_delta_counters_add(const uint32_t *counters, uint32_t n, uint32_t *sums)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += TW_ENTROPY_CUDA_THREADS) {
        if (counters[i]) {
            atomicAdd(&sums[i], counters[i]);
        }
    }
}

struct tw_delta_kernel_exponents {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        __shared__ uint32_t counts[256];
        tw_delta_counters_clear(counts, 256);
        tw_delta_each_of_sample(
            job, [&](uint16_t old_bits, uint16_t, uint8_t) { atomicAdd(&counts[old_bits >> 7 & 0xff], 1u); });
        tw_delta_counters_add(counts, 256, job.sums->exponents);
    }
};

struct tw_delta_kernel_factors {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        __shared__ tw_delta_found found;
        __shared__ uint32_t parts[TW_DELTA_EXPONENTS], sizes[TW_DELTA_EXPONENTS];
        found.find_base(*job.sums);
        tw_delta_counters_clear(parts, TW_DELTA_EXPONENTS);
        tw_delta_counters_clear(sizes, TW_DELTA_EXPONENTS);
        tw_delta_each_of_sample(job, [&](uint16_t old_bits, uint16_t new_bits, uint8_t state) {
            uint32_t row = tw_delta_exponent(found.stats.base, old_bits);
            atomicAdd(&parts[row], tw_delta_sample_part(tw_delta_change(old_bits, new_bits), state));
            atomicAdd(&sizes[row], tw_delta_sample_size(state));
        });
        tw_delta_counters_add(parts, TW_DELTA_EXPONENTS, job.sums->parts);
        tw_delta_counters_add(sizes, TW_DELTA_EXPONENTS, job.sums->sizes);
    }
};

struct tw_delta_kernel_contexts {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        __shared__ tw_delta_found found;
        __shared__ uint32_t z[TW_DELTA_CONTEXTS], contexts[TW_DELTA_CONTEXTS];
        found.find_base(*job.sums);
        found.find_factors(*job.sums);
        tw_delta_counters_clear(z, TW_DELTA_CONTEXTS);
        tw_delta_counters_clear(contexts, TW_DELTA_CONTEXTS);
        tw_delta_each_of_sample(job, [&](uint16_t old_bits, uint16_t new_bits, uint8_t state) {
            uint32_t row = tw_delta_exponent(found.stats.base, old_bits);
            uint32_t context = row * TW_DELTA_SIZES + tw_delta_state_class(state);
            int16_t change = tw_delta_change(old_bits, new_bits);
            uint32_t own = tw_delta_zigzag(tw_delta_rest(change, state, found.stats.factor[row]));
            atomicAdd(&z[context], own < TW_DELTA_MEAN_Z_MAX ? own : TW_DELTA_MEAN_Z_MAX);
            atomicAdd(&contexts[context], 1u);
        });
        tw_delta_counters_add(z, TW_DELTA_CONTEXTS, job.sums->z);
        tw_delta_counters_add(contexts, TW_DELTA_CONTEXTS, job.sums->contexts);
    }
};

struct tw_delta_kernel_symbols {
    static const uint32_t counters = TW_DELTA_TABLES * TW_ENTROPY_SYMBOLS;

    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        __shared__ tw_delta_found found;
        __shared__ uint32_t rows[TW_DELTA_EXPONENTS], counts[counters];
        found.find_base(*job.sums);
        found.find_factors(*job.sums);
        found.find_tables(*job.sums);
        if (threadIdx.x < TW_DELTA_EXPONENTS) {
            rows[threadIdx.x] = tw_delta_row_of(&found.stats, threadIdx.x);
        }
        tw_delta_counters_clear(counts, counters);
        tw_delta_each_of_sample(job, [&](uint16_t old_bits, uint16_t new_bits, uint8_t state) {
            const tw_delta_belief belief(rows, found.stats.base, old_bits, state);
            uint32_t symbol = belief.z_of(tw_delta_change(old_bits, new_bits)) >> belief.raw_bits;
            symbol = symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE;
            atomicAdd(&counts[belief.table * TW_ENTROPY_SYMBOLS + symbol], 1u);
        });
        tw_delta_counters_add(counts, counters, job.sums->symbols);
    }
};

/** Make the model: one thread makes, writes and prepares each table. */
struct tw_delta_kernel_model {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        __shared__ tw_delta_found found;
        __shared__ uint32_t bytes[TW_DELTA_TABLES], tables_at;
        const uint32_t t = threadIdx.x;
        tw_delta_cuda_state_t *state = job.state;
        found.find_base(*job.sums);
        found.find_factors(*job.sums);
        found.find_tables(*job.sums);
        if (t < TW_DELTA_TABLES) {
            tw_delta_freq_of(job.sums->symbols + t * TW_ENTROPY_SYMBOLS, found.stats.freq[t]);
            tw_entropy_encode_table(found.stats.freq[t], job.encode + t * TW_ENTROPY_SYMBOLS);
            bytes[t] = tw_delta_freq_bytes(found.stats.freq[t]);
        }
        if (t < TW_DELTA_EXPONENTS) {
            state->rows[t] = tw_delta_row_of(&found.stats, t);
        }
        if (t == 0) {
            uint8_t *at = job.dst + TW_DELTA_CUDA_BODY;
            state->base = found.stats.base;
            tables_at = (uint32_t)(tw_delta_contexts_write(&found.stats, (int)job.second, at) - job.dst);
        }
        __syncthreads();
        if (t < TW_DELTA_TABLES) {
            uint32_t at = tables_at;
            for (uint32_t before = 0; before < t; before++) {
                at += bytes[before];
            }
            tw_delta_freq_write(found.stats.freq[t], job.dst + at);
            if (t == TW_DELTA_TABLES - 1) {
                state->head_bytes = at + bytes[t];
            }
        }
    }
};

/* ---- blocks -------------------------------------------------------------------------------------------- */

/** Code blocks, one warp for each. To hide the latency of memory, the elements of the next AHEAD steps are
 *  loaded before the current AHEAD steps are coded. */
struct tw_delta_kernel_code {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        __shared__ uint64_t encode[TW_DELTA_TABLES * TW_ENTROPY_SYMBOLS];
        __shared__ uint32_t rows[TW_DELTA_EXPONENTS];
        const uint32_t block = blockIdx.x, lane = threadIdx.x, first = block * TW_DELTA_BLOCK_ELEMS;
        for (uint32_t i = lane; i < TW_DELTA_TABLES * TW_ENTROPY_SYMBOLS; i += 32) {
            encode[i] = job.encode[i];
        }
        rows[lane] = job.state->rows[lane];
        __syncthreads();
        const uint32_t n = tw_entropy_block_elems(job.n_elems, block), chunk = 32 * TW_ENTROPY_CUDA_AHEAD;
        uint16_t *words = job.words + (size_t)first;
        /* The words of the lanes' states, and 1 because a coded block must be shorter than a raw one. */
        const uint32_t fixed = TW_ENTROPY_LANES_BYTES / 2 + 1;
        coder_t coder = {
            encode,
            rows,
            job.state->base,
            0,
            n >= fixed,
            {words, words + TW_DELTA_BLOCK_ELEMS, n < fixed ? 0 : n - fixed, TW_ENTROPY_START, 0, 0}};
        tw_delta_cursor loads = {}, stores = {};
        tw_delta_ahead now = {}, next = {};
        /* `whole` is constant where this is called, which saves most elements the comparisons */
        const auto code = [&](uint32_t i, bool whole) {
            TW_UNROLL
            for (uint32_t s = 0; s < TW_ENTROPY_CUDA_AHEAD; s++) {
                const uint32_t at = i + 32 * s + lane;
                if (whole || at - lane < n) {
                    step(coder, now.elements[s], at, whole || at < n);
                }
            }
        };
        next.load<true>(job, loads, first, 0, n);
        for (uint32_t i = 0; i < n; i += chunk) {
            now = next;
            next.load<true>(job, loads, first, i + chunk, n);
            if (i + chunk <= n) {
                code(i, true);
            } else {
                code(i, false);
            }
            if (job.second) {
                now.store<false>(job, stores, first, i, n);
            }
        }
        job.lanes[block * TW_ENTROPY_LANES + lane] = coder.words.x;
        uint32_t check = tw_entropy_total(coder.check);
        if (lane == 0) {
            job.blocks[block].sizes =
                coder.fits ? coder.words.n_words | coder.words.n_escapes << 16 : TW_ENTROPY_RAW;
            job.blocks[block].check = check;
        }
    }

    struct coder_t {
        const uint64_t *encode;
        const uint32_t *rows;
        uint32_t base, check;
        bool fits; /**< the coded block is shorter than its raw values so far */
        tw_entropy_encoder words;
    };

    /** Code one element per lane and update its state. All lanes of the warp must call it. */
    static TW_DEVICE void step(coder_t &coder, tw_delta_loaded &element, uint32_t at, bool there)
    {
        const uint16_t new_bits = element.new_bits();
        const tw_delta_belief belief(coder.rows, coder.base, element.old_bits(), (uint8_t)element.state);
        int16_t change = tw_delta_change(element.old_bits(), new_bits);
        uint32_t z = belief.z_of(change), symbol = z >> belief.raw_bits;
        symbol = symbol < TW_ENTROPY_ESCAPE ? symbol : TW_ENTROPY_ESCAPE;
        uint64_t entry = coder.encode[belief.table * TW_ENTROPY_SYMBOLS + symbol];
        /* An escaped element is sent with raw bits, too, but they are 0 and decoders ignore them. */
        uint32_t raw = entry >> 31 & 1 ? 0 : z & ((1u << belief.raw_bits) - 1);
        coder.check += there ? tw_entropy_check(at, new_bits) : 0;
        coder.fits = coder.fits && tw_entropy_push_warp(coder.words, there, entry, belief.raw_bits, raw,
                                                        [&] { return new_bits; });
        element.state = tw_delta_state(change);
    }
};

struct tw_delta_kernel_layout {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        tw_delta_cuda_state_t *state = job.state;
        uint64_t at = state->head_bytes + (uint64_t)job.n_blocks * sizeof(tw_entropy_entry_t);
        if (job.tried) {
            at = tw_entropy_place(job.blocks, job.n_blocks, at, [&](uint32_t b) {
                const tw_entropy_cuda_block_t &block = job.blocks[b];
                return tw_entropy_cuda_block_t{
                    block.sizes, block.check, 0,
                    tw_delta_block_bytes(block.sizes, tw_entropy_block_elems(job.n_elems, b))};
            });
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            state->coded = job.tried && at <= job.bound;
            state->bytes = (uint32_t)(state->coded ? at : job.bound);
        }
    }
};

/* ---- the message --------------------------------------------------------------------------------------- */

struct tw_delta_kernel_assemble {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        if (job.state->coded) {
            coded(job);
        } else {
            plain(job);
        }
    }

    /** Write a part of a block in 16-bit words, since the block may begin at any address. */
    static TW_DEVICE void coded(const tw_delta_cuda_job_t &job)
    {
        const uint32_t b = blockIdx.x / TW_ENTROPY_CUDA_PARTS;
        const tw_entropy_cuda_block_t block = job.blocks[b];
        uint8_t *to = job.dst + block.offset;
        tw_delta_cursor cursor = {};
        for (uint32_t w = blockIdx.x % TW_ENTROPY_CUDA_PARTS * TW_ENTROPY_CUDA_THREADS + threadIdx.x;
             w < block.bytes / 2; w += TW_ENTROPY_CUDA_PARTS * TW_ENTROPY_CUDA_THREADS) {
            tw_entropy_put16(to + 2 * (size_t)w, word(job, b, block.sizes, w, cursor));
        }
    }

    /** 16-bit word w of a block: of its words, lanes and escapes, or of its values if it is not coded. */
    static TW_DEVICE uint32_t word(const tw_delta_cuda_job_t &job, uint32_t b, uint32_t sizes, uint32_t w,
                                   tw_delta_cursor &cursor)
    {
        const uint32_t n_words = sizes & 0xffff, lanes_end = n_words + TW_ENTROPY_LANES_BYTES / 2;
        const uint16_t *words = job.words + (size_t)b * TW_DELTA_BLOCK_ELEMS;
        if (sizes == TW_ENTROPY_RAW) {
            uint64_t e = (uint64_t)b * TW_DELTA_BLOCK_ELEMS + w;
            cursor.seek(job, e);
            return cursor.get_new(e);
        }
        if (w < n_words) {
            return words[w];
        }
        if (w < lanes_end) {
            uint32_t lane = (w - n_words) / 2;
            return job.lanes[b * TW_ENTROPY_LANES + lane] >> 16 * ((w - n_words) % 2) & 0xffff;
        }
        return words[TW_DELTA_BLOCK_ELEMS - 1 - (w - lanes_end)];
    }

    /** Copy all values as they are, for a plain message. Update the states if the coder has not run. */
    static TW_DEVICE void plain(const tw_delta_cuda_job_t &job)
    {
        tw_delta_cursor cursor = {};
        uint32_t check = 0;
        for (uint32_t e = blockIdx.x * TW_ENTROPY_CUDA_THREADS + threadIdx.x; e < job.n_elems;
             e += gridDim.x * TW_ENTROPY_CUDA_THREADS) {
            cursor.seek(job, e);
            uint16_t new_bits = cursor.get_new(e);
            if (!job.tried) {
                cursor.put_state(e, tw_delta_state(tw_delta_change(cursor.get_old(e), new_bits)));
            }
            tw_dev_store_element<2>(job.dst + TW_DELTA_CUDA_BODY + 2 * (size_t)e, new_bits);
            check += tw_entropy_check(e, new_bits);
        }
        tw_entropy_add(&job.state->check, check);
    }
};

struct tw_delta_kernel_finish {
    static TW_DEVICE void run(const tw_delta_cuda_job_t &job)
    {
        const tw_delta_cuda_state_t *state = job.state;
        uint8_t *entries = job.dst + state->head_bytes;
        for (uint32_t b = threadIdx.x; state->coded && b < job.n_blocks; b += TW_ENTROPY_CUDA_THREADS) {
            tw_entropy_put32(entries + 8 * (size_t)b, job.blocks[b].sizes);
            tw_entropy_put32(entries + 8 * (size_t)b + 4, job.blocks[b].check);
        }
        if (threadIdx.x == 0) {
            job.dst[0] = TW_DELTA_MAGIC;
            job.dst[1] = TW_DELTA_VERSION;
            job.dst[2] =
                (uint8_t)((state->coded ? TW_DELTA_FLAG_CODED : 0) | (job.second ? TW_DELTA_FLAG_SECOND : 0));
            job.dst[3] = 0;
            tw_entropy_put32(job.dst + 4, state->bytes);
            tw_entropy_put32(job.dst + 8, state->coded ? job.n_elems : state->check);
            job.outcome->bytes = state->bytes;
            job.outcome->status = TW_OK;
        }
    }
};
