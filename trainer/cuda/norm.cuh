/** Layer norm and root-mean-square norm, forward and backward. A warp takes a row, so a block takes eight
 *  rows. Sums are computed in registers and by exchanges between lanes, always in the same order. A row is
 *  read two or three times, but only once from memory: a multiprocessor's eight blocks of eight rows of 4096
 *  bf16 channels are 512 KB, which stay in the L2 cache. About 5 operations a byte, so memory bandwidth is
 *  the limit. At most 64 registers, so that four blocks fit on a multiprocessor; no shared memory.
 *
 *  Gradients of gamma and beta are sums over rows: a thread sums a column of a slab of rows, then columns.cuh
 *  adds the slabs. Include device.cuh, or a test's replacement, first. */
#pragma once

#include <math.h>

#include "trainer/cuda/columns.cuh"
#include "trainer/cuda/cuda.h"

namespace tw_trainer_kernels
{

/* ---- a row, a warp ------------------------------------------------------------------------------------- */

struct NormArgs {
    tw_cuda_norm_t norm;
    void *y;        /* forward */
    const void *dy; /* backward */
    void *dx;
    int accumulate;
    float *partial;
};

/** A lane's work on its share of a row, WIDTH channels at a time. CENTRED is true for layer norm. */
template <class T, bool CENTRED, uint32_t WIDTH>
struct NormRow {
    static constexpr uint32_t step = warp_lanes * WIDTH;

    static TW_DEVICE uint32_t first_channel()
    {
        return threadIdx.x % warp_lanes * WIDTH;
    }

    static TW_DEVICE float sum(const NormArgs &a, size_t row, float mean, bool squares)
    {
        float all = 0;
        for (uint32_t c = first_channel(); c < a.norm.channels; c += step) {
            float x[WIDTH];
            load<T, WIDTH>(a.norm.x, row * a.norm.channels + c, x);
            TW_UNROLL
            for (uint32_t i = 0; i < WIDTH; i++) {
                const float centred = x[i] - mean;
                all += squares ? centred * centred : x[i];
            }
        }
        return warp_sum(all);
    }

    static TW_DEVICE void write(const NormArgs &a, size_t row, float mean, float rstd)
    {
        for (uint32_t c = first_channel(); c < a.norm.channels; c += step) {
            float x[WIDTH], gamma[WIDTH], beta[WIDTH] = {};
            load<T, WIDTH>(a.norm.x, row * a.norm.channels + c, x);
            load<T, WIDTH>(a.norm.gamma, c, gamma);
            if (CENTRED) {
                load<T, WIDTH>(a.norm.beta, c, beta);
            }
            TW_UNROLL
            for (uint32_t i = 0; i < WIDTH; i++) {
                x[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
            }
            store<T, WIDTH>(x, a.y, row * a.norm.channels + c);
        }
    }

    static TW_DEVICE void forward(const NormArgs &a, size_t row)
    {
        const float n = (float)a.norm.channels;
        const float mean = CENTRED ? sum(a, row, 0, false) / n : 0;
        const float rstd = 1.0f / sqrtf(sum(a, row, mean, true) / n + a.norm.epsilon);
        write(a, row, mean, rstd);
        if (threadIdx.x % warp_lanes == 0) {
            a.norm.rstd[row] = rstd;
            if (CENTRED) {
                a.norm.mean[row] = mean;
            }
        }
    }

    /* Replace x by (x - mean) * rstd, and compute g = dy * gamma, for WIDTH channels from c on. */
    static TW_DEVICE void normed(const NormArgs &a, size_t row, uint32_t c, float *x, float *g)
    {
        const float mean = CENTRED ? a.norm.mean[row] : 0, rstd = a.norm.rstd[row];
        float gamma[WIDTH];
        load<T, WIDTH>(a.norm.x, row * a.norm.channels + c, x);
        load<T, WIDTH>(a.dy, row * a.norm.channels + c, g);
        load<T, WIDTH>(a.norm.gamma, c, gamma);
        TW_UNROLL
        for (uint32_t i = 0; i < WIDTH; i++) {
            x[i] = (x[i] - mean) * rstd;
            g[i] *= gamma[i];
        }
    }

    static TW_DEVICE void backward(const NormArgs &a, size_t row)
    {
        float of_g = 0, of_g_x = 0, x[WIDTH], g[WIDTH];
        for (uint32_t c = first_channel(); c < a.norm.channels; c += step) {
            normed(a, row, c, x, g);
            TW_UNROLL
            for (uint32_t i = 0; i < WIDTH; i++) {
                of_g += g[i];
                of_g_x += g[i] * x[i];
            }
        }
        const float n = (float)a.norm.channels, mean_g = CENTRED ? warp_sum(of_g) / n : 0;
        const float mean_g_x = warp_sum(of_g_x) / n, rstd = a.norm.rstd[row];
        for (uint32_t c = first_channel(); c < a.norm.channels; c += step) {
            float dx[WIDTH] = {};
            normed(a, row, c, x, g);
            if (a.accumulate) {
                load<T, WIDTH>(a.dx, row * a.norm.channels + c, dx);
            }
            TW_UNROLL
            for (uint32_t i = 0; i < WIDTH; i++) {
                dx[i] += (g[i] - mean_g - x[i] * mean_g_x) * rstd;
            }
            store<T, WIDTH>(dx, a.dx, row * a.norm.channels + c);
        }
    }
};

/** Kernel: x, gamma, beta -> y, mean, rstd. Bytes per element: 4 (2 bf16). */
template <class T, bool CENTRED>
struct NormForward {
    static TW_DEVICE void run(const NormArgs &a)
    {
        const size_t row = first_row(), c = a.norm.channels;
        const size_t all = (size_t)a.norm.x | (size_t)a.norm.gamma | (size_t)a.norm.beta | (size_t)a.y;
        if (row < a.norm.rows && in_octets(all, c)) {
            NormRow<T, CENTRED, octet_elems>::forward(a, row);
        } else if (row < a.norm.rows) {
            NormRow<T, CENTRED, 1>::forward(a, row);
        }
    }
};

/** Kernel: x, gamma, dy, mean, rstd -> dx. Bytes per element: 6 (3 bf16), or 8 with accumulate. */
template <class T, bool CENTRED>
struct NormBackward {
    static TW_DEVICE void run(const NormArgs &a)
    {
        const size_t row = first_row(), c = a.norm.channels;
        const size_t all = (size_t)a.norm.x | (size_t)a.norm.gamma | (size_t)a.dy | (size_t)a.dx;
        if (row < a.norm.rows && in_octets(all, c)) {
            NormRow<T, CENTRED, octet_elems>::backward(a, row);
        } else if (row < a.norm.rows) {
            NormRow<T, CENTRED, 1>::backward(a, row);
        }
    }
};

/* ---- gradients of weights ------------------------------------------------------------------------------ */

/** Kernel: x, dy, mean, rstd -> partial [1 or 2][slabs][C], each slab's sums for dgamma and, if CENTRED, for
 *  dbeta. Bytes per element: 4 (2 bf16). */
template <class T, bool CENTRED>
struct NormSlabs {
    static TW_DEVICE void run(const NormArgs &a)
    {
        const size_t channels = a.norm.channels, blocks = column_blocks(channels);
        const size_t column = blockIdx.x % blocks * threads + threadIdx.x, slab = blockIdx.x / blocks;
        const size_t last = (slab + 1) * slab_rows, end = last < a.norm.rows ? last : a.norm.rows;
        float dgamma = 0, dbeta = 0;
        if (column >= channels) {
            return;
        }
        for (size_t row = slab * slab_rows; row < end; row++) {
            const float x = to_float(((const T *)a.norm.x)[row * channels + column]);
            const float d = to_float(((const T *)a.dy)[row * channels + column]);
            dgamma += d * ((x - (CENTRED ? a.norm.mean[row] : 0)) * a.norm.rstd[row]);
            dbeta += d;
        }
        a.partial[slab * channels + column] = dgamma;
        if (CENTRED) {
            a.partial[(slab_count(a.norm.rows) + slab) * channels + column] = dbeta;
        }
    }
};

/* ---- launches ------------------------------------------------------------------------------------------ */

template <template <class, bool> class KERNEL, class LAUNCHER>
tw_status_t launch_norm(const LAUNCHER &launcher, size_t blocks, const char *what, const NormArgs &a)
{
    const bool bf16 = a.norm.type == TW_TYPE_BF16, centred = a.norm.beta != NULL;

    if (centred) {
        return bf16 ? launcher.template run<KERNEL<Bf16, true>>((uint32_t)blocks, what, a)
                    : launcher.template run<KERNEL<float, true>>((uint32_t)blocks, what, a);
    }
    return bf16 ? launcher.template run<KERNEL<Bf16, false>>((uint32_t)blocks, what, a)
                : launcher.template run<KERNEL<float, false>>((uint32_t)blocks, what, a);
}

inline tw_status_t check_norm(const tw_cuda_norm_t *norm)
{
    TW_TRY(check_type("norm", norm->type));
    TW_FAIL_IF(norm->rows > 0 && !norm->mean != !norm->beta, TW_ERR_INVALID,
               "cuda: norm: a layer norm has beta and mean, a root-mean-square norm neither");
    return TW_OK;
}

template <class LAUNCHER>
tw_status_t norm_forward(const LAUNCHER &launcher, const tw_cuda_norm_t *norm, void *y)
{
    const size_t blocks = (norm->rows + warps - 1) / warps;
    NormArgs args = {};

    TW_TRY(check_norm(norm));
    args.norm = *norm;
    args.y = y;
    return blocks ? launch_norm<NormForward>(launcher, blocks, "norm", args) : TW_OK;
}

template <class LAUNCHER>
tw_status_t norm_backward(const LAUNCHER &launcher, const tw_cuda_norm_t *norm,
                          const tw_cuda_norm_gradients_t *gradients)
{
    const size_t slabs = slab_count(norm->rows), columns = column_blocks(norm->channels);
    NormArgs args = {};

    TW_TRY(check_norm(norm));
    args.norm = *norm;
    args.dy = gradients->dy;
    args.dx = gradients->dx;
    args.accumulate = gradients->accumulate;
    args.partial = gradients->workspace;
    if (slabs * columns == 0) {
        return TW_OK;
    }
    /* this kernel must come first: it reads dy, which the next may overwrite, as dx may be dy */
    TW_TRY(launch_norm<NormSlabs>(launcher, slabs * columns, "norm backwards, slabs", args));
    TW_TRY(add_slabs(launcher, "norm backwards, columns",
                     {slabs,
                      norm->channels,
                      gradients->workspace,
                      {gradients->dgamma, norm->beta ? gradients->dbeta : NULL}}));
    return launch_norm<NormBackward>(launcher, (norm->rows + warps - 1) / warps, "norm backwards", args);
}

} // namespace tw_trainer_kernels
