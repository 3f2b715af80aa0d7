/* What a job's training puts on the wire: sealed, nothing that can be read, and the same losses; over IPv6,
 * too. */
#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/common/process.h"

namespace
{

std::string temporary(const std::string &name)
{
    const char *folder = getenv("TEST_TMPDIR");
    return std::string(folder ? folder : "/tmp") + "/" + name;
}

process::Result on_nodes(const std::string &flag, const std::string &script)
{
    return process::run({"bench/cluster", "--nodes", "2", "--link", "none", flag, "--", "sh", "-c", script});
}

/* The losses, of each step. */
std::string losses(const std::string &path)
{
    std::ifstream file(path);
    std::string all;
    for (std::string line; std::getline(file, line);) {
        const size_t at = line.find("\"loss\":");
        all += at == std::string::npos ? "" : line.substr(at, line.find(',', at) - at) + "\n";
    }
    return all;
}

TEST(Wire, SealedTrainingIsTheSameAndCannotBeRead)
{
    if (on_nodes("--ipv6", "true").code != 0) {
        GTEST_SKIP() << "no cluster can be made here";
    }
    const std::string text = temporary("wire.txt");
    std::ofstream file(text);
    for (int i = 0; i < 900; i++) {
        file << "And the waters prevailed exceedingly upon the earth; " << i * i << ".\n";
    }
    file.close();
    const struct {
        const char *flag, *setting, *seen;
    } cases[] = {{"--nics=1", "TW_NET_ENCRYPT=n", "seen"},
                 {"--nics=1", "TW_NET_ENCRYPT=y", "unseen"},
                 {"--ipv6", "TW_NET_ENCRYPT=y", "unseen"}};
    std::string first;
    for (const auto &c : cases) {
        const std::string metrics = temporary("wire.jsonl");
        (void)remove(metrics.c_str());
        const process::Result result = on_nodes(
            c.flag, std::string("[ $RANK = 0 ] && listen=tests/trainer/capture; env ") + c.setting +
                        " $listen trainer/train --config trainer/configs/zero3.json --data " + text +
                        " --set model.n_embd=32 --set model.n_layer=2 --set thinwire.sequence_length=16"
                        " --set thinwire.steps=5 --metrics " +
                        metrics);
        ASSERT_EQ(result.code, 0) << result.err;
        EXPECT_NE(result.out.find(std::string("captured much, ones ") + c.seen + "\n"), std::string::npos)
            << result.out;
        first = first.empty() ? losses(metrics) : first;
        EXPECT_NE(first, "");
        EXPECT_EQ(losses(metrics), first);
    }
}

} // namespace
