#include "tests/trainer/model/network.h"

#include <gtest/gtest.h>

#include "quant/quant.h"

namespace tw
{

Network::Network(const tw_model_config_t &config, size_t batch, size_t seq_len)
{
    EXPECT_EQ(TW_OK, tw_model_create(&config, &model));
    EXPECT_EQ(TW_OK, tw_model_reserve(model, batch, seq_len));
    tensors = tw_model_tensors(model, &n_tensors);
    sizes_ = tw_model_sizes_get(model, batch, seq_len);
    for (size_t t = 0; t < n_tensors; t++) {
        weights.emplace_back(tensors[t].n_elems);
        grads.emplace_back(tensors[t].n_elems);
    }
}

Network::~Network()
{
    tw_model_destroy(model);
}

void Network::init(uint64_t seed)
{
    for (size_t t = 0; t < n_tensors; t++) {
        std::vector<float> values(tensors[t].n_elems);
        tw_model_init(model, t, 0, values.size(), seed, values.data());
        tw_convert_from_fp32(TW_TYPE_BF16, values.data(), 1.0f, weights[t].data(), values.size());
    }
}

size_t Network::find(const std::string &name) const
{
    for (size_t t = 0; t < n_tensors; t++) {
        if (name == tensors[t].name) {
            return t;
        }
    }
    ADD_FAILURE() << "no tensor " << name;
    return 0;
}

std::vector<const uint16_t *> Network::unit_weights(size_t unit) const
{
    const tw_model_unit_t *of = tw_model_unit_get(model, unit);
    std::vector<const uint16_t *> pointers;
    for (size_t t = 0; t < of->n_tensors; t++) {
        pointers.push_back(weights[of->first_tensor + t].data());
    }
    return pointers;
}

std::vector<float *> Network::unit_grads(size_t unit)
{
    const tw_model_unit_t *of = tw_model_unit_get(model, unit);
    std::vector<float *> pointers;
    for (size_t t = 0; t < of->n_tensors; t++) {
        pointers.push_back(grads[of->first_tensor + t].data());
    }
    return pointers;
}

double Network::evaluate(const std::vector<int32_t> &tokens, const std::vector<int32_t> &targets)
{
    std::vector<float> x(sizes_.x_elems), y(sizes_.x_elems);
    auto root = unit_weights(0);
    EXPECT_EQ(TW_OK, tw_model_embed_forward(model, root.data(), tokens.data(), x.data()));
    for (size_t unit = 1; unit < tw_model_n_units(model); unit++) {
        tw_model_block_forward(model, unit, unit_weights(unit).data(), x.data(), y.data(), nullptr);
        x.swap(y);
    }
    double loss = 0.0;
    EXPECT_EQ(TW_OK,
              tw_model_head(model, root.data(), x.data(), targets.data(), 1.0f, &loss, nullptr, nullptr));
    return loss;
}

double Network::train(const std::vector<int32_t> &tokens, const std::vector<int32_t> &targets, float scale,
                      bool recompute)
{
    size_t n_units = tw_model_n_units(model), n_floats = sizes_.saved_bytes / sizeof(float);
    std::vector<std::vector<float>> x(n_units, std::vector<float>(sizes_.x_elems));
    std::vector<std::vector<float>> saved(n_units, std::vector<float>(n_floats));
    auto root = unit_weights(0);
    EXPECT_EQ(TW_OK, tw_model_embed_forward(model, root.data(), tokens.data(), x[0].data()));
    for (size_t unit = 1; unit < n_units; unit++) {
        tw_model_block_forward(model, unit, unit_weights(unit).data(), x[unit - 1].data(), x[unit].data(),
                               recompute ? nullptr : saved[unit].data());
    }
    double loss = 0.0;
    std::vector<float> &d = x[n_units - 1];
    EXPECT_EQ(TW_OK, tw_model_head(model, root.data(), d.data(), targets.data(), scale, &loss, d.data(),
                                   unit_grads(0).data()));
    std::vector<float> again(sizes_.x_elems);
    for (size_t unit = n_units - 1; unit > 0; unit--) {
        if (recompute) {
            tw_model_block_forward(model, unit, unit_weights(unit).data(), x[unit - 1].data(), again.data(),
                                   saved[unit].data());
        }
        tw_model_block_backward(model, unit, unit_weights(unit).data(), x[unit - 1].data(),
                                saved[unit].data(), d.data(), unit_grads(unit).data());
    }
    tw_model_embed_backward(model, tokens.data(), d.data(), unit_grads(0).data());
    return loss;
}

} // namespace tw
