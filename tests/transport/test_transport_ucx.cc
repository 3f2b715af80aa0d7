/* The ucx backend: ranks are processes. */
#include <string>
#include <tuple>

#include "tests/common/fixture.h"
#include "tests/transport/contract.h"
#include "tests/transport/ranks.h"

namespace
{

/* Generous: two busy cores, sanitizers. */
constexpr double patience_sec = 50;

/* How the ranks of a job reach each other. */
struct Way {
    const char *name;
    Env env;
    bool node_per_rank;
    const char *described; /* what must show in tw_transport_describe */
};

void PrintTo(const Way &way, std::ostream *out)
{
    *out << way.name;
}

const Way ways[] = {
    {"SharedMemory", {}, false, "posix,sysv,cma inside a node"},
    {"Tcp", {}, true, "tcp on lo (1 stream, chunks of 256K)"},
    {"TcpStreams",
     {{"TW_NET_STREAMS", "3"}, {"TW_NET_CHUNK", "8K"}, {"TW_EAGER", "100"}},
     true,
     "tcp on lo (3 streams, chunks of 8K)"},
};

void expect_all_ok(const std::vector<Ending> &endings)
{
    for (size_t r = 0; r < endings.size(); r++) {
        EXPECT_TRUE(endings[r].in_time) << "rank " << r;
        EXPECT_EQ(endings[r].exit_status, 0) << "rank " << r << ": " << endings[r].out << endings[r].err;
        EXPECT_NE(endings[r].out.find("\nok\n"), std::string::npos) << "rank " << r << ": " << endings[r].out;
    }
}

Ranks::Options on(const Way &way, int world, const std::string &what)
{
    Ranks::Options options;
    options.world = world;
    options.arguments = {what};
    options.env = way.env;
    if (way.node_per_rank)
        options.rank_env = [](int rank) { return Env{{"TW_NODE_ID", "node " + std::to_string(rank)}}; };
    return options;
}

class UcxContract : public ::testing::TestWithParam<std::tuple<contract::Case, Way>>
{
};

TEST_P(UcxContract, Holds)
{
    const contract::Case &contract_case = std::get<0>(GetParam());
    const Way &way = std::get<1>(GetParam());
    for (int world : {1, 2, 3, 5}) {
        if (world < contract_case.min_world)
            continue;
        SCOPED_TRACE("world " + std::to_string(world));
        Ranks ranks(on(way, world, contract_case.name));
        const std::vector<Ending> endings = ranks.wait_all(patience_sec);
        expect_all_ok(endings);
        if (world > 1) {
            EXPECT_NE(endings[0].out.find(way.described), std::string::npos) << endings[0].out;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Ucx, UcxContract, ::testing::Combine(::testing::ValuesIn(contract::cases()), ::testing::ValuesIn(ways)),
    [](const auto &each) {
        return std::string(std::get<1>(each.param).name) + "_" + std::get<0>(each.param).name;
    });

} // namespace
