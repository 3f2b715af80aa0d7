/* The network backend: ranks are processes. */
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/fixture.h"
#include "tests/transport/contract.h"
#include "tests/transport/ranks.h"
#include "transport/control/socket.h"

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
    {"TcpSealed",
     {{"TW_NET_ENCRYPT", "y"}, {"TW_JOB_TOKEN", "a secret"}},
     true,
     "sealed tcp on lo (1 stream, chunks of 256K)"},
};

void expect_all_ok(const std::vector<process::Result> &endings)
{
    for (size_t r = 0; r < endings.size(); r++) {
        EXPECT_TRUE(endings[r].in_time) << "rank " << r;
        EXPECT_EQ(endings[r].code, 0) << "rank " << r << ": " << endings[r].out << endings[r].err;
        EXPECT_NE(endings[r].out.find("\nok\n"), std::string::npos) << "rank " << r << ": " << endings[r].out;
    }
}

Ranks::Options on(const Way &way, int world, const std::string &what)
{
    Ranks::Options options;
    options.world = world;
    options.arguments = {what};
    options.env = way.env;
    if (way.node_per_rank) {
        options.rank_env = [](int rank) { return Env{{"TW_NODE_ID", "node " + std::to_string(rank)}}; };
    }
    return options;
}

/* What every backend does: all that can follow each other in one job, then each that cannot. */
class UcxContract : public ::testing::TestWithParam<std::tuple<Way, std::string>>
{
};

TEST_P(UcxContract, Holds)
{
    const auto &[way, what] = GetParam();
    for (int world : {1, 2, 3, 5}) {
        if (what != "contract" && world < contract::find(what)->min_world) {
            continue;
        }
        SCOPED_TRACE("world " + std::to_string(world));
        Ranks ranks(on(way, world, what));
        const std::vector<process::Result> endings = ranks.wait_all(patience_sec);
        expect_all_ok(endings);
        if (world > 1) {
            EXPECT_NE(endings[0].out.find(way.described), std::string::npos) << endings[0].out;
        }
    }
}

std::vector<std::string> contract_runs()
{
    std::vector<std::string> runs = {"contract"};
    for (const contract::Case &each : contract::cases()) {
        if (each.ends_job) {
            runs.push_back(each.name);
        }
    }
    return runs;
}

INSTANTIATE_TEST_SUITE_P(Ucx, UcxContract,
                         ::testing::Combine(::testing::ValuesIn(ways), ::testing::ValuesIn(contract_runs())),
                         [](const auto &each) {
                             return std::string(std::get<0>(each.param).name) + "_" + std::get<1>(each.param);
                         });

/* Over one TCP stream, it does; a hang would tell. */
TEST(Ucx, AChunkGoesAtOnce)
{
    Ranks ranks(on(ways[1], 2, "a_chunk_goes_at_once"));
    expect_all_ok(ranks.wait_all(patience_sec));
}

TEST(Ucx, WhatWasSentBeforeLeavingComes)
{
    Ranks::Options options = on(ways[1], 2, "leave_before_all_is_taken");
    options.env.emplace("TW_NET_CHUNK", "1M"); /* two of those that go at once */
    Ranks ranks(options);
    expect_all_ok(ranks.wait_all(patience_sec));
}

/* ---- memory of GPUs ------------------------------------------------------------------------------------ */

/* Long messages in many chunks, each on its own terms: eager to UCX, and through its rendezvous. */
const Way gpu_ways[] = {
    ways[0],
    {"TcpOfUcxStreams",
     {{"TW_NET_TLS", "tcp,self"}, {"TW_NET_STREAMS", "3"}, {"TW_NET_CHUNK", "8K"}},
     true,
     "3 streams, chunks of 8K"},
    {"TcpOfUcx", {{"TW_NET_TLS", "tcp,self"}}, true, "tcp,self on lo"},
    {"TcpOfUcxRendezvous", {{"TW_NET_TLS", "tcp,self"}, {"UCX_RNDV_THRESH", "1K"}}, true, "tcp,self on lo"},
};

class UcxMemory : public ::testing::TestWithParam<Way>
{
};

TEST_P(UcxMemory, AsIfOnGpu)
{
    for (int world : {2, 3}) {
        SCOPED_TRACE("world " + std::to_string(world));
        Ranks ranks(on(GetParam(), world, "as_if_on_gpu"));
        const std::vector<process::Result> endings = ranks.wait_all(patience_sec);
        expect_all_ok(endings);
        EXPECT_NE(endings[0].out.find(GetParam().described), std::string::npos) << endings[0].out;
        EXPECT_NE(endings[0].err.find("a short message from host memory came"), std::string::npos)
            << endings[0].err;
    }
}

INSTANTIATE_TEST_SUITE_P(Ucx, UcxMemory, ::testing::ValuesIn(gpu_ways),
                         [](const auto &each) { return std::string(each.param.name); });

/* ---- failures ------------------------------------------------------------------------------------------ */

constexpr double peer_timeout_sec = 2;

/* The verdict is due within TW_PEER_TIMEOUT of the failure, and the end of the process a farewell later; this
 * much more for busy cores and sanitizers. */
constexpr double slack_sec = 20;

struct Failure {
    const char *name;
    int signal;
};

void PrintTo(const Failure &failure, std::ostream *out)
{
    *out << failure.name;
}

/* "failed rank R after S s: ..." */
void expect_verdict(const process::Result &ending, int rank, int failed)
{
    EXPECT_TRUE(ending.in_time) << "rank " << rank << " hangs: " << ending.out << ending.err;
    EXPECT_EQ(ending.code, 0) << "rank " << rank << ": " << ending.out << ending.err;
    EXPECT_NE(ending.out.find("failed rank " + std::to_string(failed) + " "), std::string::npos)
        << "rank " << rank << ": " << ending.out;
    EXPECT_NE(ending.out.find("peer failed or unreachable"), std::string::npos) << ending.out;
    /* One line of ours, and none of UCX's. */
    EXPECT_NE(ending.err.find("peer " + std::to_string(failed) + " failed: "), std::string::npos)
        << ending.err;
    EXPECT_EQ(ending.err.find("UCX"), std::string::npos) << ending.err;
}

class UcxFailure : public ::testing::TestWithParam<std::tuple<Failure, Way, const char *, int>>
{
};

TEST_P(UcxFailure, IsNamedByEveryoneInTime)
{
    const auto &[failure, way, what, victim] = GetParam();
    const int world = 4;
    Ranks::Options options = on(way, world, what);
    options.env["TW_PEER_TIMEOUT"] = std::to_string(peer_timeout_sec);
    Ranks ranks(options);
    ASSERT_TRUE(ranks.wait_ready(patience_sec)) << ranks.transcript();
    usleep(200000);
    const double start = tw_time_sec();
    ranks.signal(victim, failure.signal);
    for (int r = 0; r < world; r++) {
        if (r != victim) {
            expect_verdict(ranks.wait_one(r, patience_sec), r, victim);
        }
    }
    EXPECT_LT(tw_time_sec() - start, peer_timeout_sec + slack_sec);
    if (failure.signal != SIGSTOP) {
        return;
    }
    ranks.signal(victim, SIGCONT);
    const process::Result late = ranks.wait_one(victim, patience_sec);
    EXPECT_EQ(late.code, 0) << late.out << late.err;
    EXPECT_NE(late.out.find("failed rank "), std::string::npos) << late.out << late.err;
}

std::string failure_name(const ::testing::TestParamInfo<UcxFailure::ParamType> &each)
{
    const auto &[failure, way, what, victim] = each.param;
    return std::string(failure.name) + std::to_string(victim) + "_" + way.name + "_" + what;
}

INSTANTIATE_TEST_SUITE_P(Killed, UcxFailure,
                         ::testing::Combine(::testing::Values(Failure{"Killed", SIGKILL}),
                                            ::testing::Values(ways[0], ways[1]),
                                            ::testing::Values("exchange_for_ever", "wait_for_ever"),
                                            ::testing::Values(0, 2)),
                         failure_name);
INSTANTIATE_TEST_SUITE_P(StoppedInShm, UcxFailure,
                         ::testing::Combine(::testing::Values(Failure{"Stopped", SIGSTOP}),
                                            ::testing::Values(ways[0]),
                                            ::testing::Values("exchange_for_ever"), ::testing::Values(0, 2)),
                         failure_name);
INSTANTIATE_TEST_SUITE_P(StoppedOnNet, UcxFailure,
                         ::testing::Combine(::testing::Values(Failure{"Stopped", SIGSTOP}),
                                            ::testing::Values(ways[1]),
                                            ::testing::Values("exchange_for_ever", "wait_for_ever"),
                                            ::testing::Values(0, 2)),
                         failure_name);

/* With some ranks gone already, and with some that go at once when they hear of a failure. */
class UcxSurvivors : public ::testing::TestWithParam<Way>
{
  protected:
    static constexpr int world = 4;
    static Ranks::Options options(const char *what)
    {
        Ranks::Options all = on(GetParam(), world, what);
        all.env["TW_PEER_TIMEOUT"] = std::to_string(peer_timeout_sec);
        return all;
    }
};

TEST_P(UcxSurvivors, NameTheRankAfterRank0HasLeft)
{
    for (int signal : {SIGKILL, SIGSTOP}) {
        Ranks ranks(options("wait_without_rank_0"));
        ASSERT_TRUE(ranks.wait_ready(patience_sec)) << ranks.transcript();
        usleep(200000);
        const double start = tw_time_sec();
        ranks.signal(2, signal);
        for (int r : {1, 3}) {
            expect_verdict(ranks.wait_one(r, patience_sec), r, 2);
        }
        const process::Result first = ranks.wait_one(0, patience_sec);
        EXPECT_LT(tw_time_sec() - start, peer_timeout_sec + slack_sec);
        EXPECT_EQ(first.code, 0) << first.out << first.err;
        EXPECT_NE(first.out.find("ok\n"), std::string::npos) << first.out;
        EXPECT_NE(first.err.find("peer 2 failed: "), std::string::npos) << first.err;
    }
}

TEST_P(UcxSurvivors, NameOneOfTwoThatFailAtOnce)
{
    for (int second : {SIGKILL, SIGSTOP}) {
        Ranks ranks(options("wait_for_ever"));
        ASSERT_TRUE(ranks.wait_ready(patience_sec)) << ranks.transcript();
        usleep(200000);
        ranks.signal(0, SIGKILL);
        ranks.signal(2, second);
        for (int r : {1, 3}) {
            expect_verdict(ranks.wait_one(r, patience_sec), r, 0);
        }
    }
}

TEST_P(UcxSurvivors, NameTheRankThoughOthersEndUponIt)
{
    for (int i = 0; i < 3; i++) {
        Ranks ranks(options("end_on_failure"));
        ASSERT_TRUE(ranks.wait_ready(patience_sec)) << ranks.transcript();
        ranks.signal(3, SIGKILL);
        for (int r : {0, 1, 2}) {
            expect_verdict(ranks.wait_one(r, patience_sec), r, 3);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ucx, UcxSurvivors, ::testing::Values(ways[0], ways[1]),
                         [](const auto &each) { return std::string(each.param.name); });

/* ---- the job ------------------------------------------------------------------------------------------- */

class UcxJob : public tw::Fixture
{
};

/* A rank that calls nothing for longer than the timeout is alive all the same. */
TEST_F(UcxJob, ComputingIsNotFailing)
{
    for (const Way &way : {ways[0], ways[1]}) {
        Ranks::Options options = on(way, 3, "compute");
        options.arguments.push_back("1.5");
        options.env["TW_PEER_TIMEOUT"] = "0.5";
        Ranks ranks(options);
        expect_all_ok(ranks.wait_all(patience_sec));
    }
}

TEST_F(UcxJob, TwoNodesOfTwo)
{
    Ranks::Options options = on(ways[1], 4, "everyone_to_everyone");
    options.rank_env = [](int rank) { return Env{{"TW_NODE_ID", rank % 2 ? "odd" : "even"}}; };
    Ranks ranks(options);
    const std::vector<process::Result> endings = ranks.wait_all(patience_sec);
    expect_all_ok(endings);
    EXPECT_NE(endings[0].out.find("4 ranks on 2 nodes, UCX"), std::string::npos) << endings[0].out;
    EXPECT_NE(endings[0].out.find("tcp on lo (1 stream, chunks of 256K), posix,sysv,cma inside a node"),
              std::string::npos)
        << endings[0].out;
}

/* The ranks of a node may also do without shared memory. */
TEST_F(UcxJob, WithoutSharedMemory)
{
    Ranks::Options options = on(ways[0], 3, "everyone_to_everyone");
    options.env["TW_NODE_TLS"] = "none";
    Ranks ranks(options);
    const std::vector<process::Result> endings = ranks.wait_all(patience_sec);
    expect_all_ok(endings);
    EXPECT_NE(endings[0].out.find("3 ranks on 1 node, tcp on lo"), std::string::npos) << endings[0].out;
    EXPECT_EQ(endings[0].out.find("inside a node"), std::string::npos) << endings[0].out;
}

/* Ranks that were told otherwise would take each other for dead, or wait for the dead. */
TEST_F(UcxJob, ThePeerTimeoutIsRank0s)
{
    Ranks::Options options = on(ways[0], 2, "peer_timeout");
    options.rank_env = [](int rank) { return Env{{"TW_PEER_TIMEOUT", rank == 0 ? "7.5" : "3"}}; };
    Ranks ranks(options);
    const std::vector<process::Result> endings = ranks.wait_all(patience_sec);
    expect_all_ok(endings);
    for (const process::Result &ending : endings) {
        EXPECT_NE(ending.out.find("peer timeout 7.5 s"), std::string::npos) << ending.out;
    }
}

TEST_F(UcxJob, AWrongTokenStaysOut)
{
    const auto says = [](const process::Result &ending, const std::string &text) {
        return ending.err.find(text) != std::string::npos;
    };
    Ranks::Options options = on(ways[0], 3, "meet");
    options.rank_env = [](int rank) { return rank == 2 ? Env{{"TW_JOB_TOKEN", "another"}} : Env(); };
    /* Where processes take longer to begin than rank 0 waits, once more with more time. */
    for (const char *sec : {"1", "8", "30"}) {
        options.env["TW_JOIN_TIMEOUT"] = sec;
        const std::string missing = std::string("missing after ") + sec + " s: rank ";
        Ranks ranks(options);
        const std::vector<process::Result> endings = ranks.wait_all(patience_sec);
        const bool all_came = says(endings[0], missing + "2") && says(endings[2], "TW_JOB_TOKEN");
        if (!all_came && std::string(sec) != "30") {
            continue;
        }
        for (const process::Result &ending : endings) {
            EXPECT_EQ(ending.code, 2);
            EXPECT_NE(ending.out.find("not created: timed out"), std::string::npos) << ending.out;
        }
        EXPECT_TRUE(says(endings[0], missing + "2")) << endings[0].err;
        EXPECT_TRUE(says(endings[1], missing + "2")) << endings[1].err;
        EXPECT_TRUE(says(endings[2], "TW_JOB_TOKEN")) << endings[2].err;
        break;
    }
}

/* Rank 0 says so, once, and how to make a better one. */
TEST_F(UcxJob, AShortTokenIsWarnedAbout)
{
    Ranks::Options options;
    options.arguments = {"contract"};
    for (const char *token : {"a secret", "9f86d081884c7d659a2feaa0c55ad015"}) {
        options.env["TW_JOB_TOKEN"] = token;
        size_t n = 0;
        for (const process::Result &ending : Ranks(options).wait_all(patience_sec)) {
            EXPECT_EQ(ending.code, 0) << ending.out << ending.err;
            n += ending.err.find("TW_JOB_TOKEN is short") != std::string::npos;
        }
        EXPECT_EQ(n, std::string(token).size() < 16 ? 1u : 0u);
    }
}

TEST_F(UcxJob, WorldsThatDiffer)
{
    Ranks::Options options = on(ways[0], 2, "meet");
    options.rank_env = [](int rank) { return rank == 1 ? Env{{"WORLD_SIZE", "3"}} : Env(); };
    Ranks ranks(options);
    for (const process::Result &ending : ranks.wait_all(patience_sec)) {
        EXPECT_EQ(ending.code, 2);
        EXPECT_NE(ending.err.find("a world of 3, rank 0 in one of 2"), std::string::npos) << ending.err;
    }
}

TEST_F(UcxJob, ADeviceThatIsNotThere)
{
    Ranks::Options options = on(ways[1], 2, "meet");
    options.rank_env = [](int rank) {
        Env env = {{"TW_NODE_ID", std::to_string(rank)}};
        if (rank == 1) {
            env["TW_NET_DEVICES"] = "eth77";
        }
        return env;
    };
    Ranks ranks(options);
    const std::vector<process::Result> endings = ranks.wait_all(patience_sec);
    EXPECT_NE(endings[1].err.find("TW_NET_DEVICES: \"eth77\": no such device"), std::string::npos)
        << endings[1].err;
    EXPECT_NE(endings[0].err.find("peer 1 failed: it could not start"), std::string::npos) << endings[0].err;
    EXPECT_EQ(endings[0].code, 2);
    EXPECT_EQ(endings[1].code, 2);
}

/* Beginning beyond the end, ending beyond it, and more in all than there is room for: memory stays as it
 * is. */
TEST_F(UcxJob, DataThatDoesNotFitIsRefused)
{
    for (const char *data : {"310000+1000", "290000+20000", "0+200000 0+200000"}) {
        Ranks::Options options = on(ways[1], 2, "data_that_does_not_fit");
        options.arguments.push_back(data);
        Ranks ranks(options);
        const process::Result ending = ranks.wait_one(0, patience_sec);
        expect_verdict(ending, 0, 1);
        EXPECT_NE(ending.err.find("it sent data beyond the end of a message"), std::string::npos)
            << ending.err;
    }
}

TEST_F(UcxJob, CancelWaitsForUcx)
{
    Ranks ranks(on(ways[0], 2, "cancel_what_ucx_has"));
    expect_all_ok(ranks.wait_all(patience_sec));
}

TEST_F(UcxJob, MessagesOfWhoHasLeftThatDoNotCome)
{
    Ranks::Options options = on(ways[1], 2, "leave_with_messages_lost");
    options.env["TW_PEER_TIMEOUT"] = "1";
    Ranks ranks(options);
    expect_verdict(ranks.wait_one(0, patience_sec), 0, 1);
}

/* To close its connections UCX would have to say so to a rank that may not read; so they stay as they are. In
 * order, none stays. */
TEST_F(UcxJob, ConnectionsToWhoHasFailedAreClosedWithoutWaiting)
{
    Ranks::Options options = on(ways[1], 2, "wait_for_ever");
    options.env["TW_PEER_TIMEOUT"] = "1";
    Ranks ranks(options);
    ASSERT_TRUE(ranks.wait_ready(patience_sec)) << ranks.transcript();
    ranks.signal(1, SIGSTOP);
    const process::Result ending = ranks.wait_one(0, patience_sec);
    expect_verdict(ending, 0, 1);
    EXPECT_NE(ending.out.find("\n0 connections left"), std::string::npos) << ending.out;
    Ranks orderly(on(ways[1], 2, "meet"));
    for (const process::Result &each : orderly.wait_all(patience_sec)) {
        EXPECT_NE(each.out.find("\n0 connections left"), std::string::npos) << each.out;
    }
}

/* A rank that reads no more does not keep others from leaving, though UCX would wait for it. */
TEST_F(UcxJob, WhoHasStoppedReadingHoldsNobody)
{
    Ranks::Options options = on(ways[1], 2, "flood");
    options.env["TW_PEER_TIMEOUT"] = "1";
    Ranks ranks(options);
    ASSERT_TRUE(ranks.wait_ready(patience_sec)) << ranks.transcript();
    ranks.signal(1, SIGSTOP);
    expect_verdict(ranks.wait_one(0, patience_sec), 0, 1);
}

TEST_F(UcxJob, OneDeviceTwice)
{
    Ranks::Options options = on(ways[1], 2, "meet");
    options.env["TW_NET_DEVICES"] = "lo,lo";
    Ranks ranks(options);
    for (const process::Result &ending : ranks.wait_all(patience_sec)) {
        EXPECT_EQ(ending.code, 2);
        EXPECT_NE(ending.err.find("TW_NET_DEVICES: \"lo\" stands there twice"), std::string::npos)
            << ending.err;
    }
}

/* Also in a job that needs no network. */
TEST_F(UcxJob, DevicesWithoutNames)
{
    for (const char *list : {",", "lo,", ",lo", "lo,,lo"}) {
        Ranks::Options options = on(ways[0], 1, "meet");
        options.env["TW_NET_DEVICES"] = list;
        const process::Result ending = Ranks(options).wait_all(patience_sec)[0];
        EXPECT_EQ(ending.code, 2) << list;
        EXPECT_NE(ending.err.find(std::string("TW_NET_DEVICES: \"") + list + "\": between two commas"),
                  std::string::npos)
            << ending.err;
    }
}

TEST_F(UcxJob, TransportsThatUcxDoesNotHave)
{
    Ranks::Options options = on(ways[1], 2, "meet");
    options.env["TW_NET_TLS"] = "foo";
    Ranks ranks(options);
    for (const process::Result &ending : ranks.wait_all(patience_sec)) {
        EXPECT_EQ(ending.code, 2);
        EXPECT_NE(ending.err.find("TW_NET_TLS=foo"), std::string::npos) << ending.err;
    }
}

TEST_F(UcxJob, SealingNeedsATokenAndAllRanks)
{
    Ranks::Options options = on(ways[3], 2, "meet");
    options.env["TW_JOB_TOKEN"] = "";
    for (const process::Result &ending : Ranks(options).wait_all(patience_sec)) {
        EXPECT_NE(ending.code, 0);
        EXPECT_NE(ending.err.find("TW_NET_ENCRYPT=y needs TW_JOB_TOKEN"), std::string::npos) << ending.err;
    }
    options = on(ways[3], 2, "meet");
    options.env["TW_PEER_TIMEOUT"] = "1";
    options.rank_env = [](int rank) {
        return Env{{"TW_NODE_ID", "node " + std::to_string(rank)}, {"TW_NET_ENCRYPT", rank ? "y" : "n"}};
    };
    const std::vector<process::Result> endings = Ranks(options).wait_all(patience_sec);
    EXPECT_NE(endings[0].err.find("has TW_NET_ENCRYPT=y, which rank 0 lacks"), std::string::npos)
        << endings[0].err;
    EXPECT_NE(endings[1].code, 0);
    options = on(ways[3], 2, "meet");
    options.env["TW_NET_TLS"] = "tcp,self";
    for (const process::Result &ending : Ranks(options).wait_all(patience_sec)) {
        EXPECT_NE(ending.code, 0);
    }
}

TEST_F(UcxJob, AMisspeltVariableIsNamed)
{
    Ranks::Options options = on(ways[1], 2, "meet");
    options.env["TW_NET_STREAM"] = "2";
    for (const process::Result &ending : Ranks(options).wait_all(patience_sec)) {
        EXPECT_NE(ending.err.find("unknown variable TW_NET_STREAM; did you mean TW_NET_STREAMS?"),
                  std::string::npos)
            << ending.err;
    }
}

/* Where UCX cannot have its segments in /dev/shm, others serve, and a rank says why. */
TEST_F(UcxJob, NoRoomInTheFolderOfSharedMemory)
{
    const struct {
        const char *flags, *said;
    } cases[] = {{"size=1m", "/dev/shm has 1M free of 14M for 2 ranks: TW_NODE_TLS=sysv,cma is used"},
                 {"ro", "/dev/shm cannot be written to: TW_NODE_TLS=sysv,cma is used"},
                 {"size=64m", nullptr}};
    for (const auto &c : cases) {
        const std::string mounted = std::string("mount -t tmpfs -o ") + c.flags + " none /dev/shm";
        if (process::run({"unshare", "-m", "sh", "-c", mounted}).code != 0) {
            GTEST_SKIP() << "no mounts of one's own here";
        }
        /* One namespace of both: they share memory. */
        const process::Result job =
            process::run({"unshare", "-m", "sh", "-c",
                          mounted + " && export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 TW_RENDEZVOUS_PORT=" +
                              std::to_string(free_port()) +
                              "; RANK=1 $RANK_MAIN contract & RANK=0 $RANK_MAIN contract && wait $!"});
        EXPECT_EQ(job.code, 0) << job.out << job.err;
        if (c.said) {
            EXPECT_NE(job.err.find(std::string("rank 0: ") + c.said), std::string::npos) << job.err;
            EXPECT_NE(job.err.find(std::string("rank 1: ") + c.said), std::string::npos) << job.err;
            EXPECT_NE(job.out.find(", sysv,cma inside a node"), std::string::npos) << job.out;
        } else {
            EXPECT_EQ(job.err.find("/dev/shm"), std::string::npos) << job.err;
            EXPECT_NE(job.out.find(", posix,sysv,cma inside a node"), std::string::npos) << job.out;
        }
    }
}

TEST_F(UcxJob, TooFewDescriptors)
{
    for (rlim_t n : {(rlim_t)10, (rlim_t)36}) {
        Ranks::Options options = on(ways[1], 2, "meet");
        options.env["TW_PEER_TIMEOUT"] = "1";
        options.in_child = [=](int) {
            const rlimit limit = {n, n};
            setrlimit(RLIMIT_NOFILE, &limit);
        };
        Ranks ranks(options);
        for (const process::Result &ending : ranks.wait_all(patience_sec)) {
            EXPECT_EQ(ending.code == 0, n == 36) << ending.out << ending.err;
            EXPECT_NE(ending.err.find("RLIMIT_NOFILE is " + std::to_string(n)), std::string::npos)
                << ending.err;
        }
    }
}

/* Who knocks on the rendezvous port of a real job, while it starts, changes nothing. */
TEST_F(UcxJob, StrangersAtTheDoor)
{
    Ranks::Options options = on(ways[1], 3, "everyone_to_everyone");
    options.rank_env = [](int rank) { return Env{{"TW_NODE_ID", std::to_string(rank)}}; };
    options.in_child = [](int rank) { usleep(rank ? 700000 : 0); };
    std::vector<int> lines;
    {
        Ranks ranks(options);
        const double until = tw_time_sec() + 0.6;
        while (tw_time_sec() < until) {
            int fd = -1;
            char why[256];
            if (tw_socket_connect("127.0.0.1", ranks.port(), tw_time_ns() + 100000000u, &fd, why,
                                  sizeof(why))) {
                continue;
            }
            const std::vector<char> noise(1 + lines.size() * 97 % 5000, (char)lines.size());
            (void)send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
            lines.push_back(fd);
            if (lines.size() > 400) {
                break;
            }
        }
        EXPECT_GT(lines.size(), 10u);
        expect_all_ok(ranks.wait_all(patience_sec));
    }
    for (int fd : lines) {
        close(fd);
    }
}

/* One job after the other on the same port, at once. */
TEST_F(UcxJob, ThePortIsFreeForTheNext)
{
    Ranks::Options options = on(ways[0], 3, "meet");
    options.port = free_port();
    for (int i = 0; i < 3; i++) {
        Ranks ranks(options);
        expect_all_ok(ranks.wait_all(patience_sec));
    }
}

TEST_F(UcxJob, UnderMpirun)
{
    const char *program = getenv("RANK_MAIN");
    ASSERT_NE(program, nullptr);
    if (system("command -v mpirun >/dev/null 2>&1")) {
        GTEST_SKIP() << "no mpirun here";
    }
    const std::string command = std::string("mpirun --allow-run-as-root --oversubscribe -np 3 ") + program +
                                " everyone_to_everyone 2>&1";
    FILE *out = popen(command.c_str(), "r");
    ASSERT_NE(out, nullptr);
    std::string text;
    char buffer[4096];
    while (fgets(buffer, sizeof(buffer), out)) {
        text += buffer;
    }
    EXPECT_EQ(pclose(out), 0) << text;
    size_t n_ok = 0;
    for (size_t at = text.find("ok\n"); at != std::string::npos; at = text.find("ok\n", at + 1)) {
        n_ok++;
    }
    EXPECT_EQ(n_ok, 3u) << text;
    EXPECT_NE(text.find("3 ranks on 1 node"), std::string::npos) << text;
}

} // namespace
