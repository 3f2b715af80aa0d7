#include "bench/collectives/bench.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/collectives/gpu/sim.h"
#include "tests/collectives/world.h"
#include "tests/common/fixture.h"

namespace
{

/** A communicator on a simulated GPU, whose memory is the host's, over the world's transport. */
class SimGpu
{
  public:
    SimGpu(tw::World &world, tw_bench_rank_t *rank) : device_((uint32_t)rank->rank + 1)
    {
        const tw_coll_params_t params = tw::params_of(world.transport(rank->rank));
        tw_coll_setup_t setup = {};
        setup.params = &params;
        setup.device = device_.table();
        EXPECT_EQ(TW_OK, tw_coll_create_with(&setup, &coll_));
        rank->measured = coll_;
        rank->stream = device_.new_stream();
    }
    SimGpu(const SimGpu &) = delete;
    SimGpu &operator=(const SimGpu &) = delete;
    ~SimGpu()
    {
        tw_coll_destroy(coll_);
    }

  private:
    tw::SimDevice device_;
    tw_coll_t *coll_ = nullptr;
};

/* The measuring loop of the benchmarks, with ranks as threads over the local transport. */
class MeasureTest : public tw::Fixture
{
  protected:
    static tw_bench_options_t options(tw_coll_op_t op)
    {
        tw_bench_options_t o = {};
        o.op = op;
        o.modes[0] = TW_QUANT_PLAIN;
        o.modes[1] = TW_QUANT_INT8;
        o.modes[2] = TW_QUANT_INT4;
        o.n_modes = 3;
        o.block = 128;
        o.type = TW_TYPE_BF16;
        o.iters = 3;
        o.seed = 5;
        o.force = 1;
        return o;
    }
    /* rows of rank 0; those of the other ranks must agree */
    static std::vector<tw_bench_row_t> measure(const std::vector<int> &ranks_per_node,
                                               const tw_bench_options_t &o, size_t bytes)
    {
        std::vector<int> node_of = tw::nodes_of(ranks_per_node);
        tw::World world(node_of);
        std::vector<std::vector<tw_bench_row_t>> rows(node_of.size(), std::vector<tw_bench_row_t>(o.n_modes));
        world.run([&](int r) {
            tw_bench_rank_t rank = {};
            rank.options = &o;
            rank.transport = world.transport(r);
            rank.coll = rank.measured = world.coll(r);
            rank.is_counted = 1;
            rank.rank = r;
            rank.world = world.size();
            rank.n_nodes = static_cast<int>(ranks_per_node.size());
            rank.node_of = node_of.data();
            std::unique_ptr<SimGpu> gpu;
            if (o.cuda) {
                gpu = std::make_unique<SimGpu>(world, &rank);
            }
            EXPECT_EQ(TW_OK, tw_bench_measure(&rank, bytes, 1.0, rows[static_cast<size_t>(r)].data()));
        });
        for (const auto &others : rows) {
            for (size_t m = 0; m < o.n_modes; m++) {
                EXPECT_EQ(rows[0][m].us_median, others[m].us_median);
                EXPECT_EQ(rows[0][m].inter_node_bytes, others[m].inter_node_bytes);
            }
        }
        return rows[0];
    }
    static void expect_ok(const tw_bench_row_t &row)
    {
        EXPECT_EQ(nullptr, row.fault)
            << tw_quant_row_get(row.mode)->name << " " << row.plan.algo << ": " << row.fault;
        EXPECT_TRUE(row.identical);
        EXPECT_LE(row.us_min, row.us_median);
        EXPECT_LE(row.us_median, row.us_max);
        EXPECT_GT(row.us_min, 0);
    }
};

const tw_coll_op_t kOps[] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};

TEST_F(MeasureTest, EveryOperationAndModeIsRightInEveryShape)
{
    const std::vector<std::vector<int>> shapes = {{1}, {2}, {1, 1}, {1, 1, 1, 1}, {2, 2}, {1, 1, 1}, {3, 3}};
    for (const auto &shape : shapes) {
        for (tw_coll_op_t op : kOps) {
            for (size_t bytes : {size_t(2), size_t(70000)}) {
                for (const tw_bench_row_t &row : measure(shape, options(op), bytes)) {
                    expect_ok(row);
                    EXPECT_EQ(bytes, row.bytes);
                }
            }
        }
    }
}

TEST_F(MeasureTest, EveryAlgorithmIsRight)
{
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; (info = tw_coll_algo_get(TW_MEM_HOST, i)) != nullptr; i++) {
        if (info->op > TW_COLL_ALLREDUCE) {
            continue;
        }
        tw_bench_options_t o = options(info->op);
        o.algo = info->name;
        if (info->lossless_only) {
            o.modes[o.n_modes++] = TW_QUANT_LOSSLESS;
        }
        for (int hadamard : {0, 1}) {
            o.hadamard = hadamard;
            for (const tw_bench_row_t &row : measure({2, 2}, o, 50000)) {
                expect_ok(row);
                if (info->lossless_only ? row.mode == TW_QUANT_LOSSLESS
                                        : (row.mode != TW_QUANT_PLAIN) == info->quantized) {
                    EXPECT_STREQ(info->name, row.plan.algo);
                }
            }
        }
    }
}

/* The same checks, of the same tensors, on GPUs. */
TEST_F(MeasureTest, GpusAreRight)
{
    const std::vector<std::vector<int>> shapes = {{1}, {1, 1, 1}, {2, 2}, {1, 2}};
    for (const auto &shape : shapes) {
        for (tw_coll_op_t op : kOps) {
            tw_bench_options_t o = options(op);
            o.cuda = 1;
            for (const tw_bench_row_t &row : measure(shape, o, 70000)) {
                expect_ok(row);
                EXPECT_EQ(row.mode != TW_QUANT_PLAIN, row.plan.quantized);
            }
        }
    }
}

TEST_F(MeasureTest, EveryAlgorithmOnGpusIsRight)
{
    const tw_coll_algo_info_t *info;
    for (size_t i = 0; (info = tw_coll_algo_get(TW_MEM_CUDA, i)) != nullptr; i++) {
        tw_bench_options_t o = options(info->op);
        o.cuda = 1;
        o.algo = info->name;
        if (std::string(info->name) == "native") {
            continue;
        }
        for (const tw_bench_row_t &row : measure({2, 2}, o, 50000)) {
            expect_ok(row);
            if ((row.mode != TW_QUANT_PLAIN) == info->quantized) {
                EXPECT_STREQ(info->name, row.plan.algo);
            }
        }
    }
}

TEST_F(MeasureTest, GatheredBytesAreWhatArithmeticSays)
{
    constexpr size_t kBytes = 1 << 20;
    std::vector<tw_bench_row_t> rows = measure({1, 1, 1, 1}, options(TW_COLL_ALLGATHER), kBytes);
    const double elems = kBytes / 2.0, scales = 2.0 / 128;
    const double per_elem[] = {2, 1 + scales, 0.5 + scales};
    for (size_t m = 0; m < 3; m++) {
        expect_ok(rows[m]);
        double want = 3 * elems * per_elem[m];
        EXPECT_NEAR(static_cast<double>(rows[m].inter_node_bytes), want, 0.05 * want);
        EXPECT_NEAR(static_cast<double>(rows[m].busiest_bytes), want / 4, 0.05 * want / 4);
        EXPECT_TRUE(rows[m].plan.quantized == (m > 0));
    }
    EXPECT_EQ(0, rows[0].rel_rmse);
    EXPECT_GT(rows[1].rel_rmse, 0);
    EXPECT_GT(rows[2].rel_rmse, 4 * rows[1].rel_rmse);
    EXPECT_LT(rows[2].rel_rmse, 0.5);
    EXPECT_DOUBLE_EQ(1, rows[0].speedup);
}

TEST_F(MeasureTest, ReducedBytesAreWhatArithmeticSays)
{
    constexpr size_t kBytes = 1 << 20;
    tw_bench_options_t o = options(TW_COLL_REDUCE_SCATTER);
    o.algo = "two_hop";
    std::vector<tw_bench_row_t> rows = measure({2, 2}, o, kBytes);
    /* Two hops: every node sends the half that the other owns, once. */
    double want = 2 * (kBytes / 2.0 / 2) * (0.5 + 2.0 / 128);
    EXPECT_STREQ("two_hop", rows[2].plan.algo);
    EXPECT_NEAR(static_cast<double>(rows[2].inter_node_bytes), want, 0.05 * want);
}

TEST_F(MeasureTest, OneModeAloneHasNoSpeedup)
{
    tw_bench_options_t o = options(TW_COLL_ALLGATHER);
    o.modes[0] = TW_QUANT_INT4;
    o.n_modes = 1;
    std::vector<tw_bench_row_t> rows = measure({1, 1}, o, 4096);
    expect_ok(rows[0]);
    EXPECT_TRUE(std::isnan(rows[0].speedup));
}

TEST_F(MeasureTest, IterationsFollowTheBudget)
{
    tw_bench_options_t o = options(TW_COLL_ALLGATHER);
    o.iters = 2;
    int small = measure({1, 1}, o, 4096)[0].iters;
    EXPECT_GE(small, 2);
    EXPECT_LE(small, 2 * TW_BENCH_SMALL_MORE);
    o.iters = 10000;
    int iters = measure({1, 1}, o, 1 << 20)[0].iters;
    EXPECT_GE(iters, 3);
    EXPECT_LT(iters, 10000);
}

} // namespace
