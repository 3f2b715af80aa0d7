/* bench/codecs as a user runs it, with sizes that take no time. */
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

process::Result run(const std::vector<std::string> &flags, const std::string &name = "codecs")
{
    std::vector<std::string> args = {"bench/" + name,   "--bytes=256K",   "--warm-bytes=8K",
                                     "--seconds=0.001", "--elems=262144", "--steps=2"};
    args.insert(args.end(), flags.begin(), flags.end());
    return process::run(args);
}

/* The lines of a run that must go well. */
std::vector<Line> lines_of(std::vector<std::string> flags, const std::string &name = "codecs")
{
    const std::string json = temporary("lines.json");
    flags.push_back("--json=" + json);
    const process::Result result = run(flags, name);
    EXPECT_EQ(result.code, 0) << result.err;
    return read_lines(json);
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

TEST(CodecsBench, MeasuresEveryCombinationOnce)
{
    const std::vector<Line> lines =
        lines_of({"--sources=blocks", "--codecs=int8:block=64,scale=fp32,lossless,int4:hadamard,stochastic",
                  "--types=fp32,fp16,bf16", "--inputs=3"});
    std::set<std::string> seen;
    for (Line line : lines) {
        seen.insert(line.texts["op"] + line.texts["codec"] + line.texts["type"] + line.texts["cache"]);
        for (const char *key : {"GBps", "memcpy_GBps", "time_us_median", "bytes", "moved_bytes"}) {
            EXPECT_GT(line.numbers[key], 0) << key;
        }
        EXPECT_EQ(line.numbers.count("floor_GBps"), line.texts["cache"] == "cold" ? 1u : 0u);
    }
    EXPECT_EQ(lines.size(), 8u * 2 * 3 * 2);
    EXPECT_EQ(seen.size(), lines.size());
}

/* An encoder reads the source and writes what tw_quant_encoded_bytes says. */
TEST(CodecsBench, CountsTheBytesThatMove)
{
    const std::vector<Line> lines =
        lines_of({"--sources=blocks", "--codecs=int8", "--ops=encode", "--cache=cold"});
    ASSERT_EQ(lines.size(), 1u);
    tw_quant_codec_t codec;
    ASSERT_EQ(tw_quant_codec_parse("int8", &codec), TW_OK);
    const size_t n = 128 * 1024;
    EXPECT_EQ(lines[0].numbers.at("bytes"), 2.0 * n);
    EXPECT_EQ(lines[0].numbers.at("moved_bytes"), double(2 * n + tw_quant_encoded_bytes(&codec, n)));
}

/* So many normal numbers stay within 6 sigma: no error is larger than half a step of 6 / qmax, but for the
 * 2^-7 by which a bf16 scale may be too large. */
TEST(CodecsBench, ErrorIsBelowTheBound)
{
    const std::vector<Line> lines = lines_of({"--sources=gaussian,heavy-tailed", "--codecs=int8,int4"});
    ASSERT_EQ(lines.size(), 8u);
    for (const Line &line : lines) {
        const double qmax = line.texts.at("codec").compare(0, 4, "int8") == 0 ? 127 : 7;
        EXPECT_GT(line.numbers.at("rel_rmse"), 0);
        EXPECT_LT(line.numbers.at("rel_rmse"),
                  line.texts.at("source") == "gaussian" ? 0.5 * 6 / qmax * (1 + 0x1p-7) : 1);
        EXPECT_NEAR(line.numbers.at("bits"), qmax == 127 ? 8 : 4, 0.2);
    }
}

TEST(CodecsBench, ErrorOfTensorsThatLieOnTheGridIsNone)
{
    const std::string file = temporary("grid.safetensors");
    std::vector<float> values;
    for (int i = 0; i < 777; i++) {
        values.push_back(float(i * 37 % 255 - 127));
    }
    write_tensors(file, values);
    for (const Line &line : lines_of({"--codecs=int8:block=2048,lossless", "--file=" + file})) {
        EXPECT_EQ(line.texts.at("source"), file);
        EXPECT_EQ(line.numbers.at("elems"), 777);
        EXPECT_EQ(line.numbers.at("rel_rmse"), 0);
    }
}

/* Gradients and weights of bf16 take more than the floor, and fewer bits than they have; every source once as
 * a message and once in chunks. */
TEST(CodecsBench, LosslessMessagesOfTraining)
{
    const std::vector<Line> lines = lines_of({"--codecs=lossless", "--sources=training"});
    EXPECT_EQ(lines.size(), 7u * 2 * 2);
    std::set<std::string> sources;
    for (const Line &line : lines) {
        sources.insert(line.texts.at("source"));
        const bool is_bf16 = line.texts.at("type") == "bf16"; /* in fp32, sums of bf16 have bits that are 0 */
        EXPECT_GT(line.numbers.at("bits"), is_bf16 ? line.numbers.at("floor_bits") : 9);
        EXPECT_LT(line.numbers.at("bits"), is_bf16 ? 11.5 : 30);
        EXPECT_EQ(line.numbers.at("rel_rmse"), 0);
        EXPECT_NEAR(line.numbers.at("message_bytes"), line.numbers.at("bits") * line.numbers.at("elems") / 8,
                    1e-3);
    }
    EXPECT_EQ(sources.count("gradients") + sources.count("weights") + sources.count("sum of 8"), 3u);
}

/* The second context saves some; weights that are made up, and the same from files. */
TEST(CodecsBench, ChangesOfWeights)
{
    const std::vector<Line> lines = lines_of({"--codecs=delta", "--sources=steps"});
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_LT(lines[2].numbers.at("bits"), lines[0].numbers.at("bits"));
    for (const Line &line : lines) {
        EXPECT_GT(line.numbers.at("bits"), line.numbers.at("floor_bits"));
        EXPECT_LT(line.numbers.at("bits"), 6);
    }
    const std::string before = temporary("before.bf16"), after = temporary("after.bf16");
    std::ofstream(before, std::ios::binary) << std::string(200000, '\x3d');
    std::ofstream(after, std::ios::binary) << std::string(200000, '\x3d');
    const std::vector<Line> files = lines_of({"--codecs=delta", "--old=" + before, "--new=" + after});
    ASSERT_EQ(files.size(), 2u) << "one context: nothing is known of the step before";
    EXPECT_EQ(files[0].texts.at("source"), after);
    EXPECT_LT(files[0].numbers.at("bits"), 1);
}

/* Each older name measures what the bench of this name did. */
TEST(CodecsBench, OlderNames)
{
    const std::map<std::string, std::string> sources = {
        {"quant", "gaussian"}, {"lossless", "gradients"}, {"delta", "synthetic"}};
    for (const auto &[name, source] : sources) {
        std::set<std::string> seen;
        for (const Line &line : lines_of(name == "quant" ? std::vector<std::string>{"--table=error"}
                                                         : std::vector<std::string>{},
                                         name)) {
            seen.insert(line.texts.at("source"));
        }
        EXPECT_EQ(seen.count(source), 1u) << name;
    }
}

TEST(CodecsBench, FailsLoudly)
{
    EXPECT_EQ(run({"--codecs=int5"}).code, 2);
    EXPECT_EQ(run({"--types=byte"}).code, 2);
    EXPECT_EQ(run({"--ops=encode,code"}).code, 2);
    EXPECT_EQ(run({"--cache=hot"}).code, 2);
    EXPECT_EQ(run({"--sources=blocks,file"}).code, 2);
    EXPECT_EQ(run({"--old=x"}).code, 2);
    EXPECT_EQ(run({"surplus"}).code, 2);
    for (const std::vector<std::string> &flags : {std::vector<std::string>{"--backend=abacus"},
                                                  {"--json=/nonexistent/x.json"},
                                                  {"--old=/nonexistent/x", "--new=/nonexistent/y"},
                                                  {"--codecs=int8", "--file=/nonexistent/x.safetensors"}}) {
        const process::Result result = run(flags);
        EXPECT_EQ(result.code, 1) << flags[0];
        EXPECT_NE(result.err.find("error"), std::string::npos) << result.err;
    }
}

} // namespace
