/** How fast the entropy codecs' kernels are, and whether their bytes are the host's: on a GPU, or on an
 *  emulated device, which has no time. */
#ifndef TW_TESTS_GPU_ENTROPY_BENCH_H
#define TW_TESTS_GPU_ENTROPY_BENCH_H

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace tw::gpu
{

struct EntropyLine {
    std::string op;              /**< "lossless encode", ... */
    size_t bytes, message_bytes; /**< of the bf16 tensor */
    double moved_bytes;          /**< that the operation has to read and write */
    double op_sec, copy_sec; /**< medians, the latter of a copy that reads and writes as many; 0: emulated */
    bool same;               /**< bytes, values and states are the host's */
};

/** Runs the first call of each operation. */
using EntropyCall = std::function<void(const std::function<void()> &call)>;

/** All of them, both ways, on the device of tests/quant/cuda/stream_world.h; bf16 tensors of so many bytes,
 *  each operation for about so many seconds; 0: once. */
std::vector<EntropyLine> entropy_bench(const std::vector<size_t> &sizes, double seconds,
                                       const EntropyCall &first = nullptr);

/** Names of what entropy_bench measures of each size. */
std::vector<std::string> entropy_ops();

/** A line each. */
std::string entropy_table(const std::vector<EntropyLine> &lines);

/** A line of JSON. False if it could not be written. */
bool entropy_json(const EntropyLine &line, const std::string &device, const std::string &command, FILE *json);

} // namespace tw::gpu

#endif
