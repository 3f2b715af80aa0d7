/** The CUDA kernels on an emulated device, as a backend of host memory. */
#ifndef TW_TESTS_QUANT_CUDA_EMULATED_H
#define TW_TESTS_QUANT_CUDA_EMULATED_H

#include <cstdint>
#include <vector>

#include "quant/backend.h"

namespace tw::emulated
{

extern const tw_quant_backend_t backend;

/** Launches so far, and blocks and threads of the last. */
struct Launches {
    uint64_t launches, tables;
    uint32_t grid, threads;
};
Launches launches();

/** From now on work on these elements of a launch's only segment alone, [first, end) each, where there is a
 *  block for each tile (many multiprocessors): for segments too long to work on all. Empty: on everything
 *  again. */
struct Range {
    uint64_t first, end;
};
void set_ranges(const std::vector<Range> &ranges);

/** Multiprocessors of contexts made from now on; 0: contexts take turns. It decides how small tiles get. */
void set_multiprocessors(uint32_t n);

} // namespace tw::emulated

#endif
