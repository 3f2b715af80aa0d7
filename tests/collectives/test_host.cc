/* Planning: what is chosen, when quantizing is declined, and that the plan's bytes are the bytes sent. */
#include <functional>
#include <mutex>

#include "collectives/communicator.h"
#include "collectives/model/model.h"
#include "tests/collectives/machine.h"
#include "tests/collectives/quantized/quantized.h"
#include "tests/common/fixture.h"

namespace
{

class Plan : public tw::Fixture
{
  protected:
    static tw_coll_plan_t plan_of(const tw::World &world, int rank = 0)
    {
        return world.plan(rank);
    }

    static tw::Case gather(size_t n, const char *codec = "int8")
    {
        tw::Case c;
        c.codec = codec;
        c.sizes = {n};
        return c;
    }

    static bool is_plain(const tw::World &world, const tw::Case &c, const std::vector<tw::RankBuffers> &got)
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
    EXPECT_FALSE(is_plain(world, c, run_case(world, c, 0)));
    EXPECT_EQ(plan_of(world).quantized, 1);
    EXPECT_STREQ(plan_of(world).reason, "");
    EXPECT_GT(plan_of(world).model_sec, 0);
}

/* An operation is thought about once: posted again, whatever its tensors and seeds, it becomes what it
 * was. */
TEST_F(Plan, TheSameAgainAtOnce)
{
    set_env("TW_COLL_MODEL", "inter:beta=1gbit,alpha=50us,turn=50us");
    tw::World world(tw::nodes_of({1, 1, 1}));
    const std::vector<size_t> sizes = {300000, 1000, 200}; /* quantized, declined, declined */
    std::vector<tw::Plan> first;
    for (int turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < sizes.size(); i++) {
            tw::Case c = gather(sizes[i]);
            c.seed = (uint64_t)turn;
            c.step = (uint32_t)turn;
            (void)run_case(world, c, 0);
            tw::Plan plan;
            plan.plan = plan_of(world);
            plan.reason = plan.plan.reason;
            if (turn == 0) {
                first.push_back(plan);
            }
            EXPECT_EQ(plan.plan.quantized, i == 0);
            EXPECT_STREQ(plan.plan.algo, first[i].plan.algo);
            EXPECT_EQ(plan.plan.chunk_bytes, first[i].plan.chunk_bytes);
            EXPECT_EQ(plan.plan.model_sec, first[i].plan.model_sec);
            EXPECT_EQ(plan.reason, first[i].reason);
        }
        EXPECT_EQ(world.coll(0)->n_known, sizes.size());
    }
}

/* Everything that decides makes it another operation; and those that were longest ago are forgotten, and
 * thought about again. */
TEST_F(Plan, WhatDecidesIsAskedAgain)
{
    tw::World world(tw::nodes_of({1, 1}));
    size_t known = 0;
    auto expect_new = [&](const tw::Case &c, int force) {
        (void)run_case(world, c, force);
        EXPECT_EQ(world.coll(1)->n_known, ++known) << name_of(c);
        (void)run_case(world, c, force);
        EXPECT_EQ(world.coll(1)->n_known, known) << name_of(c);
    };
    tw::Case c = gather(1000);
    expect_new(c, 0);
    expect_new(c, 1);
    c.algo = "ring";
    expect_new(c, 0);
    c.algo = "";
    c.codec = "int4";
    expect_new(c, 0);
    c.type = TW_TYPE_FP32;
    expect_new(c, 0);
    c.counts = {{999, 1}};
    expect_new(c, 0);
    c.own = {"plain"};
    expect_new(c, 0);
    c.own = {"int8"};
    expect_new(c, 0);
    c.op = TW_COLL_REDUCE_SCATTER;
    expect_new(c, 0);
    c.inner = "int8";
    expect_new(c, 0);
    for (size_t n = 1; n <= TW_COLL_KNOWN; n++) {
        expect_new(gather(n), 0);
    }
    expect_new(gather(1000), 0);
}

TEST_F(Plan, DeclinesOnAFastLink)
{
    set_env("TW_COLL_MODEL", "inter:beta=400gbit;node:beta=400gbit;codec:encode=1G,decode=1G");
    tw::World world(tw::nodes_of({1, 1, 1}));
    tw::Case c = gather(300000);
    EXPECT_TRUE(is_plain(world, c, run_case(world, c, 0)));
    EXPECT_EQ(plan_of(world, 2).quantized, 0);
    EXPECT_NE(std::string(plan_of(world, 2).reason).find("int8"), std::string::npos)
        << plan_of(world, 2).reason;
    EXPECT_NE(std::string(plan_of(world, 2).reason).find("plain"), std::string::npos)
        << plan_of(world, 2).reason;

    /* unless told not to */
    EXPECT_FALSE(is_plain(world, c, run_case(world, c, 1)));
    EXPECT_EQ(plan_of(world).quantized, 1);
    EXPECT_STREQ(plan_of(world).reason, "");
}

/* What loses nothing goes plain where that is as fast, also in a deterministic communicator: the bits are the
 * same. */
TEST_F(Plan, LosslessGoesPlainWhereThatIsAsFast)
{
    const std::string codec = ";lossless:encode=1G,decode=1G";
    set_env("TW_COLL_DETERMINISTIC", "y");
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1, 1}, {2, 2}}) {
        for (const char *link : {"1gbit", "100gbit"}) {
            set_env("TW_COLL_MODEL", std::string("inter:beta=") + link + codec);
            tw::World world(tw::nodes_of(grid));
            for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
                for (size_t n : {(size_t)2000, (size_t)1000000}) {
                    const bool is_packed = n == 1000000 && std::string(link) == "1gbit";
                    std::vector<tw::RankBuffers> results[2];
                    for (int packs = 0; packs < 2; packs++) {
                        tw::Case c = gather(n, packs ? "lossless" : "");
                        c.op = op;
                        results[packs] = run_case(world, c, 0);
                    }
                    EXPECT_EQ(plan_of(world).quantized, is_packed) << link << " " << n;
                    const std::string reason = plan_of(world).reason;
                    EXPECT_EQ(reason.empty(), is_packed) << reason;
                    EXPECT_EQ(reason.find("lossless") != std::string::npos, !is_packed) << reason;
                    for (int r = 0; r < world.size(); r++) {
                        EXPECT_EQ(results[0][r].dst, results[1][r].dst) << tw_coll_op_name(op) << " " << n;
                    }
                    tw::Case c = gather(n, "lossless");
                    c.op = op;
                    run_case(world, c, 1);
                    EXPECT_EQ(plan_of(world).quantized, 1) << "told to";
                }
            }
        }
    }
}

/* Where the tables of short messages cost more than bytes save depends on the link. Measured on 4 nodes with
 * 1 Gb/s: shards of 32 KB are slower packed, those of 64 KB faster. */
TEST_F(Plan, ShortLosslessMessagesArePackedOnSlowLinks)
{
    const struct {
        const char *link;
        size_t shard_bytes;
        int is_packed;
    } cases[] = {
        {"1gbit", 16 << 10, 0}, {"1gbit", 32 << 10, 0}, {"1gbit", 64 << 10, 1}, {"1mbit", 1 << 10, 1}};
    for (const char *deterministic : {"n", "y"}) {
        for (const auto &[link, shard_bytes, is_packed] : cases) {
            if (deterministic[0] == 'y' && !is_packed) {
                continue; /* its plain gather is a ring, whatever the size: slower there */
            }
            set_env("TW_COLL_DETERMINISTIC", deterministic);
            set_env("TW_COLL_MODEL", std::string("inter:beta=") + link);
            tw::World world(tw::nodes_of({1, 1, 1, 1}));
            for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
                tw::Case c = gather(4 * shard_bytes / 2, "lossless");
                c.op = op;
                run_case(world, c, 0);
                for (int r = 0; r < world.size(); r++) {
                    EXPECT_EQ(plan_of(world, r).quantized, is_packed)
                        << tw_coll_op_name(op) << " " << link << " " << shard_bytes;
                }
            }
        }
    }
}

/* With a segment in it that is rounded, what is asked for is done whatever the size: going plain would change
 * bits. */
TEST_F(Plan, DeterministicNeverGoesPlainWithBlocks)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    tw::World world(tw::nodes_of({1, 1, 1}));
    tw::Case c = gather(2000, "lossless");
    c.sizes = {2000, 2000};
    c.own = {"", "int8"};
    run_case(world, c, 0);
    EXPECT_EQ(plan_of(world).quantized, 1);
    c.own = {"", "plain"};
    run_case(world, c, 0);
    EXPECT_EQ(plan_of(world).quantized, 0);
}

/* Four bytes: the scales alone are more. */
TEST_F(Plan, DeclinesATinyTensor)
{
    set_env("TW_COLL_MODEL", "inter:beta=100mbit");
    tw::World world(tw::nodes_of({1, 1}));
    for (size_t n : {0, 1, 2, 5}) {
        tw::Case c = gather(n, "int4");
        EXPECT_TRUE(is_plain(world, c, run_case(world, c, 0)));
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

/* ---- bytes --------------------------------------------------------------------------------------------- */

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

/* Inter-node bytes of all nodes together, by the arithmetic of each algorithm, to 5 %: M is the plain
 * tensor. */
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

/* ---- disturbed measurements ---------------------------------------------------------------------------- */

/** What is chosen for `bytes` of bf16 on 2 nodes of 2; the same on all ranks. */
std::string choice_of(const tw_coll_model_t &model, tw_coll_op_t op, const char *codec_text, size_t bytes)
{
    tw::World world(tw::nodes_of({2, 2}));
    tw_quant_codec_t codec = tw::parse_codec(codec_text);
    tw_coll_segment_t segment = {};
    tw_coll_args_t args = {};
    std::string name;
    segment.n_elems = bytes / 2;
    args.op = op;
    args.type = TW_TYPE_BF16;
    args.segments = &segment;
    args.n_segments = 1;
    args.codec = &codec;
    for (int r = 0; r < world.size(); r++) {
        tw_coll_choice_t choice;
        world.coll(r)->model = model;
        EXPECT_EQ(tw_coll_choose(world.coll(r), &args, segment.n_elems, &choice), TW_OK);
        const tw_coll_algo_info_t *info = tw_coll_algo_get(TW_MEM_HOST, choice.algo);
        std::string mine = std::string(info->quantized ? "" : "plain ") + info->name;
        EXPECT_TRUE(r == 0 || mine == name) << r << ": " << mine << " and " << name;
        name = mine;
    }
    return name;
}

std::string reduce_scatter_of(const tw_coll_model_t &model)
{
    return choice_of(model, TW_COLL_REDUCE_SCATTER, "int4:block=128", (size_t)64 << 20);
}

struct Disturbance {
    const char *what;
    std::function<void(std::vector<tw_estimate_report_t> *)> apply;
};

template <typename Fn>
std::function<void(std::vector<tw_estimate_report_t> *)> on_all(Fn change)
{
    return [=](std::vector<tw_estimate_report_t> *reports) {
        for (tw_estimate_report_t &report : *reports) {
            for (tw_measure_sample_t *sample : {&report.best, &report.typical}) {
                change(sample);
            }
        }
    };
}

/* The last two are what two busy loops on two cores made of the measurement: every reading inside the nodes
 * 40 to 150 times too slow, however often it is repeated. */
const Disturbance disturbances[] = {
    {"nothing", [](std::vector<tw_estimate_report_t> *) {}},
    {"one rank, in the node, 10x",
     [](std::vector<tw_estimate_report_t> *reports) { tw::scale_tier(&(*reports)[1].best.node, 10); }},
    {"one rank, in the node, 1000x, agreeing with itself",
     [](std::vector<tw_estimate_report_t> *reports) {
         tw::scale_tier(&(*reports)[1].best.node, 1000);
         tw::scale_tier(&(*reports)[1].typical.node, 1000);
     }},
    {"all in the node, 5x", on_all([](tw_measure_sample_t *s) { tw::scale_tier(&s->node, 5); })},
    {"codecs, 3x", on_all([](tw_measure_sample_t *s) { tw::scale_codecs(&s->cpu, 3); })},
    {"all of it, 3x", on_all([](tw_measure_sample_t *s) {
         tw::scale_tier(&s->inter, 3);
         tw::scale_tier(&s->node, 3);
         tw::scale_codecs(&s->cpu, 3);
     })},
    {"all in the node, 40x", on_all([](tw_measure_sample_t *s) { tw::scale_tier(&s->node, 40); })},
    {"all in the node, 150x", on_all([](tw_measure_sample_t *s) { tw::scale_tier(&s->node, 150); })},
};

TEST_F(Plan, DisturbedProbesKeepTheFewerInterNodeBytes)
{
    for (const Disturbance &disturbance : disturbances) {
        std::vector<tw_estimate_report_t> reports = tw::quiet_reports(4);
        disturbance.apply(&reports);
        EXPECT_EQ(reduce_scatter_of(tw::model_of(reports)), "two_hop") << disturbance.what;
    }
}

/* TW_COLL_MODEL as it is printed gives the same choices, the doubtful ones too. */
TEST_F(Plan, ThePrintedModelChoosesAlike)
{
    char text[TW_COLL_MODEL_TEXT_BYTES];
    for (const Disturbance &disturbance : disturbances) {
        std::vector<tw_estimate_report_t> reports = tw::quiet_reports(4);
        disturbance.apply(&reports);
        tw_coll_model_t model = tw::model_of(reports), again;
        ASSERT_EQ(tw_coll_model_parse(tw_coll_model_format(&model, text, sizeof(text)), &again), TW_OK);
        EXPECT_EQ(reduce_scatter_of(again), reduce_scatter_of(model)) << text;
    }
}

/* An inner sum that is slow, beside a link for which twice the bytes are nothing. */
TEST_F(Plan, EvidenceBeyondDoubtChoosesMoreBytes)
{
    tw_coll_model_t model = tw::model_of(tw::quiet_reports(4));
    model.reduce_sec = 1 / 0.5e9;
    EXPECT_EQ(reduce_scatter_of(model), "one_hop");
    model.inter.noise = 0.2; /* a tenth less time is no evidence then */
    EXPECT_EQ(reduce_scatter_of(model), "two_hop");
    model.inter.noise = 0;
    model.node.noise = 100; /* about what does not matter here */
    EXPECT_EQ(reduce_scatter_of(model), "one_hop");
    model.node.noise = 0;
    model.reduce_sec = 1 / 4e9;
    model.inter.beta_sec = 8 / 100e9;
    model.node.beta_sec =
        1 / 1e9; /* slower than it can be believed to be, but 15 ms are enough of a difference */
    for (double &sec : model.encode_sec) {
        sec = 1 / 60e9;
    }
    for (double &sec : model.decode_sec) {
        sec = 1 / 60e9;
    }
    EXPECT_EQ(reduce_scatter_of(model), "one_hop");
}

TEST_F(Plan, SlowCodecsAndFastLinksStayPlain)
{
    std::vector<tw_estimate_report_t> reports = tw::quiet_reports(4);
    on_all([](tw_measure_sample_t *s) { tw::scale_codecs(&s->cpu, 50); })(&reports);
    EXPECT_EQ(reduce_scatter_of(tw::model_of(reports)).substr(0, 5), "plain");
    reports = tw::quiet_reports(4);
    on_all([](tw_measure_sample_t *s) {
        s->inter.beta_sec /= 400;
        s->inter.cpu_sec /= 400;
    })(&reports);
    EXPECT_EQ(reduce_scatter_of(tw::model_of(reports)).substr(0, 5), "plain");
    reports = tw::quiet_reports(4);
    for (tw_coll_op_t op : {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER}) {
        EXPECT_EQ(choice_of(tw::model_of(reports), op, "int4", 4096).substr(0, 5), "plain");
    }
}

/* ---- explaining ---------------------------------------------------------------------------------------- */

size_t count_of_text(const std::string &text, const std::string &what)
{
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
        n++;
    }
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
         {"plain ring", "int8:block=2048 ring", "int8:block=2048 hierarchical", "int8:block=2048 direct"}) {
        EXPECT_EQ(count_of_text(text, algo), 2u) << algo << "\n" << text;
    }
}

TEST_F(Plan, ExplainsDoubt)
{
    set_env("TW_COLL_EXPLAIN", "1");
    testing::internal::CaptureStderr();
    std::vector<tw_estimate_report_t> reports = tw::quiet_reports(4);
    on_all([](tw_measure_sample_t *s) { tw::scale_tier(&s->node, 150); })(&reports);
    EXPECT_EQ(reduce_scatter_of(tw::model_of(reports)), "two_hop");
    std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(count_of_text(text, "<- chosen, for its fewer inter-node bytes"), 1u) << text;
    EXPECT_NE(text.find("(quiet "), std::string::npos) << text;
}

/* ---- timing must not matter ---------------------------------------------------------------------------- */

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
            if (rand_r(&state) % 4 == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(rand_r(&state) % 200));
            }
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
        for (unsigned seed = 2; seed < 5; seed++) {
            ASSERT_TRUE(run_late(world, c, seed) == first) << tw_coll_op_name(c.op) << " " << c.algo;
        }
    }
}

/* Not so small that an operation never ends. */
TEST_F(Plan, AChunkBelowTheLeastIsRefused)
{
    tw_transport_t *transport = nullptr;
    tw_coll_t *coll = nullptr;
    ASSERT_EQ(tw_transport_local_create(1, nullptr, &transport), TW_OK);
    const tw_coll_params_t params = tw::params_of(transport);
    for (const char *chunk : {"1", "255"}) {
        set_env("TW_COLL_CHUNK", chunk);
        expect_log(std::string("TW_COLL_CHUNK=") + chunk + ": at least 256 bytes, or 0");
        EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_CONFIG) << chunk;
        EXPECT_EQ(coll, nullptr);
    }
    for (const char *chunk : {"0", "256"}) {
        set_env("TW_COLL_CHUNK", chunk);
        ASSERT_EQ(tw_coll_create(&params, &coll), TW_OK) << chunk;
        tw_coll_destroy(coll);
        coll = nullptr;
    }
    tw_transport_destroy(transport);
}

/* The chunk that a quantized reduce-scatter gets on nodes of one rank each; the same by either name. */
size_t meeting_chunk(int n_nodes, size_t n_elems, const char *text)
{
    tw::World world(tw::nodes_of(std::vector<int>((size_t)n_nodes, 1)));
    const tw_quant_codec_t codec = tw::parse_codec(text);
    tw_coll_segment_t segment = {};
    segment.n_elems = n_elems;
    tw_coll_args_t args = {};
    args.op = TW_COLL_REDUCE_SCATTER;
    args.type = TW_TYPE_BF16;
    args.segments = &segment;
    args.n_segments = 1;
    args.codec = &codec;
    args.force_codec = 1;
    tw_coll_choice_t one_hop, two_hop;
    args.algo = "one_hop";
    EXPECT_EQ(tw_coll_choose(world.coll(0), &args, n_elems, &one_hop), TW_OK);
    args.algo = "two_hop";
    EXPECT_EQ(tw_coll_choose(world.coll(0), &args, n_elems, &two_hop), TW_OK);
    EXPECT_EQ(one_hop.chunk_bytes, two_hop.chunk_bytes);
    return one_hop.chunk_bytes;
}

/* Where all send to all: one of 32 messages, a power of two. */
TEST_F(Plan, MessagesThatMeetAreShort)
{
    for (const char *model : {"inter:beta=1gbit", "inter:alpha=1ms,beta=1gbit", "inter:beta=250mbit"}) {
        set_env("TW_COLL_MODEL", model);
        EXPECT_EQ(meeting_chunk(4, 1 << 10, "int8"), 32u << 10);
        EXPECT_EQ(meeting_chunk(4, 8 << 20, "int8"), 64u << 10);
        EXPECT_EQ(meeting_chunk(4, 8 << 20, "int4"), 32u << 10);
        EXPECT_EQ(meeting_chunk(4, 32 << 20, "int8"), 256u << 10);
        EXPECT_EQ(meeting_chunk(4, 32 << 20, "int4"), 128u << 10);
        EXPECT_EQ(meeting_chunk(8, 8 << 20, "int8"), 32u << 10);
        EXPECT_EQ(meeting_chunk(2, 1 << 10, "int4"), 32u << 10);
    }
}

/* Not where that would leave a fast link waiting: two turns of 100 us at 100 Gb/s are 2.5 MB, of three peers
 * together. */
TEST_F(Plan, MessagesThatMeetAreLongOnAFastLink)
{
    set_env("TW_COLL_MODEL", "inter:beta=100gbit,turn=100us");
    EXPECT_EQ(meeting_chunk(4, 8 << 20, "int4"), 512u << 10);
    EXPECT_EQ(meeting_chunk(16, 8 << 20, "int4"), 128u << 10);
    set_env("TW_COLL_MODEL", "inter:beta=100gbit,turn=5us");
    EXPECT_EQ(meeting_chunk(4, 8 << 20, "int4"), 32u << 10);
    set_env("TW_COLL_SCRATCH", "1M"); /* 8 chunks per rank within half of it */
    set_env("TW_COLL_MODEL", "inter:beta=100gbit,turn=100us");
    EXPECT_EQ(meeting_chunk(4, 8 << 20, "int4"), 16u << 10);
}

} // namespace
