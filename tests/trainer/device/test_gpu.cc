/* Models on a GPU beside those on the CPU: the same loss and gradients but for bf16's rounding, and the same
 * bits again. */
/* Before CUDA's headers, which call something half. */
#include "tests/trainer/device/optimizer_check.h"

#include "tests/common/fixture.h"
#include "tests/trainer/device/cublas.h"
#include "tests/trainer/device/on_device.h"
#include "tests/trainer/device/training.h"
#include "tests/trainer/engine/ranks.h"
#include "trainer/device/gpu.h"

namespace
{

class CudaModel : public tw::CublasFixture
{
  protected:
    void SetUp() override
    {
        tw::CublasFixture::SetUp();
        if (!IsSkipped()) {
            ASSERT_EQ(tw_device_gpu_open(0, 0, &device), TW_OK);
        }
    }
    void TearDown() override
    {
        if (device) {
            device->destroy(device);
        }
        tw::CublasFixture::TearDown();
    }

    /* Some 12 products and as many roundings lie between a weight and the loss in each direction. */
    void check(const tw_model_config_t &config, size_t batch, size_t length)
    {
        const auto tokens = tw::random_tokens(batch * length, config.vocab_size, 1);
        const auto targets = tw::random_tokens(batch * length, config.vocab_size, 2);
        tw::Network host(config, batch, length);
        tw::prepare(&host);
        const double unit = tw::unit_of(config);
        const double wanted = host.train(tokens, targets, 0.5f);
        tw::OnDevice first(config, &host, device, batch, length);
        const double loss = first.train(tokens, targets, false);
        EXPECT_NEAR(loss, wanted, 4 * unit * wanted);
        for (size_t t = 0; t < host.n_tensors; t++) {
            EXPECT_LE(tw::distance(first.grads[t], host.grads[t]), 12 * unit * tw::norm(host.grads[t]))
                << host.tensors[t].name;
        }
        for (bool recompute : {false, true}) {
            tw::OnDevice again(config, &host, device, batch, length);
            EXPECT_EQ(again.train(tokens, targets, recompute), loss);
            EXPECT_EQ(again.grads, first.grads) << (recompute ? "recomputed" : "again");
        }
    }

    tw_device_t *device = nullptr;
};

/* Odd numbers of words and channels, which cuBLASLt likes least. */
TEST_F(CudaModel, TinyModelsBesideTheCpu)
{
    for (const tw::TinyModel &one : tw::tiny_models()) {
        SCOPED_TRACE(one.name);
        check(one.config, 2, 11);
    }
}

/* Several tiles of attention, and copies that take their time. */
TEST_F(CudaModel, LargerModelsBesideTheCpu)
{
    tw_model_config_t config = tw::tiny_gpt2();
    config.vocab_size = 1031;
    config.n_positions = 200;
    config.n_head = 6;
    config.n_embd = 384;
    check(config, 3, 150);
    check(tw::in_fp32(config), 3, 150); /* as TF32, products would be off by far more */
    config = tw::tiny_llama(TW_MODEL_QWEN3);
    config.vocab_size = 1031;
    config.n_positions = 200;
    config.n_embd = 256;
    config.llama.head_dim = 128;
    config.llama.n_inner = 704;
    check(config, 3, 150);
}

TEST_F(CudaModel, OptimizerBesideTheHosts)
{
    for (tw_type_t grad_type : {TW_TYPE_BF16, TW_TYPE_FP32}) {
        tw::check_optimizer(device, grad_type);
    }
}

TEST_F(CudaModel, TrainingBesideTheCpu)
{
    tw::run_ranks({0}, [&](int, tw_coll_t *coll) { tw::check_training(coll, device); });
}

} // namespace
