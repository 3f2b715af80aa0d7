/** Tiny models of each family, and one of them on a device with weights and gradients in host memory, for
 *  tests. */
#ifndef TW_TESTS_TRAINER_DEVICE_ON_DEVICE_H
#define TW_TESTS_TRAINER_DEVICE_ON_DEVICE_H

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "quant/quant.h"
#include "tests/trainer/model/network.h"
#include "trainer/device/device.h"
#include "trainer/device/state.h"

namespace tw
{

constexpr size_t tiny_words = 23;

inline tw_model_config_t tiny_gpt2()
{
    tw_model_config_t config = {};
    config.vocab_size = tiny_words;
    config.n_positions = 16;
    config.n_layer = 3; /* the first and the third share a place for weights */
    config.n_head = 3;
    config.n_embd = 12;
    config.layer_norm_epsilon = 1e-5;
    return config;
}

inline tw_model_config_t tiny_llama(tw_model_family_t family)
{
    tw_model_config_t config = tiny_gpt2();
    config.family = family;
    config.n_head = 4;
    config.n_embd = 24;
    config.llama.n_kv_head = 2;
    config.llama.head_dim = 8;
    config.llama.n_inner = 20;
    config.llama.rope.theta = 100;
    config.llama.has_head = family != TW_MODEL_QWEN3;
    if (family == TW_MODEL_QWEN2) {
        config.llama.window = 4;
        config.llama.window_from_layer = 1;
    }
    return config;
}

struct TinyModel {
    const char *name;
    tw_model_config_t config;
};

inline tw_model_config_t in_fp32(tw_model_config_t config)
{
    config.fp32_weights = 1;
    config.products = TW_TYPE_FP32;
    return config;
}

inline std::vector<TinyModel> tiny_models()
{
    return {{"gpt2", tiny_gpt2()},
            {"llama", tiny_llama(TW_MODEL_LLAMA)},
            {"qwen2", tiny_llama(TW_MODEL_QWEN2)},
            {"qwen3", tiny_llama(TW_MODEL_QWEN3)},
            {"gpt2 in fp32", in_fp32(tiny_gpt2())},
            {"qwen3 in fp32", in_fp32(tiny_llama(TW_MODEL_QWEN3))}};
}

/** Half a unit of what a product's factors are rounded to; in fp32 sums in another order are off by some. */
inline double unit_of(const tw_model_config_t &config)
{
    return config.fp32_weights ? 0x1p-21 : 0x1p-8;
}

/** Weights away from the start; those of fp32 are none of bf16. */
inline void prepare(Network *host)
{
    host->init(1);
    scatter(host);
    if (tw_model_config_get(host->model)->fp32_weights) {
        host->widen();
        for (auto &weights : host->weights32) {
            for (float &weight : weights) {
                weight *= 1.0f + 0x1p-11f;
            }
        }
    }
}

/** Weights and gradients of a host's network, computed with on a device, which is borrowed. */
class OnDevice
{
  public:
    OnDevice(const tw_model_config_t &config, Network *host, tw_device_t *device, size_t batch, size_t length,
             size_t logits_elems = 0)
        : host_(host)
    {
        EXPECT_EQ(tw_device_model_create(&config, device, &model), TW_OK);
        if (logits_elems > 0) {
            reinterpret_cast<tw_device_model_t *>(model)->logits_elems = logits_elems;
        }
        sizes = tw_model_sizes_get(model, batch, length);
        EXPECT_EQ(tw_model_reserve(model, batch, length), TW_OK);
        for (size_t t = 0; t < host->n_tensors; t++) {
            grads.emplace_back(host->tensors[t].n_elems);
        }
        for (size_t unit = 0; unit < tw_model_n_units(model); unit++) {
            x.push_back(static_cast<float *>(tw_model_alloc(model, sizes.x_elems * sizeof(float))));
            saved.push_back(unit ? tw_model_alloc(model, sizes.saved_bytes) : nullptr);
        }
    }
    OnDevice(const OnDevice &) = delete;
    OnDevice &operator=(const OnDevice &) = delete;
    ~OnDevice()
    {
        for (void *memory : x) {
            tw_model_free(model, memory);
        }
        for (void *memory : saved) {
            tw_model_free(model, memory);
        }
        tw_model_destroy(model);
    }

    /** Once a call is over, its weights may go: here they become nonsense. */
    std::vector<const void *> unit_weights(size_t unit)
    {
        const tw_model_unit_t *of = tw_model_unit_get(model, unit);
        std::vector<const void *> pointers;
        lent_.clear();
        for (size_t t = of->first_tensor; t < of->first_tensor + of->n_tensors; t++) {
            if (host_->weights32.empty()) {
                lend(host_->weights[t]);
            } else {
                lend(host_->weights32[t]);
            }
        }
        for (auto &weights : lent_) {
            pointers.push_back(weights.data());
        }
        return pointers;
    }
    void take_back()
    {
        for (auto &weights : lent_) {
            memset(weights.data(), 0xff, weights.size());
        }
    }
    std::vector<float *> unit_grads(size_t unit)
    {
        const tw_model_unit_t *of = tw_model_unit_get(model, unit);
        std::vector<float *> pointers;
        for (size_t t = of->first_tensor; t < of->first_tensor + of->n_tensors; t++) {
            pointers.push_back(unwanted.count(t) > 0 ? nullptr : grads[t].data());
        }
        return pointers;
    }

    tw_status_t forward(const std::vector<int32_t> &tokens, bool keeps)
    {
        tw_status_t status = tw_model_embed_forward(model, unit_weights(0).data(), tokens.data(), x[0]);
        take_back();
        for (size_t unit = 1; unit < x.size(); unit++) {
            tw_model_block_forward(model, unit, unit_weights(unit).data(), x[unit - 1], x[unit],
                                   keeps ? saved[unit] : nullptr);
            take_back();
        }
        return status;
    }

    double train(const std::vector<int32_t> &tokens, const std::vector<int32_t> &targets, bool recompute)
    {
        double loss = 0;
        float *d = x.back();
        EXPECT_EQ(forward(tokens, !recompute), TW_OK);
        EXPECT_EQ(tw_model_head(model, unit_weights(0).data(), d, targets.data(), 0.5f, &loss, d,
                                unit_grads(0).data()),
                  TW_OK);
        take_back();
        for (size_t unit = x.size() - 1; unit > 0; unit--) {
            auto weights = unit_weights(unit);
            if (recompute) {
                auto *again = static_cast<float *>(tw_model_alloc(model, sizes.x_elems * sizeof(float)));
                tw_model_block_forward(model, unit, weights.data(), x[unit - 1], again, saved[unit]);
                tw_model_free(model, again);
            }
            tw_model_block_backward(model, unit, weights.data(), x[unit - 1], saved[unit], d,
                                    unit_grads(unit).data());
            take_back();
        }
        tw_model_embed_backward(model, tokens.data(), d, unit_grads(0).data());
        EXPECT_EQ(tw_model_finish(model), TW_OK);
        return loss;
    }

    /** The first n values of a unit's output. */
    std::vector<float> output(size_t unit, size_t n)
    {
        const tw_type_t type = tw_model_weight_type(model);
        std::vector<float> of_device(n), wide(n);
        EXPECT_EQ(tw_model_copy(model, of_device.data(), x[unit], n * tw_type_bytes(type)), TW_OK);
        tw_convert_to_fp32(type, of_device.data(), wide.data(), n);
        return wide;
    }

    tw_model_t *model = nullptr;
    tw_model_sizes_t sizes;
    std::vector<std::vector<float>> grads;
    std::set<size_t> unwanted; /**< tensors whose gradients are */
    std::vector<float *> x;
    std::vector<void *> saved;

  private:
    template <class T>
    void lend(const std::vector<T> &weights)
    {
        const auto *bytes = reinterpret_cast<const uint8_t *>(weights.data());
        lent_.emplace_back(bytes, bytes + weights.size() * sizeof(T));
    }

    Network *host_;
    std::vector<std::vector<uint8_t>> lent_;
};

/** The 2-norm of a - b. */
inline double distance(std::vector<float> a, const std::vector<float> &b)
{
    for (size_t i = 0; i < a.size(); i++) {
        a[i] -= b[i];
    }
    return norm(a);
}

} // namespace tw

#endif
