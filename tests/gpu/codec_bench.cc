#include "tests/gpu/codec_bench.h"

#include <cstdio>
#include <stdexcept>

namespace tw::gpu
{

namespace
{

tw_quant_codec_t codec_of(const char *text)
{
    tw_quant_codec_t codec = {};
    if (tw_quant_codec_parse(text, &codec) != TW_OK) {
        throw std::invalid_argument(text);
    }
    return codec;
}

} // namespace

std::vector<cb_case_t> bench_cases(double seconds)
{
    const size_t small = size_t{1} << 20, large = size_t{64} << 20, huge = size_t{512} << 20;
    std::vector<cb_case_t> cases;
    auto add = [&](int op, const char *codec, const char *out, tw_type_t type, size_t bytes,
                   size_t n_segments) {
        cases.push_back(
            {op, codec_of(codec), codec_of(out), type, bytes / tw_type_bytes(type), n_segments, 8, seconds});
    };
    for (const char *codec : {"int8", "int4", "int4:hadamard"}) {
        for (int op = 0; op < CB_OP_COUNT; op++) {
            for (size_t bytes : {small, large}) {
                add(op, codec, codec, TW_TYPE_BF16, bytes, 1);
            }
        }
    }
    for (const char *codec : {"int8", "int4:hadamard,stochastic", "int8:block=96"}) {
        for (int op : {int(CB_ENCODE), int(CB_DECODE)}) {
            for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16, TW_TYPE_FP16}) {
                add(op, codec, codec, type, large, 1);
            }
        }
    }
    for (size_t bytes : {small, large, huge}) {
        add(CB_REDUCE_ENCODE, "int8", "int4:hadamard", TW_TYPE_BF16, bytes, 1);
        add(CB_REDUCE_ENCODE, "int4:hadamard", "int4:hadamard", TW_TYPE_BF16, bytes, 1);
    }
    for (int op : {int(CB_ENCODE), int(CB_DECODE)}) {
        add(op, "int8", "int8", TW_TYPE_BF16, huge, 1);
    }
    for (size_t n_segments : {10, 200, 2000}) {
        for (int op : {int(CB_ENCODE), int(CB_DECODE), int(CB_REDUCE_ENCODE), int(CB_ADAMW)}) {
            add(op, "int4", "int4", TW_TYPE_BF16, large, n_segments);
        }
    }
    return cases;
}

std::string bench_table(const std::vector<cb_gpu_line_t> &lines)
{
    char text[256], bytes[32];
    snprintf(text, sizeof(text), "%-18s %-38s %-4s %8s %8s %8s %5s\n", "op", "codec", "type", "source",
             "segments", "fraction", "bar");
    std::string table = text;
    for (const cb_gpu_line_t &line : lines) {
        snprintf(text, sizeof(text), "%-18s %-38s %-4s %8s %8zu %8.3f %5.2f %s\n", line.op, line.codec,
                 tw_type_name(line.type), tw_format_bytes(line.bytes, bytes, sizeof(bytes)), line.n_segments,
                 line.fraction, line.bar,
                 line.fraction == 0 ? "not measured"
                 : line.bar == 0    ? "-"
                 : line.ok          ? "ok"
                                    : "NOT OK");
        table += text;
    }
    return table;
}

} // namespace tw::gpu
