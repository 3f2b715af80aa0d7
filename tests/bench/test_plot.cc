/* bench/plot.py: a picture out of JSON lines, or a message that says what is wrong with them. */
#include <unistd.h>

#include <gtest/gtest.h>

#include <fstream>

#include "tests/common/process.h"

namespace
{

const char *const kPlot = "bench/plot.py";

class PlotTest : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (process::run({"sh", "-c", "command -v gnuplot"}).code != 0) {
            GTEST_SKIP() << "gnuplot is not installed";
        }
        base_ = ::testing::TempDir() + "tw_plot." + std::to_string(getpid());
    }
    void TearDown() override
    {
        unlink((base_ + ".json").c_str());
        unlink((base_ + ".png").c_str());
    }
    void write(const std::string &text) const
    {
        std::ofstream(base_ + ".json") << text;
    }
    process::Result plot(const std::vector<std::string> &flags = {}) const
    {
        std::vector<std::string> args = {kPlot, base_ + ".json"};
        args.insert(args.end(), flags.begin(), flags.end());
        return process::run(args);
    }
    static std::string row(const std::string &mode, size_t bytes, double bandwidth)
    {
        return R"({"op": "allgather", "mode": ")" + mode + R"(", "bytes": )" + std::to_string(bytes) +
               R"(, "nodes": 4, "ranks_per_node": 1, "link_bps": 1000000000, "algbw_GBps": )" +
               std::to_string(bandwidth) + R"(, "link_utilization": 0.9, "speedup": null})" + "\n";
    }
    std::string base_;
};

TEST_F(PlotTest, StepsOfTraining)
{
    std::string text;
    for (const char *set : {"zero3", "delta"}) {
        for (int step = 1; step <= 30; step++) {
            text += R"({"set": ")" + std::string(set) + R"(", "seed": 1, "step": )" + std::to_string(step) +
                    R"(, "loss": )" + std::to_string(5.0 / step) + R"(, "delta_bits": )" +
                    std::to_string(set[0] == 'd' ? 2.5 : 0) + "}\n";
        }
    }
    /* the trainer's own metrics have no bits where no weights' changes were sent */
    text += R"({"run": "0", "seed": 1, "step": 1, "loss": 5.5})"
            "\n";
    /* a text that was sampled, a step that was done again, a loss that is no number */
    text += R"({"run": "0", "step": 30, "sample": "and the"})"
            "\n"
            R"({"set": "zero3", "seed": 1, "step": 30, "loss": 0.1, "delta_bits": 0})"
            "\n"
            R"({"set": "zero3", "seed": 1, "step": 31, "loss": null, "delta_bits": 0})"
            "\n";
    write(text);
    for (const char *key : {"loss", "delta_bits"}) {
        process::Result result = plot({"--y", key});
        ASSERT_EQ(0, result.code) << result.err;
        EXPECT_GT(process::slurp(base_ + ".png").size(), 5000u) << key;
    }
    EXPECT_EQ(0, plot().code) << "the loss";
    process::Result wrong = plot({"--y", "speedup"});
    EXPECT_NE(std::string::npos, wrong.err.find("--y speedup is for benchmarks")) << wrong.err;
    write(row("plain", 65536, 0.1));
    wrong = plot({"--y", "loss"});
    EXPECT_NE(std::string::npos, wrong.err.find("--y loss is for training runs")) << wrong.err;
}

TEST_F(PlotTest, MakesAPicture)
{
    write(row("plain", 65536, 0.1) + row("int4", 65536, 0.3) + row("plain", 1 << 20, 0.15) +
          row("int4", 1 << 20, 0.6));
    process::Result result = plot();
    ASSERT_EQ(0, result.code) << result.err;
    EXPECT_EQ(base_ + ".png\n", result.out);
    std::string picture = process::slurp(base_ + ".png");
    ASSERT_GT(picture.size(), 5000u);
    EXPECT_EQ("\x89PNG", picture.substr(0, 4));
}

/** Of a case of `//bench:loss`, with distances from plain's loss, in percent. */
static std::string loss(const std::string &grads, double off)
{
    std::string row = R"({"case": "outlier", "why": "a large feature", "grads": ")" + grads + "\"";
    if (off != 0) {
        row += R"(, "equal": false, "off_curve": [[20, 0.1, 0.2], [40, )" + std::to_string(off) + ", 0.5]]";
    }
    return row + "}\n";
}

TEST_F(PlotTest, LossesAreDrawnAsDifferences)
{
    const std::string plain = loss("plain", 0), hadamard = loss("int4:hadamard", 2);
    write(plain + loss("int4", 10) + hadamard);
    process::Result result = plot();
    ASSERT_EQ(0, result.code) << result.err;
    const std::string picture = process::slurp(base_ + ".png");
    EXPECT_GT(picture.size(), 5000u);
    write(plain + loss("int4", 5) + hadamard);
    ASSERT_EQ(0, plot().code);
    EXPECT_NE(picture, process::slurp(base_ + ".png")) << "it is the same whatever the distance";
    EXPECT_NE(std::string::npos, plot({"--y", "loss"}).err.find("--y loss is for training runs"));
    write(plain);
    EXPECT_NE(std::string::npos, plot().err.find("no line has a distance from plain's")) << plot().err;
}

TEST_F(PlotTest, TheSuitesLossesOverBytesAndSeconds)
{
    const std::string skipped = R"({"entrant": "zeropp", "why": "not for CPUs"})"
                                "\n";
    write(skipped + R"({"entrant": "ddp", "curve": [[0.5, 1, 5.5], [1.25, 9, 5.0]]})"
                    "\n");
    ASSERT_EQ(0, plot().code);
    const std::string bytes = process::slurp(base_ + ".png");
    EXPECT_GT(bytes.size(), 5000u);
    ASSERT_EQ(0, plot({"--y", "loss_over_sec"}).code);
    EXPECT_NE(bytes, process::slurp(base_ + ".png")) << "it is the same over seconds";
    EXPECT_NE(std::string::npos, plot({"--y", "speedup"}).err.find("--y speedup is for benchmarks"));
    write(skipped);
    EXPECT_NE(std::string::npos, plot().err.find("no line has any 'loss'")) << plot().err;
}

TEST_F(PlotTest, HelpSaysWhatItDraws)
{
    const process::Result result = plot({"--help"});
    EXPECT_EQ(0, result.code) << result.err;
    EXPECT_NE(std::string::npos, result.out.find("case.")) << "it breaks off: " << result.out;
}

TEST_F(PlotTest, OneLineIsEnough)
{
    write(row("int8", 4, 0.001));
    EXPECT_EQ(0, plot().code);
    EXPECT_EQ("\x89PNG", process::slurp(base_ + ".png").substr(0, 4));
}

TEST_F(PlotTest, SaysWhatIsWrongWithTheFile)
{
    struct {
        const char *text, *said;
    } cases[] = {
        {"", "holds no lines"},
        {"{\n", ":1: not JSON"},
        {"[]\n", ":1: has no 'op'"},
        {"\n{\"op\": \"allgather\"}\n", ":2: has no 'mode'"},
    };
    for (const auto &c : cases) {
        write(c.text);
        process::Result result = plot();
        EXPECT_EQ(1, result.code);
        EXPECT_NE(std::string::npos, result.err.find(base_ + ".json")) << result.err;
        EXPECT_NE(std::string::npos, result.err.find(c.said)) << result.err;
    }
    unlink((base_ + ".json").c_str());
    EXPECT_NE(std::string::npos, plot().err.find("No such file"));
}

} // namespace
