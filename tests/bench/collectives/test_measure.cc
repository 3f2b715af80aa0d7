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

/** Tensors on a simulated GPU, moved by the transport. */
class SimTarget
{
  public:
    explicit SimTarget(tw::World &world, int rank)
        : table_{}, device_((uint32_t)rank + 1), stream_(device_.new_stream())
    {
        const tw_coll_params_t params = tw::params_of(world.transport(rank), nullptr, 0, 1);
        tw_coll_parts_t parts = {};
        parts.params = &params;
        parts.device = device_.table();
        EXPECT_EQ(TW_OK, tw_coll_create_of_parts(&parts, &coll_));
        table_.load = [](tw_bench_target_t *t, const tw_bench_tensors_t *tensors) {
            SimTarget *me = of(t);
            me->host_ = *tensors;
            me->src_.assign(tensors->src, tensors->src + tensors->src_bytes);
            me->dst_.assign(tensors->dst_bytes, 0);
            me->segments_.assign(tensors->segments, tensors->segments + tensors->n_segments);
            for (tw_coll_segment_t &segment : me->segments_) {
                segment.src = me->src_.data() + ((const char *)segment.src - tensors->src);
                segment.dst = me->dst_.data() + ((char *)segment.dst - tensors->dst);
            }
            return TW_OK;
        };
        table_.poison = [](tw_bench_target_t *t, int byte) {
            std::fill(of(t)->dst_.begin(), of(t)->dst_.end(), (char)byte);
            return TW_OK;
        };
        table_.run = [](tw_bench_target_t *t, const tw_coll_args_t *args, tw_coll_plan_t *plan,
                        char *reason) {
            tw_coll_args_t there = of(t)->there(args);
            there.stream = of(t)->stream_;
            tw_status_t status = tw::run_and_note(of(t)->coll_, &there, &of(t)->plan_);
            *plan = of(t)->plan_.plan;
            snprintf(reason, TW_BENCH_REASON_BYTES, "%s", plan->reason);
            return status;
        };
        table_.fetch = [](tw_bench_target_t *t) {
            std::copy(of(t)->dst_.begin(), of(t)->dst_.end(), of(t)->host_.dst);
            return TW_OK;
        };
        table_.planned_bytes = [](tw_bench_target_t *t, const tw_coll_args_t *args, uint64_t *bytes) {
            tw_coll_args_t there = of(t)->there(args);
            return tw_coll_planned_inter_node_bytes(of(t)->coll_, &there, bytes);
        };
        table_.nonfinite_blocks = [](tw_bench_target_t *t) {
            return tw_coll_nonfinite_blocks(of(t)->coll_);
        };
        table_.is_counted = 1;
    }
    SimTarget(const SimTarget &) = delete;
    SimTarget &operator=(const SimTarget &) = delete;
    ~SimTarget()
    {
        tw_coll_destroy(coll_);
    }
    tw_bench_target_t *table()
    {
        return &table_;
    }

  private:
    static SimTarget *of(tw_bench_target_t *table)
    {
        return reinterpret_cast<SimTarget *>(table);
    }
    tw_coll_args_t there(const tw_coll_args_t *args) const
    {
        tw_coll_args_t out = *args;
        out.segments = segments_.data();
        return out;
    }

    tw_bench_target_t table_; /* first: see of() */
    tw::SimDevice device_;
    tw_stream_t stream_;
    tw_coll_t *coll_ = nullptr;
    tw::Plan plan_;
    tw_bench_tensors_t host_ = {};
    std::vector<char> src_, dst_;
    std::vector<tw_coll_segment_t> segments_;
};

/* The measuring loop of the benchmarks, with ranks as threads over the local transport. */
class MeasureTest : public tw::Fixture
{
  protected:
    static tw_bench_options_t options(tw_coll_op_t op)
    {
        tw_bench_options_t o = {};
        o.op = op;
        o.modes[0] = TW_BENCH_EXACT;
        o.modes[1] = TW_BENCH_INT8;
        o.modes[2] = TW_BENCH_INT4;
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
            rank.coll = world.coll(r);
            rank.rank = r;
            rank.world = world.size();
            rank.n_nodes = static_cast<int>(ranks_per_node.size());
            rank.node_of = node_of.data();
            std::unique_ptr<SimTarget> target;
            if (o.cuda) {
                target = std::make_unique<SimTarget>(world, r);
                rank.target = target->table();
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
            << tw_bench_mode_name(row.mode) << " " << row.plan.algo << ": " << row.fault;
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
        for (int hadamard : {0, 1}) {
            o.hadamard = hadamard;
            for (const tw_bench_row_t &row : measure({2, 2}, o, 50000)) {
                expect_ok(row);
                if ((row.mode != TW_BENCH_EXACT) == info->quantized) {
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
                EXPECT_EQ(row.mode != TW_BENCH_EXACT, row.plan.quantized);
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
            if ((row.mode != TW_BENCH_EXACT) == info->quantized) {
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
    o.modes[0] = TW_BENCH_INT4;
    o.n_modes = 1;
    std::vector<tw_bench_row_t> rows = measure({1, 1}, o, 4096);
    expect_ok(rows[0]);
    EXPECT_TRUE(std::isnan(rows[0].speedup));
}

TEST_F(MeasureTest, IterationsFollowTheBudget)
{
    tw_bench_options_t o = options(TW_COLL_ALLGATHER);
    o.iters = 2;
    EXPECT_EQ(2, measure({1, 1}, o, 4096)[0].iters);
    o.iters = 10000;
    int iters = measure({1, 1}, o, 1 << 20)[0].iters;
    EXPECT_GE(iters, 3);
    EXPECT_LT(iters, 10000);
}

} // namespace
