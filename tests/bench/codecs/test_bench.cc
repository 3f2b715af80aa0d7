/* bench/quant as a user runs it, with sizes that take no time. */
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <jansson.h>

#include "quant/quant.h"
#include "tests/common/process.h"

namespace
{

/* One JSON line: numbers as they are, texts beside them. */
struct Line {
    std::map<std::string, double> numbers;
    std::map<std::string, std::string> texts;
};

std::string temporary(const std::string &name)
{
    const char *folder = getenv("TEST_TMPDIR");
    return std::string(folder ? folder : "/tmp") + "/" + name;
}

std::vector<Line> read_lines(const std::string &path)
{
    std::vector<Line> lines;
    std::istringstream file(process::slurp(path));
    for (std::string text; std::getline(file, text);) {
        json_t *object = json_loads(text.c_str(), 0, nullptr);
        EXPECT_TRUE(json_is_object(object)) << text;
        Line line;
        const char *key;
        json_t *value;
        json_object_foreach(object, key, value)
        {
            if (json_is_number(value)) {
                line.numbers[key] = json_number_value(value);
            } else if (json_is_string(value)) {
                line.texts[key] = json_string_value(value);
            }
        }
        json_decref(object);
        lines.push_back(line);
    }
    return lines;
}

process::Result run(const std::vector<std::string> &flags)
{
    std::vector<std::string> args = {"bench/quant", "--bytes=256K", "--warm-bytes=8K", "--seconds=0.001"};
    args.insert(args.end(), flags.begin(), flags.end());
    return process::run(args);
}

/* A safetensors file of one fp32 tensor, at an odd address in the file. */
void write_tensors(const std::string &path, const std::vector<float> &values)
{
    std::string header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(values.size()) +
                         "],\"data_offsets\":[0," + std::to_string(values.size() * 4) + "]}}";
    while ((header.size() + 8) % 4 != 1) {
        header += ' ';
    }
    uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(&length), 8);
    file << header;
    file.write(reinterpret_cast<const char *>(values.data()), long(values.size() * 4));
}

TEST(QuantBench, MeasuresEveryCombinationOnce)
{
    const std::string json = temporary("speed.json");
    const process::Result result =
        run({"--table=speed", "--codecs=int8:block=64,scale=fp32,int4:hadamard,stochastic",
             "--types=fp32,fp16,bf16", "--threads=2", "--inputs=3", "--json=" + json});
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<Line> lines = read_lines(json);
    std::set<std::string> seen;
    for (Line line : lines) {
        seen.insert(line.texts["op"] + line.texts["codec"] + line.texts["type"] + line.texts["cache"]);
        EXPECT_EQ(line.numbers["threads"], 2);
        for (const char *key : {"GBps", "memcpy_GBps", "time_us_median", "bytes", "moved_bytes"}) {
            EXPECT_GT(line.numbers[key], 0) << key;
        }
        EXPECT_EQ(line.numbers.count("floor_GBps"), line.texts["cache"] == "cold" ? 1u : 0u);
    }
    EXPECT_EQ(lines.size(), 7u * 2 * 3 * 2);
    EXPECT_EQ(seen.size(), lines.size());
    EXPECT_NE(result.out.find("int4:block=128,hadamard,stochastic"), std::string::npos);
}

/* An encoder reads the source and writes what tw_quant_encoded_bytes says. */
TEST(QuantBench, CountsTheBytesThatMove)
{
    const std::string json = temporary("moved.json");
    ASSERT_EQ(run({"--table=speed", "--codecs=int8", "--ops=encode", "--threads=1", "--cache=cold",
                   "--json=" + json})
                  .code,
              0);
    const std::vector<Line> lines = read_lines(json);
    ASSERT_EQ(lines.size(), 1u);
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int8", &codec), TW_OK);
    const size_t n = 128 * 1024;
    EXPECT_EQ(lines[0].numbers.at("bytes"), 2.0 * n);
    EXPECT_EQ(lines[0].numbers.at("moved_bytes"), double(2 * n + tw_quant_encoded_bytes(&codec, n)));
}

/* Four million normal numbers stay within 6 sigma: no error is larger than half a step of 6 / qmax, but for
 * the 2^-7 by which a bf16 scale may be too large. */
TEST(QuantBench, ErrorIsBelowTheBound)
{
    const std::string json = temporary("error.json");
    ASSERT_EQ(run({"--table=error", "--codecs=int8,int4", "--json=" + json}).code, 0);
    const std::vector<Line> lines = read_lines(json);
    ASSERT_EQ(lines.size(), 4u);
    for (const Line &line : lines) {
        const double qmax = line.texts.at("codec").compare(0, 4, "int8") == 0 ? 127 : 7;
        EXPECT_GT(line.numbers.at("rel_rmse"), 0);
        EXPECT_LT(line.numbers.at("rel_rmse"),
                  line.texts.at("data") == "gaussian" ? 0.5 * 6 / qmax * (1 + 0x1p-7) : 1);
    }
}

TEST(QuantBench, ErrorOfTensorsThatLieOnTheGridIsNone)
{
    const std::string json = temporary("tensors.json"), file = temporary("grid.safetensors");
    std::vector<float> values;
    for (int i = 0; i < 777; i++) {
        values.push_back(float(i * 37 % 255 - 127));
    }
    write_tensors(file, values);
    const process::Result result =
        run({"--table=error", "--codecs=int8:block=2048", "--tensors=" + file, "--json=" + json});
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<Line> lines = read_lines(json);
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[2].texts.at("data"), file);
    EXPECT_EQ(lines[2].numbers.at("rel_rmse"), 0);
}

TEST(QuantBench, FailsLoudly)
{
    EXPECT_EQ(run({"--codecs=int5"}).code, 2);
    EXPECT_EQ(run({"--types=byte"}).code, 2);
    EXPECT_EQ(run({"--ops=encode,code"}).code, 2);
    EXPECT_EQ(run({"--threads=0"}).code, 2);
    EXPECT_EQ(run({"--cache=hot"}).code, 2);
    EXPECT_EQ(run({"surplus"}).code, 2);
    for (const std::vector<std::string> &flags :
         {std::vector<std::string>{"--backend=abacus"},
          {"--json=/nonexistent/x.json"},
          {"--table=error", "--codecs=int8", "--tensors=/nonexistent/x.safetensors"}}) {
        const process::Result result = run(flags);
        EXPECT_EQ(result.code, 1) << flags[0];
        EXPECT_NE(result.err.find("error"), std::string::npos) << result.err;
    }
}

} // namespace
