/** Worlds of simulated GPUs beside the same world on the CPU. */
#ifndef TW_TESTS_COLLECTIVES_GPU_WORLD_H
#define TW_TESTS_COLLECTIVES_GPU_WORLD_H

#include "tests/collectives/gpu/sim.h"
#include "tests/collectives/quantized/quantized.h"

namespace tw
{

/** A rank's operation, posted but perhaps not run yet. */
struct GpuPosted {
    RankBuffers buffers;
    std::unique_ptr<RankCase> asked;
    tw_coll_request_t *request = nullptr;
};

/** Ranks over a simulated NCCL, in one thread. */
class GpuWorld
{
  public:
    explicit GpuWorld(const std::vector<int> &node_of, uint32_t seed = 1)
        : net((int)node_of.size(), seed), nodes(node_of), drain_seed(seed), plans(node_of.size())
    {
        std::vector<uint64_t> ids(node_of.begin(), node_of.end());
        for (int r = 0; r < size(); r++) {
            devices.push_back(std::make_unique<SimDevice>(seed * 100 + (uint32_t)r));
            streams.push_back(devices.back()->new_stream());
            others.push_back(devices.back()->new_stream());
            const tw_coll_params_t params = {};
            tw_coll_setup_t setup = {};
            setup.params = &params;
            setup.device = devices.back()->table();
            setup.nccl = net.new_wire(r, devices.back().get());
            setup.rank = r;
            setup.world = size();
            setup.node_ids = ids.data();
            colls.push_back(nullptr);
            EXPECT_EQ(tw_coll_create_with(&setup, &colls.back()), TW_OK);
        }
    }
    GpuWorld(const GpuWorld &) = delete;
    GpuWorld &operator=(const GpuWorld &) = delete;
    ~GpuWorld()
    {
        for (tw_coll_t *coll : colls) {
            tw_coll_destroy(coll);
        }
        EXPECT_EQ(net.n_wires, 0);
    }
    int size() const
    {
        return (int)nodes.size();
    }
    tw_coll_t *coll(int rank) const
    {
        return colls[(size_t)rank];
    }
    SimDevice &device(int rank) const
    {
        return *devices[(size_t)rank];
    }
    tw_stream_t stream(int rank) const
    {
        return streams[(size_t)rank];
    }
    /** The plan of what the rank posted last. */
    const tw_coll_plan_t &plan(int rank) const
    {
        return plans[(size_t)rank].plan;
    }
    tw_status_t post(int rank, const tw_coll_args_t &args, tw_coll_request_t **request = nullptr) const
    {
        tw_coll_args_t on = args;
        on.stream = stream(rank);
        return tw_coll_post(coll(rank), &on, request);
    }

    /** On every rank's stream, or its other one: the input comes into being, the operation, the input is
     *  destroyed. */
    std::vector<GpuPosted> post(const Case &c, int force_codec = 1, bool on_other = false)
    {
        std::vector<GpuPosted> all((size_t)size());
        for (int r = 0; r < size(); r++) {
            post_rank(c, r, force_codec, on_other ? others[(size_t)r] : streams[(size_t)r], &all[(size_t)r]);
        }
        return all;
    }

    /** Run everything that was posted; true if it has ended. */
    bool finish()
    {
        std::vector<SimDevice *> all;
        for (auto &device : devices) {
            all.push_back(device.get());
        }
        return drain(net, all, ++drain_seed);
    }

    std::vector<RankBuffers> run(const Case &c, int force_codec = 1)
    {
        std::vector<GpuPosted> posted = post(c, force_codec);
        EXPECT_TRUE(finish()) << "not everything ended";
        return results(c, std::move(posted));
    }

    std::vector<RankBuffers> results(const Case &c, std::vector<GpuPosted> posted)
    {
        std::vector<RankBuffers> all;
        for (int r = 0; r < size(); r++) {
            EXPECT_EQ(tw_coll_test(posted[(size_t)r].request), TW_OK);
            keep_shard(c, size(), r, &posted[(size_t)r].buffers);
            all.push_back(std::move(posted[(size_t)r].buffers));
        }
        return all;
    }

    SimNet net;

  private:
    void post_rank(const Case &c, int rank, int force_codec, tw_stream_t on, GpuPosted *posted)
    {
        prepare(c, size(), rank, &posted->buffers);
        posted->asked = std::make_unique<RankCase>(c, &posted->buffers, force_codec);
        std::vector<Bytes> *in = c.in_place ? &posted->buffers.dst : &posted->buffers.src;
        auto input = std::make_shared<std::vector<Bytes>>(*in);
        for (Bytes &bytes : *in) {
            std::fill(bytes.begin(), bytes.end(), (char)0x7f);
        }
        device(rank).push(on, [in, input] {
            for (size_t s = 0; s < in->size(); s++) {
                std::copy((*input)[s].begin(), (*input)[s].end(), (*in)[s].begin());
            }
            return true;
        });
        posted->asked->args.stream = on;
        EXPECT_EQ(tw_coll_post(coll(rank), &posted->asked->args, &posted->request), TW_OK);
        plans[(size_t)rank].take(posted->request);
        if (!c.in_place) {
            device(rank).push(on, [in] {
                for (Bytes &bytes : *in) {
                    std::fill(bytes.begin(), bytes.end(), (char)0x7f);
                }
                return true;
            });
        }
    }

    std::vector<int> nodes;
    uint32_t drain_seed;
    std::vector<std::unique_ptr<SimDevice>> devices;
    std::vector<tw_stream_t> streams, others;
    std::vector<tw_coll_t *> colls;
    std::vector<Plan> plans;
};

inline std::string describe(const Case &c)
{
    std::string text = std::string(tw_coll_op_name(c.op)) + " " + c.algo + " \"" + c.codec + "\" inner \"" +
                       c.inner + "\" " + tw_type_name(c.type) + (c.in_place ? " in place" : "") + " sizes";
    for (size_t n : c.sizes) {
        text += " " + std::to_string(n);
    }
    return text;
}

inline void expect_same(const Case &c, const std::vector<RankBuffers> &got,
                        const std::vector<RankBuffers> &want)
{
    for (size_t r = 0; r < want.size(); r++) {
        for (size_t s = 0; s < c.sizes.size(); s++) {
            ASSERT_TRUE(got[r].dst[s] == want[r].dst[s])
                << describe(c) << ": rank " << r << " of " << want.size() << ", segment " << s;
        }
    }
}

/** A reduction of segments with codecs of their own and plain ones: by name, it is the same on the CPU. */
inline Case mixed_case(tw_coll_op_t op, const std::string &algo, tw_type_t type)
{
    Case c;
    c.op = op;
    c.algo = algo;
    c.type = type;
    c.codec = "int4:block=32,stochastic";
    c.inner = op != TW_COLL_ALLGATHER && type == TW_TYPE_FP16 ? "int8:block=64" : "";
    c.reduction = TW_COLL_MEAN;
    c.sizes = {5000, 17, 3001, 1, 999, 2500, 64, 0};
    c.own = {"", "plain", "int8:block=64,stochastic", "plain",
             "", "plain", "int8:block=64,stochastic", "plain"};
    return c;
}

/** Every algorithm that the CPU has under the same name; run: on GPUs. */
inline void expect_mixed_segments(World &world,
                                  const std::function<std::vector<RankBuffers>(const Case &)> &run)
{
    for (tw_type_t type : {TW_TYPE_BF16, TW_TYPE_FP16}) {
        for (const char *algo : {"hierarchical", "direct"}) {
            const Case c = mixed_case(TW_COLL_ALLGATHER, algo, type);
            expect_same(c, run(c), run_case(world, c));
        }
        for (const char *algo : {"one_hop", "two_hop"}) {
            for (tw_coll_op_t op : {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
                const Case c = mixed_case(op, algo, type);
                expect_same(c, run(c), run_case(world, c));
            }
        }
    }
}

/** Means of numbers whose sums are beyond fp16, as is what a codec makes of them: those of the CPU, and all
 *  finite. Plain, of quantized segments and of plain ones beside them. */
inline void expect_fp16_means(World &world, const std::function<std::vector<RankBuffers>(const Case &)> &run)
{
    for (tw_coll_op_t op : {TW_COLL_REDUCE_SCATTER, TW_COLL_ALLREDUCE}) {
        for (const auto &[algo, is_plain] :
             {std::pair{"direct", true}, {"two_hop", true}, {"one_hop", false}, {"two_hop", false}}) {
            Case c = mixed_case(op, algo, TW_TYPE_FP16);
            c.magnitude = 200000; /* of two out of three it is the largest number that there is */
            c.largest = 65504;
            c.factor = 0.7f;
            if (is_plain) {
                c.codec = c.inner = "";
                c.own.clear();
            }
            const std::vector<RankBuffers> got = run(c);
            expect_same(c, got, run_case(world, c));
            for (const RankBuffers &rank : got) {
                for (const Bytes &segment : rank.dst) {
                    for (float value : to_floats(c.type, segment)) {
                        ASSERT_TRUE(std::isfinite(value)) << describe(c);
                    }
                }
            }
        }
    }
}

} // namespace tw

#endif
