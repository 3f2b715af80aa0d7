/* The plan against the engine: what it would take, and what it took. */
#include <gtest/gtest.h>
#include <jansson.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/collectives/world.h"
#include "tests/common/fixture.h"
#include "tests/trainer/engine/ranks.h"
#include "trainer/engine/engine.h"
#include "trainer/plan/machine.h"
#include "trainer/plan/plan.h"
#include "trainer/plan/report.h"
#include "trainer/trainer.h"

namespace
{

constexpr tw_model_config_t kModel = {256, 16, 3, 2, 48, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};

class Plan : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        set_env("TW_COLL_MODEL", "inter:beta=1gbit");
        ASSERT_EQ(TW_OK, tw_model_create(&kModel, &model_));
        path_ = ::testing::TempDir() + "plan." + std::to_string(getpid());
        std::ofstream text(path_);
        for (int i = 0; i < 1000; i++) {
            text << "line " << i * i % 97 << " of a text\n";
        }
    }
    void TearDown() override
    {
        tw_train_config_destroy(config_);
        tw_model_destroy(model_);
        unlink(path_.c_str());
        tw::Fixture::TearDown();
    }
    static tw_plan_cluster_t cluster_of(int n_nodes, int ranks_per_node, double link_bps = 1e8)
    {
        tw_plan_cluster_t cluster = {};
        cluster.n_nodes = n_nodes;
        cluster.ranks_per_node = ranks_per_node;
        cluster.link_bps = link_bps;
        cluster.in_node_bps = INFINITY;
        return cluster;
    }
    std::vector<std::string> keys(const std::string &set, const tw_plan_cluster_t &cluster)
    {
        std::vector<std::string> keys = {"thinwire.data=" + path_,
                                         "thinwire.sequence_length=16",
                                         "thinwire.steps=3",
                                         "thinwire.val_sequences=0",
                                         "model.n_layer=3",
                                         "model.n_head=2",
                                         "model.n_embd=" + std::to_string(shape_.n_embd),
                                         "train_batch_size=" +
                                             std::to_string(2 * cluster.n_nodes * cluster.ranks_per_node)};
        for (const char *const *key = tw_trainer_set_find(set.c_str())->keys; *key; key++) {
            keys.push_back(*key);
        }
        keys.insert(keys.end(), buckets_.begin(), buckets_.end());
        return keys;
    }
    static std::vector<const char *> pointers(const std::vector<std::string> &keys)
    {
        std::vector<const char *> all;
        for (const auto &key : keys) {
            all.push_back(key.c_str());
        }
        return all;
    }
    const tw_train_options_t *options(const std::string &set, const tw_plan_cluster_t &cluster,
                                      const std::vector<std::string> &more = {})
    {
        auto all = keys(set, cluster);
        all.insert(all.end(), more.begin(), more.end());
        tw_train_config_destroy(config_);
        EXPECT_EQ(TW_OK, tw_train_config_create(nullptr, pointers(all).data(), all.size(), &config_));
        EXPECT_EQ(TW_OK, tw_train_config_resolve(config_, cluster.n_nodes * cluster.ranks_per_node,
                                                 cluster.n_nodes));
        return tw_train_config_options(config_);
    }
    /* Ranks as threads, each with a deterministic communicator. */
    static void on_ranks(const tw_plan_cluster_t &cluster, const std::function<void(int, tw_coll_t *)> &body)
    {
        tw::run_ranks(tw::nodes_of(std::vector<int>((size_t)cluster.n_nodes, cluster.ranks_per_node)), body);
    }
    tw_trainer_result_t train(const std::string &set, const tw_plan_cluster_t &cluster)
    {
        auto all = keys(set, cluster);
        auto sets = pointers(all);
        tw_trainer_result_t of_first = {};
        on_ranks(cluster, [&](int rank, tw_coll_t *coll) {
            tw_trainer_params_t params = {};
            params.sets = sets.data();
            params.n_sets = sets.size();
            params.coll = coll;
            tw_trainer_result_t result;
            EXPECT_EQ(TW_OK, tw_trainer_run(&params, &result)) << set;
            if (rank == 0) {
                of_first = result;
            }
        });
        return of_first;
    }
    double planned_bytes(const std::string &set, const tw_plan_cluster_t &cluster, bool in_node = false)
    {
        tw_plan_traffic_t traffic;
        EXPECT_EQ(TW_OK, tw_plan_traffic_of(options(set, cluster), model_, &cluster, &traffic));
        double bytes = in_node ? traffic.step.in_node : traffic.step.inter_node;
        tw_plan_traffic_cleanup(&traffic);
        return bytes;
    }
    tw_plan_time_t time(const std::string &set, const tw_plan_cluster_t &cluster, double compute_sec)
    {
        tw_plan_time_t time = {};
        EXPECT_EQ(TW_OK, tw_plan_time_of(options(set, cluster), model_, &cluster, compute_sec, &time));
        return time;
    }
    double progress_sec(const std::string &set, const tw_plan_cluster_t &cluster, double *report_sec);
    static tw_plan_cluster_t busy_cluster(int n_nodes, int ranks_per_node, double link_bps);
    tw_plan_cluster_t calibrated(const tw_plan_cluster_t &truth, double nominal_bps, double compute_sec,
                                 double *found_sec, double cores = 0.0);
    void expect_bytes(const std::string &set, tw_plan_cluster_t cluster)
    {
        tw_trainer_result_t result = train(set, cluster);
        cluster.delta_bits = result.delta_bits;
        double counted = static_cast<double>(result.inter_node_bytes) / 3.0;
        EXPECT_NEAR(counted, planned_bytes(set, cluster), 0.5)
            << set << " on " << cluster.n_nodes << " x " << cluster.ranks_per_node;
        double within = static_cast<double>(result.in_node_bytes) / 3.0;
        EXPECT_NEAR(within, planned_bytes(set, cluster, true), 0.5)
            << set << " inside the nodes of " << cluster.n_nodes << " x " << cluster.ranks_per_node;
    }

    /* Layers of so many elements, many times what buckets have room for. */
    void set_small_buckets(size_t n_embd)
    {
        shape_.n_embd = n_embd;
        tw_model_destroy(model_);
        ASSERT_EQ(TW_OK, tw_model_create(&shape_, &model_));
        buckets_ = {"zero_optimization.reduce_bucket_size=1000",
                    "zero_optimization.allgather_bucket_size=1000"};
    }
    void expect_memory(const std::string &set);

    tw_model_config_t shape_ = kModel;
    std::vector<std::string> buckets_;
    int threads_ = 1; /* of a rank */
    tw_model_t *model_ = nullptr;
    tw_train_config_t *config_ = nullptr;
    std::string path_;
};

/* The ZeRO paper's example. */
TEST_F(Plan, StatesAreThePapers)
{
    const double want[] = {120.0, 31.4, 16.6, 1.9};
    for (int stage = 0; stage <= 3; stage++) {
        EXPECT_NEAR(want[stage], tw_plan_states_bytes(7.5e9, stage, 64) * 1e-9, 0.05) << stage;
    }
}

TEST_F(Plan, BytesAreThoseThatTheEngineCounts)
{
    allow_log("nothing here: all ranks are on one node");
    for (const char *set : {"ddp", "zero1", "zero2", "zero3", "zero3-qwz", "zero3-qgz", "zero3-hpz", "zeropp",
                            "delta8", "delta4", "delta2", "delta", "delta-g4"}) {
        expect_bytes(set, cluster_of(2, 2));
    }
    for (const char *set : {"zero2", "zero3", "zeropp", "delta8", "delta4", "delta2", "delta"}) {
        expect_bytes(set, cluster_of(3, 1));
        expect_bytes(set, cluster_of(2, 3));
        expect_bytes(set, cluster_of(1, 2));
    }
}

/* What ranks tell each other of exponents counts; changes of codes are shorter. */
TEST_F(Plan, BytesOfFp8AreCounted)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2);
    cluster.delta_bits = 16;
    EXPECT_LT(planned_bytes("fp8", cluster), 0.95 * planned_bytes("lossless", cluster));
    buckets_ = {"model.gather=fp8"};
    for (const char *set : {"ddp", "zero1", "zero3", "zero3-hpz"}) {
        expect_bytes(set, cluster_of(2, 2));
        expect_bytes(set, cluster_of(3, 1));
        expect_memory(set);
    }
}

/* What is frozen is in no plan, but where stage 3 does not keep it; nor are its moments. */
TEST_F(Plan, FrozenTensorsArePlanned)
{
    allow_log("keep_frozen means nothing here");
    const std::string groups = "thinwire.groups=transformer.h.0.* frozen, *.wte.weight frozen, *attn* lr=0.5";
    for (const char *keep : {"thinwire.keep_frozen=y", "thinwire.keep_frozen=n"}) {
        buckets_ = {groups, keep};
        for (const char *set :
             {"ddp", "zero1", "zero2", "zero3", "zero3-qgz", "zero3-hpz", "delta4", "delta"}) {
            expect_bytes(set, cluster_of(2, 2));
        }
        for (const char *set : {"zero2", "zero3"}) {
            expect_bytes(set, cluster_of(3, 1));
            expect_bytes(set, cluster_of(1, 2));
        }
    }
    set_small_buckets(160);
    buckets_.insert(buckets_.end(), {groups, "thinwire.keep_frozen=y"});
    allow_log("allgather_bucket_size means nothing here");
    expect_bytes("zero1", cluster_of(2, 2));
    expect_bytes("zero3", cluster_of(2, 2));
    expect_memory("zero3");
    expect_memory("zero2");
}

TEST_F(Plan, BytesOfFp32GradientsAreCounted)
{
    buckets_ = {"communication_data_type=fp32"};
    for (const char *set : {"ddp", "zero1", "zero2", "zero3", "zero3-qgz", "zeropp", "delta4"}) {
        expect_bytes(set, cluster_of(2, 2));
        expect_bytes(set, cluster_of(3, 1));
    }
}

/* fp32 weights: no masters. */
TEST_F(Plan, Fp32TrainingIsCounted)
{
    shape_.fp32_weights = 1;
    tw_model_destroy(model_);
    ASSERT_EQ(TW_OK, tw_model_create(&shape_, &model_));
    buckets_ = {"bf16.enabled=n"};
    for (const char *set : {"ddp", "zero1", "zero3", "zero3-qwz", "zero3-hpz"}) {
        expect_bytes(set, cluster_of(2, 2));
        expect_memory(set);
    }
    expect_bytes("zero3", cluster_of(3, 1));
}

/* Momenta travel to the owners of matrices, and back. */
TEST_F(Plan, MuonsBytes)
{
    allow_log("nothing here: all ranks are on one node");
    buckets_ = {"optimizer.type=Muon"};
    for (const char *set : {"ddp", "zero1", "zero3", "delta"}) {
        expect_bytes(set, cluster_of(2, 2));
        expect_bytes(set, cluster_of(3, 1));
        expect_bytes(set, cluster_of(1, 2));
    }
    expect_memory("ddp");
    expect_memory("zero3");
    buckets_ = {"optimizer.type=Muon", "thinwire.groups=*.h.1.*.weight frozen"};
    expect_bytes("zero3", cluster_of(2, 2));
}

/* A step waits for them, and for what is made of them; on a link that costs nothing for the latter alone. */
TEST_F(Plan, MuonsTimeIsPlanned)
{
    tw_plan_cluster_t slow = cluster_of(4, 1, 1e6), fast = cluster_of(4, 1, 1e15);
    for (const char *set : {"ddp", "zero3", "delta"}) {
        double adamw_slow = time(set, slow, 0.1).step_sec, adamw_fast = time(set, fast, 0.1).step_sec;
        buckets_ = {"optimizer.type=Muon"};
        tw_plan_traffic_t traffic;
        ASSERT_EQ(TW_OK, tw_plan_traffic_of(options(set, slow), model_, &slow, &traffic));
        double bytes = 0.0;
        for (size_t unit = 0; unit < traffic.n_units; unit++) {
            bytes += traffic.units[unit].muon.inter_node;
        }
        tw_plan_traffic_cleanup(&traffic);
        EXPECT_NEAR(time(set, slow, 0.1).step_sec - adamw_slow, bytes / 4.0 * 8.0 / 1e6,
                    0.2 * bytes / 4.0 * 8.0 / 1e6)
            << set;
        EXPECT_GT(time(set, fast, 0.1).step_sec, 1.01 * adamw_fast) << set;
        buckets_.clear();
    }
}

/* Lossless messages are as long as they come: what the planner says is what those of a model of some size
 * take, and of one this small a few per cent more. */
TEST_F(Plan, BytesOfLosslessSetsAreEstimated)
{
    for (const char *set : {"zero3-lossless", "lossless", "lossless"}) { /* the last time with Muon */
        tw_plan_cluster_t cluster = cluster_of(2, 2);
        tw_trainer_result_t result = train(set, cluster), plain = train("zero3", cluster);
        cluster.delta_bits = result.delta_bits;
        double counted = static_cast<double>(result.inter_node_bytes) / 3.0;
        EXPECT_TRUE(result.bytes_as_planned) << set;
        EXPECT_LT(result.inter_node_bytes, plain.inter_node_bytes) << set;
        EXPECT_NEAR(counted / planned_bytes(set, cluster), 1.0, 0.15) << set;
        buckets_ =
            set == std::string("lossless") ? std::vector<std::string>{"optimizer.type=Muon"} : buckets_;
    }
}

/* Slices, and buckets' operations, tell each other what they are each for itself. */
TEST_F(Plan, BytesOfLayersWiderThanABucket)
{
    allow_log("nothing here: all ranks are on one node");
    allow_log("allgather_bucket_size means nothing here"); /* in stage 3 */
    set_small_buckets(160);
    for (const char *set : {"ddp", "zero1", "zero2", "zero3", "zero3-qgz", "delta4", "delta-g4"}) {
        expect_bytes(set, cluster_of(2, 2));
    }
    for (const char *set : {"zero1", "zero3", "delta2", "delta"}) {
        expect_bytes(set, cluster_of(3, 1));
        expect_bytes(set, cluster_of(1, 2));
    }
}

void Plan::expect_memory(const std::string &set)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2);
    const tw_train_options_t *o = options(set, cluster);
    std::vector<double> all_held(4);
    on_ranks(cluster, [&](int rank, tw_coll_t *coll) {
        tw_data_config_t data_config = {};
        data_config.path = path_.c_str();
        tw_engine_params_t params = {};
        params.options = o;
        params.coll = coll;
        tw_data_t *data;
        tw_engine_t *engine = nullptr;
        ASSERT_EQ(TW_OK, tw_data_open(&data_config, &data));
        ASSERT_EQ(TW_OK, tw_model_create(&shape_, &params.model));
        params.data = data;
        EXPECT_EQ(TW_OK, tw_engine_create(&params, &engine));
        all_held[(size_t)rank] =
            static_cast<double>(tw_engine_memory_bytes(engine) - tw_coll_workspace_bytes(coll));
        tw_engine_destroy(engine);
        tw_model_destroy(params.model);
        tw_data_close(data);
    });
    double held = *std::max_element(all_held.begin(), all_held.end());
    tw_plan_memory_t memory;
    ASSERT_EQ(TW_OK, tw_plan_memory_of(o, model_, &cluster, &memory));
    double at_rest = tw_plan_memory_sum(&memory) - memory.chunks - memory.besides;
    if (set.substr(0, 5) == "delta") { /* messages come and go */
        tw_plan_cluster_t nothing = cluster;
        tw_plan_memory_t quiet;
        ASSERT_EQ(TW_OK, tw_plan_memory_of(options("zero3-hpz", nothing), model_, &nothing, &quiet));
        at_rest += quiet.moving - memory.moving;
        EXPECT_NEAR(held, at_rest, 0.05 * held) << set;
        return;
    }
    EXPECT_EQ(held, at_rest) << set << (buckets_.empty() ? "" : " " + buckets_[0]);
}

/* To the byte, but for changes on their way. */
TEST_F(Plan, MemoryIsWhatTheEngineHolds)
{
    for (const char *set : {"ddp", "zero1", "zero2", "zero3", "zero3-hpz", "delta4", "delta"}) {
        expect_memory(set);
    }
    for (const char *key : {"optimizer.type=Muon", "communication_data_type=fp32", "thinwire.recompute=y",
                            "gradient_accumulation_steps=2", "activation_checkpointing.cpu_checkpointing=y",
                            "thinwire.loss_z=3", "thinwire.groups=*.h.1.*.weight frozen"}) {
        buckets_ = {key};
        for (const char *set : {"ddp", "zero1", "zero3", "zeropp"}) {
            expect_memory(set);
        }
    }
    buckets_ = {"thinwire.lag_bound=2"};
    expect_memory("delta4");
}

/* What fits no machine is planned at once, and takes no memory. */
TEST_F(Plan, LargeModels)
{
    const tw_model_config_t large = {32000, 4096, 80, 64, 8192, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};
    tw_plan_cluster_t cluster = cluster_of(8, 8);
    tw_model_t *model = nullptr;
    ASSERT_EQ(TW_OK, tw_model_create(&large, &model));
    double n_params = static_cast<double>(tw_model_n_params(model));
    rusage before = {}, after = {};
    getrusage(RUSAGE_SELF, &before);
    for (const char *set : {"ddp", "zero1", "zero3", "zeropp", "delta4", "delta"}) {
        const tw_train_options_t *o = options(set, cluster);
        tw_plan_memory_t memory;
        ASSERT_EQ(TW_OK, tw_plan_memory_of(o, model, &cluster, &memory));
        double states = tw_plan_states_bytes(n_params, (int)o->stage, 64);
        EXPECT_NEAR(12.0 * n_params / (o->stage > 0 ? 64.0 : 1.0), memory.optimizer, 1e-4 * states) << set;
        EXPECT_GT(tw_plan_memory_sum(&memory), states) << set;
    }
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_maxrss, before.ru_maxrss + (32 << 10)); /* KiB */
    tw_model_destroy(model);
}

TEST_F(Plan, MemoryOfLayersWiderThanABucket)
{
    set_small_buckets(160);
    for (const char *set : {"zero2", "zero3", "delta4"}) {
        expect_memory(set);
    }
}

/* What lies in files is not in the process but for what is in use; what lies in host memory is, but not on
 * the device. */
TEST_F(Plan, MemoryThatIsOffloaded)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2);
    const std::string optimizer = "zero_optimization.offload_optimizer.device=",
                      param = "zero_optimization.offload_param.device=";
    const std::vector<std::string> paths = {"zero_optimization.offload_optimizer.nvme_path=/tmp",
                                            "zero_optimization.offload_param.nvme_path=/tmp"};
    auto memory = [&](const std::string &set, std::vector<std::string> more) {
        more.insert(more.end(), paths.begin(), paths.end());
        more.push_back("zero_optimization.stage3_prefetch_bucket_size=1");
        tw_plan_memory_t planned = {};
        EXPECT_EQ(TW_OK, tw_plan_memory_of(options(set, cluster, more), model_, &cluster, &planned));
        return planned;
    };
    double units = 24.0 * static_cast<double>(tw_model_unit_get(model_, 1)->n_elems) / 4.0;
    tw_plan_memory_t here = memory("zero3", {}), files = memory("zero3", {optimizer + "nvme"});
    EXPECT_EQ(0.0, here.off_device);
    EXPECT_NEAR(units, files.optimizer, 0.02 * units);
    EXPECT_EQ(files.optimizer, files.off_device);
    EXPECT_NEAR(here.optimizer - units, tw_plan_memory_sum(&here) - tw_plan_memory_sum(&files), 0.02 * units);
    EXPECT_LT(memory("zero3", {param + "nvme"}).weights, here.weights);
    EXPECT_EQ(0.0, memory("zero3", {param + "nvme", optimizer + "nvme"}).weights);
    tw_plan_memory_t host = memory("zero3", {optimizer + "cpu", param + "cpu"});
    EXPECT_EQ(tw_plan_memory_sum(&here), tw_plan_memory_sum(&host));
    EXPECT_EQ(here.optimizer + here.weights, host.off_device);
}

/* The first weights go round whole, sent and received: where little else is on its way, that is what replicas
 * take most for. New values are there for the unit that is encoded alone. */
TEST_F(Plan, TheFirstWeightsTakeRoom)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2);
    tw_model_config_t deep = kModel;
    deep.n_layer = 40;
    tw_model_t *model = nullptr;
    ASSERT_EQ(TW_OK, tw_model_create(&deep, &model));
    tw_plan_memory_t memory, without;
    ASSERT_EQ(TW_OK, tw_plan_memory_of(options("delta2", cluster), model, &cluster, &memory));
    ASSERT_EQ(TW_OK, tw_plan_memory_of(options("zero3-hpz", cluster), model, &cluster, &without));
    double part = static_cast<double>(tw_model_n_params(model)) / 4.0;
    double root = static_cast<double>(tw_model_unit_get(model, TW_MODEL_ROOT)->n_elems);
    double block = static_cast<double>(tw_model_unit_get(model, 1)->n_elems);
    double chunks = 7.0 * block, encoded = 2.0 * std::max(root, block) / 4.0;
    EXPECT_NEAR(4.0 * part + encoded - chunks, memory.moving - without.moving, 0.002 * part);
    tw_model_destroy(model);
}

/* Weights that come coded lie beside where they are decoded to. */
TEST_F(Plan, CodedWeightsTakeRoom)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2);
    const auto besides = [&](const std::string &set) {
        tw_plan_memory_t memory = {};
        EXPECT_EQ(TW_OK, tw_plan_memory_of(options(set, cluster), model_, &cluster, &memory)) << set;
        return memory.chunks + memory.besides;
    };
    const double block = static_cast<double>(tw_model_unit_get(model_, 1)->n_elems);
    EXPECT_NEAR(besides("zero3-qwz") - besides("zero3"), block + 5e5, 1);
    EXPECT_NEAR(besides("zeropp") - besides("zero3-hpz"), block + 5e5 + 3e5, 1);
    EXPECT_NEAR(besides("zero3-lossless") - besides("zero3"), TW_PLAN_LOSSLESS_WEIGHT_BITS / 8 * block + 19e5,
                1);
    EXPECT_NEAR(besides("lossless") - besides("delta"), 19e5, 1);
}

TEST_F(Plan, AFastLinkIsNeverWaitedFor)
{
    for (const char *set : {"ddp", "zero3", "zeropp", "delta4"}) {
        tw_plan_time_t planned = time(set, cluster_of(2, 2, INFINITY), 0.5);
        EXPECT_NEAR(0.5, planned.step_sec, 1e-9) << set;
        EXPECT_NEAR(0.0, planned.wait_sec, 1e-9) << set;
    }
}

/* A link so slow that computing does not show: bytes of a node over its rate. */
TEST_F(Plan, ASlowLinkIsAllThereIs)
{
    tw_plan_cluster_t cluster = cluster_of(3, 2, 1e4);
    for (const char *set : {"ddp", "zero1", "zero3", "zero3-hpz", "zeropp", "delta8"}) {
        double want = planned_bytes(set, cluster) / 3.0 * 8.0 / 1e4;
        tw_plan_time_t planned = time(set, cluster, 1e-6);
        EXPECT_NEAR(want, planned.step_sec, 1e-3 * want) << set;
        EXPECT_NEAR(planned.step_sec, planned.wait_sec, 1e-5) << set;
    }
}

/* In between, computing and moving overlap in part: neither the longer of the two nor their sum. */
TEST_F(Plan, OverlapIsPartial)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2, 1e8);
    double moving = planned_bytes("zero3", cluster) / 2.0 * 8.0 / 1e8;
    tw_plan_time_t planned = time("zero3", cluster, moving);
    EXPECT_GT(planned.step_sec, 1.02 * moving);
    EXPECT_LT(planned.step_sec, 1.9 * moving);
    EXPECT_NEAR(planned.step_sec, moving + planned.wait_sec, 1e-9);
}

/* The root's gradients leave last: the norm of the blocks' is taken while they travel, and costs a step
 * nothing. */
TEST_F(Plan, TheBlocksNormIsHiddenBehindTheRootsGradients)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2, 1e7);
    const double compute_sec = 1e-3, update_sec = 2e-3;
    double without = time("zero3", cluster, compute_sec).step_sec;
    cluster.update_sec = update_sec;
    double more = time("zero3", cluster, compute_sec + update_sec).step_sec - without;
    EXPECT_LT(more, 0.9 * update_sec);
    EXPECT_GT(more, 0.4 * update_sec) << "AdamW waits for the norm of all";
}

/* What a rank's progress thread does in a step. */
double Plan::progress_sec(const std::string &set, const tw_plan_cluster_t &cluster, double *report_sec)
{
    tw_plan_traffic_t traffic;
    EXPECT_EQ(TW_OK, tw_plan_traffic_of(options(set, cluster), model_, &cluster, &traffic));
    double ranks = cluster.n_nodes * cluster.ranks_per_node;
    double sec = traffic.step.messages * cluster.message_sec +
                 traffic.step.inter_node / ranks * cluster.inter_byte_sec +
                 traffic.step.in_node / ranks * cluster.in_byte_sec;
    *report_sec = traffic.report.messages * cluster.message_sec;
    tw_plan_traffic_cleanup(&traffic);
    return sec;
}

/* The metrics of a run on `truth`. */
tw_plan_cluster_t Plan::calibrated(const tw_plan_cluster_t &truth, double nominal_bps, double compute_sec,
                                   double *found_sec, double cores)
{
    tw_plan_cluster_t cluster = truth;
    cluster.link_bps = nominal_bps;
    cluster.cores = cores > 0.0 ? cores : cluster.cores;
    cluster.message_sec = cluster.inter_byte_sec = cluster.update_sec = 0;
    tw_plan_time_t measured = time("zero3", truth, compute_sec);
    double report_sec = 0, progress = progress_sec("zero3", truth, &report_sec);
    std::ofstream metrics(path_ + ".json");
    metrics.precision(12);
    for (int i = 0; i < 18; i++) { /* two rounds; of each the first steps are slow */
        int step = i % 9;
        double more = step < 3 ? 1.0 : 0.0;
        metrics << "{\"set\": \"zero3\", \"step\": " << step + 1
                << ", \"step_sec\": " << measured.step_sec + more
                << ", \"wait_sec\": " << measured.wait_sec + more << ", \"threads\": " << threads_
                << ", \"compute_processor_sec\": " << (compute_sec + more) * threads_
                << ", \"update_processor_sec\": " << (truth.update_sec + more) * threads_
                << ", \"progress_processor_sec\": " << progress + more
                << ", \"exchange_processor_sec\": " << report_sec * (step % 3 == 2 ? 2.0 : 1.0) + more
                << ", \"memory_bytes\": " << (i == 4 ? 5e7 : 4.9e7) << "}\n"
                << "{\"set\": \"ddp\", \"step_sec\": 9}\n";
    }
    metrics.close();
    EXPECT_EQ(TW_OK, tw_plan_calibrate((path_ + ".json").c_str(), options("zero3", cluster), model_, &cluster,
                                       found_sec));
    unlink((path_ + ".json").c_str());
    return cluster;
}

tw_plan_cluster_t Plan::busy_cluster(int n_nodes, int ranks_per_node, double link_bps)
{
    tw_plan_cluster_t cluster = cluster_of(n_nodes, ranks_per_node, link_bps);
    cluster.cores = 1.0;
    cluster.message_sec = 4e-5;
    cluster.inter_byte_sec = 4e-9;
    cluster.in_byte_sec = 2e-10;
    cluster.link_burst_bytes = 5e3;
    cluster.update_sec = 2e-4;
    return cluster;
}

/* The processor time of several threads is that of one, for as long as it takes them together. */
TEST_F(Plan, CalibrationKnowsHowManyThreadsCompute)
{
    tw_plan_cluster_t truth = busy_cluster(2, 2, 9.3e6);
    double one = 0, several = 0;
    tw_plan_cluster_t of_one = calibrated(truth, 1e7, 3e-3, &one);
    threads_ = 3;
    tw_plan_cluster_t of_several = calibrated(truth, 1e7, 3e-3, &several);
    EXPECT_NEAR(one, several, 1e-9);
    EXPECT_NEAR(of_one.update_sec, of_several.update_sec, 1e-9);
    EXPECT_NEAR(of_one.link_bps, of_several.link_bps, 1e-3 * of_one.link_bps);
}

TEST_F(Plan, CalibrationFindsTheLinkAgain)
{
    double compute_sec = 0.0;
    tw_plan_cluster_t cluster = calibrated(busy_cluster(2, 2, 9.3e6), 1e7, 0.003, &compute_sec);
    EXPECT_NEAR(0.003, compute_sec, 1e-9);
    EXPECT_NEAR(9.3e6, cluster.link_bps, 1e3);
    cluster = calibrated(busy_cluster(2, 2, 4e6), 1e7, 0.003, &compute_sec);
    EXPECT_NEAR(4e6, cluster.link_bps, 1e3);
    cluster = calibrated(busy_cluster(2, 2, 4e9), 1e10, 0.03, &compute_sec); /* hardly waited for */
    EXPECT_NEAR(9.45e9, cluster.link_bps, 1e3);
    tw_plan_cluster_t alone = busy_cluster(1, 2, 1e7);
    alone.message_sec = 4e-3; /* waits for its mate */
    cluster = calibrated(alone, 1e7, 1e-4, &compute_sec);
    EXPECT_NEAR(9.45e6, cluster.link_bps, 1e3);
}

/* Other things run on them, too; but where the link is waited for, that says nothing of cores. */
TEST_F(Plan, CalibrationFindsTheCores)
{
    double compute_sec = 0.0;
    tw_plan_cluster_t truth = busy_cluster(2, 2, 9.45e8);
    truth.cores = 0.8;
    EXPECT_NEAR(0.8, calibrated(truth, 1e9, 0.03, &compute_sec, 1.0).cores, 1e-6);
    truth.cores = 0.3;
    EXPECT_NEAR(0.5, calibrated(truth, 1e9, 0.03, &compute_sec, 1.0).cores, 1e-6);
    truth = busy_cluster(2, 2, 4e6);
    truth.cores = 0.8;
    EXPECT_EQ(1.0, calibrated(truth, 1e7, 0.003, &compute_sec, 1.0).cores);
}

TEST_F(Plan, CalibrationFindsWhatMovingTakes)
{
    tw_plan_cluster_t truth = busy_cluster(2, 2, 9.3e7);
    double compute_sec = 0.0;
    tw_plan_cluster_t cluster = calibrated(truth, 1e8, 0.03, &compute_sec);
    EXPECT_NEAR(truth.message_sec, cluster.message_sec, 1e-9);
    EXPECT_NEAR(truth.inter_byte_sec, cluster.inter_byte_sec, 1e-12);
    EXPECT_NEAR(truth.update_sec, cluster.update_sec, 1e-9);
    truth = busy_cluster(1, 2, 9.3e7); /* nothing goes to another node */
    truth.in_byte_sec = 3e-9;
    cluster = calibrated(truth, 1e8, 0.03, &compute_sec);
    EXPECT_NEAR(truth.in_byte_sec, cluster.in_byte_sec, 1e-12);
}

TEST_F(Plan, CalibrationPredictsTheOtherSets)
{
    for (double link_bps : {9.3e6, 9.3e7}) {
        tw_plan_cluster_t truth = busy_cluster(2, 2, link_bps);
        double compute_sec = 0.0;
        tw_plan_cluster_t cluster = calibrated(truth, link_bps / 0.93, 0.003, &compute_sec);
        for (const char *set : {"zero3", "ddp", "zero3-hpz", "zeropp", "delta4"}) {
            double want = time(set, truth, 0.003).step_sec,
                   planned = time(set, cluster, compute_sec).step_sec;
            EXPECT_NEAR(want, planned, 0.01 * want) << set << " at " << link_bps;
        }
    }
}

TEST_F(Plan, CalibrationFindsWhatAProcessTakes)
{
    double compute_sec = 0.0;
    tw_plan_cluster_t cluster = calibrated(cluster_of(2, 2), 1e8, 0.03, &compute_sec);
    tw_plan_memory_t memory;
    EXPECT_EQ(TW_OK, tw_plan_memory_of(options("zero3", cluster), model_, &cluster, &memory));
    EXPECT_NEAR(5e7, tw_plan_memory_sum(&memory), 1.0);
}

TEST_F(Plan, CodecsTakeTime)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2, INFINITY);
    const size_t pieces[] = {9000, 10, 1000};
    ASSERT_EQ(TW_OK, tw_plan_measure_codecs(pieces, 3, cluster.codecs));
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        EXPECT_EQ(cluster.codecs[kind].encode_sec > 0.0, kind != TW_QUANT_PLAIN) << kind;
        EXPECT_EQ(cluster.codecs[kind].decode_sec > 0.0, kind != TW_QUANT_PLAIN) << kind;
    }
    for (const char *set : {"zero3-qwz", "zero3-qgz", "delta2", "delta"}) {
        EXPECT_GT(time(set, cluster, 0.01).step_sec, 0.01) << set;
    }
    EXPECT_NEAR(0.01, time("zero3", cluster, 0.01).step_sec, 1e-9);
}

/* Where changes go one after the other before the first layer, there is nothing to hide it behind. */
TEST_F(Plan, OperationsAreDelayed)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2, INFINITY);
    double at_once = time("delta", cluster, 0.01).step_sec;
    cluster.delay_sec = 1e-3;
    double delayed = time("delta", cluster, 0.01).step_sec;
    EXPECT_GT(delayed, at_once + 3e-3); /* lengths, change, gather */
    EXPECT_LT(delayed, at_once + 30e-3);
}

/* A node's ranks share its cores: where those are what is short, a step takes what both threads of each do,
 * one after the other. */
TEST_F(Plan, CoresAreShared)
{
    for (const char *set : {"ddp", "zero2", "zero3", "zero3-hpz", "delta8"}) {
        tw_plan_cluster_t cluster = busy_cluster(2, 2, INFINITY);
        double unused, all = 0.05 + progress_sec(set, cluster, &unused);
        double planned = time(set, cluster, 0.05).step_sec;
        EXPECT_GT(planned, 1.999 * all) << set;
        EXPECT_LT(planned, 2.1 * all) << set;
        cluster.cores = 4.0; /* two a rank: what is moved ahead or behind does not delay what computes */
        EXPECT_LT(time(set, cluster, 0.05).step_sec, 0.05 + progress_sec(set, cluster, &unused)) << set;
    }
}

class Machine : public ::testing::Test
{
  protected:
    static tw_plan_op_t op(double send, double link, double receive)
    {
        tw_plan_op_t op = {};
        op.send_sec = send;
        op.link_sec = link;
        op.receive_sec = receive;
        return op;
    }
    void SetUp() override
    {
        machine_.cores = 2.0;
        machine_.under_way = under_way_;
    }

    tw_plan_op_t *under_way_[4] = {};
    tw_plan_machine_t machine_ = {};
};

/* Sent, carried, received, while the compute thread has a core of its own. */
TEST_F(Machine, MovesWhileItComputes)
{
    tw_plan_op_t one = op(1, 5, 2);
    tw_plan_machine_post(&machine_, &one);
    tw_plan_machine_compute(&machine_, 6);
    EXPECT_DOUBLE_EQ(6, machine_.now);
    EXPECT_FALSE(tw_plan_op_is_done(&one));
    tw_plan_machine_wait(&machine_, &one);
    EXPECT_DOUBLE_EQ(8, machine_.now);
    EXPECT_DOUBLE_EQ(2, machine_.waited);
    EXPECT_TRUE(tw_plan_op_is_done(&one));
}

TEST_F(Machine, ThreadsShareACore)
{
    machine_.cores = 1.0;
    tw_plan_op_t one = op(1, 5, 2);
    tw_plan_machine_post(&machine_, &one);
    /* 1 beside sending until 2, 5 alone until 7, 1 beside receiving until 9 */
    tw_plan_machine_compute(&machine_, 7);
    EXPECT_DOUBLE_EQ(9, machine_.now);
    tw_plan_machine_wait(&machine_, &one);
    EXPECT_DOUBLE_EQ(10, machine_.now);
}

TEST_F(Machine, TheLinkCarriesOneAfterTheOther)
{
    tw_plan_op_t ops[] = {op(1, 5, 0), op(1, 5, 0), op(0, 0, 1)};
    for (tw_plan_op_t &one : ops) {
        tw_plan_machine_post(&machine_, &one);
    }
    tw_plan_machine_wait(&machine_, &ops[1]);
    EXPECT_DOUBLE_EQ(11, machine_.now);
    EXPECT_TRUE(tw_plan_op_is_done(&ops[0]));
    EXPECT_TRUE(tw_plan_op_is_done(&ops[2]));
}

/* As much as the link could have carried while it was idle, at most. */
TEST_F(Machine, AnIdleLinkLetsABurstPass)
{
    machine_.burst_sec = 3;
    tw_plan_op_t one = op(0, 5, 0), two = op(0, 5, 0);
    tw_plan_machine_compute(&machine_, 10);
    tw_plan_machine_post(&machine_, &one);
    tw_plan_machine_wait(&machine_, &one);
    EXPECT_DOUBLE_EQ(12, machine_.now);
    tw_plan_machine_post(&machine_, &two);
    tw_plan_machine_wait(&machine_, &two);
    EXPECT_DOUBLE_EQ(17, machine_.now);
}

TEST_F(Plan, CalibrationNeedsMetrics)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2);
    double compute_sec;
    std::ofstream(path_ + ".json") << R"({"step": 1}{"step": 2}{"step": 3}{"step": 4})";
    expect_log("a line without step_sec");
    EXPECT_EQ(TW_ERR_FORMAT, tw_plan_calibrate((path_ + ".json").c_str(), options("zero3", cluster), model_,
                                               &cluster, &compute_sec));
    unlink((path_ + ".json").c_str());
    expect_log("cannot open");
    EXPECT_EQ(TW_ERR_NOT_FOUND, tw_plan_calibrate((path_ + ".json").c_str(), options("zero3", cluster),
                                                  model_, &cluster, &compute_sec));
}

TEST_F(Plan, RowsAsJson)
{
    tw_plan_row_t rows[] = {{}, {}};
    rows[0].name = "zero3";
    rows[1].name = "delta4";
    rows[0].inter_node_bytes = 4e6;
    rows[1].inter_node_bytes = 1e6;
    rows[1].memory.weights = 7;
    rows[0].time.step_sec = 1;
    rows[1].time.step_sec = 0.5;
    FILE *file = fopen((path_ + ".json").c_str(), "w+");
    ASSERT_NE(nullptr, file);
    tw_plan_cluster_t cluster = cluster_of(2, 2);
    EXPECT_EQ(TW_OK, tw_plan_write_json(rows, 2, &cluster, file));
    rewind(file);
    json_t *first = json_loadf(file, JSON_DISABLE_EOF_CHECK, nullptr);
    json_t *second = json_loadf(file, JSON_DISABLE_EOF_CHECK, nullptr);
    fclose(file);
    unlink((path_ + ".json").c_str());
    EXPECT_STREQ("zero3", json_string_value(json_object_get(first, "set")));
    EXPECT_EQ(0.25, json_number_value(json_object_get(second, "bytes_ratio")));
    EXPECT_EQ(2.0, json_number_value(json_object_get(second, "speedup")));
    EXPECT_EQ(7.0, json_number_value(json_object_get(second, "memory_bytes")));
    json_decref(first);
    json_decref(second);
}

tw_plan_row_t row(const char *name, int stage, double step_sec, double bytes)
{
    const tw_trainer_set_t *set = tw_trainer_set_find(name);
    tw_plan_row_t row = {};
    row.name = name;
    row.torch = set->torch;
    row.is_lossless = set->torch == nullptr || strcmp(name, "delta") == 0;
    row.stage = stage;
    row.time.step_sec = step_sec;
    row.memory.weights = bytes;
    return row;
}

std::string advice(const std::vector<tw_plan_row_t> &rows, const tw_plan_cluster_t &cluster)
{
    char *text = nullptr;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    tw_plan_print_advice(rows.data(), rows.size(), &cluster, out);
    fclose(out);
    std::string said = text;
    free(text);
    return said;
}

TEST_F(Plan, Advice)
{
    tw_plan_cluster_t cluster = cluster_of(2, 2);
    std::vector<tw_plan_row_t> rows = {row("zero2", 2, 0.9, 50), row("zero3", 3, 1.0, 10),
                                       row("delta4", 3, 0.2, 20), row("delta", 3, 0.4, 20)};
    EXPECT_NE(std::string::npos,
              advice(rows, cluster)
                  .find("switch on delta4: 5.00 times as fast as zero3; with no change to any "
                        "loss delta: 2.50 times"));
    EXPECT_NE(std::string::npos,
              advice(rows, cluster).find("is TW_FSDP=1 TW_WEIGHTS=delta4 TW_GRADS=int4\n"));
    EXPECT_NE(std::string::npos,
              advice(rows, cluster).find("to any loss TW_FSDP=1 TW_WEIGHTS=delta TW_GRADS=plain\n"));
    cluster.device_bytes = 15;
    EXPECT_NE(std::string::npos, advice(rows, cluster).find("this will not help you"));
    rows[2].memory.off_device = 6;
    EXPECT_NE(std::string::npos, advice(rows, cluster).find("switch on delta4"));
    rows[2].memory.off_device = 0;
    cluster.device_bytes = 5;
    EXPECT_NE(std::string::npos, advice(rows, cluster).find("nothing fits"));
    EXPECT_NE(std::string::npos, advice(rows, cluster_of(1, 4)).find("this will not help you"));
    rows[0].time.step_sec = rows[2].time.step_sec = rows[3].time.step_sec = 0.99;
    EXPECT_NE(std::string::npos, advice(rows, cluster_of(2, 2)).find("this will not help you"));
}

} // namespace
