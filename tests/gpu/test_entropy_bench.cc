/* The entropy codecs' rows of gpu_check on an emulated device: bytes are compared, and no time is made up. */
#include <jansson.h>

#include "tests/common/fixture.h"
#include "tests/gpu/entropy_bench.h"

namespace
{

using tw::gpu::EntropyLine;

class EntropyBench : public tw::Fixture
{
  protected:
    static json_t *json_of(const EntropyLine &line)
    {
        char *text = nullptr;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);
        EXPECT_TRUE(tw::gpu::entropy_json(line, "a device", "./gpu_check", file));
        fclose(file);
        json_t *json = json_loads(text, 0, nullptr);
        EXPECT_NE(json, nullptr) << text;
        free(text);
        return json;
    }
};

TEST_F(EntropyBench, BytesAreTheHostsAndThereIsNoTime)
{
    const auto lines = tw::gpu::entropy_bench({6000}, 0.01);
    const auto ops = tw::gpu::entropy_ops();
    ASSERT_EQ(lines.size(), ops.size());
    for (size_t i = 0; i < lines.size(); i++) {
        EXPECT_EQ(lines[i].op, ops[i]);
        EXPECT_EQ(lines[i].bytes, 6000u);
        EXPECT_LT(lines[i].message_bytes, lines[i].bytes);
        EXPECT_TRUE(lines[i].same) << lines[i].op;
        EXPECT_EQ(lines[i].op_sec, 0);
        json_t *json = json_of(lines[i]);
        EXPECT_TRUE(json_is_true(json_object_get(json, "emulated")));
        EXPECT_EQ(json_object_get(json, "GBps"), nullptr);
        json_decref(json);
    }
    const std::string table = tw::gpu::entropy_table(lines);
    EXPECT_NE(table.find("emulated: no time is measured"), std::string::npos) << table;
    EXPECT_EQ(table.find("NOT"), std::string::npos) << table;
}

/* 64 MB of bf16 in 100 us, what it moves in 25 us by a copy. */
TEST_F(EntropyBench, FieldsOfALine)
{
    const EntropyLine line = {
        "lossless delta encode", size_t{64} << 20, size_t{10} << 20, 300e6, 100e-6, 25e-6, false};
    json_t *json = json_of(line);
    EXPECT_NEAR(json_number_value(json_object_get(json, "GBps")), 671.09, 0.01);
    EXPECT_NEAR(json_number_value(json_object_get(json, "moved_GBps")), 3000, 1e-6);
    EXPECT_NEAR(json_number_value(json_object_get(json, "copy_GBps")), 12000, 1e-6);
    EXPECT_NEAR(json_number_value(json_object_get(json, "floor_fraction")), 0.25, 1e-9);
    EXPECT_TRUE(json_is_false(json_object_get(json, "ok")));
    EXPECT_TRUE(json_is_false(json_object_get(json, "emulated")));
    json_decref(json);
    const std::string table = tw::gpu::entropy_table({line});
    EXPECT_NE(table.find("  2.50     100.0     671.1    0.250 NOT THE HOST'S\n"), std::string::npos) << table;
}

TEST_F(EntropyBench, AFullDiskIsAFailure)
{
    allow_log("json");
    FILE *full = fopen("/dev/full", "w");
    EXPECT_FALSE(tw::gpu::entropy_json({"x", 2, 1, 3, 1, 1, true}, "a device", "./gpu_check", full));
    fclose(full);
}

} // namespace
