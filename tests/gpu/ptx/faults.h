/** Kernels with a fault each, which the machine must report, and some without. */
#pragma once

#include <cstdint>
#include <string>

namespace tw::ptx
{

/** The function of a kernel of faults.cu for cudaLaunchKernel, by its name; fails if there is none. */
const void *fault_kernel(const std::string &name);

/** Results that `arithmetic` writes for each pair of operands. */
constexpr int n_results = 24;

/** What a kernel of more than 4 KB of parameters takes. */
struct Large {
    int32_t values[2000];
};

} // namespace tw::ptx
