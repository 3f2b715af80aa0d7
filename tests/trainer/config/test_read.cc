#include <cstdio>
#include <cstdlib>

#include "tests/trainer/config/config.h"

using TrainConfig = tw::Fixture;
using tw::config_of;
using tw::options_of;

TEST_F(TrainConfig, TakesDeepSpeedsKeys)
{
    auto config = config_of(R"({
        "train_batch_size": 32,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": true},
        "optimizer": {"type": "AdamW",
                      "params": {"lr": 3e-4, "betas": [0.8, 0.99], "eps": 1e-6, "weight_decay": 0}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 7, "total_num_steps": 70}},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8,
                              "offload_optimizer": {"device": "cpu"}}})");
    ASSERT_TRUE(config);
    const tw_train_options_t &o = options_of(config);
    EXPECT_EQ(o.batch, 32);
    EXPECT_EQ(o.clip, 0.5);
    EXPECT_EQ(o.lr, 3e-4);
    EXPECT_EQ(o.beta1, 0.8);
    EXPECT_EQ(o.beta2, 0.99);
    EXPECT_EQ(o.weight_decay, 0);
    EXPECT_EQ(o.schedule, TW_TRAIN_WARMUP_DECAY);
    EXPECT_EQ(o.warmup_steps, 7);
    EXPECT_EQ(o.stage, 2);
    EXPECT_EQ(o.reduce_bucket, 500000000);
    EXPECT_EQ(o.offload_optimizer, TW_TRAIN_CPU);
}

TEST_F(TrainConfig, CommandLineIsStrongerThanTheFile)
{
    auto config = config_of(R"({"zero_optimization": {"stage": 1}, "thinwire": {"steps": 5}})",
                            {"zero_optimization.stage=3", "thinwire.delta_bits=2", "thinwire.data=a=b"});
    ASSERT_TRUE(config);
    EXPECT_EQ(options_of(config).stage, 3);
    EXPECT_EQ(options_of(config).steps, 5);
    EXPECT_EQ(options_of(config).older.delta_bits, 2);
    EXPECT_STREQ(options_of(config).data, "a=b");
}

TEST_F(TrainConfig, AnUnknownKeyNamesTheNearest)
{
    expect_log("test.json: unknown key zero_optimization.stag; did you mean zero_optimization.stage?");
    EXPECT_FALSE(config_of(R"({"zero_optimization": {"stag": 3}})"));
    expect_log("--set: unknown key thinwire.delta_bit; did you mean thinwire.delta_bits?");
    EXPECT_FALSE(config_of("{}", {"thinwire.delta_bit=2"}));
    expect_log("unknown key nothing_like_it_at_all_anywhere");
    EXPECT_FALSE(config_of(R"({"nothing_like_it_at_all_anywhere": 1})"));
}

TEST_F(TrainConfig, KnownKeysWithoutMeaningAreAccepted)
{
    expect_log("means nothing here");
    auto config = config_of(R"({"flops_profiler": {"enabled": true, "any": [1, {"thing": null}]},
                              "fp16": {"enabled": false, "loss_scale": 0},
                              "zero_optimization": {"contiguous_gradients": true},
                              "activation_checkpointing": {"partition_activations": true}})");
    ASSERT_TRUE(config);
    EXPECT_EQ(log_count("means nothing here"), 0u) << "not by each rank";
    tw_train_config_say(config.get());
    EXPECT_EQ(log_count("flops_profiler means nothing here"), 1u);
    EXPECT_EQ(
        log_count("partition_activations means nothing here: data parallelism replicates no activations"),
        1u);
    EXPECT_EQ(log_count("fp16.loss_scale means nothing here"), 1u);
}

TEST_F(TrainConfig, WhatHasOneReasonIsSaidInOneLine)
{
    expect_log("nothing here");
    auto config = config_of(R"({"fp16": {"loss_scale": 0, "hysteresis": 2}, "amp": {"enabled": false}})",
                            {"fp16.min_loss_scale=1"});
    ASSERT_TRUE(config);
    tw_train_config_say(config.get());
    EXPECT_EQ(log_count("test.json: fp16.loss_scale, fp16.hysteresis, amp mean nothing here: bf16"), 1u);
    EXPECT_EQ(log_count("--set: fp16.min_loss_scale means nothing here: bf16"), 1u);
}

/* Files as people have them. */
TEST_F(TrainConfig, FormsOfValues)
{
    auto config = config_of("\xef\xbb\xbf{\r\n"
                            R"("bfloat16": {"enabled": true}, "train_batch_size": null,
                               "zero_optimization": {"stage": 3, "reduce_bucket_size": "5e8",
                                                     "offload_param": null,
                                                     "offload_optimizer": {"device": "none",
                                                                           "nvme_path": null},
                                                     "stage3_max_live_parameters": 1.5E+3}})"
                            "\r\n",
                            {"zero_optimization.stage3_prefetch_bucket_size=5e7"});
    ASSERT_TRUE(config);
    EXPECT_EQ(options_of(config).reduce_bucket, 500000000);
    EXPECT_EQ(options_of(config).prefetch_elems, 50000000);
    EXPECT_EQ(options_of(config).max_live_elems, 1500);
    EXPECT_EQ(options_of(config).batch, 0);
    expect_log("unknown key zero_optimization.offload");
    EXPECT_FALSE(config_of(R"({"zero_optimization": {"offload": null}})"));
    for (const char *value : {"0.5", "1e15", "1e300", "-1e2", "0x10", "5e8x", "inf"}) {
        std::string set = std::string("thinwire.steps=") + value;
        expect_log(set + ": expected a whole number");
        expect_log("--set: this value is refused: thinwire.steps");
        EXPECT_FALSE(config_of("{}", {set.c_str()})) << value;
    }
}

/* A job script may export such a name for itself. */
TEST_F(TrainConfig, TheEnvironmentIsNoConfiguration)
{
    set_env("train_batch_size", "64");
    set_env("steps_per_print", "nonsense");
    auto config = config_of("{}");
    ASSERT_TRUE(config);
    EXPECT_EQ(options_of(config).batch, 0);
    EXPECT_EQ(options_of(config).steps_per_print, 10);
}

TEST_F(TrainConfig, AutoIsTheDefault)
{
    auto config = config_of(
        R"({"train_batch_size": "auto", "optimizer": {"params": {"lr": "auto", "betas": "auto"}}})");
    ASSERT_TRUE(config);
    EXPECT_EQ(options_of(config).batch, 0);
    EXPECT_EQ(options_of(config).lr, 6e-4);
    EXPECT_EQ(options_of(config).beta1, 0.9);
    ASSERT_EQ(tw_train_config_resolve(config.get(), 6, 2), TW_OK);
    expect_log("auto comes to");
    tw_train_config_say(config.get());
    EXPECT_EQ(log_count("test.json: auto comes to train_batch_size 6, optimizer.params.lr 6e-4, "
                        "optimizer.params.betas[0] 0.9, optimizer.params.betas[1] 0.95;"),
              1u);
    EXPECT_EQ(options_of(config_of(R"({"train_batch_size": 8})", {"train_batch_size=auto"})).batch, 0);
}

TEST_F(TrainConfig, WrongValuesAreRefused)
{
    expect_log("zero_optimization.stage=4: expected a whole number, from 0 to 3");
    EXPECT_FALSE(config_of(R"({"zero_optimization": {"stage": 4}})"));
    expect_log("scheduler.type=Cosine");
    EXPECT_FALSE(config_of(R"({"scheduler": {"type": "Cosine"}})"));
    expect_log("test.json: this value is refused: scheduler.type");
    expect_log("test.json: this value is refused: zero_optimization.stage");
    expect_log("--set: this value is refused: optimizer.params.lr");
    expect_log("optimizer.params.lr=fast");
    EXPECT_FALSE(config_of("{}", {"optimizer.params.lr=fast"}));
    expect_log("--set nonsense: expected key=value");
    EXPECT_FALSE(config_of("{}", {"nonsense"}));
}

TEST_F(TrainConfig, OtherWaysToSendLessAreRefusedOrNamedWithWhatThereIs)
{
    for (const char *type : {"OneBitAdam", "onebitlamb", "ZeroOneAdam"}) {
        std::string text =
            std::string(R"({"optimizer": {"type": ")") + type + R"(", "params": {"lr": 1e-4}}})";
        expect_log(std::string("optimizer.type=") + type);
        expect_log("this value is refused: optimizer.type: one-bit momenta are another algorithm; AdamW with "
                   "thinwire.gradients=ecdq");
        EXPECT_FALSE(config_of(text)) << type;
    }
    expect_log("communication_data_type=fp16");
    expect_log("this value is refused: communication_data_type: fp16 would need loss scaling");
    EXPECT_FALSE(config_of(R"({"communication_data_type": "fp16"})"));

    auto config = config_of(R"({"zero_optimization": {"zeropp_loco_param": {"err_beta": 0.8, "reset_T": 9},
                                "zero_quantized_gradients": true}})");
    ASSERT_TRUE(config);
    expect_log("zeropp_loco_param means nothing here: what one step rounds away is not kept for the next; "
               "thinwire.gradients=ecdq");
    tw_train_config_say(config.get());
    EXPECT_EQ(log_count("zeropp_loco_param means nothing here"), 1u);

    config = config_of(R"({"zero_optimization": {"zero_quantized_nontrainable_weights": true,
                                                 "mics_shard_size": 8}})");
    ASSERT_TRUE(config);
    expect_log("zero_quantized_nontrainable_weights means nothing here: see thinwire.keep_frozen");
    expect_log("mics_shard_size means nothing here: see thinwire.hpz");
    tw_train_config_say(config.get());
    expect_log("optimizer.type=Lamb: expected one of AdamW, Adam, Muon");
    expect_log("this value is refused: optimizer.type");
    EXPECT_FALSE(config_of(R"({"optimizer": {"type": "Lamb"}})"));
}

TEST_F(TrainConfig, MalformedFilesAreRefusedWithTheirPlace)
{
    expect_log("test.json:1:");
    EXPECT_FALSE(config_of("{"));
    EXPECT_FALSE(config_of("{\"a\": 1, \"a\": 2}"));
    EXPECT_FALSE(config_of(std::string("{\"steps_per_print\": \0}", 22)));
    expect_log("test.json: expected an object");
    EXPECT_FALSE(config_of("[1]"));
    std::string deep = "{\"" + std::string(300, 'x') + "\": 1}";
    expect_log("longer than 255 bytes");
    EXPECT_FALSE(config_of(deep));
    expect_log("/nowhere/at/all.json");
    tw_train_config_t *config;
    EXPECT_EQ(tw_train_config_create("/nowhere/at/all.json", nullptr, 0, &config), TW_ERR_NOT_FOUND);
}

TEST_F(TrainConfig, KeysAndValuesFromBeforeAreTaken)
{
    auto file = config_of(R"({"thinwire": {"delta_lossless": true, "gradient_inner": "exact"}})");
    ASSERT_TRUE(file);
    EXPECT_EQ(tw_train_config_options(file.get())->older.delta_lossless, 1);
    EXPECT_EQ(tw_train_config_options(file.get())->gradient_inner, 0);
    auto line = config_of("{}", {"thinwire.delta_lossless=y", "thinwire.gradient_inner=exact"});
    ASSERT_TRUE(line);
    EXPECT_EQ(tw_train_config_options(line.get())->older.delta_lossless, 1);
    expect_log("did you mean thinwire.delta_lossless?");
    EXPECT_FALSE(config_of("{}", {"thinwire.delta_lossles=y"}));
}

TEST_F(TrainConfig, PrintsWhereValuesComeFrom)
{
    auto config = config_of(R"({"zero_optimization": {"stage": 1}, "gradient_clipping": "auto"})",
                            {"thinwire.steps=9"});
    ASSERT_TRUE(config);
    ASSERT_EQ(tw_train_config_resolve(config.get(), 4, 2), TW_OK);
    char *text = nullptr;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    tw_train_config_print(config.get(), out);
    fclose(out);
    std::string printed(text, bytes);
    free(text);
    auto line = [&](const std::string &key) {
        size_t at = printed.find(key);
        EXPECT_NE(at, std::string::npos) << key;
        return printed.substr(at, printed.find('\n', at) - at);
    };
    EXPECT_NE(line("zero_optimization.stage ").find("file"), std::string::npos);
    EXPECT_NE(line("thinwire.steps ").find("command line"), std::string::npos);
    EXPECT_NE(line("gradient_clipping ").find("auto"), std::string::npos);
    EXPECT_NE(line("train_batch_size ").find("follows"), std::string::npos);
    EXPECT_NE(line("thinwire.seed ").find("default"), std::string::npos);
}
