/* Models on an emulated device beside those on the CPU: the same loss and gradients but for bf16's rounding,
 * whatever order streams run in. */
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/trainer/device/emulated.h"
#include "tests/trainer/device/on_device.h"
#include "tests/trainer/device/optimizer_check.h"

namespace
{

using Floats = std::vector<float>;
using tw::distance;
using tw::tiny_gpt2;

constexpr double bf16_unit = 0x1p-8;
constexpr size_t batch = 2, length = 11, n_words = tw::tiny_words;

/* Made before what uses it. */
struct Emulated {
    tw::EmulatedDevice device;
    explicit Emulated(uint32_t seed) : device(seed)
    {
    }
};

class OnDevice : public Emulated, public tw::OnDevice
{
  public:
    OnDevice(const tw_model_config_t &config, tw::Network *host, uint32_t seed, size_t logits_elems = 0)
        : Emulated(seed), tw::OnDevice(config, host, device.table(), batch, length, logits_elems)
    {
    }
};

class DeviceModel : public tw::Fixture
{
  protected:
    const std::vector<int32_t> tokens = tw::random_tokens(batch * length, n_words, 1);
    const std::vector<int32_t> targets = tw::random_tokens(batch * length, n_words, 2);
};

/* A block's output is a sum of x and two products whose factors are off by half a unit each, as is what lies
 * between them. */
TEST_F(DeviceModel, BlocksBesideTheCpu)
{
    for (const tw::TinyModel &one : tw::tiny_models()) {
        SCOPED_TRACE(one.name);
        tw::Network host(one.config, batch, length);
        tw::prepare(&host);
        OnDevice on(one.config, &host, 5);
        ASSERT_EQ(on.forward(tokens, true), TW_OK);
        const size_t n = batch * length * one.config.n_embd;
        Floats y(n);
        for (size_t unit = 1; unit < on.x.size(); unit++) {
            const Floats x = on.output(unit - 1, n), got = on.output(unit, n);
            tw_model_block_forward(host.model, unit, on.unit_weights(unit).data(), x.data(), y.data(),
                                   nullptr);
            EXPECT_LE(distance(got, y), tw::unit_of(one.config) * tw::norm(y)) << "block " << unit;
            EXPECT_GT(distance(got, x), 0.05 * tw::norm(x)) << "block " << unit;
        }
    }
}

/* Some 12 products and as many roundings lie between a weight and the loss in each direction. */
TEST_F(DeviceModel, LossAndGradientsBesideTheCpu)
{
    for (const tw::TinyModel &one : tw::tiny_models()) {
        SCOPED_TRACE(one.name);
        tw::Network host(one.config, batch, length);
        tw::prepare(&host);
        OnDevice on(one.config, &host, 5);
        const double wanted = host.train(tokens, targets, 0.5f);
        EXPECT_NEAR(on.train(tokens, targets, false), wanted, 4 * tw::unit_of(one.config) * wanted);
        for (size_t t = 0; t < host.n_tensors; t++) {
            EXPECT_LE(distance(on.grads[t], host.grads[t]),
                      12 * tw::unit_of(one.config) * tw::norm(host.grads[t]))
                << host.tensors[t].name;
        }
    }
}

/* Another order of streams, blocks computed again, chunks of logits: the same bits but for the last, whose
 * sums are made in another order. A second micro-batch is added to the first. */
TEST_F(DeviceModel, SameBitsInAnyOrder)
{
    for (const tw::TinyModel &one : tw::tiny_models()) {
        SCOPED_TRACE(one.name);
        tw::Network host(one.config, batch, length);
        tw::prepare(&host);
        OnDevice first(one.config, &host, 1);
        const double loss = first.train(tokens, targets, false);
        for (uint32_t seed = 2; seed < 4; seed++) {
            OnDevice other(one.config, &host, seed);
            EXPECT_EQ(other.train(tokens, targets, seed % 2), loss);
            EXPECT_EQ(other.grads, first.grads) << "order " << seed;
            std::vector<double> losses(batch);
            ASSERT_EQ(other.forward(tokens, false), TW_OK);
            ASSERT_EQ(tw_model_losses(other.model, other.unit_weights(0).data(), other.x.back(),
                                      targets.data(), losses.data()),
                      TW_OK);
            EXPECT_DOUBLE_EQ((losses[0] + losses[1]) / batch, loss);
            other.train(tokens, targets, false);
            for (size_t t = 0; t < host.n_tensors; t++) {
                for (size_t i = 0; i < other.grads[t].size(); i++) {
                    ASSERT_EQ(other.grads[t][i], 2 * first.grads[t][i]) << host.tensors[t].name;
                }
            }
        }
        OnDevice pieces(one.config, &host, 1, 16 * n_words);
        EXPECT_EQ(pieces.train(tokens, targets, false), loss);
        for (size_t t = 0; t < host.n_tensors; t++) {
            EXPECT_LE(distance(pieces.grads[t], first.grads[t]), 1e-5 * tw::norm(first.grads[t]));
        }
    }
}

/* As bf16, rounded once, in place of what was there. */
TEST_F(DeviceModel, GradientsComeRounded)
{
    for (const tw::TinyModel &one : tw::tiny_models()) {
        SCOPED_TRACE(one.name);
        tw::Network host(one.config, batch, length);
        tw::prepare(&host);
        OnDevice plain(one.config, &host, 1), rounded(one.config, &host, 2);
        const double loss = plain.train(tokens, targets, false);
        ASSERT_EQ(tw_model_round_gradients(rounded.model, 1), 1);
        ASSERT_EQ(tw_model_reserve(rounded.model, batch, length), TW_OK);
        for (int again = 0; again < 2; again++) {
            EXPECT_EQ(rounded.train(tokens, targets, false), loss);
            for (size_t t = 0; t < host.n_tensors; t++) {
                std::vector<uint16_t> wanted(plain.grads[t].size()), got = wanted;
                tw_convert_from_fp32(TW_TYPE_BF16, plain.grads[t].data(), 1.0f, wanted.data(), wanted.size());
                memcpy(got.data(), rounded.grads[t].data(), got.size() * sizeof(got[0]));
                EXPECT_EQ(got, wanted) << host.tensors[t].name;
            }
        }
        const tw_model_sizes_t sizes = tw_model_sizes_get(rounded.model, batch, length);
        EXPECT_EQ(rounded.device.pinned_bytes, sizes.host_bytes);
        EXPECT_EQ(rounded.device.allocated_bytes - plain.device.allocated_bytes,
                  sizes.scratch_bytes - plain.sizes.scratch_bytes);
    }
}

/* Frozen matrices: no products for their gradients, which do not leave the device; the others' bits stay. */
TEST_F(DeviceModel, UnwantedGradientsAreNotComputed)
{
    for (const tw::TinyModel &one : tw::tiny_models()) {
        SCOPED_TRACE(one.name);
        tw::Network host(one.config, batch, length);
        tw::prepare(&host);
        OnDevice all(one.config, &host, 1), some(one.config, &host, 2);
        size_t n_products = 0, n_rounded = 0;
        for (size_t t = 0; t < host.n_tensors; t++) {
            const bool is_embedding = strstr(host.tensors[t].name, "wte") != nullptr ||
                                      strstr(host.tensors[t].name, "embed_tokens") != nullptr;
            if (host.tensors[t].n_dims == 2 && (host.tensors[t].unit == 2 || is_embedding)) {
                some.unwanted.insert(t);
                n_products += !is_embedding || !one.config.llama.has_head;
                n_rounded += (host.tensors[t].n_elems + TW_DEVICE_ALIGN_ELEMS - 1) / TW_DEVICE_ALIGN_ELEMS *
                             TW_DEVICE_ALIGN_ELEMS;
            }
        }
        const double loss = all.train(tokens, targets, false);
        EXPECT_EQ(some.train(tokens, targets, false), loss);
        for (size_t t = 0; t < host.n_tensors; t++) {
            const bool is_wanted = some.unwanted.count(t) == 0;
            EXPECT_EQ(some.grads[t], is_wanted ? all.grads[t] : Floats(all.grads[t].size()))
                << host.tensors[t].name;
        }
        EXPECT_EQ(size_t(all.device.n_products - some.device.n_products), n_products);
        EXPECT_EQ(all.device.bytes_out - some.device.bytes_out, n_rounded * sizeof(float));
    }
}

/* What tokens see ends where their document begins. */
TEST_F(DeviceModel, DocumentsAndLogits)
{
    std::vector<int32_t> starts(batch * length, 0);
    for (size_t i = 0; i < starts.size(); i++) {
        starts[i] = i % length >= 5 ? 5 : 0;
    }
    for (const tw::TinyModel &one : tw::tiny_models()) {
        SCOPED_TRACE(one.name);
        tw::Network host(one.config, batch, length);
        tw::prepare(&host);
        OnDevice on(one.config, &host, 5);
        const double without = on.train(tokens, targets, false);
        for (Floats &grads : on.grads) {
            std::fill(grads.begin(), grads.end(), 0.0f);
        }
        tw_model_set_documents(host.model, starts.data());
        tw_model_set_documents(on.model, starts.data());
        const double wanted = host.train(tokens, targets, 0.5f), got = on.train(tokens, targets, false);
        EXPECT_NE(got, without);
        EXPECT_NEAR(got, wanted, 4 * tw::unit_of(one.config) * wanted);
        for (size_t t = 0; t < host.n_tensors; t++) {
            EXPECT_LE(distance(on.grads[t], host.grads[t]),
                      12 * tw::unit_of(one.config) * tw::norm(host.grads[t]))
                << host.tensors[t].name;
        }

        const size_t n = batch * length * one.config.n_embd;
        Floats logits(batch * n_words), of_host = logits;
        ASSERT_EQ(on.forward(tokens, false), TW_OK);
        const Floats top = on.output(on.x.size() - 1, n);
        tw_model_logits(on.model, on.unit_weights(0).data(), on.x.back(), 7, logits.data());
        tw_model_logits(host.model, on.unit_weights(0).data(), top.data(), 7, of_host.data());
        EXPECT_LE(distance(logits, of_host), 2 * tw::unit_of(one.config) * tw::norm(of_host));
        tw_model_set_documents(host.model, nullptr);
    }
}

/* As on the CPU, but for bf16's rounding in each of 15 products. */
TEST_F(DeviceModel, MatricesBecomeOrthogonal)
{
    const tw_model_config_t config = tiny_gpt2();
    tw::EmulatedDevice device(3);
    tw::Network host(config, batch, length);
    tw_model_t *model = nullptr;
    ASSERT_EQ(tw_device_model_create(&config, device.table(), &model), TW_OK);
    const size_t shapes[][2] = {{4, 40}, {40, 4}, {30, 31}, {1, 7}};
    for (const auto &shape : shapes) {
        const size_t rows = shape[0], cols = shape[1];
        const tw_model_orthogonal_t takes = tw_model_orthogonal_of(model, rows, cols);
        const size_t on_host = tw_model_orthogonal_of(host.model, rows, cols).scratch_elems;
        Floats x(rows * cols), wanted, scratch(std::max(takes.scratch_elems, on_host));
        std::mt19937 random(1);
        for (float &value : x) {
            value = (float)(random() % 2001) - 1000;
        }
        wanted = x;
        void *near = tw_model_alloc(model, takes.near_bytes);
        ASSERT_EQ(tw_model_orthogonalize(host.model, rows, cols, wanted.data(), scratch.data(), nullptr),
                  TW_OK);
        ASSERT_EQ(tw_model_orthogonalize(model, rows, cols, x.data(), scratch.data(), near), TW_OK);
        EXPECT_LE(distance(x, wanted), 15 * bf16_unit * tw::norm(wanted)) << rows << " x " << cols;
        std::fill(x.begin(), x.end(), 0.0f);
        ASSERT_EQ(tw_model_orthogonalize(model, rows, cols, x.data(), scratch.data(), near), TW_OK);
        EXPECT_EQ(x, Floats(x.size()));
        tw_model_free(model, near);
    }
    device.copies_left = 1;
    Floats x(4, 1.0f), scratch(4);
    void *near = tw_model_alloc(model, tw_model_orthogonal_of(model, 2, 2).near_bytes);
    expect_log("emulated: a copy failed");
    EXPECT_EQ(tw_model_orthogonalize(model, 2, 2, x.data(), scratch.data(), near), TW_ERR_CUDA);
    device.copies_left = -1;
    tw_model_free(model, near);
    tw_model_destroy(model);
}

/* In any order of streams. */
TEST_F(DeviceModel, OptimizerBesideTheHosts)
{
    for (uint32_t seed = 1; seed < 5; seed++) {
        for (tw_type_t grad_type : {TW_TYPE_BF16, TW_TYPE_FP32}) {
            tw::EmulatedDevice device(seed);
            tw::check_optimizer(device.table(), grad_type);
        }
    }
}

/* What the model says it needs is what it takes. */
TEST_F(DeviceModel, MemoryIsCounted)
{
    for (const tw::TinyModel &one : tw::tiny_models()) {
        SCOPED_TRACE(one.name);
        tw::Network host(one.config, batch, length);
        OnDevice on(one.config, &host, 1);
        const size_t n_blocks = on.x.size() - 1;
        EXPECT_EQ(on.device.allocated_bytes, on.sizes.scratch_bytes + n_blocks * on.sizes.saved_bytes +
                                                 on.x.size() * on.sizes.x_elems * sizeof(float));
        EXPECT_EQ(on.device.pinned_bytes, on.sizes.host_bytes);
        ASSERT_EQ(tw_model_reserve(on.model, batch, length), TW_OK);
        EXPECT_EQ(on.device.pinned_bytes, on.sizes.host_bytes);
    }
}

/* An error stays: nothing is computed after it, and who asks hears of it. */
TEST_F(DeviceModel, ErrorsStay)
{
    for (int copies : {0, 7, 30}) {
        tw::Network host(tiny_gpt2(), batch, length);
        OnDevice on(tiny_gpt2(), &host, 1);
        double loss;
        on.device.copies_left = copies;
        expect_log("emulated: a copy failed");
        (void)on.forward(tokens, true);
        (void)tw_model_head(on.model, on.unit_weights(0).data(), on.x.back(), targets.data(), 1.0f, &loss,
                            on.x.back(), on.unit_grads(0).data());
        on.device.copies_left = -1;
        const int n_kernels = on.device.n_kernels;
        EXPECT_EQ(tw_model_embed_forward(on.model, on.unit_weights(0).data(), tokens.data(), on.x[0]),
                  TW_ERR_CUDA);
        EXPECT_EQ(tw_model_finish(on.model), TW_ERR_CUDA);
        EXPECT_EQ(on.device.n_kernels, n_kernels);
    }
}

/* A launch that fails says so; who waits for it later, and what is freed then, does not say it again. */
TEST_F(DeviceModel, ALaunchThatFailsIsLoggedOnce)
{
    for (int launches : {0, 5, 12}) {
        tw::Network host(tiny_gpt2(), batch, length);
        OnDevice on(tiny_gpt2(), &host, 1);
        on.device.launches_left = launches;
        expect_log("emulated: a launch failed");
        (void)on.forward(tokens, true);
        EXPECT_EQ(tw_model_finish(on.model), TW_ERR_CUDA);
    }
}

TEST_F(DeviceModel, NoMemory)
{
    tw_model_t *model;
    tw_model_config_t config = tiny_gpt2();
    tw::EmulatedDevice device(1);
    ASSERT_EQ(tw_device_model_create(&config, device.table(), &model), TW_OK);
    for (size_t share : {0, 1, 2}) {
        device.room_bytes = tw_model_sizes_get(model, batch, length).scratch_bytes * share / 3;
        expect_log("emulated: out of memory");
        EXPECT_EQ(tw_model_reserve(model, batch, length), TW_ERR_NO_MEMORY);
    }
    tw_model_destroy(model);
}

TEST_F(DeviceModel, WideHeadsAreRefused)
{
    tw_model_t *model;
    tw_model_config_t config = tw::tiny_llama(TW_MODEL_LLAMA);
    tw::EmulatedDevice device(1);
    config.llama.head_dim = 258;
    expect_log("heads of 258 channels; on a device they have 256 at most");
    EXPECT_EQ(tw_device_model_create(&config, device.table(), &model), TW_ERR_INVALID);
}

TEST_F(DeviceModel, TokensAreChecked)
{
    tw::Network host(tiny_gpt2(), batch, length);
    OnDevice on(tiny_gpt2(), &host, 1);
    std::vector<int32_t> wrong = tokens;
    wrong[3] = n_words;
    expect_log("token 3 of sequence 0 is 23");
    EXPECT_EQ(on.forward(wrong, true), TW_ERR_INVALID);
    EXPECT_EQ(tw_model_finish(on.model), TW_OK);
}

} // namespace
