#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <jansson.h>

#include "core/core.h"
#include "tests/common/fixture.h"

namespace
{

class Json : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        Fixture::SetUp();
        json = tw_json_create();
        ASSERT_NE(json, nullptr);
    }
    void TearDown() override
    {
        tw_json_destroy(json);
        Fixture::TearDown();
    }

    /* The line as written; empty if it was not. */
    std::string write(tw_status_t expected = TW_OK)
    {
        char *text = nullptr;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        EXPECT_EQ(tw_json_write_line(json, out), expected);
        fclose(out);
        std::string line(text, bytes);
        free(text);
        return line;
    }

    tw_json_t *json = nullptr;
};

} // namespace

TEST_F(Json, KeepsOrderAndTypes)
{
    tw_json_add_string(json, "op", "allgather");
    tw_json_add_int(json, "bytes", 67108864);
    tw_json_add_double(json, "speedup", 3.75);
    tw_json_add_bool(json, "ok", 5);
    tw_json_add_bool(json, "identical", 0);
    tw_json_add_int(json, "a", -1);
    EXPECT_EQ(write(), "{\"op\":\"allgather\",\"bytes\":67108864,\"speedup\":3.75,\"ok\":true,"
                       "\"identical\":false,\"a\":-1}\n");
}

TEST_F(Json, ListsAndObjectsAreTaken)
{
    tw_json_add_value(json, "list", json_pack("[ii]", 1, 2));
    tw_json_add_value(json, "object", json_pack("{sns[i]}", "b", "a", 3));
    EXPECT_EQ(write(), "{\"list\":[1,2],\"object\":{\"b\":null,\"a\":[3]}}\n");
}

TEST_F(Json, AListThatCouldNotBeMadeIsOutOfMemory)
{
    expect_log("json: cannot write a line");
    tw_json_add_value(json, "list", nullptr);
    EXPECT_EQ(write(TW_ERR_NO_MEMORY), "");
}

TEST_F(Json, EmptyObject)
{
    EXPECT_EQ(write(), "{}\n");
}

TEST_F(Json, AKeyTwiceKeepsItsPlaceAndTakesTheLastValue)
{
    tw_json_add_int(json, "a", 1);
    tw_json_add_int(json, "b", 2);
    tw_json_add_int(json, "a", 3);
    EXPECT_EQ(write(), "{\"a\":3,\"b\":2}\n");
}

TEST_F(Json, WhatIsNoNumberIsNull)
{
    tw_json_add_double(json, "nan", NAN);
    tw_json_add_double(json, "inf", INFINITY);
    tw_json_add_double(json, "minus", -INFINITY);
    tw_json_add_string(json, "text", nullptr);
    EXPECT_EQ(write(), "{\"nan\":null,\"inf\":null,\"minus\":null,\"text\":null}\n");
}

TEST_F(Json, OneLineWhateverTheText)
{
    const char *text = "two\nlines, a \"quote\", a \\ and \x01 and \xc3\xa9";
    tw_json_add_string(json, "text", text);
    std::string line = write();
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    json_t *parsed = json_loads(line.c_str(), 0, nullptr);
    ASSERT_NE(parsed, nullptr);
    EXPECT_STREQ(json_string_value(json_object_get(parsed, "text")), text);
    json_decref(parsed);
}

TEST_F(Json, NumbersComeBack)
{
    const double doubles[] = {0,      -0.0, 0.1,   1e-300, 1.7976931348623157e308, 123456789.123,
                              2.5e-7, 1e15, 1e100, 5e-324};
    for (double value : doubles) {
        tw_json_add_double(json, "x", value);
        tw_json_add_int(json, "min", INT64_MIN);
        tw_json_add_int(json, "max", INT64_MAX);
        json_t *parsed = json_loads(write().c_str(), 0, nullptr);
        ASSERT_NE(parsed, nullptr) << value;
        EXPECT_EQ(json_real_value(json_object_get(parsed, "x")), value);
        EXPECT_EQ(json_integer_value(json_object_get(parsed, "min")), INT64_MIN);
        EXPECT_EQ(json_integer_value(json_object_get(parsed, "max")), INT64_MAX);
        json_decref(parsed);
    }
}

TEST_F(Json, TheFirstFailureSticks)
{
    expect_log("json: cannot write a line: invalid argument");
    tw_json_add_string(json, "latin1", "caf\xe9");
    tw_json_add_int(json, "good", 1);
    EXPECT_EQ(write(TW_ERR_INVALID), "");
    EXPECT_EQ(write(TW_ERR_INVALID), "");
}

TEST_F(Json, AFullDiskIsAnError)
{
    expect_log("No space left on device");
    tw_json_add_int(json, "a", 1);
    FILE *full = fopen("/dev/full", "w");
    ASSERT_NE(full, nullptr);
    EXPECT_EQ(tw_json_write_line(json, full), TW_ERR_IO);
    fclose(full);
}

TEST_F(Json, NullObjectIsOutOfMemory)
{
    tw_json_add_int(nullptr, "a", 1);
    tw_json_add_double(nullptr, "a", 1);
    tw_json_add_string(nullptr, "a", "b");
    tw_json_add_bool(nullptr, "a", 1);
    EXPECT_EQ(tw_json_write_line(nullptr, stdout), TW_ERR_NO_MEMORY);
    tw_json_destroy(nullptr);
}
