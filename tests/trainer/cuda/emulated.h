/** Launches the kernels of trainer/cuda on the emulated device. Include it before them. */
#ifndef TW_TESTS_TRAINER_CUDA_EMULATED_H
#define TW_TESTS_TRAINER_CUDA_EMULATED_H

#include "tests/quant/cuda/emulator.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#define TW_HOST_DEVICE inline

inline float tw_dev_fma(float a, float b, float c)
{
    return std::fma(a, b, c);
}

inline float tw_dev_exp(float x)
{
    return std::exp(x);
}

inline float tw_dev_exp2(float x)
{
    return std::exp2(x);
}

#include "trainer/cuda/fragments.cuh"

namespace tw::emulator
{

/** Copies to shared memory that a thread has begun. One half takes place at once: who still reads what they
 *  overwrite finds it gone. The other half takes place when the thread waits for them, and not before: who
 *  does not wait finds what was there. */
struct Copy {
    void *to;
    const void *from;
    size_t bytes;
};
inline std::vector<Copy> copies[threads_max];
inline std::mt19937 copy_random{1};

} // namespace tw::emulator

template <int BYTES>
void tw_dev_copy_begin(void *to, const void *from)
{
    tw::emulator::check_alignment<BYTES>(to);
    tw::emulator::check_alignment<BYTES>(from);
    if (tw::emulator::copy_random() % 2) {
        memcpy(to, from, BYTES);
        return;
    }
    tw::emulator::copies[tw::emulator::block.current()].push_back({to, from, BYTES});
}

inline void tw_dev_copy_wait()
{
    std::vector<tw::emulator::Copy> &begun = tw::emulator::copies[tw::emulator::block.current()];
    for (const tw::emulator::Copy &copy : begun) {
        memcpy(copy.to, copy.from, copy.bytes);
    }
    begun.clear();
}

template <bool TRANSPOSED>
void tw_dev_load_squares(const void *row, uint32_t *words)
{
    const auto address = reinterpret_cast<uint64_t>(row);
    const uint32_t halves[] = {uint32_t(address), uint32_t(address >> 32)};
    const uint32_t lane = tw::emulator::block.current() % tw::emulator::warp_lanes, g = lane / 4,
                   t = lane % 4;
    tw::emulator::check_alignment<16>(row);
    const auto shown = tw::emulator::block.show(halves, 2);
    for (uint32_t i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (uint32_t e = 0; e < 2; e++) {
            const uint32_t r = TRANSPOSED ? 2 * t + e : g, c = TRANSPOSED ? g : 2 * t + e;
            const uint64_t at = shown(8 * i + r, 0) | uint64_t(shown(8 * i + r, 1)) << 32;
            pair[e] = reinterpret_cast<const uint16_t *>(at)[c];
        }
        words[i] = pair[0] | uint32_t(pair[1]) << 16;
    }
}

inline uint32_t tw_dev_pack(float low, float high)
{
    return tw_trainer_kernels::bf16_bits(low) | uint32_t(tw_trainer_kernels::bf16_bits(high)) << 16;
}

inline void tw_dev_mma(const uint32_t *a, const uint32_t *b, float *c)
{
    const uint32_t words[] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const uint32_t lane = tw::emulator::block.current() % tw::emulator::warp_lanes;
    tw_trainer_kernels::multiply_fragments(lane, c, tw::emulator::block.show(words, 6));
}

#include "trainer/cuda/elements.cuh"

namespace tw
{

struct Emulated {
    template <class KERNEL, class ARGS>
    tw_status_t run(uint32_t blocks, const char * /*what*/, const ARGS &args) const
    {
        const auto body = [&] {
            KERNEL::run(args);
            if (!emulator::copies[emulator::block.current()].empty()) {
                emulator::fail("copies to shared memory that nobody waits for");
            }
        };
        emulator::launch(blocks, tw_trainer_kernels::threads, body, [](uint32_t) { return true; });
        return TW_OK;
    }
};

} // namespace tw

#endif
