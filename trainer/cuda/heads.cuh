/** Heads of q and k before attention: an optional root-mean-square norm and the rotation of rotary
 *  embeddings, in one pass. A warp takes a head. Lane l holds in registers the pairs (i, i + D / 2) for i =
 *  l, l + 32, ... About 3 operations a byte, so memory bandwidth is the limit. Forward: 48 registers, five
 *  blocks per multiprocessor. Backward: 71 registers and 8 KB of shared memory, three blocks.
 *  Include device.cuh, or a test's replacement, first. */
#pragma once

#include <math.h>

#include "trainer/cuda/columns.cuh"
#include "trainer/cuda/embedding.h"

namespace tw_trainer_kernels
{

/* pairs_max: the most pairs that a lane holds */
constexpr uint32_t head_width_max = 256, pairs_max = head_width_max / 2 / warp_lanes;
static_assert(warps == TW_CUDA_HEADS_OF_BLOCK, "a warp takes a head");

struct HeadsArgs {
    tw_cuda_heads_t heads;
    void *y; /* forward */
    void *d; /* backward */
    size_t stride;
    float *partial;
    size_t slabs; /* number of blocks; each sums one slab */
};

/** A lane's pairs of a head. Pairs past the head's width are 0. */
struct Pairs {
    float low[pairs_max], high[pairs_max];
};

/** One warp and its heads. */
template <class T>
struct Head {
    uint32_t width, half; /* D; ceil(D / 2): with an odd width the last low channel has no partner */
    uint32_t lane;

    TW_DEVICE explicit Head(const HeadsArgs &a)
        : width((uint32_t)a.heads.width), half((width + 1) / 2), lane(threadIdx.x % warp_lanes)
    {
    }

    TW_DEVICE Pairs read(const void *array, size_t at) const
    {
        Pairs pairs;
        TW_UNROLL
        for (uint32_t i = 0; i < pairs_max; i++) {
            const uint32_t c = lane + i * warp_lanes;
            pairs.low[i] = c < half ? to_float(((const T *)array)[at + c]) : 0;
            pairs.high[i] = c + half < width ? to_float(((const T *)array)[at + c + half]) : 0;
        }
        return pairs;
    }

    TW_DEVICE void write(const Pairs &pairs, void *array, size_t at) const
    {
        TW_UNROLL
        for (uint32_t i = 0; i < pairs_max; i++) {
            const uint32_t c = lane + i * warp_lanes;
            if (c < half) {
                from_float(pairs.low[i], (T *)array + at + c);
            }
            if (c + half < width) {
                from_float(pairs.high[i], (T *)array + at + c + half);
            }
        }
    }

    /** Return the mean over the head of a * b. */
    TW_DEVICE float mean(const Pairs &a, const Pairs &b) const
    {
        float sum = 0;
        TW_UNROLL
        for (uint32_t i = 0; i < pairs_max; i++) {
            sum += a.low[i] * b.low[i] + a.high[i] * b.high[i];
        }
        return warp_sum(sum) / (float)width;
    }

    /** Rotate pairs by the angles of a row's position (direction 1), or back (-1). */
    TW_DEVICE void turn(const HeadsArgs &a, size_t row, float direction, Pairs *pairs) const
    {
        const size_t first = row % a.heads.seq_len * half;
        if (!a.heads.cosines) {
            return;
        }
        TW_UNROLL
        for (uint32_t i = 0; i < pairs_max; i++) {
            const uint32_t c = lane + i * warp_lanes;
            if (c < half) {
                const float cosine = a.heads.cosines[first + c];
                const float sine = direction * a.heads.sines[first + c];
                const float low = pairs->low[i], high = pairs->high[i];
                pairs->low[i] = low * cosine - high * sine;
                pairs->high[i] = high * cosine + low * sine;
            }
        }
    }
};

TW_DEVICE void multiply(Pairs *pairs, const Pairs &by, float factor)
{
    TW_UNROLL
    for (uint32_t i = 0; i < pairs_max; i++) {
        pairs->low[i] = pairs->low[i] * factor * by.low[i];
        pairs->high[i] = pairs->high[i] * factor * by.high[i];
    }
}

/** A head's row, and its offsets in memory. */
struct HeadPlace {
    size_t row, at, of_x; /* at: offset in y or d; of_x: in x */

    TW_DEVICE HeadPlace(const HeadsArgs &a, size_t head)
        : row(head / a.heads.heads), at(row * a.stride + head % a.heads.heads * a.heads.width),
          of_x(row * a.heads.x_stride + head % a.heads.heads * a.heads.width)
    {
    }
};

TW_DEVICE size_t all_heads(const HeadsArgs &a)
{
    return a.heads.rows * a.heads.heads;
}

/** Kernel: x, gamma, cosines, sines -> y. Bytes per element: 4 (2 bf16). 6 operations, 4 of them for the
 *  norm. cosines and sines stay in the L2 cache. */
template <class T>
struct HeadsForward {
    static TW_DEVICE void run(const HeadsArgs &a)
    {
        const Head<T> head(a);
        const Pairs gamma = a.heads.gamma ? head.read(a.heads.gamma, 0) : Pairs();
        for (size_t h = first_row(); h < all_heads(a); h += a.slabs * warps) {
            const HeadPlace place(a, h);
            Pairs x = head.read(a.heads.x, place.of_x);
            if (a.heads.gamma) {
                multiply(&x, gamma, 1.0f / sqrtf(head.mean(x, x) + a.heads.epsilon));
            }
            head.turn(a, place.row, 1, &x);
            head.write(x, a.y, place.at);
        }
    }
};

/** Kernel: d, x, gamma, cosines, sines -> d, and partial [slabs][D], each block's sums for dgamma. Bytes per
 *  element: 4 (2 bf16), or 6 with a norm. About 15 operations. */
template <class T>
struct HeadsBackward {
    /* Turn d from the gradient of the normed head into the gradient of x. Add d * x * rstd to dgamma. */
    static TW_DEVICE void norm(const HeadsArgs &a, const Head<T> &head, const Pairs &gamma, size_t of_x,
                               Pairs *d, Pairs *dgamma)
    {
        Pairs x = head.read(a.heads.x, of_x);
        const float rstd = 1.0f / sqrtf(head.mean(x, x) + a.heads.epsilon);
        TW_UNROLL
        for (uint32_t i = 0; i < pairs_max; i++) {
            x.low[i] *= rstd, x.high[i] *= rstd;
            dgamma->low[i] += d->low[i] * x.low[i], dgamma->high[i] += d->high[i] * x.high[i];
            d->low[i] *= gamma.low[i], d->high[i] *= gamma.high[i];
        }
        const float mean = head.mean(*d, x);
        TW_UNROLL
        for (uint32_t i = 0; i < pairs_max; i++) {
            d->low[i] = (d->low[i] - x.low[i] * mean) * rstd;
            d->high[i] = (d->high[i] - x.high[i] * mean) * rstd;
        }
    }

    /* Store the sums of the block's eight warps, added in order. */
    static TW_DEVICE void leave(const HeadsArgs &a, const Head<T> &head, const Pairs &dgamma)
    {
        __shared__ float sums[warps][2][head_width_max / 2];
        const uint32_t c = threadIdx.x;
        TW_UNROLL
        for (uint32_t i = 0; i < pairs_max; i++) {
            sums[threadIdx.x / warp_lanes][0][head.lane + i * warp_lanes] = dgamma.low[i];
            sums[threadIdx.x / warp_lanes][1][head.lane + i * warp_lanes] = dgamma.high[i];
        }
        __syncthreads();
        if (c >= head.width) {
            return;
        }
        float sum = 0;
        for (uint32_t w = 0; w < warps; w++) {
            sum += c < head.half ? sums[w][0][c] : sums[w][1][c - head.half];
        }
        a.partial[blockIdx.x * (size_t)head.width + c] = sum;
    }

    static TW_DEVICE void run(const HeadsArgs &a)
    {
        const Head<T> head(a);
        const Pairs gamma = a.heads.gamma ? head.read(a.heads.gamma, 0) : Pairs();
        Pairs dgamma = {};
        for (size_t h = first_row(); h < all_heads(a); h += a.slabs * warps) {
            const HeadPlace place(a, h);
            Pairs d = head.read(a.d, place.at);
            head.turn(a, place.row, -1, &d);
            if (a.heads.gamma) {
                norm(a, head, gamma, place.of_x, &d, &dgamma);
            }
            head.write(d, a.d, place.at);
        }
        if (a.heads.gamma) {
            leave(a, head, dgamma);
        }
    }
};

/* ---- launches ------------------------------------------------------------------------------------------ */

inline tw_status_t check_heads(const tw_cuda_heads_t *heads)
{
    TW_TRY(check_type("heads", heads->type));
    TW_FAIL_IF(heads->width == 0 || heads->width > head_width_max || (heads->cosines && heads->width % 2),
               TW_ERR_INVALID, "cuda: heads: a width of %zu; it is 1 to %u, and even where heads are turned",
               heads->width, (unsigned)head_width_max);
    return TW_OK;
}

inline HeadsArgs heads_args(const tw_cuda_heads_t *heads, size_t stride)
{
    HeadsArgs args = {};

    args.heads = *heads;
    args.stride = stride;
    args.slabs = tw_cuda_head_slabs(heads);
    return args;
}

template <class LAUNCHER>
tw_status_t heads_forward(const LAUNCHER &launcher, const tw_cuda_heads_t *heads, void *y, size_t y_stride)
{
    HeadsArgs args = heads_args(heads, y_stride);

    TW_TRY(check_heads(heads));
    args.y = y;
    if (args.slabs == 0) {
        return TW_OK;
    }
    return heads->type == TW_TYPE_FP32
               ? launcher.template run<HeadsForward<float>>((uint32_t)args.slabs, "heads", args)
               : launcher.template run<HeadsForward<Bf16>>((uint32_t)args.slabs, "heads", args);
}

template <class LAUNCHER>
tw_status_t heads_backward(const LAUNCHER &launcher, const tw_cuda_heads_t *heads, void *d, size_t d_stride,
                           float *dgamma, float *workspace)
{
    const char *what = "heads backwards";
    HeadsArgs args = heads_args(heads, d_stride);

    TW_TRY(check_heads(heads));
    args.d = d;
    args.partial = workspace;
    if (args.slabs == 0) {
        return TW_OK;
    }
    TW_TRY(heads->type == TW_TYPE_FP32
               ? launcher.template run<HeadsBackward<float>>((uint32_t)args.slabs, what, args)
               : launcher.template run<HeadsBackward<Bf16>>((uint32_t)args.slabs, what, args));
    return heads->gamma ? add_slabs(launcher, what, {args.slabs, heads->width, workspace, {dgamma, NULL}})
                        : TW_OK;
}

} // namespace tw_trainer_kernels
