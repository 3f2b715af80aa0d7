#include "tests/quant/delta/delta_data.h"

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "quant/delta/value.h"

namespace tw
{
namespace
{

uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A master weight, and where it is drawn to: momentum that changes slowly. */
struct Weight {
    float value, momentum;
};

const uint16_t specials[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x7f80, 0xff80, 0x7fc0,
                             0xffc0, 0x7f81, 0xffff, 0x7fff, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x0080};

uint16_t changed(Change change, uint16_t old_bits, Weight &weight, size_t i, std::mt19937 &random)
{
    switch (change) {
    case Change::none:
        return old_bits;
    case Change::constant:
        return tw_delta_changed(old_bits, 1);
    case Change::huge:
        return uint16_t(old_bits ^ 0x8000 ^ (random() & 0x7f00));
    case Change::random:
        return uint16_t(random());
    case Change::special:
        return specials[random() % (sizeof(specials) / sizeof(specials[0]))];
    case Change::rare:
        return random() % 1000 ? old_bits : uint16_t(random());
    case Change::mixed:
        if (i / TW_DELTA_BLOCK_ELEMS % 2) {
            return uint16_t(random());
        }
        break;
    case Change::adam:
        break;
    }
    std::normal_distribution<float> normal;
    weight.momentum = 0.9f * weight.momentum + 0.4f * normal(random);
    weight.value -= 3e-4f * weight.momentum;
    return bf16(weight.value);
}

} // namespace

std::string name_of(Change change)
{
    const char *names[] = {"none", "constant", "adam", "huge", "random", "special", "mixed", "rare"};
    return names[size_t(change)];
}

std::vector<std::vector<uint16_t>> make_steps(Change change, size_t n, size_t steps)
{
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<Weight> weights(n);
    std::vector<std::vector<uint16_t>> replicas(steps + 1, std::vector<uint16_t>(n));
    for (size_t i = 0; i < n; i++) {
        weights[i] = {0.02f * normal(random), normal(random)};
        const bool any = change == Change::random || change == Change::special;
        replicas[0][i] = any ? uint16_t(random()) : bf16(weights[i].value);
    }
    for (size_t step = 0; step < steps; step++) {
        for (size_t i = 0; i < n; i++) {
            replicas[step + 1][i] = changed(change, replicas[step][i], weights[i], i, random);
        }
    }
    return replicas;
}

double entropy_bits(const std::vector<uint16_t> &old_values, const std::vector<uint16_t> &new_values)
{
    std::map<int, std::map<int, double>> counts;
    for (size_t i = 0; i < old_values.size(); i++) {
        counts[old_values[i] >> 7 & 0xff][tw_delta_change(old_values[i], new_values[i])]++;
    }
    double bits = 0;
    for (const auto &exponent : counts) {
        double total = 0;
        for (const auto &change : exponent.second) {
            total += change.second;
        }
        for (const auto &change : exponent.second) {
            bits -= change.second * std::log2(change.second / total);
        }
    }
    return bits;
}

} // namespace tw
