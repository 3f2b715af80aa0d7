/** Which speeds gpu_check measures, and the table of how they compare with their bars. */
#ifndef TW_TESTS_GPU_CODEC_BENCH_H
#define TW_TESTS_GPU_CODEC_BENCH_H

#include <string>
#include <vector>

#include "tests/gpu/codec_report.h"

namespace tw::gpu
{

/** Every operation of the codecs people use, in bf16; the other types where they matter; a hop of a two-hop
 *  reduction; a model's worth of segments. `seconds`: to measure each for. */
std::vector<cb_case_t> bench_cases(double seconds);

/** Operation, codec, size, fraction of the floor, bar, and whether it is reached; a line each. */
std::string bench_table(const std::vector<cb_gpu_line_t> &lines);

} // namespace tw::gpu

#endif
