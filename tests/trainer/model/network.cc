#include "tests/trainer/model/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quant/arithmetic/float.h"
#include "quant/quant.h"

namespace tw
{

Network::Network(const tw_model_config_t &config, size_t batch, size_t seq_len, int n_threads)
{
    EXPECT_EQ(TW_OK, tw_model_create(&config, &model));
    EXPECT_EQ(TW_OK, tw_pool_create(n_threads, &pool_));
    EXPECT_EQ(TW_OK, tw_model_set_pool(model, pool_));
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
    tw_pool_destroy(pool_);
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

void Network::widen()
{
    weights32.resize(n_tensors);
    for (size_t t = 0; t < n_tensors; t++) {
        weights32[t].resize(weights[t].size());
        tw_convert_to_fp32(TW_TYPE_BF16, weights[t].data(), weights32[t].data(), weights[t].size());
    }
}

std::vector<const void *> Network::unit_weights(size_t unit) const
{
    const tw_model_unit_t *of = tw_model_unit_get(model, unit);
    std::vector<const void *> pointers;
    for (size_t t = 0; t < of->n_tensors; t++) {
        const size_t tensor = of->first_tensor + t;
        pointers.push_back(weights32.empty() ? static_cast<const void *>(weights[tensor].data())
                                             : weights32[tensor].data());
    }
    return pointers;
}

std::vector<float *> Network::unit_grads(size_t unit)
{
    const tw_model_unit_t *of = tw_model_unit_get(model, unit);
    std::vector<float *> pointers;
    for (size_t t = 0; t < of->n_tensors; t++) {
        std::vector<float> &one = grads[of->first_tensor + t];
        pointers.push_back(one.empty() ? nullptr : one.data());
    }
    return pointers;
}

std::vector<float> Network::forward(const std::vector<int32_t> &tokens)
{
    std::vector<float> x(sizes_.x_elems), y(sizes_.x_elems);
    auto root = unit_weights(0);
    EXPECT_EQ(TW_OK, tw_model_embed_forward(model, root.data(), tokens.data(), x.data()));
    for (size_t unit = 1; unit < tw_model_n_units(model); unit++) {
        tw_model_block_forward(model, unit, unit_weights(unit).data(), x.data(), y.data(), nullptr);
        x.swap(y);
    }
    return x;
}

std::vector<float> Network::logits(const std::vector<int32_t> &tokens, size_t batch, size_t at)
{
    std::vector<float> x = forward(tokens), logits(batch * tw_model_config_get(model)->vocab_size);
    tw_model_logits(model, unit_weights(0).data(), x.data(), at, logits.data());
    return logits;
}

double Network::evaluate(const std::vector<int32_t> &tokens, const std::vector<int32_t> &targets)
{
    std::vector<float> x = forward(tokens);
    auto root = unit_weights(0);
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

std::vector<int32_t> random_tokens(size_t n, size_t vocab_size, uint32_t seed)
{
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(n);
    for (int32_t &token : tokens) {
        token = static_cast<int32_t>(random() % vocab_size);
    }
    return tokens;
}

double norm(const std::vector<float> &values)
{
    double sum = 0.0;
    for (float value : values) {
        sum += static_cast<double>(value) * value;
    }
    return std::sqrt(sum);
}

void scatter(Network *network)
{
    for (size_t t = 0; t < network->n_tensors; t++) {
        std::mt19937 random(static_cast<uint32_t>(t));
        for (uint16_t &weight : network->weights[t]) {
            float offset = (static_cast<float>(random() % 2001) - 1000.0f) * 1e-4f;
            weight = tw_float_to_bf16(tw_float_from_bf16(weight) + offset);
        }
    }
}

Nudge::Nudge(Network *network, size_t tensor, uint32_t seed) : network_(network), tensor_(tensor)
{
    std::mt19937 random(seed);
    before_ = network->weights[tensor];
    for (uint16_t weight : before_) {
        float step = random() % 2 ? 0.003f : -0.003f;
        up_.push_back(tw_float_to_bf16(tw_float_from_bf16(weight) + step));
        down_.push_back(tw_float_to_bf16(tw_float_from_bf16(weight) - step));
    }
}

double Nudge::measured(const std::vector<int32_t> &tokens, const std::vector<int32_t> &targets)
{
    network_->weights[tensor_] = up_;
    double up = network_->evaluate(tokens, targets);
    network_->weights[tensor_] = down_;
    double down = network_->evaluate(tokens, targets);
    network_->weights[tensor_] = before_;
    return up - down;
}

double Nudge::moved(size_t i) const
{
    return static_cast<double>(tw_float_from_bf16(up_[i])) - tw_float_from_bf16(down_[i]);
}

double Nudge::predicted() const
{
    double sum = 0.0;
    for (size_t i = 0; i < up_.size(); i++) {
        sum += moved(i) * network_->grads[tensor_][i];
    }
    return sum;
}

double Nudge::length() const
{
    double sum = 0.0;
    for (size_t i = 0; i < up_.size(); i++) {
        sum += moved(i) * moved(i);
    }
    return std::sqrt(sum);
}

/* What fp32 logits leave uncertain of the difference of two losses. */
const double rounding = 1e-7;

void expect_gradients_agree_with_differences(Network *network, const std::vector<int32_t> &tokens,
                                             const std::vector<int32_t> &targets)
{
    network->train(tokens, targets);
    for (size_t t = 0; t < network->n_tensors; t++) {
        for (uint32_t seed = 0; seed < 4; seed++) {
            Nudge nudge(network, t, 10 * static_cast<uint32_t>(t) + seed);
            double scale = norm(network->grads[t]) * nudge.length() /
                           std::sqrt(static_cast<double>(network->grads[t].size()));
            EXPECT_NEAR(nudge.predicted(), nudge.measured(tokens, targets), 0.02 * scale + rounding)
                << network->tensors[t].name;
        }
    }
}

/* A factor is off by 2^-9 of itself at most; some 12 products lie between a weight and the loss in each
 * direction. */
void expect_bf16_products_agree(const tw_model_config_t &config, size_t batch, size_t seq_len)
{
    constexpr double bound = 24 * 0x1p-9;
    tw_model_config_t other = config;
    other.products = TW_TYPE_BF16;
    Network fp32(config, batch, seq_len), bf16(other, batch, seq_len);
    fp32.init(1);
    scatter(&fp32);
    bf16.weights = fp32.weights;
    auto tokens = random_tokens(batch * seq_len, config.vocab_size, 1);
    auto targets = random_tokens(batch * seq_len, config.vocab_size, 2);
    double want = fp32.train(tokens, targets), got = bf16.train(tokens, targets);
    EXPECT_NE(want, got);
    EXPECT_NEAR(want, got, bound * want);
    EXPECT_EQ(got, bf16.evaluate(tokens, targets));
    for (size_t t = 0; t < fp32.n_tensors; t++) {
        std::vector<float> off = fp32.grads[t];
        for (size_t i = 0; i < off.size(); i++) {
            off[i] -= bf16.grads[t][i];
        }
        EXPECT_LE(norm(off), bound * norm(fp32.grads[t])) << fp32.tensors[t].name;
    }
}

void expect_fp32_weights_agree(const tw_model_config_t &config, size_t batch, size_t seq_len)
{
    tw_model_config_t other = config;
    other.fp32_weights = 1;
    Network bf16(config, batch, seq_len), fp32(other, batch, seq_len);
    EXPECT_EQ(TW_TYPE_BF16, tw_model_weight_type(bf16.model));
    EXPECT_EQ(TW_TYPE_FP32, tw_model_weight_type(fp32.model));
    bf16.init(1);
    scatter(&bf16);
    fp32.weights = bf16.weights;
    fp32.widen();
    auto tokens = random_tokens(batch * seq_len, config.vocab_size, 1);
    auto targets = random_tokens(batch * seq_len, config.vocab_size, 2);
    double loss = fp32.train(tokens, targets);
    EXPECT_EQ(bf16.train(tokens, targets), loss);
    EXPECT_EQ(bf16.logits(tokens, batch, 1), fp32.logits(tokens, batch, 1));
    for (size_t t = 0; t < bf16.n_tensors; t++) {
        EXPECT_EQ(bf16.grads[t], fp32.grads[t]) << bf16.tensors[t].name;
    }
    for (size_t t = 0; t < bf16.n_tensors; t++) { /* what bf16 has no bits for */
        for (float &weight : fp32.weights32[t]) {
            weight *= 1.0f + 0x1p-12f;
        }
        EXPECT_NE(loss, fp32.evaluate(tokens, targets)) << bf16.tensors[t].name;
        fp32.widen();
    }
    EXPECT_LT(tw_model_sizes_get(fp32.model, batch, seq_len).scratch_bytes,
              tw_model_sizes_get(bf16.model, batch, seq_len).scratch_bytes);
}

void expect_gradients_can_be_left_out(const tw_model_config_t &config, size_t batch, size_t seq_len)
{
    Network all(config, batch, seq_len);
    all.init(1);
    scatter(&all);
    auto tokens = random_tokens(batch * seq_len, config.vocab_size, 1);
    auto targets = random_tokens(batch * seq_len, config.vocab_size, 2);
    double loss = all.train(tokens, targets);
    for (size_t left_out = 0; left_out < all.n_tensors; left_out++) {
        if (all.tensors[left_out].n_dims < 2) {
            continue;
        }
        Network some(config, batch, seq_len);
        some.weights = all.weights;
        some.grads[left_out].clear();
        EXPECT_EQ(loss, some.train(tokens, targets));
        for (size_t t = 0; t < all.n_tensors; t++) {
            if (t != left_out) {
                EXPECT_EQ(all.grads[t], some.grads[t])
                    << all.tensors[t].name << " without " << all.tensors[left_out].name;
            }
        }
    }
}

void expect_logits_give_the_loss(const tw_model_config_t &config)
{
    constexpr size_t batch = 3, length = 5;
    Network network(config, batch, length);
    network.init(1);
    scatter(&network);
    size_t v = config.vocab_size;
    auto tokens = random_tokens(batch * length, v, 1), targets = random_tokens(batch * length, v, 2);
    double sum = 0.0;
    for (size_t at = 0; at < length; at++) {
        std::vector<float> logits = network.logits(tokens, batch, at);
        for (size_t b = 0; b < batch; b++) {
            double total = 0.0;
            for (size_t i = 0; i < v; i++) {
                total += std::exp((double)logits[b * v + i]);
            }
            sum += std::log(total) - logits[b * v + (size_t)targets[b * length + at]];
        }
    }
    EXPECT_NEAR(network.evaluate(tokens, targets), sum / (double)(batch * length), 1e-5);
}

void expect_documents_are_apart(const tw_model_config_t &config, int positions)
{
    constexpr size_t one = 70, two = 81, both = one + two; /* more than a tile each */
    Network packed(config, 2, both), first(config, 2, one), second(config, 2, two);
    packed.init(1);
    scatter(&packed);
    first.weights = second.weights = packed.weights;
    std::vector<int32_t> starts(2 * both), tokens[3], targets[3];
    tokens[0] = random_tokens(2 * both, config.vocab_size, 1);
    targets[0] = random_tokens(2 * both, config.vocab_size, 2);
    for (size_t i = 0; i < 2 * both; i++) {
        int document = i % both < one ? 1 : 2;
        starts[i] = document == 1 ? 0 : one;
        tokens[document].push_back(tokens[0][i]);
        targets[document].push_back(targets[0][i]);
    }
    if (positions >= 0) {
        auto &moved = second.weights[static_cast<size_t>(positions)];
        std::copy(moved.begin() + one * config.n_embd, moved.begin() + both * config.n_embd, moved.begin());
    }
    double apart =
        (first.train(tokens[1], targets[1], one) * one + second.train(tokens[2], targets[2], two) * two) /
        both;
    EXPECT_GT(std::fabs(packed.evaluate(tokens[0], targets[0]) - apart), 1e-6);
    tw_model_set_documents(packed.model, starts.data());
    EXPECT_NEAR(apart, packed.evaluate(tokens[0], targets[0]), 1e-6 * apart);
    EXPECT_NEAR(apart, packed.train(tokens[0], targets[0], both), 1e-6 * apart);
    for (size_t t = 0; t < packed.n_tensors; t++) {
        std::vector<float> difference = packed.grads[t];
        for (size_t i = 0; i < difference.size() && static_cast<int>(t) != positions; i++) {
            difference[i] -= first.grads[t][i] + second.grads[t][i];
        }
        EXPECT_TRUE(static_cast<int>(t) == positions || norm(difference) < 2e-5 * norm(packed.grads[t]))
            << packed.tensors[t].name << " " << norm(difference) / norm(packed.grads[t]);
    }
}

} // namespace tw
