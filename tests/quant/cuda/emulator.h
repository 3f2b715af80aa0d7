/** Runs CUDA kernels on the CPU, for tests: blocks follow one another, the threads of a block are fibers
 *  (fibers.h). Accesses that are not aligned end the program.
 *
 *  Include it before the kernels, in place of device.cuh, in one source file. */
#ifndef TW_TESTS_QUANT_CUDA_EMULATOR_H
#define TW_TESTS_QUANT_CUDA_EMULATOR_H

#include "tests/quant/cuda/fibers.h"

namespace tw::emulator
{

struct Dimension {
    uint32_t x;
};

inline Block block;
inline Dimension block_index, grid_size;

inline Dimension thread_index()
{
    return {block.current()};
}

/** kernel<<<grid, threads>>>, of which only some blocks are run. */
inline void launch(uint32_t grid, uint32_t threads, const std::function<void()> &kernel,
                   const std::function<bool(uint32_t)> &is_wanted)
{
    grid_size = {grid};
    for (uint32_t b = 0; b < grid; b++) {
        if (!is_wanted(b)) {
            continue;
        }
        block_index = {b};
        block.run(threads, kernel);
    }
}

template <int BYTES>
void check_alignment(const void *at)
{
    if (reinterpret_cast<uintptr_t>(at) % BYTES != 0) {
        fail("an access is not aligned");
    }
}

} // namespace tw::emulator

/* ---- what kernels use ---------------------------------------------------------------------------------- */

#define TW_DEVICE inline
#define TW_UNROLL
#define __shared__ static
#define threadIdx tw::emulator::thread_index()
#define blockIdx tw::emulator::block_index
#define gridDim tw::emulator::grid_size

using std::max;

inline void __syncthreads()
{
    tw::emulator::block.barrier();
}

inline void atomicMax(uint32_t *at, uint32_t value)
{
    *at = std::max(*at, value);
}

inline void atomicAdd(uint32_t *at, uint32_t value)
{
    *at += value;
}

inline void atomicOr(uint32_t *at, uint32_t value)
{
    *at |= value;
}

inline uint32_t tw_dev_ballot(bool yes)
{
    return tw::emulator::block.ballot(yes);
}

inline uint32_t tw_dev_popc(uint32_t bits)
{
    return uint32_t(__builtin_popcount(bits));
}

inline void tw_dev_prefetch(const void *)
{
}

inline uint32_t tw_dev_ones(uint32_t bits)
{
    return uint32_t(__builtin_ctz(~bits));
}

/* Thread blocks of 256 alone; the first thread adds. */
template <class T>
T tw_dev_block_scan(T value, T *all)
{
    static T values[257];
    const uint32_t own = tw::emulator::block.current();
    tw::emulator::block.barrier();
    values[own] = value;
    tw::emulator::block.barrier();
    if (own == 0) {
        T sum = 0;
        for (T &each : values) {
            const T next = sum + each;
            each = sum;
            sum = next;
        }
    }
    tw::emulator::block.barrier();
    const T before = values[own];
    *all = values[256];
    tw::emulator::block.barrier();
    return before;
}

inline void atomicAdd(unsigned long long *at, unsigned long long value)
{
    *at += value;
}

template <class T>
T tw_dev_exchange(T value, uint32_t mask)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    bits = tw::emulator::block.exchange(bits, mask);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* As a butterfly: every lane takes part. */
inline uint32_t tw_dev_group_max(uint32_t value, uint32_t lane_steps)
{
    for (uint32_t s = 0; s < lane_steps; s++) {
        value = std::max(value, tw_dev_exchange(value, 1u << s));
    }
    return value;
}

/* The sum is only lane 0's to use. */
inline uint32_t tw_dev_warp_sum(uint32_t value)
{
    for (uint32_t s = 0; s < 5; s++) {
        value += tw_dev_exchange(value, 1u << s);
    }
    return tw::emulator::block.current() % tw::emulator::warp_lanes == 0 ? value : 0xdeadbeef;
}

inline uint8_t *tw_dev_keep(uint8_t *pointer)
{
    return pointer;
}

template <int BYTES>
void tw_dev_load(const void *from, uint32_t *words)
{
    tw::emulator::check_alignment<BYTES>(from);
    memcpy(words, from, BYTES);
}

inline void tw_dev_load_mutable(const void *from, uint32_t *words)
{
    tw_dev_load<16>(from, words);
}

template <int BYTES>
void tw_dev_store(void *to, const uint32_t *words)
{
    tw::emulator::check_alignment<BYTES>(to);
    memcpy(to, words, BYTES);
}

template <int BYTES>
uint32_t tw_dev_load_element(const void *from)
{
    uint32_t value = 0;
    tw::emulator::check_alignment<BYTES>(from);
    memcpy(&value, from, BYTES);
    return value;
}

template <int BYTES>
void tw_dev_store_element(void *to, uint32_t value)
{
    tw::emulator::check_alignment<BYTES>(to);
    memcpy(to, &value, BYTES);
}

#endif
