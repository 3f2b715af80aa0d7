/** A model with weights and gradients of its own, for tests. */
#ifndef TW_TESTS_TRAINER_MODEL_NETWORK_H
#define TW_TESTS_TRAINER_MODEL_NETWORK_H

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/model/model.h"

namespace tw
{

/** One micro-batch of a model through all its units, forwards and backwards. */
class Network
{
  public:
    Network(const tw_model_config_t &config, size_t batch, size_t seq_len, int n_threads = 1);
    ~Network();
    Network(const Network &) = delete;
    Network &operator=(const Network &) = delete;

    /** Initial values, rounded to bf16. */
    void init(uint64_t seed);
    /** The mean loss; nothing is kept. */
    double evaluate(const std::vector<int32_t> &tokens, const std::vector<int32_t> &targets);
    /** Logits after token `at` of each sequence. */
    std::vector<float> logits(const std::vector<int32_t> &tokens, size_t batch, size_t at);
    /** The mean loss; gradients of scale times it are added to `grads`. recompute: blocks keep nothing, and
     *  run again. */
    double train(const std::vector<int32_t> &tokens, const std::vector<int32_t> &targets, float scale = 1.0f,
                 bool recompute = false);
    size_t find(const std::string &name) const;
    /** Set weights32 to the values of weights. */
    void widen();

    tw_model_t *model = nullptr;
    const tw_model_tensor_t *tensors = nullptr;
    size_t n_tensors = 0;
    std::vector<std::vector<uint16_t>> weights; /**< by tensor */
    std::vector<std::vector<float>> weights32;  /**< likewise, where the model's are fp32; see widen */
    std::vector<std::vector<float>> grads;      /**< an empty one is not wanted */

  private:
    std::vector<float> forward(const std::vector<int32_t> &tokens);
    tw_pool_t *pool_ = nullptr;
    std::vector<const void *> unit_weights(size_t unit) const;
    std::vector<float *> unit_grads(size_t unit);

    tw_model_sizes_t sizes_;
};

/** Random tokens from 0 to vocab_size - 1. */
std::vector<int32_t> random_tokens(size_t n, size_t vocab_size, uint32_t seed);
double norm(const std::vector<float> &values);
/** The same network with products of bf16: loss and every tensor's gradients are those of fp32 but for what
 *  rounding factors does. */
void expect_bf16_products_agree(const tw_model_config_t &config, size_t batch, size_t seq_len);
/** With fp32 weights of the same values loss and gradients are the same, bit for bit; and one weight's last
 *  bit changes the loss. */
void expect_fp32_weights_agree(const tw_model_config_t &config, size_t batch, size_t seq_len);
/** Where a matrix's gradient is not wanted, the others are the same, bit for bit. */
void expect_gradients_can_be_left_out(const tw_model_config_t &config, size_t batch, size_t seq_len);
/** The loss of random targets is what the logits say. */
void expect_logits_give_the_loss(const tw_model_config_t &config);
/** Two documents in one sequence have the losses and gradients of each in one of its own; where positions are
 *  learnt, the second one's begin with where it lies: tensor `positions`, or none (negative). */
void expect_documents_are_apart(const tw_model_config_t &config, int positions);
/** Move all weights by up to 0.1 each: away from the start, where biases are 0. */
void scatter(Network *network);

/** A tensor's weights all move a little, up or down at random; the loss must move as the gradient says. */
class Nudge
{
  public:
    Nudge(Network *network, size_t tensor, uint32_t seed);
    /** The loss up minus the loss down, and what the gradients that the network has say of it. */
    double measured(const std::vector<int32_t> &tokens, const std::vector<int32_t> &targets);
    double predicted() const;
    /** How far the weights have moved: 2-norm. */
    double length() const;

  private:
    double moved(size_t i) const;

    Network *network_;
    size_t tensor_;
    std::vector<uint16_t> before_, up_, down_;
};

/** Every tensor's gradient along four random directions. */
void expect_gradients_agree_with_differences(Network *network, const std::vector<int32_t> &tokens,
                                             const std::vector<int32_t> &targets);

} // namespace tw

#endif
