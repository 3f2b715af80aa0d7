/** What there is to test with. */
#ifndef TW_TESTS_GPU_MACHINE_H
#define TW_TESTS_GPU_MACHINE_H

#include <string>

namespace tw::gpu
{

/** "", or why CUDA has no GPU for us, with the versions of driver and runtime. */
std::string why_no_gpu();
/** A line about the GPU, its memory, driver and runtime. */
std::string describe_gpu();
/** "", or why several processes may not use the GPU at once. */
std::string why_not_shared();

/** Whether a libnccl.so.2 can be loaded. */
struct Nccl {
    bool found;
    std::string text; /**< version and path, or why not */
};
Nccl find_nccl();

/** The program nccl_rank, beside this one. */
std::string nccl_rank_path();
/** "", or which of nccl_rank, the net plugin and the interposer is not where it is looked for. */
std::string why_no_plugin();

} // namespace tw::gpu

#endif
