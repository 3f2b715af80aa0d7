/** Attention in tiles of 64 queries by 64 keys, forwards and backwards, as FlashAttention-2 orders it (arXiv
 *  2307.08691): what a block of 256 threads writes is its own, so that nothing depends on who comes first.
 *
 *  Forwards a block takes 64 queries of a head and goes over the keys that they see: scores S = Q K', the
 *  largest of each row so far and the sum of exponentials, y = y * correction + exp(S) V. Backwards
 *  probabilities are made again from the log of the sum: one kernel over queries makes dq, one over keys
 *  makes dk and dv, with all heads of q that share the keys one after the other. 7 products instead of 5 (S
 *  and dP twice), and no sums in memory.
 *
 *  A pair of a query and a key that is seen costs D multiply-adds a product. FLOPs a head, with T * T / 2
 *  pairs: forwards 2 T T D, backwards 7 T T D. Bytes: forwards q, k, v, y once, which is T D * 8 in bf16; a
 *  tile reads 64 D * 3 elements from the second cache for 64 * 64 * D * 4 FLOPs: 43 a byte of bf16, four
 *  times what sm_90's fp32 needs. So FLOPs are what counts.
 *
 *  Arithmetic is fp32 outside of tensor cores, whatever the type: 67 TFLOPS at most on sm_90, a fifteenth of
 *  what its tensor cores do in bf16. Products with mma instructions would take the places of multiply_tile
 *  and add_product and leave the rest.
 *
 *  A thread has 4 x 4 scores (rows 4 y + i, columns x + 16 j of thread (x, y) of 16 x 16) and 4 rows of
 *  D / 16 columns of a sum: 64 registers at D = 256, 32 at 128, 16 at 64. 128 registers or fewer up to
 *  D = 128, two blocks on a multiprocessor (16 warps); one block for dk and dv from 128 on, and for all but
 *  forwards at 256. Shared memory 35 KB: six blocks would fit.
 *
 *  Include device.cuh, or what stands for it in a test, before. */
#ifndef TW_TRAINER_CUDA_ATTENTION_CUH
#define TW_TRAINER_CUDA_ATTENTION_CUH

#include <math.h>

#include "trainer/cuda/attention.h"
#include "trainer/cuda/elements.cuh"

namespace tw_trainer_kernels
{

constexpr uint32_t tile = 64, side = 16, patch = tile / side; /* 16 x 16 threads have 4 x 4 each */
constexpr uint32_t quad_elems = 4;
constexpr uint32_t depth = 32;              /* columns of D that a product takes at a time */
constexpr uint32_t depth_pitch = depth + 4; /* quads of neighbouring rows lie in other banks */
constexpr uint32_t tile_pitch = tile + 4;   /* likewise */
constexpr uint32_t pool_elems = 4096;       /* rows of what is multiplied with a tile, at a time */
constexpr uint32_t attention_width_max = TW_CUDA_HEAD_WIDTH_MAX;

/** What a block shares. */
struct alignas(16) AttentionShared {
    union {
        struct {
            float a[tile * depth_pitch], b[tile * depth_pitch];
        } factors;
        float pool[pool_elems];
    };
    float m[tile * tile_pitch]; /* a tile, transposed */
};

struct AttentionArgs {
    tw_cuda_attention_t attention;
    tw_cuda_attention_gradients_t gradients;
    void *y;
    size_t y_stride;
    bool aligned; /* all rows, to 16 bytes */
};

/** Rows of one head: row t begins at `at` + t * stride. */
struct Rows {
    const void *at;
    size_t stride;
};

/** Four neighbours in shared memory, aligned. */
TW_DEVICE void load_quad(const float *at, float *values)
{
    uint32_t words[quad_elems];
    tw_dev_load_mutable(at, words);
    memcpy(values, words, sizeof(words));
}

TW_DEVICE void store_quad(const float *values, float *at)
{
    uint32_t words[quad_elems];
    memcpy(words, values, sizeof(words));
    tw_dev_store<16>(at, words);
}

/** One head of one sequence, and where the thread is in a tile. */
template <class T>
struct AttentionHead {
    const AttentionArgs &a;
    size_t batch, head, kv_head;
    uint32_t seq_len, width, window, x, y;

    TW_DEVICE AttentionHead(const AttentionArgs &args, size_t b, size_t h)
        : a(args), batch(b), head(h), kv_head(h / (args.attention.heads / args.attention.kv_heads)),
          seq_len((uint32_t)args.attention.seq_len), width((uint32_t)args.attention.width),
          window((uint32_t)args.attention.window), x(threadIdx.x % side), y(threadIdx.x / side)
    {
    }

    TW_DEVICE Rows rows(const void *array, size_t stride, size_t which) const
    {
        return {(const T *)array + batch * seq_len * stride + which * width, stride};
    }
    TW_DEVICE Rows q() const
    {
        return rows(a.attention.q, a.attention.q_stride, head);
    }
    TW_DEVICE Rows k() const
    {
        return rows(a.attention.k, a.attention.k_stride, kv_head);
    }
    TW_DEVICE Rows v() const
    {
        return rows(a.attention.v, a.attention.v_stride, kv_head);
    }
    TW_DEVICE Rows dy() const
    {
        return rows(a.gradients.dy, a.gradients.dy_stride, head);
    }
    /** Of an array (B,H,T). */
    TW_DEVICE size_t statistic(uint32_t row) const
    {
        return (batch * a.attention.heads + head) * seq_len + row;
    }

    /** The first key that a query sees. */
    TW_DEVICE uint32_t first_seen(uint32_t query) const
    {
        const uint32_t by_window = window && query >= window ? query - window + 1 : 0;
        const int32_t *starts = a.attention.starts;
        const uint32_t by_document = starts ? (uint32_t)starts[batch * seq_len + query] : 0;
        return by_window > by_document ? by_window : by_document;
    }
    TW_DEVICE bool sees(uint32_t query, uint32_t key) const
    {
        return query < seq_len && key <= query && key >= first_seen(query);
    }
};

/* ---- products of tiles --------------------------------------------------------------------------------- */

/** COUNT columns from `column` on of a row, which may lie outside of the matrix: 0 there. COUNT: 8. */
template <class T>
TW_DEVICE void load_inside(Rows rows, uint32_t row, uint32_t n_rows, uint32_t column, uint32_t width,
                           bool aligned, float *values)
{
    const T *at = (const T *)rows.at + row * rows.stride + column;
    if (row < n_rows && aligned && column + octet_elems <= width) {
        load_octet(at, values);
        return;
    }
    TW_UNROLL
    for (uint32_t i = 0; i < octet_elems; i++) {
        values[i] = row < n_rows && column + i < width ? to_float(at[i]) : 0;
    }
}

/** A thread's 4 x 4 of a tile. */
struct Patch {
    float at[patch][patch];
};

/** m = factor * A B', of 64 rows from a_first on of A (T,D) and from b_first on of B. All threads. */
template <class T>
TW_DEVICE Patch multiply_tile(const AttentionHead<T> &head, AttentionShared *shared, Rows a, uint32_t a_first,
                              Rows b, uint32_t b_first, float factor)
{
    const uint32_t row = threadIdx.x / (depth / octet_elems);
    const uint32_t column = threadIdx.x % (depth / octet_elems) * octet_elems;
    float *to_a = shared->factors.a + row * depth_pitch + column;
    float *to_b = shared->factors.b + row * depth_pitch + column;
    Patch m = {};
    for (uint32_t first = 0; first < head.width; first += depth) {
        float values[octet_elems];
        __syncthreads(); /* what was there is used up */
        load_inside<T>(a, a_first + row, head.seq_len, first + column, head.width, head.a.aligned, values);
        store_quad(values, to_a), store_quad(values + quad_elems, to_a + quad_elems);
        load_inside<T>(b, b_first + row, head.seq_len, first + column, head.width, head.a.aligned, values);
        store_quad(values, to_b), store_quad(values + quad_elems, to_b + quad_elems);
        __syncthreads();
        TW_UNROLL
        for (uint32_t d = 0; d < depth; d += quad_elems) {
            float of_a[patch][quad_elems], of_b[patch][quad_elems];
            TW_UNROLL
            for (uint32_t i = 0; i < patch; i++) {
                load_quad(shared->factors.a + (patch * head.y + i) * depth_pitch + d, of_a[i]);
                load_quad(shared->factors.b + (head.x + side * i) * depth_pitch + d, of_b[i]);
            }
            TW_UNROLL
            for (uint32_t i = 0; i < patch; i++) {
                TW_UNROLL
                for (uint32_t j = 0; j < patch; j++) {
                    TW_UNROLL
                    for (uint32_t e = 0; e < quad_elems; e++) {
                        m.at[i][j] = tw_dev_fma(of_a[i][e], of_b[j][e], m.at[i][j]);
                    }
                }
            }
        }
    }
    TW_UNROLL
    for (uint32_t i = 0; i < patch; i++) {
        TW_UNROLL
        for (uint32_t j = 0; j < patch; j++) {
            m.at[i][j] *= factor;
        }
    }
    return m;
}

/** A sum (64,D) of the block, COLUMNS >= D: a thread has rows 4 y + i, columns 64 c + 4 x + e. */
template <uint32_t COLUMNS>
struct Sum {
    float at[patch][COLUMNS / side];
};

/** The tile goes to shared memory. All threads; others may read it after the next barrier. */
TW_DEVICE void share_tile(AttentionShared *shared, uint32_t x, uint32_t y, const Patch &m)
{
    __syncthreads();
    TW_UNROLL
    for (uint32_t j = 0; j < patch; j++) {
        const float of_rows[quad_elems] = {m.at[0][j], m.at[1][j], m.at[2][j], m.at[3][j]};
        store_quad(of_rows, shared->m + (x + side * j) * tile_pitch + patch * y);
    }
}

/** sum += M X, M (64,64) of share_tile, X 64 rows from x_first on. All threads. */
template <class T, uint32_t COLUMNS>
TW_DEVICE void add_product(const AttentionHead<T> &head, AttentionShared *shared, Rows x, uint32_t x_first,
                           Sum<COLUMNS> *sum)
{
    constexpr uint32_t rows_at_once = pool_elems / COLUMNS, octets = COLUMNS / octet_elems;
    for (uint32_t first = 0; first < tile; first += rows_at_once) {
        __syncthreads();
        TW_UNROLL
        for (uint32_t i = threadIdx.x; i < pool_elems / octet_elems; i += threads) {
            float values[octet_elems], *to = shared->pool + i * octet_elems;
            load_inside<T>(x, x_first + first + i / octets, head.seq_len, i % octets * octet_elems,
                           head.width, head.a.aligned, values);
            store_quad(values, to), store_quad(values + quad_elems, to + quad_elems);
        }
        __syncthreads();
        for (uint32_t k = 0; k < rows_at_once; k++) {
            float of_m[patch];
            load_quad(shared->m + (first + k) * tile_pitch + patch * head.y, of_m);
            TW_UNROLL
            for (uint32_t c = 0; c < COLUMNS / tile; c++) {
                float of_x[quad_elems];
                load_quad(shared->pool + k * COLUMNS + c * tile + head.x * quad_elems, of_x);
                TW_UNROLL
                for (uint32_t i = 0; i < patch; i++) {
                    TW_UNROLL
                    for (uint32_t e = 0; e < quad_elems; e++) {
                        float *to = &sum->at[i][c * quad_elems + e];
                        *to = tw_dev_fma(of_m[i], of_x[e], *to);
                    }
                }
            }
        }
    }
}

/** 64 rows of a sum, from `first` on; row i times factors[i]. */
template <class T, uint32_t COLUMNS>
TW_DEVICE void write_sum(const AttentionHead<T> &head, const Sum<COLUMNS> &sum, const float *factors,
                         Rows rows, uint32_t first)
{
    TW_UNROLL
    for (uint32_t i = 0; i < patch; i++) {
        const uint32_t row = first + patch * head.y + i;
        T *to = (T *)rows.at + row * rows.stride;
        TW_UNROLL
        for (uint32_t k = 0; k < COLUMNS / side; k++) {
            const uint32_t column = k / quad_elems * tile + head.x * quad_elems + k % quad_elems;
            if (row < head.seq_len && column < head.width) {
                from_float(factors[i] * sum.at[i][k], to + column);
            }
        }
    }
}

/** A value of each of the thread's rows, combined over the 16 threads that share them. */
template <class FN>
TW_DEVICE float combine_row(float value, FN fn)
{
    TW_UNROLL
    for (uint32_t mask = 1; mask < side; mask *= 2) {
        value = fn(value, tw_dev_exchange(value, mask));
    }
    return value;
}

struct Larger {
    TW_DEVICE float operator()(float a, float b) const
    {
        return a > b ? a : b; /* NaN is found by its exponential */
    }
};

struct Plus {
    TW_DEVICE float operator()(float a, float b) const
    {
        return a + b;
    }
};

/* ---- forwards ------------------------------------------------------------------------------------------ */

/** q, k, v -> y, lse. */
template <class T, uint32_t COLUMNS>
struct AttentionForward {
    /** Of each of the thread's rows: the largest score so far, the sum of exponentials of what is less than
     *  it. */
    struct State {
        float most[patch], total[patch];
        Sum<COLUMNS> sum;
    };

    /* Scores become exponentials, the sums are corrected for a larger maximum. */
    static TW_DEVICE void soften(const AttentionHead<T> &head, uint32_t query, uint32_t key, Patch *s,
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
            most = combine_row(most, Larger());
            const float correction = most == state->most[i] ? 1 : tw_dev_exp(state->most[i] - most);
            float total = 0;
            TW_UNROLL
            for (uint32_t j = 0; j < patch; j++) {
                s->at[i][j] = seen[j] ? tw_dev_exp(s->at[i][j] - most) : 0;
                total += s->at[i][j];
            }
            state->total[i] = state->total[i] * correction + combine_row(total, Plus());
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
        const AttentionHead<T> head(a, blockIdx.x / heads % a.attention.batch, blockIdx.x % heads);
        /* the last queries see most keys: they come first */
        const uint32_t first = (uint32_t)(tiles - 1 - blockIdx.x / heads / a.attention.batch) * tile;
        const float factor = 1.0f / sqrtf((float)head.width);
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

    static TW_DEVICE void finish(const AttentionHead<T> &head, uint32_t first, State *state)
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

/** y, dy -> workspace (B,H,T): the sum over a head of y * dy, which is that over a row of P * dP. A warp
 *  takes a head of a row. Bytes: 2 accesses of bf16, 4, for 1 multiply-add. */
template <class T>
struct AttentionDots {
    static TW_DEVICE void run(const AttentionArgs &a)
    {
        const size_t index = first_row(), rows = a.attention.batch * a.attention.seq_len;
        const size_t row = index / a.attention.heads, head = index % a.attention.heads;
        const size_t b = row / a.attention.seq_len, t = row % a.attention.seq_len;
        if (row >= rows) {
            return;
        }
        const T *y = (const T *)a.gradients.y + row * a.gradients.y_stride + head * a.attention.width;
        const T *dy = (const T *)a.gradients.dy + row * a.gradients.dy_stride + head * a.attention.width;
        float sum = 0;
        for (size_t c = threadIdx.x % warp_lanes; c < a.attention.width; c += warp_lanes) {
            sum += to_float(y[c]) * to_float(dy[c]);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % warp_lanes == 0) {
            a.gradients.workspace[(b * a.attention.heads + head) * a.attention.seq_len + t] = sum;
        }
    }
};

/** What backwards needs of a query. */
struct Query {
    float lse, dot;
    uint32_t first_seen, at;
    bool exists;
};

template <class T>
TW_DEVICE Query query_at(const AttentionHead<T> &head, uint32_t row)
{
    Query query = {0, 0, 0, row, row < head.seq_len};
    if (query.exists) {
        query.lse = head.a.attention.lse[head.statistic(row)];
        query.dot = head.a.gradients.workspace[head.statistic(row)];
        query.first_seen = head.first_seen(row);
    }
    return query;
}

/** A score becomes its probability, dp the gradient by what the product of q and k made. */
TW_DEVICE void differentiate(const Query &query, uint32_t key, float factor, float *s, float *dp)
{
    const bool seen = query.exists && key <= query.at && key >= query.first_seen;
    *s = seen ? tw_dev_exp(*s - query.lse) : 0;
    *dp = seen ? *s * (*dp - query.dot) * factor : 0;
}

/** q, k, v, dy, lse, workspace -> dq: a block takes 64 queries. */
template <class T, uint32_t COLUMNS>
struct AttentionQueries {
    static TW_DEVICE void run(const AttentionArgs &a)
    {
        __shared__ AttentionShared shared;
        const size_t heads = a.attention.heads, tiles = ceil_div(a.attention.seq_len, tile);
        const AttentionHead<T> head(a, blockIdx.x / heads % a.attention.batch, blockIdx.x % heads);
        const uint32_t first = (uint32_t)(tiles - 1 - blockIdx.x / heads / a.attention.batch) * tile;
        const float factor = 1.0f / sqrtf((float)head.width), ones[patch] = {1, 1, 1, 1};
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

/** The same -> dk, dv: a block takes 64 keys of a head of k and v. Tiles are transposed: rows are keys. */
template <class T, uint32_t COLUMNS>
struct AttentionKeys {
    struct State {
        Sum<COLUMNS> dk, dv;
    };

    static TW_DEVICE void add_queries(const AttentionHead<T> &head, AttentionShared *shared, uint32_t key,
                                      uint32_t first, State *state)
    {
        const float factor = 1.0f / sqrtf((float)head.width);
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
            const AttentionHead<T> head(a, batch, h);
            for (uint32_t first = key; first < head.seq_len; first += tile) {
                if (head.first_seen(first) >= key + tile) {
                    break; /* nor do those behind it see the block's keys */
                }
                add_queries(head, &shared, key, first, &state);
            }
        }
        const AttentionHead<T> head(a, batch, kv_head * group);
        write_sum(head, state.dk, ones, head.rows(a.gradients.dk, a.gradients.dk_stride, kv_head), key);
        write_sum(head, state.dv, ones, head.rows(a.gradients.dv, a.gradients.dv_stride, kv_head), key);
    }
};

/* ---- launches ------------------------------------------------------------------------------------------ */

inline tw_status_t check_attention(const tw_cuda_attention_t *attention)
{
    TW_TRY(check_type("attention", attention->type));
    if (attention->width == 0 || attention->width > attention_width_max) {
        tw_error("cuda: attention: heads of width %zu; it is 1 to %u", attention->width,
                 (unsigned)attention_width_max);
        return TW_ERR_INVALID;
    }
    if (attention->kv_heads == 0 || attention->heads % attention->kv_heads != 0) {
        tw_error("cuda: attention: %zu heads of q are no multiple of %zu of k and v", attention->heads,
                 attention->kv_heads);
        return TW_ERR_INVALID;
    }
    return TW_OK;
}

/** The kernel for a type and a width: KERNEL<T, COLUMNS> with the fewest columns that hold it. */
template <template <class, uint32_t> class KERNEL, class T, class LAUNCHER>
tw_status_t launch_width(const LAUNCHER &launcher, size_t blocks, const char *what, const AttentionArgs &a)
{
    if (a.attention.width <= 64) {
        return launcher.template run<KERNEL<T, 64>>((uint32_t)blocks, what, a);
    }
    return a.attention.width <= 128 ? launcher.template run<KERNEL<T, 128>>((uint32_t)blocks, what, a)
                                    : launcher.template run<KERNEL<T, 256>>((uint32_t)blocks, what, a);
}

template <template <class, uint32_t> class KERNEL, class LAUNCHER>
tw_status_t launch_attention(const LAUNCHER &launcher, size_t heads, const char *what, const AttentionArgs &a)
{
    const size_t blocks = a.attention.batch * heads * ceil_div(a.attention.seq_len, tile);

    return a.attention.type == TW_TYPE_FP32 ? launch_width<KERNEL, float>(launcher, blocks, what, a)
                                            : launch_width<KERNEL, Bf16>(launcher, blocks, what, a);
}

inline AttentionArgs attention_args(const tw_cuda_attention_t *attention)
{
    AttentionArgs args = {};

    args.attention = *attention;
    args.aligned =
        in_octets((size_t)attention->q | (size_t)attention->k | (size_t)attention->v,
                  attention->width | attention->q_stride | attention->k_stride | attention->v_stride);
    return args;
}

inline bool attends_nothing(const tw_cuda_attention_t *attention)
{
    return attention->batch * attention->seq_len * attention->heads == 0;
}

template <class LAUNCHER>
tw_status_t attention_forward(const LAUNCHER &launcher, const tw_cuda_attention_t *attention, void *y,
                              size_t y_stride)
{
    AttentionArgs args = attention_args(attention);

    TW_TRY(check_attention(attention));
    args.y = y;
    args.y_stride = y_stride;
    return attends_nothing(attention)
               ? TW_OK
               : launch_attention<AttentionForward>(launcher, attention->heads, "attention", args);
}

template <class LAUNCHER>
tw_status_t attention_backward(const LAUNCHER &launcher, const tw_cuda_attention_t *attention,
                               const tw_cuda_attention_gradients_t *gradients)
{
    const size_t rows = attention->batch * attention->seq_len * attention->heads;
    const uint32_t blocks = (uint32_t)ceil_div(rows, warps);
    AttentionArgs args = attention_args(attention);

    TW_TRY(check_attention(attention));
    args.gradients = *gradients;
    args.aligned = args.aligned && in_octets((size_t)gradients->dy, gradients->dy_stride);
    if (attends_nothing(attention)) {
        return TW_OK;
    }
    TW_TRY(attention->type == TW_TYPE_FP32
               ? launcher.template run<AttentionDots<float>>(blocks, "attention backwards, dots", args)
               : launcher.template run<AttentionDots<Bf16>>(blocks, "attention backwards, dots", args));
    TW_TRY(
        launch_attention<AttentionQueries>(launcher, attention->heads, "attention backwards, queries", args));
    return launch_attention<AttentionKeys>(launcher, attention->kv_heads, "attention backwards, keys", args);
}

} // namespace tw_trainer_kernels

#endif
