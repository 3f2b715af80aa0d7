/* Planning: what is chosen, when quantizing is declined, and that the plan's bytes are the bytes sent. */
#include <mutex>

#include "tests/collectives/quantized.h"
#include "tests/common/fixture.h"

namespace
{

class Plan : public tw::Fixture
{
  protected:
    static tw_coll_plan_t plan_of(const tw::World &world, int rank = 0)
    {
        tw_coll_plan_t plan;
        tw_coll_last_plan(world.coll(rank), &plan);
        return plan;
    }

    static tw::Case gather(size_t n, const char *codec = "int8")
    {
        tw::Case c;
        c.codec = codec;
        c.sizes = {n};
        return c;
    }

    static bool is_exact(const tw::World &world, const tw::Case &c, const std::vector<tw::RankBuffers> &got)
    {
        tw::Bytes want;
        for (int r = 0; r < world.size(); r++) {
            tw::Bytes part =
                plain_tensor(c, r, 0, first_of(c, world.size(), 0, r), count_of(c, world.size(), 0, r));
            want.insert(want.end(), part.begin(), part.end());
        }
        return got[0].dst[0] == want;
    }
};

TEST_F(Plan, QuantizesOnASlowLink)
{
    set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    tw::World world(tw::nodes_of({1, 1, 1}));
    tw::Case c = gather(300000);
    EXPECT_FALSE(is_exact(world, c, run_case(world, c, 0)));
    EXPECT_EQ(plan_of(world).quantized, 1);
    EXPECT_STREQ(plan_of(world).reason, "");
    EXPECT_GT(plan_of(world).model_sec, 0);
}

TEST_F(Plan, DeclinesOnAFastLink)
{
    set_env("TW_COLL_MODEL", "inter:beta=400gbit;node:beta=400gbit;codec:encode=1G,decode=1G");
    tw::World world(tw::nodes_of({1, 1, 1}));
    tw::Case c = gather(300000);
    EXPECT_TRUE(is_exact(world, c, run_case(world, c, 0)));
    EXPECT_EQ(plan_of(world, 2).quantized, 0);
    EXPECT_NE(std::string(plan_of(world, 2).reason).find("int8"), std::string::npos)
        << plan_of(world, 2).reason;
    EXPECT_NE(std::string(plan_of(world, 2).reason).find("exact"), std::string::npos)
        << plan_of(world, 2).reason;

    /* unless told not to */
    EXPECT_FALSE(is_exact(world, c, run_case(world, c, 1)));
    EXPECT_EQ(plan_of(world).quantized, 1);
    EXPECT_STREQ(plan_of(world).reason, "");
}

/* Four bytes: the scales alone are more. */
TEST_F(Plan, DeclinesATinyTensor)
{
    set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    tw::World world(tw::nodes_of({1, 1}));
    for (size_t n : {0, 1, 2, 5}) {
        tw::Case c = gather(n, "int4");
        EXPECT_TRUE(is_exact(world, c, run_case(world, c, 0)));
        EXPECT_EQ(plan_of(world).quantized, 0) << n;
    }
}

TEST_F(Plan, NamesThatDoNotExistAreRefused)
{
    set_env("TW_COLL_MODEL", "inter:beta=1gbit");
    expect_log("there is no quantized algorithm \"rong\"");
    tw::World world(tw::nodes_of({1}));
    tw_quant_codec_t codec = tw::parse_codec("int8");
    tw_coll_args_t args = {};
    args.op = TW_COLL_ALLGATHER;
    args.type = TW_TYPE_BF16;
    args.codec = &codec;
    args.algo = "rong";
    tw_coll_request_t *request;
    EXPECT_EQ(tw_coll_post(world.coll(0), &args, &request), TW_ERR_INVALID);
}

TEST_F(Plan, SlowerLinksAndLargerTensorsTakeLonger)
{
    double before = 0;
    for (const char *rate : {"10gbit", "1gbit", "100mbit"}) {
        set_env("TW_COLL_MODEL", std::string("inter:beta=") + rate);
        tw::World world(tw::nodes_of({1, 1, 1, 1}));
        for (size_t n : {1000, 100000, 1000000}) {
            run_case(world, gather(n, "int4"));
            EXPECT_GT(plan_of(world).model_sec, n == 1000 ? 0 : before);
            before = plan_of(world).model_sec;
        }
    }
}

/* The link's own time is the floor of every estimate. */
TEST_F(Plan, EstimatesAreAboveTheFloor)
{
    set_env("TW_COLL_MODEL", "inter:beta=1gbit");
    tw::World world(tw::nodes_of({2, 2}));
    for (const char *algo : {"ring", "hierarchical", "direct"}) {
        tw::Case c = gather(1 << 20, "int4");
        c.algo = algo;
        run_case(world, c);
        double wire = (double)(2 << 20) * (0.25 + 1.0 / 64) / 2; /* half of it comes from the other node */
        EXPECT_GE(plan_of(world).model_sec, wire * 8 / 1e9) << algo;
        EXPECT_LE(plan_of(world).model_sec, 4 * wire * 8 / 1e9) << algo;
    }
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

/** Runs the case and returns what was planned, after checking that just this was sent. */
uint64_t check_bytes(tw::World &world, const tw::Case &c)
{
    tw_quant_codec_t codec = tw::parse_codec(c.codec),
                     inner = tw::parse_codec(c.inner.empty() ? "int8" : c.inner);
    std::vector<uint64_t> planned((size_t)world.size());
    std::vector<tw_transport_counters_t> before(planned.size()), after(planned.size());
    for (size_t r = 0; r < planned.size(); r++) {
        tw::RankBuffers mine;
        prepare(c, world.size(), (int)r, &mine);
        std::vector<tw_coll_segment_t> segments(c.sizes.size());
        for (size_t s = 0; s < segments.size(); s++) {
            segments[s].src = mine.src[s].data();
            segments[s].dst = mine.dst[s].data();
            segments[s].n_elems = c.sizes[s];
        }
        tw_coll_args_t args = {};
        args.op = c.op;
        args.type = c.type;
        args.segments = segments.data();
        args.n_segments = segments.size();
        args.codec = &codec;
        args.inner_codec = c.inner.empty() ? nullptr : &inner;
        args.algo = c.algo.c_str();
        args.force_codec = 1;
        EXPECT_EQ(tw_coll_planned_inter_node_bytes(world.coll((int)r), &args, &planned[r]), TW_OK);
        tw_transport_inter_node_counters(world.transport((int)r), &before[r]);
    }
    run_case(world, c);
    uint64_t sum = 0;
    for (size_t r = 0; r < planned.size(); r++) {
        tw_transport_inter_node_counters(world.transport((int)r), &after[r]);
        EXPECT_EQ(after[r].bytes - before[r].bytes, planned[r]) << c.algo << " rank " << r;
        sum += planned[r];
    }
    return sum;
}

struct Shape {
    tw_coll_op_t op;
    const char *algo, *inner;
};

const Shape shapes[] = {
    {TW_COLL_ALLGATHER, "ring", ""},         {TW_COLL_ALLGATHER, "hierarchical", ""},
    {TW_COLL_ALLGATHER, "direct", ""},       {TW_COLL_REDUCE_SCATTER, "one_hop", ""},
    {TW_COLL_REDUCE_SCATTER, "two_hop", ""}, {TW_COLL_REDUCE_SCATTER, "two_hop", "int8"},
    {TW_COLL_ALLREDUCE, "one_hop", ""},      {TW_COLL_ALLREDUCE, "two_hop", "int8"},
};

TEST_F(Plan, PlannedBytesAreSent)
{
    set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    set_env("TW_COLL_CHUNK", "2K");
    const std::vector<std::vector<int>> grids = {{1, 1, 1}, {2, 2}, {3}, {3, 1, 2}};
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        for (const Shape &shape : shapes) {
            tw::Case c;
            c.op = shape.op;
            c.algo = shape.algo;
            c.inner = shape.inner;
            c.sizes = {20011, 0, 5};
            check_bytes(world, c);
        }
    }
}

/* Inter-node bytes of all nodes together, by the arithmetic of each algorithm, to 5 %: M is the plain tensor. */
TEST_F(Plan, BytesAreThePayloadArithmetic)
{
    set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    const std::vector<std::vector<int>> grids = {{1, 1, 1, 1}, {2, 2}, {2, 2, 2}};
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        double n_nodes = (double)grid.size(), local = grid[0], w = n_nodes * local, m = 2 * (w * 65536);
        for (const char *codec : {"int8", "int4"}) {
            double part = codec[3] == '8' ? 0.5 * (1 + 2.0 / 2048) : 0.25 * (1 + 2.0 / 64);
            for (const Shape &shape : shapes) {
                tw::Case c;
                c.op = shape.op;
                c.algo = shape.algo;
                c.inner = shape.inner;
                c.codec = codec;
                c.sizes = {(size_t)m / 2};
                std::string algo = shape.algo;
                double gather = algo == "ring"     ? n_nodes * m * (w - 1) / w
                                : algo == "direct" ? n_nodes * m * local * (w - local) / w
                                                   : n_nodes * m * (w - local) / w;
                double reduce =
                    algo == "one_hop" ? n_nodes * m * local * (w - local) / w : n_nodes * m * (w - local) / w;
                double want = shape.op == TW_COLL_ALLGATHER        ? gather
                              : shape.op == TW_COLL_REDUCE_SCATTER ? reduce
                                                                   : gather + reduce;
                EXPECT_NEAR((double)check_bytes(world, c), want * part, 0.05 * want * part)
                    << tw_coll_op_name(shape.op) << " " << algo << " " << codec << " on " << n_nodes << " x "
                    << local;
            }
        }
    }
}

/* ---- explaining ------------------------------------------------------------------------------------------ */

size_t count_of_text(const std::string &text, const std::string &what)
{
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
        n++;
    return n;
}

TEST_F(Plan, ExplainsEachKindOfOperationOnce)
{
    set_env("TW_COLL_MODEL", "inter:beta=1gbit");
    set_env("TW_COLL_EXPLAIN", "1");
    testing::internal::CaptureStderr();
    {
        tw::World world(tw::nodes_of({1, 1}));
        run_case(world, gather(1000000), 0);
        run_case(world, gather(1000000), 0);
        run_case(world, gather(2), 0);
    }
    std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(count_of_text(text, "<- chosen"), 2u) << text;
    EXPECT_EQ(count_of_text(text, "quantizing declined"), 1u) << text;
    EXPECT_EQ(count_of_text(text, "TW_COLL_MODEL=\"inter:"), 1u) << text;
    for (const char *algo :
         {"exact ring", "int8:block=2048 ring", "int8:block=2048 hierarchical", "int8:block=2048 direct"})
        EXPECT_EQ(count_of_text(text, algo), 2u) << algo << "\n" << text;
}

/* ---- timing must not matter ------------------------------------------------------------------------------ */

/** As run_case, with ranks that dawdle. */
std::vector<tw::Bytes> run_late(tw::World &world, const tw::Case &c, unsigned seed)
{
    std::vector<tw::Bytes> results((size_t)world.size());
    tw_quant_codec_t codec = tw::parse_codec(c.codec);
    world.run([&](int rank) {
        tw::RankBuffers mine;
        prepare(c, world.size(), rank, &mine);
        tw_coll_segment_t segment = {};
        segment.src = mine.src[0].data();
        segment.dst = mine.dst[0].data();
        segment.n_elems = c.sizes[0];
        tw_coll_args_t args = {};
        args.op = c.op;
        args.type = c.type;
        args.segments = &segment;
        args.n_segments = 1;
        args.codec = &codec;
        args.algo = c.algo.c_str();
        args.force_codec = 1;
        unsigned state = seed * 977 + (unsigned)rank;
        tw_coll_request_t *request;
        std::this_thread::sleep_for(std::chrono::microseconds(rand_r(&state) % 3000));
        ASSERT_EQ(tw_coll_post(world.coll(rank), &args, &request), TW_OK);
        tw_status_t status;
        while ((status = tw_coll_test(request)) == TW_IN_PROGRESS) {
            if (rand_r(&state) % 4 == 0)
                std::this_thread::sleep_for(std::chrono::microseconds(rand_r(&state) % 200));
        }
        EXPECT_EQ(status, TW_OK);
        results[(size_t)rank] = mine.dst[0];
    });
    return results;
}

TEST_F(Plan, DelaysDoNotChangeABit)
{
    set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    set_env("TW_COLL_CHUNK", "1K");
    tw::World world(tw::nodes_of({2, 3}));
    for (const Shape &shape : shapes) {
        tw::Case c;
        c.op = shape.op;
        c.algo = shape.algo;
        c.codec = "int4:block=32,stochastic";
        c.sizes = {15013};
        std::vector<tw::Bytes> first = run_late(world, c, 1);
        for (unsigned seed = 2; seed < 5; seed++)
            ASSERT_TRUE(run_late(world, c, seed) == first) << tw_coll_op_name(c.op) << " " << c.algo;
    }
}

} // namespace
