#include "tests/trainer/config/config.h"

using TrainResolve = tw::Fixture;
using tw::config_of;
using tw::options_of;

static tw_status_t resolve(const std::vector<const char *> &sets, int world = 4, int n_nodes = 2,
                           tw_train_options_t *out = nullptr)
{
    auto config = config_of("{}", sets);
    tw_status_t status = config ? tw_train_config_resolve(config.get(), world, n_nodes) : TW_ERR_INTERNAL;
    if (out && config) {
        *out = options_of(config);
    }
    return status;
}

TEST_F(TrainResolve, TwoOfTheBatchsNumbersGiveTheThird)
{
    struct {
        std::vector<const char *> sets;
        int64_t batch, micro, accumulation;
    } cases[] = {
        {{}, 4, 1, 1},
        {{"train_batch_size=32"}, 32, 8, 1},
        {{"train_micro_batch_size_per_gpu=3"}, 12, 3, 1},
        {{"gradient_accumulation_steps=5"}, 20, 1, 5},
        {{"train_batch_size=32", "train_micro_batch_size_per_gpu=2"}, 32, 2, 4},
        {{"train_batch_size=32", "gradient_accumulation_steps=2"}, 32, 4, 2},
        {{"train_micro_batch_size_per_gpu=2", "gradient_accumulation_steps=3"}, 24, 2, 3},
        {{"train_batch_size=24", "train_micro_batch_size_per_gpu=2", "gradient_accumulation_steps=3"},
         24,
         2,
         3},
    };
    for (auto &c : cases) {
        tw_train_options_t o;
        ASSERT_EQ(resolve(c.sets, 4, 2, &o), TW_OK);
        EXPECT_EQ(o.batch, c.batch);
        EXPECT_EQ(o.micro_batch, c.micro);
        EXPECT_EQ(o.accumulation, c.accumulation);
    }
}

TEST_F(TrainResolve, ABatchThatDoesNotDivideIsRefused)
{
    expect_log("train_batch_size 30 is not");
    EXPECT_EQ(resolve({"train_batch_size=30"}), TW_ERR_CONFIG);
    expect_log("train_batch_size 2 is not");
    EXPECT_EQ(resolve({"train_batch_size=2"}), TW_ERR_CONFIG);
    expect_log("train_batch_size 16 is not");
    EXPECT_EQ(
        resolve({"train_batch_size=16", "train_micro_batch_size_per_gpu=4", "gradient_accumulation_steps=2"}),
        TW_ERR_CONFIG);
}

/* On 10 million ranks the product is more than 2^63. */
TEST_F(TrainResolve, ABatchBeyondItsKeyIsRefused)
{
    const std::vector<const char *> both = {"train_micro_batch_size_per_gpu=1000000",
                                            "gradient_accumulation_steps=1000000"};
    tw_train_options_t o;
    ASSERT_EQ(resolve(both, 1, 1, &o), TW_OK);
    EXPECT_EQ(o.batch, 1000000000000);
    expect_log(
        "train_micro_batch_size_per_gpu 1000000 x gradient_accumulation_steps 1000000 x 2 ranks is more "
        "than a train_batch_size of 1000000000000");
    EXPECT_EQ(resolve(both, 2, 1), TW_ERR_CONFIG);
    expect_log("x 10000000 ranks is more");
    EXPECT_EQ(resolve(both, 10000000, 10000), TW_ERR_CONFIG);
    expect_log("train_batch_size 4 is not");
    EXPECT_EQ(resolve({both[0], both[1], "train_batch_size=4"}, 10000000, 10000), TW_ERR_CONFIG);
}

TEST_F(TrainResolve, Fp32AllreduceIsWhatGradientsTravelAs)
{
    tw_train_options_t o;
    ASSERT_EQ(resolve({}, 2, 1, &o), TW_OK);
    EXPECT_EQ(o.communication, TW_TRAIN_COMMUNICATION_BF16);
    ASSERT_EQ(resolve({"fp32_allreduce=y"}, 2, 1, &o), TW_OK);
    EXPECT_EQ(o.communication, TW_TRAIN_COMMUNICATION_FP32);
    ASSERT_EQ(resolve({"fp32_allreduce=y", "communication_data_type=fp32"}, 2, 1, &o), TW_OK);
    EXPECT_EQ(o.communication, TW_TRAIN_COMMUNICATION_FP32);
    ASSERT_EQ(resolve({"fp32_allreduce=n", "communication_data_type=fp32"}, 2, 1, &o), TW_OK);
    EXPECT_EQ(o.communication, TW_TRAIN_COMMUNICATION_FP32);
}

TEST_F(TrainResolve, GradientsTravelAsWhatWeightsAre)
{
    tw_train_options_t o;
    ASSERT_EQ(resolve({"bf16.enabled=n"}, 2, 1, &o), TW_OK);
    EXPECT_EQ(o.communication, TW_TRAIN_COMMUNICATION_FP32);
    ASSERT_EQ(resolve({"bf16.enabled=n", "communication_data_type=bf16"}, 2, 1, &o), TW_OK);
    EXPECT_EQ(o.communication, TW_TRAIN_COMMUNICATION_BF16);
    EXPECT_EQ(resolve({"bf16.enabled=n", "thinwire.device=cuda"}), TW_OK);
    EXPECT_EQ(resolve({"optimizer.type=Muon", "thinwire.device=cuda"}), TW_OK);
}

TEST_F(TrainResolve, WhatIsNotHereIsRefusedWithAReason)
{
    expect_log("fp16 needs loss scaling");
    EXPECT_EQ(resolve({"fp16.enabled=y"}), TW_ERR_CONFIG);
    EXPECT_EQ(resolve({"fp16.enabled=y", "bf16.enabled=n", "thinwire.device=cuda"}), TW_ERR_CONFIG);
    expect_log("thinwire.weights is delta, changes of bf16 weights");
    EXPECT_EQ(resolve({"bf16.enabled=n", "thinwire.delta_bits=4"}), TW_ERR_CONFIG);
    EXPECT_EQ(resolve({"bf16.enabled=n", "thinwire.delta_lossless=y"}), TW_ERR_CONFIG);
    expect_log("products of fp32 weights are fp32");
    EXPECT_EQ(resolve({"bf16.enabled=n", "thinwire.products=bf16"}), TW_ERR_CONFIG);
    expect_log("fp32_allreduce is true, but communication_data_type is bf16");
    EXPECT_EQ(resolve({"fp32_allreduce=y", "communication_data_type=bf16"}), TW_ERR_CONFIG);
    expect_log("thinwire.delta_bits: 'delta3:hadamard' is refused");
    expect_log("quant: codec 'int3");
    EXPECT_EQ(resolve({"thinwire.delta_bits=3"}), TW_ERR_CONFIG);
    expect_log("exclude each other");
    EXPECT_EQ(resolve({"thinwire.delta_bits=4", "thinwire.delta_lossless=y"}), TW_ERR_CONFIG);
    expect_log("hpZ and delta are for zero_optimization.stage 3");
    EXPECT_EQ(resolve({"thinwire.delta_lossless=y", "zero_optimization.stage=2"}), TW_ERR_CONFIG);
    expect_log("thinwire.weights loses something (zero_quantized_weights does), which is for "
               "zero_optimization.stage 3");
    EXPECT_EQ(resolve({"zero_optimization.zero_quantized_weights=y", "zero_optimization.stage=1"}),
              TW_ERR_CONFIG);
    EXPECT_EQ(resolve({"thinwire.lossless_weights=y", "thinwire.delta_lossless=y"}), TW_ERR_CONFIG);
    EXPECT_EQ(resolve({"thinwire.lossless_weights=y", "zero_optimization.zero_quantized_weights=y"}),
              TW_ERR_CONFIG);
    EXPECT_EQ(resolve({"thinwire.lossless_gradients=y", "zero_optimization.zero_quantized_gradients=y"}),
              TW_ERR_CONFIG);
    EXPECT_EQ(resolve({"zero_optimization.zero_quantized_weights=y", "thinwire.delta_lossless=y"}),
              TW_ERR_CONFIG);
    expect_log("offload_param.device is nvme: nvme_path names no folder");
    EXPECT_EQ(resolve({"zero_optimization.offload_param.device=nvme"}), TW_ERR_CONFIG);
    expect_log("offload_param is for zero_optimization.stage 3");
    EXPECT_EQ(resolve({"zero_optimization.offload_param.device=cpu", "zero_optimization.stage=2"}),
              TW_ERR_CONFIG);
    expect_log("quant: block is 100, must be a multiple of 32");
    expect_log("zero_quantized_gradients: 'int4:block=100,hadamard' is refused");
    EXPECT_EQ(resolve({"zero_optimization.zero_quantized_gradients=y", "thinwire.gradient_block=100"}),
              TW_ERR_CONFIG);
    expect_log("zero_quantized_gradients does), which is for zero_optimization.stage 1 to 3");
    EXPECT_EQ(resolve({"zero_optimization.zero_quantized_gradients=y", "zero_optimization.stage=0"}),
              TW_ERR_CONFIG);
}

TEST_F(TrainResolve, ReplicasOnADeviceNeedOneAndAreLossless)
{
    const std::vector<const char *> device = {"thinwire.replicas=device", "thinwire.device=cuda"};
    const auto with = [&](std::vector<const char *> more) {
        more.insert(more.end(), device.begin(), device.end());
        return resolve(more);
    };
    EXPECT_EQ(with({"thinwire.delta_lossless=y"}), TW_OK);
    EXPECT_EQ(with({"zero_optimization.zero_hpz_partition_size=2"}), TW_OK);
    expect_log("thinwire.replicas is device: that is for thinwire.device cuda");
    EXPECT_EQ(resolve({"thinwire.replicas=device", "thinwire.delta_lossless=y"}), TW_ERR_CONFIG);
    expect_log("thinwire.replicas is device, but there are none");
    EXPECT_EQ(with({}), TW_ERR_CONFIG);
    EXPECT_EQ(with({"zero_optimization.stage=1"}), TW_ERR_CONFIG);
    expect_log("changes that are rounded are coded in the host's memory");
    EXPECT_EQ(with({"thinwire.delta_bits=4"}), TW_ERR_CONFIG);
    expect_log("thinwire.replicas is device, but offload_param moves them off it");
    EXPECT_EQ(with({"thinwire.delta_lossless=y", "zero_optimization.offload_param.device=cpu"}),
              TW_ERR_CONFIG);
}

TEST_F(TrainResolve, HpzFollowsFromItsSizeOrADelta)
{
    tw_train_options_t o;
    ASSERT_EQ(resolve({}, 4, 2, &o), TW_OK);
    EXPECT_EQ(o.hpz, TW_TRAIN_HPZ_OFF);
    ASSERT_EQ(resolve({"zero_optimization.zero_hpz_partition_size=2"}, 4, 2, &o), TW_OK);
    EXPECT_EQ(o.hpz, TW_TRAIN_HPZ_ON);
    ASSERT_EQ(resolve({"thinwire.delta_bits=4"}, 3, 3, &o), TW_OK);
    EXPECT_EQ(o.hpz, TW_TRAIN_HPZ_ON);
    ASSERT_EQ(resolve({"thinwire.hpz=on"}, 3, 3, &o), TW_OK);
    EXPECT_EQ(o.hpz, TW_TRAIN_HPZ_ON);
    expect_log("zero_hpz_partition_size is 3, but 4 ranks are on 2 nodes");
    EXPECT_EQ(resolve({"zero_optimization.zero_hpz_partition_size=3"}), TW_ERR_CONFIG);
    expect_log("thinwire.hpz is off");
    EXPECT_EQ(resolve({"thinwire.hpz=off", "thinwire.delta_lossless=y"}), TW_ERR_CONFIG);
}

/* What somebody has set and what changes nothing. */
TEST_F(TrainResolve, KeysWithoutEffectAreNamed)
{
    const struct {
        std::vector<const char *> sets;
        const char *said;
    } cases[] = {
        {{"thinwire.delta_block=64"}, "thinwire.delta_block means nothing here: thinwire.delta_bits is off"},
        {{"thinwire.weights=delta4", "thinwire.delta_block=64"},
         "thinwire.delta_block means nothing here: thinwire.delta_bits is off"},
        {{"thinwire.lag_bound=2", "thinwire.weights=delta"},
         "thinwire.lag_bound means nothing here: it is for thinwire.weights=delta8, delta4 and delta2"},
        {{"thinwire.weights=lossless", "zero_optimization.stage=0"},
         "thinwire.weights means nothing here: it is for zero_optimization.stage 1 to 3"},
        {{"thinwire.delta_bits=8", "thinwire.delta_hadamard=y"},
         "thinwire.delta_hadamard means nothing here"},
        {{"thinwire.delta_bits=8", "thinwire.lag_plain=y"}, "thinwire.lag_plain means nothing here"},
        {{"thinwire.sync_every=2"}, "thinwire.sync_every means nothing here: there is no delta"},
        {{"thinwire.weight_block=64"},
         "thinwire.weight_block means nothing here: zero_quantized_weights is off"},
        {{"thinwire.gradient_bits=8"},
         "thinwire.gradient_bits means nothing here: zero_quantized_gradients is off"},
        {{"thinwire.gradients=lossless", "thinwire.gradient_inner=int8"},
         "thinwire.gradient_inner means nothing here: thinwire.gradients loses nothing"},
        {{"scheduler.type=none", "scheduler.params.warmup_num_steps=7"},
         "scheduler.params.warmup_num_steps means nothing here: scheduler.type is none"},
        {{"scheduler.params.warmup_max_lr=0.1"}, "scheduler.params.warmup_max_lr means nothing here"},
        {{"scheduler.type=WarmupLR", "scheduler.params.cos_min_ratio=0.1",
          "scheduler.params.total_num_steps=9"},
         "scheduler.params.cos_min_ratio means nothing here: WarmupCosineLR has it"},
        {{"zero_optimization.stage=2", "zero_optimization.stage3_max_live_parameters=1"},
         "zero_optimization.stage3_max_live_parameters means nothing here"},
        {{"zero_optimization.allgather_bucket_size=1"},
         "zero_optimization.allgather_bucket_size means nothing"},
        {{"thinwire.check_every=1"}, "thinwire.check_every means nothing here"},
        {{"thinwire.checkpoint_every=1"}, "thinwire.checkpoint_every means nothing here"},
        {{"thinwire.val_data=x", "thinwire.val_share=0.1"}, "thinwire.val_share means nothing here"},
        {{"thinwire.val_sequences=0", "thinwire.val_every=1"}, "thinwire.val_every means nothing here"},
        {{"model.preset=gpt2", "model.n_layer=3"}, "model.n_layer means nothing here: model.preset says it"},
        {{"model.preset=gpt2", "model.family=qwen2"},
         "model.family means nothing here: model.preset says it"},
        {{"model.rope_theta=5e5", "model.head_dim=4"},
         "model.head_dim, model.rope_theta mean nothing here: model.family is gpt2"},
        {{"model.n_params=1e6", "model.n_embd=3"}, "model.n_embd means nothing here: it follows from"},
        {{"zero_optimization.offload_param.nvme_path=/x"}, "offload_param.nvme_path means nothing here"},
        {{"activation_checkpointing.cpu_checkpointing=y", "thinwire.activation_path=/x"},
         "cpu_checkpointing means nothing here"},
        {{"model.init_from=/x", "thinwire.resume=/y"}, "model.init_from means nothing here"},
        {{"zero_optimization.stage=0", "thinwire.lossless_weights=y"},
         "thinwire.lossless_weights means nothing here: it is for zero_optimization.stage 1 to 3"},
        {{"thinwire.device=cuda", "thinwire.products=fp32"},
         "thinwire.products means nothing here: thinwire.device is cuda"},
        {{"thinwire.token_bytes=4"}, "thinwire.token_bytes means nothing here: no .bin file is given"},
        {{"thinwire.data=a.txt", "thinwire.token_bytes=1", "thinwire.tokenizer=/x"},
         "thinwire.token_bytes means nothing here: no .bin file is given"},
        {{"thinwire.data=a.txt,b*.txt:0.5", "thinwire.val_data=bin", "thinwire.token_bytes=4"},
         "thinwire.token_bytes means nothing here: no .bin file is given"},
        {{"thinwire.data=a.txt", "thinwire.chat_end=x", "thinwire.chat_style=chatml"},
         "thinwire.chat_style, thinwire.chat_end mean nothing here: no .jsonl file is given"},
        {{"thinwire.data=a.bin:0.5,b*.bin:1e-1", "thinwire.tokenizer=/x", "thinwire.cache=/y"},
         "thinwire.cache means nothing here: no text is encoded"},
        {{"thinwire.data=a.txt", "thinwire.cache=/y"},
         "thinwire.cache means nothing here: no text is encoded"},
    };
    for (const auto &one : cases) {
        auto config = config_of("{}", one.sets);
        ASSERT_TRUE(config) << one.said;
        ASSERT_EQ(tw_train_config_resolve(config.get(), 4, 2), TW_OK) << one.said;
        expect_log(one.said);
        allow_log("scheduler.params.total_num_steps means nothing here");
        tw_train_config_say(config.get());
    }
}

/* The fixture fails on a warning that is not expected. */
TEST_F(TrainResolve, KeysWithEffectAreNot)
{
    auto quiet =
        config_of(R"({"thinwire": {"delta_bits": 4, "lag_bound": 2, "lag_plain": true, "sync_every": 3},
                               "zero_optimization": {"stage": 3, "zero_quantized_gradients": true},
                               "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": "log"}}})");
    ASSERT_EQ(tw_train_config_resolve(quiet.get(), 4, 2), TW_OK);
    tw_train_config_say(quiet.get());
    for (const std::vector<const char *> &sets : std::vector<std::vector<const char *>>{
             {"zero_optimization.stage=1", "thinwire.lossless_weights=y"},
             {"zero_optimization.stage=0", "thinwire.lossless_weights=n"},
             {"thinwire.device=cuda", "thinwire.products=auto"},
             {"thinwire.data=a.txt,b.bin:2", "thinwire.token_bytes=2"},
             {"thinwire.data=a.txt", "thinwire.token_bytes=1"},
             {"thinwire.data=a.jsonl", "thinwire.tokenizer=/x", "thinwire.chat_style=llama3"},
             {"thinwire.data=a.txt", "thinwire.val_data=c.bin", "thinwire.token_bytes=2"},
             {"thinwire.data=all/*", "thinwire.tokenizer=/x", "thinwire.token_bytes=2", "thinwire.cache=/y"},
             {"thinwire.data=train_*n", "thinwire.token_bytes=2"},
             {"thinwire.cache=/y"},
             {"thinwire.data=a.bin,b.txt", "thinwire.tokenizer=/x", "thinwire.cache=/y"},
             {"thinwire.val_data=x", "thinwire.val_sequences=0"}, /* none of thinwire.data is kept then */
         }) {
        auto config = config_of("{}", sets);
        ASSERT_TRUE(config);
        ASSERT_EQ(tw_train_config_resolve(config.get(), 4, 2), TW_OK);
        tw_train_config_say(config.get());
    }
}

/* All ranks on one node: nothing is packed or rounded. What is the program's own default goes without a
 * word. */
TEST_F(TrainResolve, OneNodeCodesNothing)
{
    const struct {
        std::vector<const char *> sets;
        const char *said;
    } cases[] = {
        {{"?thinwire.weights=lossless", "?thinwire.gradients=lossless"}, nullptr},
        {{"thinwire.weights=lossless", "thinwire.gradients=lossless"},
         "thinwire.weights, thinwire.gradients mean nothing here: all ranks are on one node, nothing crosses "
         "a "
         "network and nothing is packed"},
        {{"thinwire.lossless_weights=y", "thinwire.lossless_gradients=y"},
         "thinwire.lossless_weights, thinwire.lossless_gradients mean nothing here: all ranks are on one "
         "node"},
        {{"zero_optimization.zero_quantized_weights=y", "zero_optimization.zero_quantized_gradients=y"},
         "zero_optimization.zero_quantized_weights, zero_optimization.zero_quantized_gradients mean nothing "
         "here: all ranks are on one node, nothing crosses a network and nothing is quantized"},
    };
    for (const auto &one : cases) {
        auto config = config_of("{}", one.sets);
        ASSERT_TRUE(config);
        ASSERT_EQ(tw_train_config_resolve(config.get(), 4, 1), TW_OK);
        EXPECT_STREQ(options_of(config).weights, "plain");
        EXPECT_STREQ(options_of(config).gradients, "plain");
        EXPECT_EQ(tw_train_codec(&options_of(config).codecs.gradients), nullptr);
        if (one.said) {
            expect_log(one.said);
        }
        tw_train_config_say(config.get());
    }
}
