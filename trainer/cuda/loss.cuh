/** Cross-entropy over pieces of the vocabulary. A block takes a row; 8192 rows are several times the 1000
 *  blocks that a GPU runs at once. An element takes about 4 operations and an exponential. A multiprocessor
 *  computes 16 exponentials a clock, but gets only about 7 bf16 elements a clock from memory, so bandwidth is
 *  the limit. Fewer than 40 registers, 64 bytes of shared memory: 8 blocks per multiprocessor. The order of
 *  sums depends only on the shape. Include device.cuh, or a test's replacement, first. */
#pragma once

#include <math.h>

#include "trainer/cuda/elements.cuh"
#include "trainer/cuda/loss.h"

namespace tw_trainer_kernels
{

struct LossArgs {
    tw_cuda_loss_t loss;
    tw_cuda_logits_t piece;
    float scale;
    size_t group;
    double *sums;
};

/** Return e^(x - most). If most is -infinity, return 1: e^(-infinity + infinity) would be NaN. */
TW_DEVICE float relative_exp(float x, float most)
{
    return most == -INFINITY && x == x ? 1 : tw_dev_exp(x - most);
}

/** A part of a row: its largest value (most), and the sum of e^(value - most). A NaN only affects the sum. */
struct Softmax {
    float most, total;

    TW_DEVICE void add(const Softmax &other)
    {
        const float larger = other.most > most ? other.most : most;
        total = total * relative_exp(most, larger) + other.total * relative_exp(other.most, larger);
        most = larger;
    }
};

/** Combine the threads' parts, per warp, then over warps. All threads call it; thread 0 gets the result. */
TW_DEVICE Softmax block_softmax(Softmax softmax)
{
    __shared__ Softmax shared[warps];
    TW_UNROLL
    for (uint32_t mask = 1; mask < warp_lanes; mask *= 2) {
        const Softmax other = {tw_dev_exchange(softmax.most, mask), tw_dev_exchange(softmax.total, mask)};
        softmax.add(other);
    }
    if (threadIdx.x % warp_lanes == 0) {
        shared[threadIdx.x / warp_lanes] = softmax;
    }
    __syncthreads();
    for (uint32_t w = 1; w < warps && threadIdx.x == 0; w++) {
        softmax.add(shared[w]);
    }
    return softmax;
}

/** Kernel: logits -> max, sum, target. Bytes per logit: 2 (1 bf16). */
template <class T, uint32_t WIDTH>
struct LossAdd {
    static TW_DEVICE Softmax of_thread(const LossArgs &a, size_t row)
    {
        Softmax softmax = {-INFINITY, 0};
        for (size_t c = threadIdx.x * WIDTH; c < a.piece.words; c += threads * WIDTH) {
            float x[WIDTH];
            load<T, WIDTH>(a.piece.logits, row * a.piece.stride + c, x);
            Softmax more = {-INFINITY, 0};
            TW_UNROLL
            for (uint32_t i = 0; i < WIDTH; i++) {
                more.most = x[i] > more.most ? x[i] : more.most;
            }
            TW_UNROLL
            for (uint32_t i = 0; i < WIDTH; i++) {
                more.total += relative_exp(x[i], more.most);
            }
            softmax.add(more);
        }
        return softmax;
    }

    static TW_DEVICE void run(const LossArgs &a)
    {
        const size_t row = blockIdx.x, target = (size_t)a.loss.targets[row];
        const Softmax of_piece = block_softmax(of_thread(a, row));
        if (threadIdx.x != 0) {
            return;
        }
        Softmax all = {-INFINITY, 0};
        if (a.piece.first > 0) {
            all = {a.loss.max[row], a.loss.sum[row]};
        }
        all.add(of_piece);
        a.loss.max[row] = all.most;
        a.loss.sum[row] = all.total;
        if (target >= a.piece.first && target - a.piece.first < a.piece.words) {
            const T *logits = (const T *)a.piece.logits + row * a.piece.stride;
            a.loss.target[row] = to_float(logits[target - a.piece.first]);
        }
    }
};

/** Kernel: max, sum, target -> sums. A block takes a group of rows. Bytes per row: 12. */
struct LossSums {
    static TW_DEVICE void run(const LossArgs &a)
    {
        __shared__ double shared[threads];
        const size_t first = blockIdx.x * a.group;
        double sum = 0;
        for (size_t i = threadIdx.x; i < a.group; i += threads) {
            const double of_target = (double)a.loss.target[first + i] - (double)a.loss.max[first + i];
            sum += a.loss.targets[first + i] < 0 ? 0 : log((double)a.loss.sum[first + i]) - of_target;
        }
        shared[threadIdx.x] = sum;
        for (uint32_t width = threads / 2; width > 0; width /= 2) {
            __syncthreads();
            if (threadIdx.x < width) {
                shared[threadIdx.x] += shared[threadIdx.x + width];
            }
        }
        if (threadIdx.x == 0) {
            a.sums[blockIdx.x] = shared[0];
        }
    }
};

/** Kernel: logits, max, sum, target -> gradients in place of logits. Bytes per logit: 4 (2 bf16). */
template <class T, uint32_t WIDTH>
struct LossBackward {
    static TW_DEVICE void run(const LossArgs &a)
    {
        const size_t row = blockIdx.x, target = (size_t)a.loss.targets[row];
        const float scale = a.loss.targets[row] < 0 ? 0 : a.scale;
        const float most = a.loss.max[row], factor = scale / a.loss.sum[row];
        for (size_t c = threadIdx.x * WIDTH; c < a.piece.words; c += threads * WIDTH) {
            float x[WIDTH];
            load<T, WIDTH>(a.piece.logits, row * a.piece.stride + c, x);
            TW_UNROLL
            for (uint32_t i = 0; i < WIDTH; i++) {
                x[i] = relative_exp(x[i], most) * factor;
                x[i] -= a.piece.first + c + i == target ? scale : 0;
            }
            store<T, WIDTH>(x, a.piece.logits, row * a.piece.stride + c);
        }
    }
};

/* ---- launches ------------------------------------------------------------------------------------------ */

/** Launch KERNEL<T, WIDTH> for a piece, in octets if rows are aligned and their length is a multiple of 8. */
template <template <class, uint32_t> class KERNEL, class LAUNCHER>
tw_status_t launch_loss(const LAUNCHER &launcher, const char *what, const LossArgs &a)
{
    const bool octets = in_octets((size_t)a.piece.logits, a.piece.words | a.piece.stride);
    const uint32_t blocks = (uint32_t)a.loss.rows;

    TW_TRY(check_type(what, a.piece.type));
    if (blocks == 0 || a.piece.words == 0) {
        return TW_OK;
    }
    if (a.piece.type == TW_TYPE_FP32) {
        return octets ? launcher.template run<KERNEL<float, octet_elems>>(blocks, what, a)
                      : launcher.template run<KERNEL<float, 1>>(blocks, what, a);
    }
    return octets ? launcher.template run<KERNEL<Bf16, octet_elems>>(blocks, what, a)
                  : launcher.template run<KERNEL<Bf16, 1>>(blocks, what, a);
}

inline LossArgs loss_args(const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece, float scale)
{
    LossArgs args = {};

    args.loss = *loss;
    args.piece = *piece;
    args.scale = scale;
    return args;
}

template <class LAUNCHER>
tw_status_t loss_add(const LAUNCHER &launcher, const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece)
{
    return launch_loss<LossAdd>(launcher, "loss", loss_args(loss, piece, 0));
}

template <class LAUNCHER>
tw_status_t loss_backward(const LAUNCHER &launcher, const tw_cuda_loss_t *loss, const tw_cuda_logits_t *piece,
                          float scale)
{
    return launch_loss<LossBackward>(launcher, "loss backwards", loss_args(loss, piece, scale));
}

template <class LAUNCHER>
tw_status_t loss_sums(const LAUNCHER &launcher, const tw_cuda_loss_t *loss, size_t group, double *sums)
{
    LossArgs args = {};

    if (group == 0 || loss->rows % group != 0) {
        return tw_fail(TW_ERR_INVALID, "cuda: loss: %zu rows are no whole groups of %zu", loss->rows, group);
    }
    args.loss = *loss;
    args.group = group;
    args.sums = sums;
    return loss->rows
               ? launcher.template run<LossSums>((uint32_t)(loss->rows / group), "sums of losses", args)
               : TW_OK;
}

} // namespace tw_trainer_kernels
