/** Embeddings. Forward: a warp takes a row. Memory bandwidth is the limit, with one operation an element.
 *  Fewer than 40 registers, no shared memory: eight blocks per multiprocessor.
 *
 *  Backward: only one block adds to a word's gradient, in the order of tokens, so no atomics are needed,
 *  and the bits are the CPU's. For every 256 channels, `word_classes` blocks share the words. Each block
 *  reads all tokens (from the L2 cache: 64 MB if 2,048 blocks read 8192 each) and lists the rows of its
 *  words, at most `list_room` at a time. 12 KB of shared memory, 40 registers: six blocks per multiprocessor.
 *  Include device.cuh, or a test's replacement, first. */
#pragma once

#include "trainer/cuda/elements.cuh"
#include "trainer/cuda/embedding.h"

namespace tw_trainer_kernels
{

struct EmbeddingArgs {
    tw_cuda_embedding_t embedding;
    const void *words, *positions, *dx;
    void *x;
    float *d_words, *d_positions;
};

/* ---- forwards ------------------------------------------------------------------------------------------ */

/** Kernel: tokens, words, positions -> x. Bytes per element: 4 (2 bf16). Positions stay in the L2 cache. */
template <class W, class T, uint32_t WIDTH>
struct EmbeddingForward {
    static TW_DEVICE void run(const EmbeddingArgs &a)
    {
        const size_t row = first_row(), channels = a.embedding.channels;
        if (row >= a.embedding.rows) {
            return;
        }
        const size_t word = (size_t)a.embedding.tokens[row] * channels;
        const size_t position = row % a.embedding.seq_len * channels;
        for (size_t c = threadIdx.x % warp_lanes * WIDTH; c < channels; c += warp_lanes * WIDTH) {
            float x[WIDTH], more[WIDTH] = {};
            load<W, WIDTH>(a.words, word + c, x);
            if (a.positions) {
                load<W, WIDTH>(a.positions, position + c, more);
                TW_UNROLL
                for (uint32_t i = 0; i < WIDTH; i++) {
                    x[i] += more[i];
                }
            }
            store<T, WIDTH>(x, a.x, row * channels + c);
        }
    }
};

/* ---- backwards, words ---------------------------------------------------------------------------------- */

constexpr uint32_t word_classes = 128; /* blocks that share the words */
constexpr uint32_t list_room = 1024, no_entry = list_room;
constexpr uint32_t rows_at_once = 8; /* loads that a thread has in flight */

/** A list of the rows whose tokens are among the block's words, in order. Entries of one word are chained. */
struct WordList {
    int32_t word[list_room];
    uint32_t row[list_room];
    uint16_t next[list_room]; /* next entry of the same word, or no_entry */
    uint16_t is_first[list_room];
    uint32_t in_warp[warps];
};

/** Kernel: tokens, dx -> d_words. Bytes per element: 2 (1 bf16) of dx, 8 of d_words' changed rows. */
template <class T>
struct EmbeddingWords {
    /* Of 256 rows, append those whose words are this block's. Return the new count. All threads call it. */
    static TW_DEVICE uint32_t append(const EmbeddingArgs &a, size_t first, WordList *list, uint32_t count)
    {
        const size_t row = first + threadIdx.x;
        const int32_t word = row < a.embedding.rows ? a.embedding.tokens[row] : 0;
        const bool own = row < a.embedding.rows && (uint32_t)word % word_classes == blockIdx.x % word_classes;
        const uint32_t warp = threadIdx.x / warp_lanes, lane = threadIdx.x % warp_lanes;
        const uint32_t mask = tw_dev_ballot(own);
        if (lane == 0) {
            list->in_warp[warp] = tw_dev_popc(mask);
        }
        __syncthreads();
        uint32_t at = count + tw_dev_popc(mask & ((1u << lane) - 1));
        for (uint32_t w = 0; w < warps; w++) {
            at += w < warp ? list->in_warp[w] : 0;
            count += list->in_warp[w];
        }
        if (own) {
            list->word[at] = word;
            list->row[at] = (uint32_t)row;
        }
        __syncthreads();
        return count;
    }

    /* Chain the entries of each word. All threads call it. */
    static TW_DEVICE void chain(WordList *list, uint32_t count)
    {
        for (uint32_t entry = threadIdx.x; entry < count; entry += threads) {
            uint32_t next = entry + 1, before = 0;
            while (next < count && list->word[next] != list->word[entry]) {
                next++;
            }
            while (list->word[before] != list->word[entry]) {
                before++;
            }
            list->next[entry] = (uint16_t)(next < count ? next : no_entry);
            list->is_first[entry] = before == entry;
        }
        __syncthreads();
    }

    /* Add a chain's rows in order: first load several rows, then add them. */
    static TW_DEVICE void add_chain(const EmbeddingArgs &a, const WordList *list, uint32_t entry,
                                    size_t column)
    {
        const size_t channels = a.embedding.channels;
        float *to = a.d_words + (size_t)list->word[entry] * channels + column, sum = *to;
        while (entry != no_entry) {
            float values[rows_at_once];
            uint32_t n = 0;
            TW_UNROLL
            for (uint32_t i = 0; i < rows_at_once; i++) {
                if (entry != no_entry) {
                    values[i] = to_float(((const T *)a.dx)[list->row[entry] * channels + column]);
                    entry = list->next[entry];
                    n = i + 1;
                }
            }
            TW_UNROLL
            for (uint32_t i = 0; i < rows_at_once; i++) {
                if (i < n) {
                    sum += values[i];
                }
            }
        }
        *to = sum;
    }

    /* Add the list's rows to their words' gradients. All threads call it. */
    static TW_DEVICE void add_list(const EmbeddingArgs &a, WordList *list, uint32_t count, size_t column)
    {
        chain(list, count);
        for (uint32_t entry = 0; entry < count && column < a.embedding.channels; entry++) {
            if (list->is_first[entry]) {
                add_chain(a, list, entry, column);
            }
        }
        __syncthreads();
    }

    static TW_DEVICE void run(const EmbeddingArgs &a)
    {
        __shared__ WordList list;
        const size_t column = (size_t)(blockIdx.x / word_classes) * threads + threadIdx.x;
        uint32_t count = 0;
        for (size_t first = 0; first < a.embedding.rows; first += threads) {
            count = append(a, first, &list, count);
            if (count > list_room - threads) {
                add_list(a, &list, count, column);
                count = 0;
            }
        }
        add_list(a, &list, count, column);
    }
};

/* ---- backwards, positions ------------------------------------------------------------------------------ */

/** Kernel: dx -> d_positions. A thread takes a channel of a position. Bytes per element of dx: 2 (1 bf16),
 *  and 8 per channel of a position. 1 operation. */
template <class T>
struct EmbeddingPositions {
    static TW_DEVICE void run(const EmbeddingArgs &a)
    {
        const size_t channels = a.embedding.channels, blocks = ceil_div(channels, threads);
        const size_t column = blockIdx.x % blocks * threads + threadIdx.x, position = blockIdx.x / blocks;
        if (column >= channels) {
            return;
        }
        float sum = a.d_positions[position * channels + column];
        for (size_t row = position; row < a.embedding.rows; row += a.embedding.seq_len) {
            sum += to_float(((const T *)a.dx)[row * channels + column]);
        }
        a.d_positions[position * channels + column] = sum;
    }
};

/* ---- launches ------------------------------------------------------------------------------------------ */

template <class W, class T, class LAUNCHER>
tw_status_t launch_embedding(const LAUNCHER &launcher, const EmbeddingArgs &a)
{
    const size_t all = (size_t)a.words | (size_t)a.positions | (size_t)a.x;
    const uint32_t blocks = (uint32_t)ceil_div(a.embedding.rows, warps);

    return in_octets(all, a.embedding.channels)
               ? launcher.template run<EmbeddingForward<W, T, octet_elems>>(blocks, "embedding", a)
               : launcher.template run<EmbeddingForward<W, T, 1>>(blocks, "embedding", a);
}

inline bool embeds_nothing(const tw_cuda_embedding_t *embedding)
{
    return embedding->rows * embedding->channels == 0;
}

template <class LAUNCHER>
tw_status_t embedding_forward(const LAUNCHER &launcher, const tw_cuda_embedding_t *embedding,
                              const void *words, const void *positions, void *x)
{
    const bool bf16 = embedding->type == TW_TYPE_BF16;
    EmbeddingArgs args = {};

    TW_TRY(check_type("embedding", embedding->type));
    TW_TRY(check_type("embedding", embedding->weight_type));
    args.embedding = *embedding;
    args.words = words;
    args.positions = positions;
    args.x = x;
    if (embeds_nothing(embedding)) {
        return TW_OK;
    }
    if (embedding->weight_type == TW_TYPE_BF16) {
        return bf16 ? launch_embedding<Bf16, Bf16>(launcher, args)
                    : launch_embedding<Bf16, float>(launcher, args);
    }
    return bf16 ? launch_embedding<float, Bf16>(launcher, args)
                : launch_embedding<float, float>(launcher, args);
}

template <class T, class LAUNCHER>
tw_status_t launch_embedding_backward(const LAUNCHER &launcher, const EmbeddingArgs &a)
{
    const char *what = "embedding backwards";
    const size_t blocks = ceil_div(a.embedding.channels, threads);
    const size_t positions = a.embedding.rows < a.embedding.seq_len ? a.embedding.rows : a.embedding.seq_len;

    if (a.d_words) {
        TW_TRY(launcher.template run<EmbeddingWords<T>>((uint32_t)(word_classes * blocks), what, a));
    }
    return a.d_positions
               ? launcher.template run<EmbeddingPositions<T>>((uint32_t)(positions * blocks), what, a)
               : TW_OK;
}

template <class LAUNCHER>
tw_status_t embedding_backward(const LAUNCHER &launcher, const tw_cuda_embedding_t *embedding, const void *dx,
                               float *d_words, float *d_positions)
{
    EmbeddingArgs args = {};

    TW_TRY(check_type("embedding backwards", embedding->type));
    args.embedding = *embedding;
    args.dx = dx;
    args.d_words = d_words;
    args.d_positions = d_positions;
    if (embeds_nothing(embedding)) {
        return TW_OK;
    }
    return embedding->type == TW_TYPE_BF16 ? launch_embedding_backward<Bf16>(launcher, args)
                                           : launch_embedding_backward<float>(launcher, args);
}

} // namespace tw_trainer_kernels
