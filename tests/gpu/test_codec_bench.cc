/* Bars and lines of JSON of the codecs' speeds, with measurements that are made up. */
#include <cstdio>
#include <cstring>
#include <set>

#include <jansson.h>

#include "tests/common/fixture.h"
#include "tests/gpu/codec_bench.h"

namespace
{

using tw::gpu::bench_cases;

constexpr size_t MB = size_t{1} << 20;

cb_case_t a_case(int op, size_t bytes, tw_type_t type = TW_TYPE_BF16)
{
    cb_case_t c = {};
    EXPECT_EQ(tw_quant_codec_parse("int8", &c.codec), TW_OK);
    EXPECT_EQ(tw_quant_codec_parse("int4:hadamard", &c.out), TW_OK);
    c.op = op;
    c.type = type;
    c.n_elems = bytes / tw_type_bytes(type);
    c.n_segments = 10;
    c.n_inputs = 8;
    return c;
}

class CodecBench : public tw::Fixture
{
  protected:
    CodecBench()
    {
        report.command = "./gpu_check --only=bench";
        strcpy(report.device.name, "a GPU");
        strcpy(report.device.driver, "580.65.06 (CUDA 13.0)");
        strcpy(report.device.runtime, "13.0");
    }
    /* What is written for a measurement. */
    json_t *line_of(const cb_case_t &c, const cb_result_t &result)
    {
        char *text = nullptr;
        size_t bytes = 0;
        report.json = open_memstream(&text, &bytes);
        EXPECT_EQ(cb_gpu_report_result(&report, &c, &result), TW_OK);
        fclose(report.json);
        EXPECT_EQ(text[bytes - 1], '\n');
        json_t *line = json_loads(text, 0, nullptr);
        EXPECT_NE(line, nullptr) << text;
        free(text);
        return line;
    }
    static double number(json_t *line, const char *key)
    {
        EXPECT_TRUE(json_is_number(json_object_get(line, key))) << key;
        return json_number_value(json_object_get(line, key));
    }
    static std::string text(json_t *line, const char *key)
    {
        EXPECT_TRUE(json_is_string(json_object_get(line, key))) << key;
        return json_string_value(json_object_get(line, key));
    }

    cb_gpu_report_t report = {};
};

TEST_F(CodecBench, Bars)
{
    for (int op = 0; op < CB_OP_COUNT; op++) {
        for (tw_type_t type : {TW_TYPE_FP32, TW_TYPE_BF16}) {
            const cb_case_t tiny = a_case(op, MB - 4, type), small = a_case(op, MB, type),
                            middle = a_case(op, 64 * MB - 4, type), large = a_case(op, 64 * MB, type),
                            huge = a_case(op, 512 * MB, type);
            const double bar = op == CB_REDUCE_ENCODE ? 0.75 : 0.85;
            EXPECT_EQ(cb_gpu_bar(&tiny), 0);
            EXPECT_EQ(cb_gpu_bar(&small), 0.60);
            EXPECT_EQ(cb_gpu_bar(&middle), 0.60);
            EXPECT_EQ(cb_gpu_bar(&large), bar);
            EXPECT_EQ(cb_gpu_bar(&huge), bar);
        }
    }
}

/* 96 MB moved in 40 us by the operation, in 35 us by the copy. */
TEST_F(CodecBench, FieldsOfALine)
{
    json_t *line = line_of(a_case(CB_ENCODE, 64 * MB), {96e6, 40e-6, 35e-6});
    EXPECT_EQ(text(line, "op"), "encode");
    EXPECT_EQ(text(line, "codec").find("int8"), 0u);
    EXPECT_EQ(text(line, "type"), "bf16");
    EXPECT_EQ(number(line, "bytes"), 64 * MB);
    EXPECT_EQ(number(line, "segments"), 10);
    EXPECT_EQ(number(line, "moved_bytes"), 96e6);
    EXPECT_NEAR(number(line, "time_us_median"), 40, 1e-9);
    EXPECT_NEAR(number(line, "GBps"), 64 * MB / 40e-6 * 1e-9, 1e-6);
    EXPECT_NEAR(number(line, "moved_GBps"), 2400, 1e-6);
    EXPECT_NEAR(number(line, "copy_GBps"), 96e6 / 35e-6 * 1e-9, 1e-6);
    EXPECT_NEAR(number(line, "floor_fraction"), 0.875, 1e-9);
    EXPECT_EQ(number(line, "bar"), 0.85);
    EXPECT_TRUE(json_is_true(json_object_get(line, "ok")));
    EXPECT_EQ(text(line, "device"), "a GPU");
    EXPECT_EQ(text(line, "driver"), "580.65.06 (CUDA 13.0)");
    EXPECT_EQ(text(line, "runtime"), "13.0");
    EXPECT_EQ(text(line, "command"), "./gpu_check --only=bench");
    EXPECT_EQ(text(line, "date").size(), strlen("2000-01-01T00:00:00Z"));
    json_decref(line);
}

TEST_F(CodecBench, BelowTheBar)
{
    const struct {
        int op;
        size_t bytes;
        double fraction;
        int ok;
    } cases[] = {
        {CB_ENCODE, 64 * MB, 0.851, 1},
        {CB_ENCODE, 64 * MB, 0.849, 0},
        {CB_DECODE, MB, 0.601, 1},
        {CB_DECODE, MB, 0.599, 0},
        {CB_ENCODE, MB / 2, 0.01, 1},
        {CB_REDUCE_ENCODE, 64 * MB, 0.751, 1},
        {CB_REDUCE_ENCODE, 64 * MB, 0.749, 0},
        {CB_ADAMW, 512 * MB, 0.80, 0},
    };
    size_t n_below = 0;
    for (const auto &c : cases) {
        json_t *line = line_of(a_case(c.op, c.bytes), {1e6, 1e-3, c.fraction * 1e-3});
        EXPECT_EQ(json_is_true(json_object_get(line, "ok")), c.ok) << c.fraction;
        EXPECT_EQ(report.last.ok, c.ok);
        n_below += !c.ok;
        EXPECT_EQ(report.n_below, n_below);
        json_decref(line);
    }
    EXPECT_EQ(report.n_lines, 8u);
    EXPECT_EQ(report.n_failed, 0u);
}

TEST_F(CodecBench, AFullDiskIsAFailure)
{
    const cb_case_t c = a_case(CB_ENCODE, MB);
    const cb_result_t result = {1e6, 1e-3, 1e-3};
    allow_log("json");
    report.json = fopen("/dev/full", "w");
    EXPECT_EQ(cb_gpu_report_result(&report, &c, &result), TW_ERR_IO);
    EXPECT_EQ(report.n_failed, 1u);
    fclose(report.json);
}

TEST_F(CodecBench, Table)
{
    const cb_gpu_line_t lines[] = {
        {"encode", "int8", TW_TYPE_BF16, 64 * MB, 1, 0.91, 0.85, 1},
        {"decode", "int8", TW_TYPE_BF16, 64 * MB, 1, 0.81, 0.85, 0},
        {"decode", "int8", TW_TYPE_BF16, 1024, 1, 0.11, 0, 1},
        {"decode", "int4", TW_TYPE_BF16, 64 * MB, 1, 0, 0.85, 0},
    };
    const std::string table = tw::gpu::bench_table({lines, lines + 4});
    EXPECT_NE(table.find("    0.910  0.85 ok\n"), std::string::npos) << table;
    EXPECT_NE(table.find("    0.810  0.85 NOT OK\n"), std::string::npos) << table;
    EXPECT_NE(table.find("    0.110  0.00 -\n"), std::string::npos) << table;
    EXPECT_NE(table.find("    0.000  0.85 not measured\n"), std::string::npos) << table;
}

/* Every operation, large and small; reductions of 8 inputs. */
TEST_F(CodecBench, Cases)
{
    std::set<std::pair<int, double>> bars;
    for (const cb_case_t &c : bench_cases(0.1)) {
        bars.insert({c.op, cb_gpu_bar(&c)});
        EXPECT_EQ(c.n_inputs, 8u);
        EXPECT_EQ(c.seconds, 0.1);
        EXPECT_GE(c.n_elems, c.n_segments);
    }
    for (int op = 0; op < CB_OP_COUNT; op++) {
        EXPECT_EQ(bars.count({op, 0.60}), 1u) << op;
        EXPECT_EQ(bars.count({op, op == CB_REDUCE_ENCODE ? 0.75 : 0.85}), 1u) << op;
    }
}

} // namespace
