/** Elements as they lie in memory, and eight of them at a time. Include device.cuh, or what stands for it in
 *  a test, before. */
#ifndef TW_TRAINER_CUDA_ELEMENTS_CUH
#define TW_TRAINER_CUDA_ELEMENTS_CUH

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace tw_trainer_kernels
{

constexpr uint32_t threads = 256; /* of a block: 8 warps; 8 blocks fill a multiprocessor of 2048 threads */
constexpr uint32_t octet_elems = 8;

struct Bf16 {
    uint16_t bits;
};

TW_DEVICE float to_float(float x)
{
    return x;
}

TW_DEVICE float to_float(Bf16 x)
{
    uint32_t bits = (uint32_t)x.bits << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

TW_DEVICE void from_float(float x, float *to)
{
    *to = x;
}

/* To the nearest, ties to even; NaN stays one. */
TW_DEVICE void from_float(float x, Bf16 *to)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    to->bits = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

/** Eight neighbours, one or two accesses of 16 bytes: `at` is a multiple of 16. */
template <class T>
TW_DEVICE void load_octet(const T *at, float *values)
{
    uint32_t words[sizeof(T) * octet_elems / 4];
    TW_UNROLL
    for (uint32_t w = 0; w < sizeof(T) * octet_elems / 4; w += 4) {
        tw_dev_load_mutable((const uint8_t *)at + 4 * w, words + w);
    }
    TW_UNROLL
    for (uint32_t i = 0; i < octet_elems; i++) {
        T element;
        memcpy(&element, (const uint8_t *)words + i * sizeof(T), sizeof(T));
        values[i] = to_float(element);
    }
}

template <class T>
TW_DEVICE void store_octet(const float *values, T *at)
{
    uint32_t words[sizeof(T) * octet_elems / 4];
    TW_UNROLL
    for (uint32_t i = 0; i < octet_elems; i++) {
        T element;
        from_float(values[i], &element);
        memcpy((uint8_t *)words + i * sizeof(T), &element, sizeof(T));
    }
    TW_UNROLL
    for (uint32_t w = 0; w < sizeof(T) * octet_elems / 4; w += 4) {
        tw_dev_store<16>((uint8_t *)at + 4 * w, words + w);
    }
}

} // namespace tw_trainer_kernels

#endif
