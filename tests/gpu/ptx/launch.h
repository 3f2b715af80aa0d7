/** Kernels by name, and launches of them. */
#pragma once

#include <cstddef>
#include <string>

#include "tests/gpu/ptx/program.h"

namespace tw::ptx
{

/** The kernel of a name as nvcc mangles it, from the files of PTX_FILES; NULL: there is none. What nvcc puts
 *  into names of unnamed namespaces, and is another one in each compilation, does not count. */
const Kernel *find_kernel(const std::string &name);

/** Run a grid to its end; blocks one after the other. parameters: where each one is. */
void launch(const Kernel *kernel, const u32 grid[3], const u32 block[3], size_t dynamic_shared,
            const std::vector<const void *> &parameters);

} // namespace tw::ptx
