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
                             Sets{"thinwire.steps=2", "thinwire.val_sequences=0", "train_batch_size=12",
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

/* Chunks of operations that wait: as many as this are planned of a communicator, where layers are large. How
 * many there are depends on how ranks and links keep up with each other: from none to TW_COLL_SCRATCH. */
const double kChunks = 16.8;

TEST(PlanMemory, IsWhatProcessesTakeOnOddShapes)
{
    const char *const shapes[][2] = {{"2", "2"}, {"3", "1"}, {"1", "4"}};
    const std::vector<Sets> modes = {{"zero_optimization.stage=0"},
                                     {"thinwire.weights=delta", "thinwire.gradients=lossless"}};
    for (const auto &shape : shapes) {
        for (const Sets &mode : modes) {
            const std::string what = std::string(shape[0]) + " x " + shape[1] + ", " + mode[0];
            Memory memory = run(shape[0], shape[1], mode);
            printf("%s: %.1f MB taken, %.1f planned\n", what.c_str(), memory.taken, memory.planned);
            EXPECT_LE(memory.taken, 1.05 * memory.planned) << what;
            EXPECT_GE(memory.taken, 0.95 * memory.planned - kChunks) << what;
        }
    }
}

} // namespace
