/* Collectives on a real GPU: bit for bit those of the CPU. Ranks are threads that share the GPU over the
 * local transport; over NCCL there is one rank here, as NCCL wants a host for each that shares a GPU (more:
 * //tests/gpu, in processes). */
#include "tests/collectives/gpu/checks.h"
#include "tests/collectives/gpu/world.h"
#include "tests/common/fixture.h"

#ifdef TW_HAVE_CUDA

#include <map>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace
{

bool is_quick = false;

bool has_gpu()
{
    int n = 0;
    bool found = cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
    (void)cudaGetLastError();
    return found;
}

bool has_nccl()
{
#ifdef TW_HAVE_NCCL
    return dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr;
#else
    return false;
#endif
}

/** Copies from memory that is not pinned, and memset, may return before they have ended; our streams do not
 *  wait for them. */
void finish_copies()
{
    EXPECT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
}

/** The buffers of a rank on the GPU, and its case in terms of them. */
class OnGpu
{
  public:
    OnGpu(const tw::Case &c, tw::RankBuffers *buffers) : host(buffers), asked(c, buffers, 1)
    {
        for (tw::Bytes &bytes : host->src) {
            copy(bytes);
        }
        for (tw::Bytes &bytes : host->dst) {
            copy(bytes);
        }
        for (tw_coll_segment_t &segment : asked.segments) {
            segment.src = segment.src != nullptr ? there[segment.src] : nullptr;
            segment.dst = segment.dst != nullptr ? there[segment.dst] : nullptr;
        }
        finish_copies();
    }
    OnGpu(const OnGpu &) = delete;
    OnGpu &operator=(const OnGpu &) = delete;
    ~OnGpu()
    {
        for (const auto &each : there) {
            EXPECT_EQ(cudaFree(each.second), cudaSuccess);
        }
    }
    void poison()
    {
        for (tw::Bytes &bytes : host->dst) {
            EXPECT_EQ(cudaMemset(there[bytes.data()], 0xff, bytes.size()), cudaSuccess);
        }
        finish_copies();
    }
    void fetch()
    {
        for (tw::Bytes &bytes : host->dst) {
            EXPECT_EQ(cudaMemcpy(bytes.data(), there[bytes.data()], bytes.size(), cudaMemcpyDeviceToHost),
                      cudaSuccess);
        }
    }
    const tw_coll_args_t *args(cudaStream_t stream)
    {
        asked.args.stream = stream;
        return &asked.args;
    }

  private:
    void copy(const tw::Bytes &bytes)
    {
        void *memory = nullptr;
        if (there.count(bytes.data())) { /* of an empty tensor, as of any */
            return;
        }
        ASSERT_EQ(cudaMalloc(&memory, bytes.size() + 1), cudaSuccess);
        ASSERT_EQ(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
        there[bytes.data()] = memory;
    }

    tw::RankBuffers *host;
    tw::RankCase asked;
    std::map<const void *, void *> there;
};

class GpuCuda : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        if (!has_gpu()) {
            GTEST_SKIP() << "no GPU here";
        }
        set_env("TW_COLL_MODEL", "inter:beta=100mbit");
        set_env("TW_COLL_CHUNK", "4K");
        set_env("TW_COLL_TIMEOUT", "30s");
        set_env("NCCL_RAS_ENABLE", "0");
        allow_descriptors(""); /* the driver and NCCL open files when they like */
    }

    static std::vector<tw::RankBuffers> run(tw::World &world, const std::vector<tw_coll_t *> &colls,
                                            const tw::Case &c)
    {
        std::vector<tw::RankBuffers> all(colls.size());
        world.run([&](int rank) {
            tw::RankBuffers *mine = &all[(size_t)rank];
            cudaStream_t stream = nullptr;
            prepare(c, world.size(), rank, mine);
            OnGpu gpu(c, mine);
            EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
            EXPECT_EQ(tw_coll_run(colls[(size_t)rank], gpu.args(stream)), TW_OK);
            gpu.fetch();
            EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
            keep_shard(c, world.size(), rank, mine);
        });
        return all;
    }

    static std::vector<tw_coll_t *> create(tw::World &world, tw_coll_wire_t wire)
    {
        std::vector<tw_coll_t *> colls((size_t)world.size());
        world.run([&](int rank) {
            tw_coll_params_t params = tw::params_of(world.transport(rank), nullptr);
            params.mem = TW_MEM_CUDA;
            params.wire = wire;
            EXPECT_EQ(tw_coll_create(&params, &colls[(size_t)rank]), TW_OK);
        });
        return colls;
    }

    static void destroy(const std::vector<tw_coll_t *> &colls)
    {
        for (tw_coll_t *coll : colls) {
            tw_coll_destroy(coll);
        }
    }
};

const tw_coll_op_t ops[] = {TW_COLL_ALLGATHER, TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE};

TEST_F(GpuCuda, OverTheTransport)
{
    std::vector<std::vector<int>> grids = {{1, 2}, {1}, {1, 1, 1}, {2, 2}};
    if (is_quick) {
        grids.resize(2);
    }
    for (const std::vector<int> &grid : grids) {
        tw::World world(tw::nodes_of(grid));
        std::vector<tw_coll_t *> colls = create(world, TW_COLL_WIRE_TRANSPORT);
        for (tw_coll_op_t op : ops) {
            for (bool flat : {false, true}) {
                tw::Case c;
                c.op = op;
                c.algo = op == TW_COLL_ALLGATHER ? (flat ? "direct" : "hierarchical")
                         : flat                  ? "one_hop"
                                                 : "two_hop";
                c.codec = flat ? "int8" : "int4:block=32,hadamard,stochastic";
                c.type = flat ? TW_TYPE_FP32 : TW_TYPE_BF16;
                c.sizes = is_quick ? std::vector<size_t>{7003, 3, 0, 1, 2001}
                                   : std::vector<size_t>{100003, 3, 0, 1, 70001};
                c.in_place = flat;
                c.reduction = TW_COLL_MEAN;
                expect_same(c, run(world, colls, c), run_case(world, c));
                c.inner = op == TW_COLL_ALLGATHER ? "" : "int8:block=64";
                expect_same(c, run(world, colls, c), run_case(world, c));
                c.inner = "";
                c.codec = flat ? "lossless" : "ecdq"; /* messages that say their length */
                expect_same(c, run(world, colls, c), run_case(world, c));
                c.codec = "";
                c.algo = "direct";
                expect_same(c, run(world, colls, c), run_case(world, c));
            }
        }
        destroy(colls);
    }
}

TEST_F(GpuCuda, OneRankOverNccl)
{
    if (!has_nccl()) {
        GTEST_SKIP() << "there is no NCCL here";
    }
    tw::World world(tw::nodes_of({1}));
    std::vector<tw_coll_t *> colls = create(world, TW_COLL_WIRE_NCCL);
    for (tw_coll_op_t op : ops) {
        tw::Case c;
        c.op = op;
        c.algo = op == TW_COLL_ALLGATHER ? "hierarchical" : "two_hop";
        c.sizes = {100003, 3, 0, 1, 70001};
        expect_same(c, run(world, colls, c), run_case(world, c));
        c.codec = "";
        c.algo = "direct";
        expect_same(c, run(world, colls, c), run_case(world, c));
        c.algo = ""; /* NCCL's own */
        expect_same(c, run(world, colls, c), run_case(world, c));
    }
    destroy(colls);
}

/* Captured once, replayed: the same bits. */
TEST_F(GpuCuda, GraphReplay)
{
    if (!has_nccl()) {
        GTEST_SKIP() << "there is no NCCL here";
    }
    tw::World world(tw::nodes_of({1}));
    std::vector<tw_coll_t *> colls = create(world, TW_COLL_WIRE_NCCL);
    tw::Case c;
    tw::RankBuffers mine;
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    c.op = TW_COLL_ALLREDUCE;
    c.algo = "two_hop";
    c.sizes = {200003, 17};
    prepare(c, 1, 0, &mine);
    OnGpu gpu(c, &mine);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(tw_coll_prepare(colls[0], gpu.args(stream)), TW_OK);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(tw_coll_post(colls[0], gpu.args(stream), nullptr), TW_OK);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; i++) {
        gpu.poison();
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        gpu.fetch();
        expect_same(c, {mine}, run_case(world, c));
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    destroy(colls);
}

} // namespace

void tw::set_gpu_checks_quick()
{
    is_quick = true;
}

#else

void tw::set_gpu_checks_quick()
{
}

TEST(GpuCuda, Skipped)
{
    GTEST_SKIP() << "no CUDA was found when this was built";
}

#endif
