/* Collectives on GPU memory over a transport: the host moves the bytes, simulated GPUs run their kernels when
 * they like. Bit for bit those of the CPU. */
#include <atomic>

#include "tests/collectives/bits.h"
#include "tests/collectives/gpu/transport.h"
#include "tests/collectives/gpu/world.h"
#include "tests/collectives/processes.h"
#include "tests/collectives/quantized/alltoall.h"
#include "tests/common/fixture.h"
#include "transport/p2p/state.h"
#include "transport/ranks/state.h"

namespace
{

tw_status_t create(tw::SimDevice *device, tw_transport_t *transport, tw_coll_t **out)
{
    /* an own id: a transport that wraps another one knows nothing of the ids there */
    const tw_coll_params_t params = tw::params_of(transport, nullptr, 0, 2);
    tw_coll_setup_t setup = {};
    setup.params = &params;
    setup.device = device->table();
    return tw_coll_create_with(&setup, out);
}

/** Whether the transports take the memory of the GPUs. */
enum Reach { THROUGH_HOST, STRAIGHT };

/** Communicators on the transports of a world, each used by a thread of its own. */
class HostWorld
{
  public:
    HostWorld(tw::World &the_world, uint32_t seed, Reach reach = THROUGH_HOST) : world(the_world)
    {
        for (int r = 0; r < world.size(); r++) {
            devices.push_back(std::make_unique<tw::SimDevice>(seed * 100 + (uint32_t)r));
            streams.push_back(devices.back()->new_stream());
            transports.push_back(
                std::make_unique<tw::GpuTransport>(world.transport(r), devices.back().get()));
            colls.push_back(nullptr);
        }
        world.run([&](int r) {
            tw_transport_t *transport = reach == STRAIGHT ? transports[(size_t)r]->get() : world.transport(r);
            EXPECT_EQ(create(devices[(size_t)r].get(), transport, &colls[(size_t)r]), TW_OK);
        });
    }
    HostWorld(const HostWorld &) = delete;
    HostWorld &operator=(const HostWorld &) = delete;
    ~HostWorld()
    {
        for (tw_coll_t *coll : colls) {
            tw_coll_destroy(coll);
        }
    }
    tw_coll_t *coll(int rank) const
    {
        return colls[(size_t)rank];
    }
    tw::SimDevice &device(int rank) const
    {
        return *devices[(size_t)rank];
    }
    tw_stream_t stream(int rank) const
    {
        return streams[(size_t)rank];
    }
    tw::GpuTransport &transport(int rank) const
    {
        return *transports[(size_t)rank];
    }
    tw_status_t post(int rank, const tw_coll_args_t *args, tw_coll_request_t **request) const
    {
        tw_coll_args_t on = *args;
        on.stream = stream(rank);
        return tw_coll_post(coll(rank), &on, request);
    }
    tw_status_t post_and_wait(int rank, const tw_coll_args_t *args) const
    {
        tw_coll_request_t *request;
        tw_status_t status = post(rank, args, &request);
        return status == TW_OK ? tw_coll_wait(request) : status;
    }
    std::vector<tw::RankBuffers> run(const tw::Case &c, int force_codec = 1)
    {
        return run_case_by(world, c, force_codec,
                           [&](int rank, const tw_coll_args_t *args) { return post_and_wait(rank, args); });
    }

  private:
    tw::World &world;
    std::vector<std::unique_ptr<tw::SimDevice>> devices;
    std::vector<std::unique_ptr<tw::GpuTransport>> transports;
    std::vector<tw_stream_t> streams;
    std::vector<tw_coll_t *> colls;
};

class GpuHost : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:beta=100mbit");
        set_env("TW_COLL_CHUNK", "1K");
        set_env("TW_COLL_TIMEOUT", "5s");
    }
};

const tw_coll_op_t ops[] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};

void every_grid(Reach reach)
{
    const std::vector<std::vector<int>> grids = {{1}, {1, 1}, {3}, {2, 2}, {2, 1, 1}, {3, 3}, {1, 2, 4}};
    uint32_t seed = 1;
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, ++seed, reach);
        for (tw_coll_op_t op : ops) {
            for (bool flat : {false, true}) {
                tw::Case c;
                c.op = op;
                c.algo = op == TW_COLL_ALLGATHER ? (flat ? "direct" : "hierarchical")
                         : flat                  ? "one_hop"
                                                 : "two_hop";
                c.codec = "int4:block=32,stochastic";
                c.inner = op != TW_COLL_ALLGATHER && seed % 2 ? "int8:block=64" : "";
                c.sizes = {5003, 3, 0, 1, 700};
                c.in_place = flat;
                expect_same(c, gpu.run(c), run_case(world, c));
                c.codec = c.inner = "";
                c.algo = "direct";
                expect_same(c, gpu.run(c), run_case(world, c));
            }
        }
    }
}

TEST_F(GpuHost, EveryGrid)
{
    every_grid(THROUGH_HOST);
}

TEST_F(GpuHost, EveryGridStraight)
{
    every_grid(STRAIGHT);
}

/* By name, the bits that were recorded on the host. */
TEST_F(GpuHost, RecordedBits)
{
    for (const std::vector<int> &grid : tw::bits_grids) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, 5);
        for (const tw::BitsCase &bits : tw::bits_cases(TW_MEM_CUDA, true)) {
            expect_recorded(grid, bits, bits_of(bits, [&](const tw::Case &c) { return gpu.run(c); }));
        }
    }
}

/* Without a name, each chooses by itself. */
TEST_F(GpuHost, DeterministicAsOnTheCpu)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    set_env("TW_COLL_MODEL", "measure");
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1}, {2, 2}, {3, 2}, {3}}) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, 3);
        for (tw_coll_op_t op : ops) {
            for (const char *codec : {"", "int8:block=64", "int4:block=32,stochastic"}) {
                tw::Case c;
                c.op = op;
                c.codec = codec;
                c.reduction = codec[0] != '\0' ? TW_COLL_MEAN : TW_COLL_SUM;
                c.sizes = {5003, 3, 0, 700};
                expect_same(c, gpu.run(c, 0), run_case(world, c, 0));
            }
        }
    }
}

const std::vector<std::vector<int>> few_grids = {{1, 1, 1}, {2, 2}, {3, 1, 2}};

TEST_F(GpuHost, SegmentsWithCodecsOfTheirOwn)
{
    for (const std::vector<int> &grid : few_grids) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, 11);
        expect_mixed_segments(world, [&](const tw::Case &c) { return gpu.run(c); });
    }
}

TEST_F(GpuHost, MeansOfFp16DoNotOverflow)
{
    std::vector<std::vector<int>> grids = few_grids;
    grids.push_back({3});
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, 12);
        expect_fp16_means(world, [&](const tw::Case &c) { return gpu.run(c); });
    }
}

/* What rests takes no memory, and comes back for the next operation. */
TEST_F(GpuHost, TrimGivesTheWorkspaceBack)
{
    for (Reach reach : {THROUGH_HOST, STRAIGHT}) {
        tw::World world(tw::nodes_of({2, 1}));
        HostWorld gpu(world, 13, reach);
        tw::Case c;
        c.sizes = {20001};
        const std::vector<tw::RankBuffers> want = run_case(world, c);
        for (int i = 0; i < 2; i++) {
            expect_same(c, gpu.run(c), want);
            for (int r = 0; r < world.size(); r++) {
                EXPECT_GT(tw_coll_workspace_bytes(gpu.coll(r)), 0u);
                tw_coll_trim(gpu.coll(r));
                EXPECT_EQ(tw_coll_workspace_bytes(gpu.coll(r)), 0u);
            }
        }
    }
}

/* Not what somebody uses. */
TEST_F(GpuHost, TrimLeavesWhatIsInFlight)
{
    tw::World world(tw::nodes_of({1, 1}));
    HostWorld gpu(world, 14);
    tw::Case c;
    c.sizes = {20001};
    const std::vector<tw::RankBuffers> want = run_case(world, c);
    expect_same(c,
                run_case_by(world, c, 1,
                            [&](int rank, const tw_coll_args_t *args) {
                                tw_coll_request_t *request;
                                EXPECT_EQ(gpu.post(rank, args, &request), TW_OK);
                                tw_coll_trim(gpu.coll(rank));
                                EXPECT_GT(tw_coll_workspace_bytes(gpu.coll(rank)), 0u);
                                return tw_coll_wait(request);
                            }),
                want);
}

/* Operations on GPUs and on the CPU in flight on one transport, which ranks wait for in different orders. */
TEST_F(GpuHost, BesideTheCpuInAnyOrder)
{
    tw::World world(tw::nodes_of({2, 2}));
    HostWorld gpu(world, 5);
    tw::Case c;
    c.op = TW_COLL_ALLREDUCE;
    c.algo = "two_hop";
    c.codec = "int8:block=64";
    c.sizes = {20001, 3};
    const std::vector<tw::RankBuffers> want = run_case(world, c);
    std::vector<tw::RankBuffers> on_cpu((size_t)world.size());
    const std::vector<tw::RankBuffers> on_gpu =
        run_case_by(world, c, 1, [&](int rank, const tw_coll_args_t *args) {
            tw::RankBuffers &mine = on_cpu[(size_t)rank];
            tw_coll_request_t *request, *gpu_request;
            tw::prepare(c, world.size(), rank, &mine);
            const tw::RankCase asked(c, &mine, 1);
            EXPECT_EQ(gpu.post(rank, args, &gpu_request), TW_OK);
            EXPECT_EQ(tw_coll_post(world.coll(rank), &asked.args, &request), TW_OK);
            if (rank % 2) {
                EXPECT_EQ(tw_coll_wait(request), TW_OK);
                return tw_coll_wait(gpu_request);
            }
            tw_status_t status = tw_coll_wait(gpu_request);
            EXPECT_EQ(tw_coll_wait(request), TW_OK);
            return status;
        });
    expect_same(c, on_gpu, want);
    expect_same(c, on_cpu, want);
}

/* ---- where the workspace is ---------------------------------------------------------------------------- */

/** One all-gather between two nodes; everything about rank 0's workspace. */
void expect_workspace(Reach reach, bool pinned)
{
    tw::World world(tw::nodes_of({1, 1}));
    HostWorld gpu(world, 9, reach);
    tw::Case c;
    c.sizes = {20001};
    expect_same(c, gpu.run(c), run_case(world, c));
    EXPECT_EQ(tw_coll_workspace_mem(gpu.coll(0)) == TW_MEM_HOST, pinned);
    EXPECT_EQ(gpu.device(0).n_pinned > 0, pinned);
    EXPECT_EQ(gpu.device(0).n_pinned == gpu.device(0).n_allocated, pinned);
    EXPECT_EQ(gpu.transport(0).n_messages > 0, !pinned);
    EXPECT_EQ(gpu.device(0).n_fences > 0, !pinned);
}

TEST_F(GpuHost, WorkspaceAsTheTransportTakes)
{
    for (const char *asked : {(const char *)nullptr, "auto"}) {
        set_env("TW_COLL_GPU_WORKSPACE", asked ? std::optional<std::string>(asked) : std::nullopt);
        expect_workspace(THROUGH_HOST, true);
        expect_workspace(STRAIGHT, false);
    }
}

TEST_F(GpuHost, WorkspaceAsAsked)
{
    set_env("TW_COLL_GPU_WORKSPACE", "pinned");
    expect_workspace(THROUGH_HOST, true);
    expect_workspace(STRAIGHT, true);
    set_env("TW_COLL_GPU_WORKSPACE", "device");
    expect_workspace(STRAIGHT, false);
}

TEST_F(GpuHost, WorkspaceRefused)
{
    tw::World world(tw::nodes_of({1}));
    tw::SimDevice device(1);
    tw_coll_t *coll = nullptr;
    set_env("TW_COLL_GPU_WORKSPACE", "device");
    expect_log("rank 0: TW_COLL_GPU_WORKSPACE is device, but the transport takes no GPU memory (local: ");
    EXPECT_EQ(create(&device, world.transport(0), &coll), TW_ERR_UNSUPPORTED);
    set_env("TW_COLL_GPU_WORKSPACE", "unpinned");
    expect_log("TW_COLL_GPU_WORKSPACE");
    EXPECT_EQ(create(&device, world.transport(0), &coll), TW_ERR_CONFIG);
    EXPECT_EQ(coll, nullptr);
}

TEST_F(GpuHost, WorkspaceIsExplained)
{
    set_env("TW_COLL_EXPLAIN", "y");
    for (Reach reach : {THROUGH_HOST, STRAIGHT}) {
        tw::World world(tw::nodes_of({1, 1}));
        HostWorld gpu(world, 10, reach);
        tw::Case c;
        tw::RankBuffers mine;
        c.sizes = {1000};
        prepare(c, 2, 0, &mine);
        tw::RankCase asked(c, &mine, 1);
        testing::internal::CaptureStderr();
        EXPECT_EQ(tw_coll_prepare(gpu.coll(0), &asked.args), TW_OK);
        const std::string text = testing::internal::GetCapturedStderr();
        EXPECT_NE(text.find(reach == STRAIGHT ? " in GPU memory" : " in pinned host memory"),
                  std::string::npos)
            << text;
    }
}

/* ---- the host's part ----------------------------------------------------------------------------------- */

/* Several under way: they end in their order, and the workspace of the largest serves all. */
TEST_F(GpuHost, SeveralUnderWay)
{
    tw::World world(tw::nodes_of({2, 1}));
    HostWorld gpu(world, 3);
    tw::Case a, b;
    a.sizes = {2003};
    b.op = TW_COLL_ALLREDUCE;
    b.algo = "one_hop";
    b.sizes = {9001, 5};
    std::vector<tw::RankBuffers> got_a(3), got_b(3);
    world.run([&](int rank) {
        prepare(a, 3, rank, &got_a[(size_t)rank]);
        prepare(b, 3, rank, &got_b[(size_t)rank]);
        tw::RankCase asked_a(a, &got_a[(size_t)rank], 1), asked_b(b, &got_b[(size_t)rank], 1);
        tw_coll_request_t *request_a, *request_b;
        EXPECT_EQ(gpu.post(rank, &asked_a.args, &request_a), TW_OK);
        EXPECT_EQ(gpu.post(rank, &asked_b.args, &request_b), TW_OK);
        EXPECT_EQ(tw_coll_wait(request_b), TW_OK);
        EXPECT_EQ(tw_coll_wait(request_a), TW_OK);
    });
    expect_same(a, got_a, run_case(world, a));
    expect_same(b, got_b, run_case(world, b));
}

/* Each operation of a shape says it where its own caller asked for it. */
TEST_F(GpuHost, SaysHowLongItTook)
{
    tw::World world(tw::nodes_of({1}));
    HostWorld gpu(world, 5);
    tw::Case c;
    tw::RankBuffers mine;
    c.sizes = {1000};
    prepare(c, 1, 0, &mine);
    tw::RankCase asked(c, &mine, 1);
    double first = -1, second = -1;
    asked.args.elapsed_sec = &first;
    EXPECT_EQ(gpu.post_and_wait(0, &asked.args), TW_OK);
    EXPECT_GE(first, 0);
    first = -1;
    asked.args.elapsed_sec = &second;
    EXPECT_EQ(gpu.post_and_wait(0, &asked.args), TW_OK);
    EXPECT_GE(second, 0);
    EXPECT_EQ(first, -1);
}

TEST_F(GpuHost, PlannedBytesAreSent)
{
    tw::World world(tw::nodes_of({2, 2}));
    HostWorld gpu(world, 4);
    tw::Case c;
    c.op = TW_COLL_REDUCE_SCATTER;
    c.sizes = {50001};
    run_case_by(world, c, 1, [&](int rank, const tw_coll_args_t *args) {
        tw_transport_counters_t before, after;
        uint64_t planned = 0;
        tw_transport_inter_node_counters(world.transport(rank), &before);
        tw_status_t status = gpu.post_and_wait(rank, args);
        tw_transport_inter_node_counters(world.transport(rank), &after);
        EXPECT_EQ(tw_coll_planned_inter_node_bytes(gpu.coll(rank), args, &planned), TW_OK);
        EXPECT_EQ(after.bytes - before.bytes, planned);
        EXPECT_GT(planned, 0u);
        return status;
    });
}

/* ---- messages ------------------------------------------------------------------------------------------ */

tw::Case lossless_case(tw_coll_op_t op, std::vector<size_t> sizes)
{
    tw::Case c;
    c.op = op;
    c.codec = "lossless";
    c.sizes = std::move(sizes);
    return c;
}

/* In one hop and in two, chunks of many parts and parts of many chunks: the bits of the plain operation, on
 * the GPU and on the CPU. */
void has_the_bits_of_plain(Reach reach)
{
    const std::vector<std::vector<int>> grids = {{1}, {1, 1}, {3}, {2, 2}, {2, 1, 1}, {3, 3}, {1, 2, 4}};
    uint32_t seed = 40;
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, ++seed, reach);
        for (tw_coll_op_t op : ops) {
            for (bool in_place : {false, true}) {
                tw::Case c = lossless_case(op, {5003, 3, 0, 1, 700});
                c.type = in_place ? TW_TYPE_BF16 : TW_TYPE_FP32;
                c.reduction = seed % 2 ? TW_COLL_MEAN : TW_COLL_SUM;
                c.in_place = in_place;
                const auto packed = gpu.run(c);
                c.codec = "";
                expect_same(c, packed, gpu.run(c));
                expect_same(c, packed, run_case(world, c));
            }
        }
    }
}

TEST_F(GpuHost, LosslessHasTheBitsOfPlain)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    has_the_bits_of_plain(THROUGH_HOST);
}

TEST_F(GpuHost, LosslessHasTheBitsOfPlainStraight)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    has_the_bits_of_plain(STRAIGHT);
}

TEST_F(GpuHost, LosslessByName)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    for (const std::vector<int> &grid : few_grids) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, 51);
        tw::Case c = lossless_case(TW_COLL_ALLREDUCE, {5003, 700});
        for (const char *algo : {"one_hop", "two_hop"}) {
            c.algo = algo;
            expect_same(c, gpu.run(c), run_case(world, c));
            expect_same(c, gpu.run(c, 0), gpu.run(c)); /* declined if that gives the same bits */
        }
    }
}

TEST_F(GpuHost, LosslessBesideOtherSegments)
{
    set_env("TW_COLL_DETERMINISTIC", "y");
    for (const std::vector<int> &grid : few_grids) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, 52);
        for (tw_coll_op_t op : ops) {
            tw::Case c = lossless_case(op, {5003, 700, 900});
            c.own = {"", "int8:block=32", "plain"};
            expect_same(c, gpu.run(c), run_case(world, c));
        }
    }
}

/* What is rounded at random has the CPU's bits, too: seeds are of the chunk, and of who encodes it. */
TEST_F(GpuHost, EcdqHasTheBitsOfTheCpu)
{
    set_env("TW_COLL_CHUNK", "16K");
    for (const std::vector<int> &grid : {std::vector<int>{1}, {1, 1}, {2, 2}, {3, 1, 2}}) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, 55, grid.size() % 2 ? STRAIGHT : THROUGH_HOST);
        for (tw_coll_op_t op : ops) {
            for (bool in_place : {false, true}) {
                tw::Case c = lossless_case(op, {50003, 700, 9000, 4000});
                c.codec = "ecdq:step=0.5";
                c.own = {"", "int8:block=32", "ecdq", "lossless"};
                c.type = in_place ? TW_TYPE_BF16 : TW_TYPE_FP32;
                c.in_place = in_place;
                expect_same(c, gpu.run(c), run_case(world, c));
                c.step++;
                expect_same(c, gpu.run(c), run_case(world, c));
            }
        }
    }
}

/* Of no use without this. Planned is the most that it may be. */
TEST_F(GpuHost, MessagesSendFewerBytes)
{
    set_env("TW_COLL_CHUNK", "64K");
    for (const std::vector<int> &grid : {std::vector<int>{1, 1, 1}, {2, 2}}) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, 53);
        for (tw_coll_op_t op : ops) {
            tw::Case c = lossless_case(op, {300001});
            c.codec = grid.size() == 2 ? "lossless" : "ecdq";
            const double most = grid.size() == 2 ? 0.8 : 0.2, least = grid.size() == 2 ? 0.5 : 0.1;
            run_case_by(world, c, 1, [&](int rank, const tw_coll_args_t *args) {
                tw_transport_counters_t before, after;
                tw_coll_counters_t from, to;
                uint64_t planned = 0;
                tw_transport_inter_node_counters(world.transport(rank), &before);
                tw_coll_counters_get(gpu.coll(rank), &from);
                tw_status_t status = gpu.post_and_wait(rank, args);
                tw_coll_counters_get(gpu.coll(rank), &to);
                tw_transport_inter_node_counters(world.transport(rank), &after);
                EXPECT_EQ(tw_coll_planned_inter_node_bytes(gpu.coll(rank), args, &planned), TW_OK);
                uint64_t sent = to.inter_node_bytes - from.inter_node_bytes;
                EXPECT_EQ(sent + to.inter_node_spared_bytes - from.inter_node_spared_bytes, planned);
                EXPECT_EQ(after.bytes - before.bytes, sent);
                if (planned > 10000) {
                    EXPECT_LT((double)sent, most * (double)planned) << tw_coll_op_name(op);
                    EXPECT_GT((double)sent, least * (double)planned) << tw_coll_op_name(op);
                }
                return status;
            });
        }
    }
}

/* Messages that a GPU packs longer than they are shorter; and then it says so. */
TEST_F(GpuHost, LosslessIsDeclinedOnFastLinks)
{
    set_env("TW_COLL_CHUNK", "0");
    for (bool is_fast : {false, true}) {
        set_env("TW_COLL_MODEL", is_fast ? "inter:beta=100gbit" : "inter:beta=100mbit");
        tw::World world(tw::nodes_of({1, 1}));
        HostWorld gpu(world, 55);
        const tw::Case c = lossless_case(TW_COLL_ALLGATHER, {100000});
        (void)run_case_by(world, c, 0, [&](int rank, const tw_coll_args_t *args) {
            tw_coll_request_t *request;
            tw::Plan plan;
            EXPECT_EQ(gpu.post(rank, args, &request), TW_OK);
            plan.take(request);
            EXPECT_EQ(plan.plan.quantized, !is_fast);
            EXPECT_STREQ(plan.plan.reason,
                         is_fast ? "packing would take a GPU longer than it saves on this link" : "");
            return tw_coll_wait(request);
        });
    }
}

/* What comes to the GPU is not what was sent: cut, bits turned over, of another length than it says. */
TEST_F(GpuHost, MessagesThatAreNone)
{
    const std::function<void(std::vector<char> *)> harm[] = {
        [](std::vector<char> *message) { message->resize(message->size() / 2); },
        [](std::vector<char> *message) { message->resize(0); },
        [](std::vector<char> *message) { message->at(message->size() / 2) ^= 4; },
        [](std::vector<char> *message) { std::fill(message->begin(), message->begin() + 8, (char)0xff); },
        [](std::vector<char> *message) { message->push_back(0); },
    };
    for (size_t i = 0; i < 2 * std::size(harm); i++) {
        const auto &tamper = harm[i / 2];
        tw::World world(tw::nodes_of({1, 1}));
        HostWorld gpu(world, 54, STRAIGHT);
        tw::Case c = lossless_case(TW_COLL_ALLGATHER, {100000});
        c.codec = i % 2 ? "ecdq" : c.codec;
        gpu.transport(1).tamper = [&](std::vector<char> *message) {
            if (message->size() > 250) {
                tamper(message);
            }
        };
        expect_log("is not one of");
        allow_log("quant");
        allow_log("gave the job up");
        world.run([&](int rank) {
            tw::RankBuffers mine;
            prepare(c, 2, rank, &mine);
            tw::RankCase asked(c, &mine, 1);
            tw_status_t status = gpu.post_and_wait(rank, &asked.args);
            EXPECT_TRUE(status < 0 || rank == 0) << rank << ": " << tw_status_string(status);
        });
    }
}

/* ---- all-to-all ---------------------------------------------------------------------------------------- */

/* What each rank gets is what it gets on the CPU, which its own tests compare with the codec alone; in place,
 * too, and whatever the others send. What was sent was planned. */
void alltoall_as_on_the_cpu(Reach reach)
{
    using namespace tw::alltoall;
    std::mt19937 random(7);
    uint32_t seed = 60;
    for (const std::vector<int> &grid : std::vector<std::vector<int>>{{1}, {1, 1}, {3}, {2, 2}, {1, 2, 1}}) {
        tw::World world(tw::nodes_of(grid));
        HostWorld gpu(world, ++seed, reach);
        for (const char *codec : {"", "int8", "int4:block=32,stochastic", "lossless"}) {
            for (int turn = 0; turn < 4; turn++) {
                Ask ask = {turn % 2 ? TW_TYPE_FP32 : TW_TYPE_BF16, codec, turn >= 2, {}};
                ask.segments.push_back({random_counts(random, world.size(), 3000), ""});
                ask.segments.push_back(
                    {random_counts(random, world.size(), 300), codec[0] != '\0' && turn ? "plain" : ""});
                ask.segments.push_back(
                    {random_counts(random, world.size(), 900), codec[0] != '\0' ? "int8:block=64" : ""});
                world.run([&](int rank) {
                    Rank on_gpu(ask, rank), on_cpu(ask, rank);
                    tw_coll_counters_t from, to;
                    uint64_t planned = 0;
                    EXPECT_EQ(tw_coll_planned_inter_node_bytes(gpu.coll(rank), &on_gpu.args, &planned),
                              TW_OK);
                    tw_coll_counters_get(gpu.coll(rank), &from);
                    EXPECT_EQ(gpu.post_and_wait(rank, &on_gpu.args), TW_OK);
                    tw_coll_counters_get(gpu.coll(rank), &to);
                    EXPECT_EQ(to.inter_node_bytes - from.inter_node_bytes + to.inter_node_spared_bytes -
                                  from.inter_node_spared_bytes,
                              planned);
                    EXPECT_EQ(world.run(rank, &on_cpu.args), TW_OK);
                    EXPECT_EQ(on_gpu.dst, on_cpu.dst) << codec << ", turn " << turn << ", rank " << rank;
                });
            }
        }
    }
}

TEST_F(GpuHost, AlltoallAsOnTheCpu)
{
    alltoall_as_on_the_cpu(THROUGH_HOST);
}

TEST_F(GpuHost, AlltoallAsOnTheCpuStraight)
{
    alltoall_as_on_the_cpu(STRAIGHT);
}

/* The same tensors again in another place, in other shares, in place: another plan each. */
TEST_F(GpuHost, AlltoallShapes)
{
    using namespace tw::alltoall;
    tw::World world(tw::nodes_of({1, 2}));
    HostWorld gpu(world, 70);
    std::mt19937 random(9);
    const Counts counts[] = {Counts(3, std::vector<size_t>(3, 700)), random_counts(random, 3, 900)};
    for (int turn = 0; turn < 8; turn++) {
        Ask ask = {TW_TYPE_BF16, "lossless", turn % 4 >= 2, {{counts[turn % 2], ""}}};
        world.run([&](int rank) {
            Rank on_gpu(ask, rank), on_cpu(ask, rank);
            EXPECT_EQ(gpu.post_and_wait(rank, &on_gpu.args), TW_OK);
            EXPECT_EQ(world.run(rank, &on_cpu.args), TW_OK);
            EXPECT_EQ(on_gpu.dst, on_cpu.dst) << turn;
        });
    }
    EXPECT_EQ(gpu.coll(0)->gpu->n_shapes, 4u);
}

TEST_F(GpuHost, AlltoallCountsThatDoNotFit)
{
    using namespace tw::alltoall;
    tw::World world(tw::nodes_of({1, 1}));
    HostWorld gpu(world, 71);
    Ask ask = {TW_TYPE_BF16, "", false, {{Counts(2, std::vector<size_t>(2, 512)), ""}}};
    expect_log("rank 0: alltoall: rank 1 sends 512 elements, here 1024 are expected");
    allow_log("rank ");
    world.run([&](int rank) {
        Rank own(ask, rank);
        own.dst[0].resize(1 << 14);
        own.segments[0].dst = own.dst[0].data();
        own.recv_counts[0][1] += rank == 0 ? 512 : 0;
        tw_status_t status = gpu.post_and_wait(rank, &own.args);
        EXPECT_TRUE(rank == 0 ? status == TW_ERR_MISMATCH : status <= TW_OK) << tw_status_string(status);
    });
}

/* Processes over UCX: what each gets on its GPU is what it gets on the CPU. Straight: as UCX does it in GPU
 * memory, but that the memory of simulated GPUs is the host's. */
const std::pair<tw_coll_op_t, const char *> asked_over_ucx[] = {{TW_COLL_ALLGATHER, "int4:block=64"},
                                                                {TW_COLL_REDUCE_SCATTER, "int4:block=64"},
                                                                {TW_COLL_ALLREDUCE, "int4:block=64"},
                                                                {TW_COLL_ALLGATHER, "lossless"},
                                                                {TW_COLL_ALLREDUCE, "lossless"}};

void over_ucx(Reach reach)
{
    auto body = [reach](tw_coll_t *coll) -> std::string {
        tw::SimDevice device((uint32_t)tw_coll_rank(coll) + 1);
        tw_stream_t stream = device.new_stream();
        tw_coll_t *gpu = nullptr;
        std::string wrong;
        int rank = tw_coll_rank(coll), world = tw_coll_size(coll);
        coll->transport->takes[TW_MEM_CUDA] = reach == STRAIGHT;
        tw_ranks_of(coll->transport)->p2p->memory[TW_MEM_CUDA] = UCS_MEMORY_TYPE_HOST;
        if (create(&device, coll->transport, &gpu) != TW_OK) {
            return "no communicator";
        }
        if ((tw_coll_workspace_mem(gpu) == TW_MEM_HOST) != (reach == THROUGH_HOST)) {
            wrong = "the workspace is not where it should be; ";
        }
        for (auto [op, codec] : asked_over_ucx) {
            tw::Case c;
            tw::RankBuffers on_cpu, on_gpu;
            c.op = op;
            c.algo = op == TW_COLL_ALLGATHER ? "hierarchical" : "two_hop";
            c.codec = codec;
            c.sizes = {200003, 5, 0};
            prepare(c, world, rank, &on_cpu);
            prepare(c, world, rank, &on_gpu);
            tw::RankCase asked_cpu(c, &on_cpu, 1), asked_gpu(c, &on_gpu, 1);
            tw_status_t status = tw_coll_run(coll, &asked_cpu.args);
            asked_gpu.args.stream = stream;
            status = status == TW_OK ? tw_coll_run(gpu, &asked_gpu.args) : status;
            if (status != TW_OK || on_cpu.dst != on_gpu.dst) {
                wrong += tw::describe(c) + ": " + tw_status_string(status) + "; ";
            }
        }
        tw_coll_destroy(gpu);
        return wrong;
    };
    tw::ScopedEnv chunk("TW_COLL_CHUNK", "8K");
    /* Sockets of our own know no GPU. */
    tw::ScopedEnv tls("TW_NET_TLS", reach == STRAIGHT ? "tcp,self" : "tcp");
    EXPECT_EQ(tw::run_processes(tw::nodes_of({2, 1}), body, 60), "");
}

TEST_F(GpuHost, OverUcx)
{
    over_ucx(THROUGH_HOST);
}

TEST_F(GpuHost, OverUcxStraight)
{
    over_ucx(STRAIGHT);
}

/* A rank that goes away ends the operation of the others, at once and for good. */
TEST_F(GpuHost, LostPeer)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    HostWorld gpu(world, 5);
    tw::Case c;
    c.sizes = {100000};
    allow_log("rank");
    world.run([&](int rank) {
        if (rank == 2) {
            tw_transport_abort(world.transport(2), "a test");
            return;
        }
        tw::RankBuffers mine;
        prepare(c, 3, rank, &mine);
        tw::RankCase asked(c, &mine, 1);
        EXPECT_EQ(gpu.post_and_wait(rank, &asked.args), TW_ERR_PEER);
        EXPECT_EQ(gpu.post_and_wait(rank, &asked.args), TW_ERR_PEER);
    });
}

/** Ranks that do not agree about what one of them posts: all get an error soon, and somebody says what is
 *  wrong. */
void expect_disagreement(tw_status_t own_status, const std::function<void(tw_coll_args_t *)> &change)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    HostWorld gpu(world, 5);
    tw::Case c;
    std::atomic<int> mismatches{0};
    c.op = TW_COLL_REDUCE_SCATTER;
    c.sizes = {3001};
    run_case_by(world, c, 1,
                [&](int rank, const tw_coll_args_t *args) { return gpu.post_and_wait(rank, args); });
    world.run([&](int rank) {
        tw::RankBuffers mine;
        prepare(c, 3, rank, &mine);
        tw::RankCase asked(c, &mine, 1);
        if (rank == 1) {
            change(&asked.args);
        }
        tw_status_t status = gpu.post_and_wait(rank, &asked.args);
        mismatches += status == TW_ERR_MISMATCH;
        if (rank == 1 && own_status != TW_OK) {
            EXPECT_EQ(status, own_status);
        } else {
            EXPECT_TRUE(status == TW_ERR_MISMATCH || status == TW_ERR_PEER)
                << "rank " << rank << ": " << tw_status_string(status);
        }
        EXPECT_LT(gpu.post_and_wait(rank, &asked.args), 0) << "for good";
    });
    EXPECT_GE(mismatches.load(), 1);
}

TEST_F(GpuHost, ArgumentsThatDiffer)
{
    allow_log("a message of another size");
    allow_log("were expected");
    allow_log("gave the job up");
    expect_log("disagrees about an operation: here it is number 1, reduce_scatter (one_hop)");
    expect_disagreement(TW_OK, [](tw_coll_args_t *args) { args->seed++; });
    expect_disagreement(TW_OK, [](tw_coll_args_t *args) { args->reduction = TW_COLL_MEAN; });
    expect_disagreement(TW_OK, [](tw_coll_args_t *args) {
        const_cast<tw_coll_segment_t *>(args->segments)->n_elems = 3000;
        const_cast<tw_coll_segment_t *>(args->segments)->counts = nullptr;
    });
}

TEST_F(GpuHost, PostThatFailsOnOneRank)
{
    allow_log("gave the job up");
    expect_log("there is no quantized algorithm \"rong\"");
    expect_log("rank 1 could not post operation number 1");
    expect_disagreement(TW_ERR_UNSUPPORTED, [](tw_coll_args_t *args) { args->algo = "rong"; });
}

TEST_F(GpuHost, PostThatFailsOnAllRanks)
{
    tw::World world(tw::nodes_of({1, 2}));
    HostWorld gpu(world, 5);
    tw::Case c;
    c.sizes = {1000};
    expect_log("there is no quantized algorithm \"rong\"");
    expect_same(c,
                run_case_by(world, c, 1,
                            [&](int rank, const tw_coll_args_t *args) {
                                tw_coll_args_t wrong = *args;
                                wrong.algo = "rong";
                                EXPECT_EQ(gpu.post_and_wait(rank, &wrong), TW_ERR_UNSUPPORTED);
                                return gpu.post_and_wait(rank, args);
                            }),
                run_case(world, c));
}

/* What fails on the device of one rank ends the operation of all. */
TEST_F(GpuHost, DeviceThatFails)
{
    tw::World world(tw::nodes_of({1, 1, 1}));
    HostWorld gpu(world, 5);
    tw::Case c;
    c.sizes = {100000};
    expect_log("rank 1: gave the job up: CUDA error");
    gpu.device(1).queries_left = 3;
    world.run([&](int rank) {
        tw::RankBuffers mine;
        prepare(c, 3, rank, &mine);
        tw::RankCase asked(c, &mine, 1);
        EXPECT_EQ(gpu.post_and_wait(rank, &asked.args), rank == 1 ? TW_ERR_CUDA : TW_ERR_PEER);
    });
}

TEST_F(GpuHost, MissingRank)
{
    set_env("TW_COLL_TIMEOUT", "50ms");
    tw::World world(tw::nodes_of({1, 1}));
    HostWorld gpu(world, 6);
    tw::Case c;
    tw::RankBuffers mine;
    c.sizes = {1000};
    prepare(c, 2, 0, &mine);
    tw::RankCase asked(c, &mine, 1);
    expect_log("rank 0: allgather (hierarchical, number 0) has not moved for");
    EXPECT_EQ(gpu.post_and_wait(0, &asked.args), TW_ERR_TIMEOUT);
    EXPECT_EQ(tw_coll_progress(gpu.coll(0)), TW_ERR_TIMEOUT);
}

TEST_F(GpuHost, NoCapture)
{
    tw::World world(tw::nodes_of({1, 1}));
    HostWorld gpu(world, 7);
    tw::Case c;
    tw::RankBuffers mine;
    c.sizes = {1000};
    prepare(c, 2, 0, &mine);
    tw::RankCase asked(c, &mine, 1);
    gpu.device(0).capture = 1;
    expect_log("a graph cannot be captured over a transport");
    EXPECT_EQ(gpu.post_and_wait(0, &asked.args), TW_ERR_UNSUPPORTED);
}

/* Without a GPU, or CUDA, or NCCL: said, not crashed. With them, the parameters are still wrong. */
TEST_F(GpuHost, CreateRefuses)
{
    tw::World world(tw::nodes_of({1}));
    tw_coll_t *coll = nullptr;
    tw_coll_params_t params = {};
    params.mem = TW_MEM_CUDA;
    expect_log("a communicator: it needs a transport");
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_INVALID);
    const tw_coll_nccl_params_t none = {};
    expect_log("a communicator: it needs a communicator of NCCL");
    EXPECT_EQ(tw_coll_nccl_create(&none, &coll), TW_ERR_INVALID);
    params.transport = world.transport(0);
    params.id = 256;
    expect_log("communicator id 256 is not in 0 to 255");
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_INVALID);
    params.id = 1;
    params.mem = TW_MEM_HOST;
    params.wire = TW_COLL_WIRE_NCCL;
    expect_log("a communicator: NCCL carries nothing from host memory");
    EXPECT_EQ(tw_coll_create(&params, &coll), TW_ERR_INVALID);
    tw_coll_destroy(nullptr);
}

/* Ranks of one communicator that ask for different memory, or different wires, would wait for each other. */
TEST_F(GpuHost, KindsThatDifferAreAMismatch)
{
    tw::World world(tw::nodes_of({1, 1}));
    tw::SimDevice devices[] = {tw::SimDevice(1), tw::SimDevice(2)};
    struct Kind {
        tw_mem_t mem;
        tw_coll_wire_t wire;
    };
    const Kind host = {TW_MEM_HOST, TW_COLL_WIRE_TRANSPORT}, gpu = {TW_MEM_CUDA, TW_COLL_WIRE_TRANSPORT},
               nccl = {TW_MEM_CUDA, TW_COLL_WIRE_NCCL};
    const Kind pairs[][2] = {{host, gpu}, {gpu, nccl}};
    for (const auto &pair : pairs) {
        expect_log("rank 0: making a communicator: rank 1 asks for another kind");
        expect_log("rank 1: making a communicator: rank 0 asks for another kind");
        world.run([&](int rank) {
            tw_coll_params_t params = {};
            params.transport = world.transport(rank);
            params.mem = pair[rank].mem;
            params.wire = pair[rank].wire;
            tw_coll_setup_t setup = {};
            setup.params = &params;
            setup.device = params.mem == TW_MEM_CUDA ? devices[rank].table() : nullptr;
            tw_coll_t *coll = nullptr;
            EXPECT_EQ(tw_coll_create_with(&setup, &coll), TW_ERR_MISMATCH);
            EXPECT_EQ(coll, nullptr);
        });
    }
}

} // namespace
