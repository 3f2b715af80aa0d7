/** Access to elements in memory, one or eight at a time. Include device.cuh (or a test's version) first. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/core.h"
#include "trainer/cuda/fragments.cuh"

namespace tw_trainer_kernels
{

/* threads of a block: 8 warps; 8 blocks fill a multiprocessor of 2048 threads */
constexpr uint32_t threads = 256;
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
    return bf16_value(x.bits);
}

TW_DEVICE void from_float(float x, float *to)
{
    *to = x;
}

TW_DEVICE void from_float(float x, Bf16 *to)
{
    to->bits = bf16_bits(x);
}

/** Loads eight adjacent elements by one or two accesses of 16 bytes. `at` must be aligned to 16 bytes. */
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

/** Loads or stores WIDTH elements: eight aligned adjacent ones (octet_elems), or one (1). */
template <class T, uint32_t WIDTH>
TW_DEVICE void load(const void *array, size_t at, float *values)
{
    if (WIDTH == octet_elems) {
        load_octet((const T *)array + at, values);
    } else {
        values[0] = to_float(((const T *)array)[at]);
    }
}

template <class T, uint32_t WIDTH>
TW_DEVICE void store(const float *values, void *array, size_t at)
{
    if (WIDTH == octet_elems) {
        store_octet(values, (T *)array + at);
    } else {
        from_float(values[0], (T *)array + at);
    }
}

/** Return true if threads may access rows in octets, that is, if all rows are aligned to 16 bytes. The
 *  arguments are all addresses or'ed together, and all strides. */
TW_HOST_DEVICE bool in_octets(size_t all_addresses, size_t all_strides)
{
    return all_addresses % 16 == 0 && all_strides % octet_elems == 0;
}

/* ---- warps and rows ------------------------------------------------------------------------------------ */

constexpr uint32_t warp_lanes = 32, warps = threads / warp_lanes;

/** Returns the sum over the warp, with the same bits in all lanes. */
TW_DEVICE float warp_sum(float value)
{
    TW_UNROLL
    for (uint32_t mask = 1; mask < warp_lanes; mask *= 2) {
        value += tw_dev_exchange(value, mask);
    }
    return value;
}

/** Return this warp's row in kernels where each warp takes a row. It may be past the last row. */
TW_DEVICE size_t first_row()
{
    return (size_t)blockIdx.x * warps + threadIdx.x / warp_lanes;
}

/* ---- what launches share ------------------------------------------------------------------------------- */

TW_HOST_DEVICE size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

inline tw_status_t check_type(const char *what, tw_type_t type)
{
    if (type != TW_TYPE_FP32 && type != TW_TYPE_BF16) {
        return tw_fail(TW_ERR_INVALID, "cuda: %s: there is no kernel for %s", what, tw_type_name(type));
    }
    return TW_OK;
}

} // namespace tw_trainer_kernels
