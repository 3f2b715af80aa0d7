#include <gtest/gtest.h>

#include "core/core.h"

TEST(Type, BytesNameAndParseAgree)
{
    const struct {
        tw_type_t type;
        size_t bytes;
        const char *name;
    } types[] = {
        {TW_TYPE_FP32, 4, "fp32"},
        {TW_TYPE_BF16, 2, "bf16"},
        {TW_TYPE_FP16, 2, "fp16"},
        {TW_TYPE_BYTE, 1, "byte"},
    };
    for (const auto &expected : types) {
        tw_type_t parsed = tw_type_t(99);
        EXPECT_EQ(tw_type_bytes(expected.type), expected.bytes);
        EXPECT_STREQ(tw_type_name(expected.type), expected.name);
        EXPECT_EQ(tw_type_parse(expected.name, &parsed), TW_OK);
        EXPECT_EQ(parsed, expected.type);
    }
}

TEST(Type, OtherNames)
{
    const struct {
        const char *name;
        tw_type_t type;
    } names[] = {
        {"float32", TW_TYPE_FP32}, {"f32", TW_TYPE_FP32},  {"bfloat16", TW_TYPE_BF16},
        {"float16", TW_TYPE_FP16}, {"half", TW_TYPE_FP16},
    };
    for (const auto &expected : names) {
        tw_type_t parsed = tw_type_t(99);
        EXPECT_EQ(tw_type_parse(expected.name, &parsed), TW_OK) << expected.name;
        EXPECT_EQ(parsed, expected.type) << expected.name;
    }
}

TEST(Type, UnknownIsRefusedAndLeavesTheOutputAlone)
{
    for (const char *name : {"", "fp64", "fp3", "fp32 ", " fp32", "int8", (const char *)nullptr}) {
        tw_type_t parsed = TW_TYPE_BYTE;
        EXPECT_EQ(tw_type_parse(name, &parsed), TW_ERR_INVALID);
        EXPECT_EQ(parsed, TW_TYPE_BYTE);
    }
    EXPECT_EQ(tw_type_bytes(tw_type_t(4)), 0u);
    EXPECT_EQ(tw_type_bytes(tw_type_t(-1)), 0u);
    EXPECT_STREQ(tw_type_name(tw_type_t(4)), "?");
}
