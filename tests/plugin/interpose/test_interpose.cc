/* Jobs of several processes with the interposer in front of a stand-in for NCCL. */
#include <filesystem>
#include <memory>

#include <gtest/gtest.h>

#include "tests/common/process.h"

namespace
{

std::string job_program, library;

struct JobRun {
    std::string scenario;
    int world = 2, per_node = 1;
    std::map<std::string, std::string> env = {};
    bool preload = true;
};

class Interpose : public testing::Test
{
  protected:
    void SetUp() override
    {
        char path[] = "/tmp/tw-interpose-XXXXXX";
        ASSERT_NE(mkdtemp(path), nullptr);
        dir = path;
    }
    void TearDown() override
    {
        std::filesystem::remove_all(dir);
    }

    /** All ranks; each has said "ok". */
    std::vector<process::Result> run(const JobRun &what)
    {
        std::vector<std::unique_ptr<process::Child>> ranks;
        std::string folder = dir + "/" + std::to_string(n_runs++);
        std::filesystem::create_directory(folder);
        for (int r = 0; r < what.world; r++) {
            process::Spec spec;
            spec.argv = {job_program, what.scenario};
            spec.env = {{"RANK", std::to_string(r)},
                        {"WORLD_SIZE", std::to_string(what.world)},
                        {"PER_NODE", std::to_string(what.per_node)},
                        {"TW_NODE_ID", "node " + std::to_string(r / what.per_node)},
                        {"STANDIN_DIR", folder},
                        {"TW_WEIGHTS", "int8"},
                        {"TW_GRADS", "int4"},
                        {"TW_MIN_BYTES", "256K"}};
            if (what.preload) {
                spec.env["LD_PRELOAD"] = library;
            }
            for (const auto &[name, value] : what.env) {
                spec.env[name] = value;
            }
            ranks.push_back(std::make_unique<process::Child>(spec));
        }
        std::vector<process::Result> results;
        for (auto &rank : ranks) {
            results.push_back(rank->wait(60));
            EXPECT_EQ(results.back().code, 0) << what.scenario << ": " << results.back().err;
            EXPECT_EQ(results.back().out, "ok\n") << what.scenario << ": " << results.back().err;
        }
        return results;
    }

    std::string dir;
    int n_runs = 0;
};

TEST_F(Interpose, Gathers)
{
    for (auto [world, per_node] : {std::pair(2, 1), std::pair(3, 1), std::pair(4, 2)}) {
        run({"gathers", world, per_node});
    }
}

TEST_F(Interpose, Reductions)
{
    for (auto [world, per_node] : {std::pair(2, 1), std::pair(3, 1), std::pair(4, 2)}) {
        run({"reductions", world, per_node});
    }
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc != 3) {
        fprintf(stderr, "usage: test_interpose JOB LIBRARY\n");
        return 2;
    }
    job_program = std::filesystem::absolute(argv[1]);
    library = std::filesystem::absolute(argv[2]);
    return RUN_ALL_TESTS();
}
