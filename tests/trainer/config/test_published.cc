/* Configurations as people publish them: their keys and values, in files of our own. */
#include "tests/trainer/config/config.h"

using tw::config_of;
using tw::options_of;

namespace
{

class Published : public tw::Fixture
{
  protected:
    /* Taken, resolved on two nodes of eight, and said: nothing of it is unknown. */
    tw_train_options_t taken(const std::string &json)
    {
        auto config = config_of(json);
        if (!config || tw_train_config_resolve(config.get(), 16, 2) != TW_OK) {
            ADD_FAILURE() << "refused: " << json;
            return {};
        }
        allow_log(" nothing here: ");
        allow_log("auto comes to ");
        tw_train_config_say(config.get());
        return options_of(config); /* texts go with the configuration */
    }
};

const char *const kFp16 = R"("fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
    "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1})";
const char *const kAutoBatch = R"("gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto")";
const char *const kAutoZero3 = R"("stage": 3, "overlap_comm": true, "contiguous_gradients": true,
    "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true)";
const char *const kAutoAdam = R"("optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto",
    "eps": "auto", "weight_decay": "auto"}})";

std::string object(const std::vector<std::string> &members)
{
    std::string text;
    for (const auto &member : members) {
        text += (text.empty() ? "{" : ", ") + member;
    }
    return text + "}";
}

std::string section(const std::string &name, const std::vector<std::string> &members)
{
    return "\"" + name + "\": " + object(members);
}

const char *const kOffload = R"("offload_optimizer": {"device": "cpu", "pin_memory": true},
    "offload_param": {"device": "cpu", "pin_memory": true})";

} // namespace

TEST_F(Published, TransformersZero2)
{
    tw_train_options_t o = taken(object(
        {kFp16, R"("bf16": {"enabled": "auto"})", kAutoAdam,
         R"("scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
            "warmup_num_steps": "auto"}})",
         R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
            "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true,
            "reduce_scatter": true, "reduce_bucket_size": 2e8, "contiguous_gradients": true})",
         kAutoBatch, R"("steps_per_print": 2000, "wall_clock_breakdown": false)"}));
    EXPECT_EQ(o.stage, 2);
    EXPECT_EQ(o.offload_optimizer, TW_TRAIN_CPU);
    EXPECT_EQ(o.schedule, TW_TRAIN_WARMUP);
    EXPECT_EQ(o.warmup_type, TW_TRAIN_WARMUP_LOG);
    EXPECT_EQ(o.reduce_bucket, 200000000);
}

TEST_F(Published, TransformersZero3WithFiles)
{
    tw_train_options_t o = taken(
        object({kFp16, R"("bf16": {"enabled": true})", kAutoAdam,
                section("zero_optimization",
                        {kAutoZero3,
                         R"("offload_optimizer": {"device": "nvme", "nvme_path": "/local", "pin_memory": true,
                     "buffer_count": 4, "fast_init": false},
                     "offload_param": {"device": "nvme", "nvme_path": "/local", "pin_memory": true,
                     "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9})"}),
                R"("aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": false,
            "overlap_events": true})",
                kAutoBatch}));
    EXPECT_EQ(o.stage, 3);
    EXPECT_EQ(o.offload_param, TW_TRAIN_NVME);
}

TEST_F(Published, Accelerate)
{
    tw_train_options_t o = taken(object(
        {R"("bf16": {"enabled": true})", section("zero_optimization", {kAutoZero3, kOffload}), kAutoAdam,
         R"("scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
            "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}})",
         R"("gradient_accumulation_steps": 1, "gradient_clipping": "auto", "steps_per_print": 2000,
            "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
            "wall_clock_breakdown": false)"}));
    EXPECT_EQ(o.schedule, TW_TRAIN_WARMUP_DECAY);
    EXPECT_EQ(o.offload_param, TW_TRAIN_CPU);
}

TEST_F(Published, Axolotl)
{
    tw_train_options_t o = taken(
        object({R"("bf16": {"enabled": true})",
                R"("fp16": {"enabled": "auto", "auto_cast": false, "loss_scale": 0, "initial_scale_power": 32,
            "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1})",
                R"("zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true,
            "sub_group_size": 0, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0, "stage3_gather_16bit_weights_on_model_save": true})",
                kAutoBatch, R"("compile": {"disable": false, "backend": "inductor"})"}));
    EXPECT_EQ(o.max_live_elems, 0);
}

TEST_F(Published, LlamaFactory)
{
    tw_train_options_t o = taken(object(
        {kAutoBatch, R"("zero_allow_untested_optimizer": true)", kFp16, R"("bf16": {"enabled": "auto"})",
         R"("zero_optimization": {"stage": 2, "allgather_partitions": true, "allgather_bucket_size": 5e8,
            "overlap_comm": false, "reduce_scatter": true, "reduce_bucket_size": 5e8,
            "contiguous_gradients": true, "round_robin_gradients": true})"}));
    EXPECT_EQ(o.overlap, 0);
}

TEST_F(Published, Megatron)
{
    tw_train_options_t o = taken(object(
        {R"("train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10)",
         R"("zero_optimization": {"stage": 1}, "gradient_clipping": 1.0, "prescale_gradients": true)",
         R"("bf16": {"enabled": true}, "communication_data_type": "fp32", "compute_grad_norm": true)",
         R"("data_types": {"grad_accum_dtype": "fp32"}, "comms_logger": {"enabled": true, "verbose": false},
            "wall_clock_breakdown": true, "zero_force_ds_cpu_optimizer": false)"}));
    EXPECT_EQ(o.accumulation, 4);
    EXPECT_EQ(o.communication, TW_TRAIN_COMMUNICATION_FP32);
}

TEST_F(Published, Bloom)
{
    tw_train_options_t o = taken(
        object({R"("train_micro_batch_size_per_gpu": 2, "train_batch_size": 2048, "gradient_clipping": 1.0)",
                R"("zero_optimization": {"stage": 0}, "bf16": {"enabled": true}, "steps_per_print": 2000,
            "wall_clock_breakdown": false)"}));
    EXPECT_EQ(o.stage, 0);
    EXPECT_EQ(o.accumulation, 64);
}

TEST_F(Published, DeepSpeedChat)
{
    tw_train_options_t o = taken(object(
        {R"("train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10)",
         R"("zero_optimization": {"stage": 3, "overlap_comm": true, "offload_param": {"device": "none"},
            "offload_optimizer": {"device": "none"}, "stage3_param_persistence_threshold": 1e4,
            "stage3_max_live_parameters": 3e7, "stage3_prefetch_bucket_size": 3e7,
            "memory_efficient_linear": false})",
         R"("fp16": {"enabled": false, "loss_scale_window": 100}, "bf16": {"enabled": true})",
         R"("gradient_clipping": 1.0, "prescale_gradients": false, "wall_clock_breakdown": false)",
         R"("hybrid_engine": {"enabled": false, "max_out_tokens": 512, "inference_tp_size": 1})",
         R"("tensorboard": {"enabled": true, "output_path": "step1/", "job_name": "step1_tensorboard"})"}));
    EXPECT_EQ(o.prefetch_elems, 30000000);
}

TEST_F(Published, OpenRlhf)
{
    tw_train_options_t o =
        taken(object({R"("steps_per_print": 100, "bf16": {"enabled": true}, "gradient_clipping": 1.0)",
                      R"("zero_optimization": {"stage": 3, "offload_param": {"device": "none"},
            "offload_optimizer": {"device": "cpu", "pin_memory": true}, "sub_group_size": "auto",
            "stage3_max_live_parameters": "auto", "stage3_max_reuse_distance": "auto",
            "stage3_param_persistence_threshold": "auto", "stage3_prefetch_bucket_size": "auto",
            "reduce_bucket_size": "auto", "zero_hpz_partition_size": 1, "zero_quantized_weights": false,
            "zero_quantized_gradients": false})",
                      R"("prescale_gradients": false, "wall_clock_breakdown": false,
            "data_types": {"grad_accum_dtype": "fp32"}, "train_micro_batch_size_per_gpu": 1,
            "train_batch_size": 128)"}));
    EXPECT_EQ(o.accumulation, 8);
}

TEST_F(Published, NemoAndLightning)
{
    tw_train_options_t o = taken(object(
        {R"("activation_checkpointing": {"partition_activations": false, "cpu_checkpointing": false,
            "contiguous_memory_optimization": false, "synchronize_checkpoint_boundary": false})",
         R"("aio": {"block_size": 1048576, "queue_depth": 8, "single_submit": false, "overlap_events": true,
            "thread_count": 1})",
         R"("zero_allow_untested_optimizer": true, "bf16": {"enabled": true})",
         R"("zero_optimization": {"stage": 2, "contiguous_gradients": true, "overlap_comm": true,
            "allgather_partitions": true, "reduce_scatter": true, "allgather_bucket_size": 200000000,
            "reduce_bucket_size": 200000000, "sub_group_size": 1000000000000})",
         R"("gradient_accumulation_steps": 1, "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 0.0)"}));
    EXPECT_EQ(o.clip, 0);
}

TEST_F(Published, ZeroPlusPlus)
{
    tw_train_options_t o = taken(
        object({R"("zero_optimization": {"stage": 3, "reduce_bucket_size": 10000000, "reduce_scatter": true,
            "zero_quantized_weights": true, "zero_hpz_partition_size": 8, "zero_quantized_gradients": true,
            "contiguous_gradients": true, "overlap_comm": true})",
                R"("train_batch_size": 64, "bf16": {"enabled": true})"}));
    EXPECT_EQ(o.hpz_size, 8);
    EXPECT_EQ(o.codecs.weights.kind, TW_QUANT_INT8);
    EXPECT_EQ(o.codecs.gradients.kind, TW_QUANT_INT4);
}

/* Names of stage 3 without their prefix, a switch in the place of its section, comments, and monitors. */
TEST_F(Published, ShortForms)
{
    tw_train_options_t o = taken(
        object({R"("_comment": "for eight GPUs", "//": "see the wiki", "bf16": false, "fp16": false)",
                R"("zero_optimization": {"stage": 3, "_note": [1, 2], "prefetch_bucket_size": 5e7,
            "max_live_parameters": 2e9, "max_reuse_distance": 1e9, "param_persistence_threshold": 1e5,
            "gather_16bit_weights_on_model_save": true})",
                R"("comms_config": {"verbose": true}, "monitor_config": {"wandb": {"enabled": true}})"}));
    EXPECT_EQ(o.bf16, 0);
    EXPECT_EQ(o.prefetch_elems, 50000000);
    EXPECT_EQ(o.max_live_elems, 2000000000);
    auto set = config_of("{}", {"zero_optimization.prefetch_bucket_size=7", "bf16=false"});
    ASSERT_TRUE(set);
    EXPECT_EQ(options_of(set).prefetch_elems, 7);
    EXPECT_EQ(options_of(set).bf16, 0);
    EXPECT_EQ(taken(R"({"bf16": true})").bf16, 1);
}

/* What asks for another algorithm is not passed over. */
TEST_F(Published, OtherAlgorithmsAreRefused)
{
    auto refused = [&](const std::string &json, const char *said) {
        auto config = config_of(json);
        ASSERT_TRUE(config) << json;
        expect_log(said);
        EXPECT_EQ(tw_train_config_resolve(config.get(), 16, 2), TW_ERR_CONFIG) << json;
    };
    refused(R"({"fp16": true})", "fp16.enabled is true");
    refused(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "weight_decay": 0.01}}})",
            "optimizer.params.adam_w_mode is false: that is Adam with weight_decay in the gradient");
    refused(R"({"optimizer": {"type": "Adam", "params": {"amsgrad": true}}})", "amsgrad is true");
    refused(R"({"optimizer": {"type": "AdamW", "params": {"bias_correction": false}}})",
            "bias_correction is false");
    taken(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "weight_decay": 0}}})");
    taken(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false, "torch_adam": true,
              "bias_correction": true, "amsgrad": false}}})");
}
