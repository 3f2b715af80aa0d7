/* Training with models on emulated devices, one for each rank: losses near those of the CPU, and the same
 * bits whatever the stage and whatever travels. */
#include <cmath>

#include "tests/common/fixture.h"
#include "tests/trainer/device/emulated.h"
#include "tests/trainer/engine/ranks.h"
#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/device/device.h"
#include "trainer/engine/calls.h"
#include "trainer/engine/engine.h"
#include "trainer/plan/plan.h"

namespace
{

using Sets = std::vector<std::string>;

struct Outcome {
    std::vector<double> losses;
    double validation = 0;
    size_t device_bytes = 0, most_bytes = 0; /* as the engine counts the device's, and as they were taken */
    size_t host_bytes = 0;                   /* without what the communicator works in */
    bool is_equal = false;
    tw_status_t status = TW_OK;
};

tw_model_config_t shape_of(const tw_train_options_t *o)
{
    tw_model_config_t shape = {};
    shape.vocab_size = (size_t)o->vocab_size;
    shape.n_positions = (size_t)o->sequence;
    shape.n_layer = (size_t)o->n_layer;
    shape.n_head = (size_t)o->n_head;
    shape.n_embd = (size_t)o->n_embd;
    shape.layer_norm_epsilon = o->layer_norm_epsilon;
    shape.products = TW_TYPE_BF16;
    if (o->family != TW_MODEL_GPT2) {
        shape.family = TW_MODEL_QWEN3;
        shape.n_head = 4;
        shape.llama.n_kv_head = 2;
        shape.llama.head_dim = 8;
        shape.llama.n_inner = 40;
        shape.llama.rope.theta = 10000;
        shape.llama.has_head = 1;
    }
    return shape;
}

/* One rank. */
void run(const Sets &sets, tw_coll_t *world, tw::EmulatedDevice *device, Outcome *out)
{
    std::vector<const char *> pointers;
    for (const std::string &set : sets) {
        pointers.push_back(set.c_str());
    }
    tw_train_config_t *config = nullptr;
    tw_data_t *data = nullptr;
    tw_model_t *model = nullptr;
    tw_engine_t *engine = nullptr;
    ASSERT_EQ(tw_train_config_create(nullptr, pointers.data(), pointers.size(), &config), TW_OK);
    ASSERT_EQ(tw_train_config_resolve(config, tw_coll_size(world), tw_coll_n_nodes(world)), TW_OK);
    const tw_train_options_t *o = tw_train_config_options(config);
    tw_data_config_t data_config = {};
    data_config.path = o->data;
    data_config.val_share = o->val_share;
    data_config.document_token = -1;
    ASSERT_EQ(tw_data_open(&data_config, &data), TW_OK);
    const tw_model_config_t shape = shape_of(o);
    ASSERT_EQ(device ? tw_device_model_create(&shape, device->table(), &model)
                     : tw_model_create(&shape, &model),
              TW_OK);
    tw_engine_params_t params = {o, model, data, world, {}};
    out->status = tw_engine_create(&params, &engine);
    for (int64_t step = 0; step < o->steps && out->status == TW_OK; step++) {
        tw_trainer_step_t done;
        out->status = tw_engine_step(engine, &done);
        out->losses.push_back(done.loss);
    }
    if (out->status == TW_OK) {
        int equal = 0;
        EXPECT_EQ(tw_engine_validate(engine, &out->validation), TW_OK);
        EXPECT_EQ(tw_engine_check(engine, &equal), TW_OK);
        out->is_equal = equal;
        out->device_bytes = tw_engine_device_bytes(engine);
        out->most_bytes = device ? device->most_bytes : 0;
        out->host_bytes = tw_engine_memory_bytes(engine) - tw_coll_workspace_bytes(world);
    } else if (out->status != TW_ERR_CONFIG) { /* which all ranks find by themselves */
        tw_coll_abort(world);
    }
    tw_engine_destroy(engine);
    tw_model_destroy(model);
    tw_data_close(data);
    tw_train_config_destroy(config);
}

/* n_nodes x 2 ranks. */
Outcome train(const Sets &sets, bool on_device, int n_nodes = 2)
{
    Sets all = tw::tiny_sets();
    all.insert(all.end(), sets.begin(), sets.end());
    std::vector<int> node_of;
    for (int rank = 0; rank < 2 * n_nodes; rank++) {
        node_of.push_back(rank / 2);
    }
    std::vector<Outcome> outcomes(node_of.size());
    tw::run_ranks(node_of, [&](int rank, tw_coll_t *world) {
        if (on_device) {
            tw::EmulatedDevice device((uint32_t)rank + 1);
            run(all, world, &device, &outcomes[(size_t)rank]);
        } else {
            run(all, world, nullptr, &outcomes[(size_t)rank]);
        }
    });
    for (const Outcome &outcome : outcomes) {
        EXPECT_EQ(outcome.losses, outcomes[0].losses);
        EXPECT_EQ(outcome.status, outcomes[0].status);
    }
    return outcomes[0];
}

class DeviceTraining : public tw::Fixture
{
};

const char *const gpt2 = "model.family=gpt2", *const llama = "model.family=llama";

/* As far as weights of bf16 and their rounding are the same, so are losses; each step adds its rounding. */
TEST_F(DeviceTraining, LossesOfTheCpu)
{
    for (const char *family : {gpt2, llama}) {
        SCOPED_TRACE(family);
        const Sets sets = {family, "zero_optimization.stage=3", "thinwire.steps=20"};
        const Outcome cpu = train(sets, false, 1), device = train(sets, true, 1);
        ASSERT_EQ(device.losses.size(), 20u);
        EXPECT_NE(device.losses, cpu.losses);
        for (size_t i = 0; i < 20; i++) {
            EXPECT_NEAR(device.losses[i], cpu.losses[i], 0.01 * cpu.losses[i]) << "step " << i + 1;
        }
        EXPECT_LT(device.losses[19], 0.8 * device.losses[0]);
        EXPECT_NEAR(device.validation, cpu.validation, 0.01 * cpu.validation);
    }
}

/* Bit for bit. */
TEST_F(DeviceTraining, AllStagesAndSetsAreEqual)
{
    const std::vector<Sets> others = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=1"},
        {"zero_optimization.stage=2"},
        {"zero_optimization.stage=3", "zero_optimization.zero_hpz_partition_size=2"},
        {"zero_optimization.stage=3", "thinwire.delta_lossless=y"},
        {"zero_optimization.stage=3", "thinwire.lossless_weights=y", "thinwire.lossless_gradients=y"},
        {"zero_optimization.stage=3", "thinwire.delta_lossless=y", "thinwire.lossless_gradients=y",
         "zero_optimization.offload_optimizer.device=cpu"},
    };
    for (const char *family : {gpt2, llama}) {
        const Outcome first =
            train({family, "zero_optimization.stage=3", "thinwire.hpz=off", "thinwire.steps=3"}, true);
        ASSERT_EQ(first.losses.size(), 3u);
        for (Sets sets : others) {
            sets.push_back("thinwire.steps=3");
            SCOPED_TRACE(family + (" " + sets[0]) + (sets.size() > 1 ? " " + sets[1] : ""));
            sets.push_back(family);
            const Outcome other = train(sets, true);
            EXPECT_EQ(other.losses, first.losses);
            EXPECT_EQ(other.validation, first.validation);
            EXPECT_TRUE(other.is_equal);
        }
    }
}

/* Layers computed again, and inputs kept in host memory, change nothing; micro-batches are added up. */
TEST_F(DeviceTraining, RecomputingAndInputsElsewhere)
{
    const Sets micros = {"zero_optimization.stage=3", "gradient_accumulation_steps=2",
                         "train_micro_batch_size_per_gpu=1", "thinwire.steps=3"};
    const Outcome first = train(micros, true, 1), cpu = train(micros, false, 1);
    EXPECT_NEAR(first.losses.back(), cpu.losses.back(), 0.01 * cpu.losses.back());
    for (const char *more : {"thinwire.recompute=y", "activation_checkpointing.cpu_checkpointing=y"}) {
        Sets sets = micros;
        sets.push_back(more);
        const Outcome other = train(sets, true, 1);
        EXPECT_EQ(other.losses, first.losses) << more;
        EXPECT_LT(other.device_bytes, first.device_bytes) << more;
    }
}

/* The device holds what it is said to hold, and no more than thinwire.device_mem. */
TEST_F(DeviceTraining, MemoryOfTheDevice)
{
    const Outcome all = train({"zero_optimization.stage=3", "thinwire.steps=1"}, true, 1);
    EXPECT_LE(all.most_bytes, all.device_bytes);
    EXPECT_LT(all.device_bytes, all.most_bytes + 100000); /* lists of the host's, AdamW's scratch */
    expect_log("bytes are needed on the device, thinwire.device_mem is");
    expect_log("bytes are needed on the device, thinwire.device_mem is");
    EXPECT_EQ(train({"zero_optimization.stage=3", "thinwire.device_mem=100K"}, true, 1).status,
              TW_ERR_CONFIG);
}

/* For two ranks of a node, with GPUs that are not there. */
tw_plan_memory_t planned(const Sets &sets)
{
    Sets all = tw::tiny_sets();
    all.insert(all.end(), sets.begin(), sets.end());
    std::vector<const char *> pointers;
    for (const std::string &set : all) {
        pointers.push_back(set.c_str());
    }
    tw_train_config_t *config = nullptr;
    tw_model_t *model = nullptr;
    tw_plan_memory_t memory = {};
    const tw_plan_cluster_t cluster = tw_plan_cluster_of(2, 1);
    EXPECT_EQ(tw_train_config_create(nullptr, pointers.data(), pointers.size(), &config), TW_OK);
    EXPECT_EQ(tw_train_config_resolve(config, 2, 1), TW_OK);
    const tw_train_options_t *o = tw_train_config_options(config);
    const tw_model_config_t shape = shape_of(o);
    EXPECT_EQ(tw_device_model_create_planned(&shape, &model), TW_OK);
    EXPECT_EQ(tw_plan_memory_of(o, model, &cluster, &memory), TW_OK);
    tw_model_destroy(model);
    tw_train_config_destroy(config);
    return memory;
}

/* To the byte; an emulated device's products work in no memory of their own. */
TEST_F(DeviceTraining, MemoryIsWhatIsPlanned)
{
    const std::vector<Sets> cases = {
        {"zero_optimization.stage=0"},
        {"zero_optimization.stage=3"},
        {"zero_optimization.stage=1", "thinwire.recompute=y"},
        {"zero_optimization.stage=2", "activation_checkpointing.cpu_checkpointing=y"},
    };
    for (const char *family : {gpt2, llama}) {
        for (Sets sets : cases) {
            sets.insert(sets.end(), {family, "thinwire.steps=1"});
            SCOPED_TRACE(sets[0] + " " + sets[1] + " " + family);
            const Outcome taken = train(sets, true, 1);
            const tw_plan_memory_t memory = planned(sets);
            EXPECT_EQ((double)(taken.most_bytes + TW_DEVICE_PRODUCTS_BYTES), memory.gpu);
            EXPECT_EQ((double)taken.host_bytes, tw_plan_memory_sum(&memory) - memory.besides);
            EXPECT_EQ(tw_plan_memory_sum(&memory), memory.off_device);
        }
    }
}

} // namespace
