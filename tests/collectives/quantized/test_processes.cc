/* Quantized operations between processes over UCX. */
#include "tests/collectives/processes.h"
#include "tests/collectives/quantized/alltoall.h"
#include "tests/common/fixture.h"

namespace
{

constexpr int LIMIT_SEC = 100;

class QuantProcesses : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_CHUNK", "16K"); /* both kinds of messages: sent at once, and after a handshake */
        set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    }
};

std::vector<tw::Case> cases()
{
    std::vector<tw::Case> all;
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; (info = tw_coll_algo_get(TW_MEM_HOST, i)) != nullptr; i++) {
        if (!info->quantized || info->op == TW_COLL_ALLTOALL || info->lossless_only) {
            continue; /* an all-to-all has other buffers */
        }
        for (const char *codec : {"int8", "int4:hadamard,stochastic"}) {
            for (const std::vector<size_t> &sizes :
                 std::vector<std::vector<size_t>>{{}, {0}, {1}, {7, 0, 1009}, {300007}, {65536, 3, 5000}}) {
                tw::Case c;
                c.op = info->op;
                c.algo = info->name;
                c.codec = codec;
                c.type = i % 2 ? TW_TYPE_BF16 : TW_TYPE_FP32;
                c.sizes = sizes;
                c.in_place = sizes.size() % 2;
                c.reduction = codec[3] == '8' ? TW_COLL_MEAN : TW_COLL_SUM;
                c.inner = codec[3] == '8' ? "" : "int8:block=64";
                all.push_back(c);
            }
        }
    }
    return all;
}

/** "" if all ranks hold the same bytes. */
std::string compare_ranks(tw_coll_t *coll, const tw::Bytes &mine)
{
    size_t world = (size_t)tw_coll_size(coll), n = mine.size();
    tw::Bytes all(n * world);
    tw_coll_segment_t segment = {};
    segment.src = mine.data();
    segment.dst = all.data();
    segment.n_elems = all.size();
    tw_coll_args_t args = {};
    args.op = TW_COLL_ALLGATHER;
    args.type = TW_TYPE_BYTE;
    args.segments = &segment;
    args.n_segments = 1;
    if (tw_coll_run(coll, &args) != TW_OK) {
        return "all-gather failed";
    }
    for (size_t r = 0; r < world; r++) {
        if (n > 0 && memcmp(&all[r * n], mine.data(), n) != 0) {
            return "rank " + std::to_string(r) + " has other bytes";
        }
    }
    return "";
}

std::string run_cases(const std::vector<int> &grid)
{
    const std::vector<int> node_of = tw::nodes_of(grid);
    const std::vector<tw::Case> all = cases();
    auto body = [&](tw_coll_t *coll) -> std::string {
        int world = tw_coll_size(coll), rank = tw_coll_rank(coll);
        for (const tw::Case &c : all) {
            tw::RankBuffers mine;
            tw_status_t status = tw::run_rank(coll, c, &mine);
            if (status != TW_OK) {
                return tw::name_of(c) + ": " + tw_status_string(status);
            }
            std::string wrong = tw::check_rank(c, world, (int)grid.size(), rank, mine);
            for (size_t s = 0; wrong.empty() && c.op == TW_COLL_ALLREDUCE && s < c.sizes.size(); s++) {
                wrong = compare_ranks(coll, mine.dst[s]);
            }
            if (!wrong.empty()) {
                return tw::name_of(c) + ": " + wrong;
            }
        }
        return "";
    };
    return tw::run_processes(node_of, body, LIMIT_SEC);
}

TEST_F(QuantProcesses, ThreeNodesOfOne)
{
    EXPECT_EQ(run_cases({1, 1, 1}), "");
}

TEST_F(QuantProcesses, TwoNodesOfThree)
{
    EXPECT_EQ(run_cases({3, 3}), "");
}

TEST_F(QuantProcesses, FiveNodesOfOne)
{
    EXPECT_EQ(run_cases({1, 1, 1, 1, 1}), "");
}

TEST_F(QuantProcesses, UnevenNodes)
{
    EXPECT_EQ(run_cases({1, 3, 2}), "");
}

TEST_F(QuantProcesses, Alltoall)
{
    auto body = [](tw_coll_t *coll) -> std::string {
        std::mt19937 random(9);
        std::string wrong;
        for (const char *codec : {"int8", "int4:hadamard,stochastic", "int2:block=64", ""}) {
            for (int turn = 0; turn < 4 && wrong.empty(); turn++) {
                tw::alltoall::Ask ask = {TW_TYPE_BF16, codec, turn % 2 == 1, {}};
                for (int s = 0; s <= turn; s++) {
                    ask.segments.push_back(
                        {tw::alltoall::random_counts(random, tw_coll_size(coll), turn < 2 ? 100 : 100000),
                         ""});
                }
                wrong = tw::alltoall::check_rank(coll, ask);
            }
        }
        return wrong;
    };
    EXPECT_EQ(tw::run_processes(tw::nodes_of({1, 2, 1}), body, LIMIT_SEC), "");
}

/* The links are really measured, and a tiny and a large tensor go through. */
TEST_F(QuantProcesses, MeasuredModel)
{
    set_env("TW_COLL_MODEL", "measure");
    auto body = [](tw_coll_t *coll) -> std::string {
        for (size_t n : {1, 2, 3000001}) {
            tw::Case c;
            c.sizes = {n};
            tw::RankBuffers mine;
            tw::prepare(c, tw_coll_size(coll), tw_coll_rank(coll), &mine);
            const tw::RankCase asked(c, &mine, 0);
            tw::Plan became;
            tw_status_t status = tw::run_and_note(coll, &asked.args, &became);
            if (status != TW_OK) {
                return tw_status_string(status);
            }
            const tw_coll_plan_t &plan = became.plan;
            if (!(plan.model_sec > 0 && plan.model_sec < 100)) {
                return "the model expects " + std::to_string(plan.model_sec) + " s";
            }
            if (n < 3 && plan.quantized) {
                return "a tiny tensor was quantized";
            }
        }
        return "";
    };
    EXPECT_EQ(tw::run_processes(tw::nodes_of({2, 1}), body, LIMIT_SEC), "");
}

} // namespace
