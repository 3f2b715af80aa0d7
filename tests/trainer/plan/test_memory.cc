/* What ranks of real processes take, beside what the planner says of them. Shapes are odd ones: layers of
 * 2.5 MB of gradients and more, nodes of one rank, one node alone. */
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/common/process.h"

namespace
{

using Sets = std::vector<std::string>;

const Sets llama = {"model.family=llama", "model.n_layer=6", "model.n_head=5", "model.n_embd=320",
                    "model.n_kv_head=5"};

struct Memory {
    double taken, planned; /* MB of the largest rank */
};

/** A run of some steps; the summary's line says what it took. */
Memory run(const std::string &nodes, const std::string &ranks, const Sets &sets)
{
    Sets argv = {"trainer/train", "--nodes", nodes, "--ranks-per-node", ranks, "--link", "none"};
    for (const Sets &some : {llama, sets,
                             Sets{"thinwire.steps=4", "thinwire.val_sequences=0", "train_batch_size=12",
                                  "thinwire.sequence_length=64"}}) {
        for (const std::string &set : some) {
            argv.insert(argv.end(), {"--set", set});
        }
    }
    process::Result result = process::run(argv);
    EXPECT_EQ(0, result.code) << result.err;
    Memory memory = {0, 0};
    size_t at = result.out.find("# memory of a rank: up to");
    EXPECT_NE(std::string::npos, at) << result.out;
    if (at != std::string::npos) {
        EXPECT_EQ(2, sscanf(result.out.c_str() + at, "# memory of a rank: up to %lf MB, planned %lf",
                            &memory.taken, &memory.planned));
    }
    return memory;
}

/* 1 x 4 has no network, so that nothing waits for it: what the plan has for waiting operations is not all
 * taken. */
TEST(PlanMemory, IsWhatProcessesTakeOnOddShapes)
{
    const struct {
        const char *nodes, *ranks;
        double most_below, most_above; /* that the plan may be, of what is taken */
    } shapes[] = {{"2", "2", 0.05, 0.05}, {"3", "1", 0.05, 0.05}, {"1", "4", 0.05, 0.05}};
    const std::vector<Sets> modes = {{"zero_optimization.stage=0"},
                                     {"zero_optimization.stage=1"},
                                     {"zero_optimization.stage=2"},
                                     {"zero_optimization.stage=3"},
                                     {"thinwire.weights=delta", "thinwire.gradients=lossless"},
                                     {"thinwire.weights=int8", "thinwire.gradients=int4"}};
    for (const auto &shape : shapes) {
        for (const Sets &mode : modes) {
            Memory memory = run(shape.nodes, shape.ranks, mode);
            double off = memory.planned / memory.taken - 1;
            printf("%s x %s, %s: %.1f MB taken, %.1f planned: %+.1f %%\n", shape.nodes, shape.ranks,
                   mode[0].c_str(), memory.taken, memory.planned, 100 * off);
            EXPECT_GE(off, -shape.most_below) << shape.nodes << " x " << shape.ranks << ", " << mode[0];
            EXPECT_LE(off, shape.most_above) << shape.nodes << " x " << shape.ranks << ", " << mode[0];
        }
    }
}

} // namespace
