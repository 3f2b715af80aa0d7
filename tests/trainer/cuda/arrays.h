/** Arrays as kernels take them, for the tests of trainer/cuda. */
#ifndef TW_TESTS_TRAINER_CUDA_ARRAYS_H
#define TW_TESTS_TRAINER_CUDA_ARRAYS_H

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "quant/quant.h"
#include "tests/trainer/cuda/memory.h"

namespace tw
{

using Floats = std::vector<float>;

/** Units in the last place of a number of about 1. */
constexpr double fp32_unit = 1.0 / (1 << 23), bf16_unit = 1.0 / (1 << 7);

inline Floats normal_values(size_t n, uint32_t seed, float mean = 0, float deviation = 1)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(mean, deviation);
    Floats values(n);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    return values;
}

template <class VALUES>
double largest(const VALUES &values)
{
    double most = 0;
    for (float value : values) {
        most = std::max(most, std::fabs(double(value)));
    }
    return most;
}

/** Values on the CPU alone. */
inline Floats on_cpu(const Device<float> &values)
{
    return Floats(values.begin(), values.end());
}

/** An array of a type, `skew` elements off 16 bytes, with what must not be written on both sides of it. */
class Array
{
  public:
    Array(tw_type_t type, const Floats &values, size_t skew = 0) : type_(type), n_(values.size())
    {
        memory_.assign((n_ + skew) * tw_type_bytes(type) + 128, 0xee);
        at_ = 32 + (16 - reinterpret_cast<uintptr_t>(memory_.data()) % 16) % 16 + skew * tw_type_bytes(type);
        tw_convert_from_fp32(type, values.data(), 1, get(), n_);
    }
    void *get(size_t elem = 0)
    {
        return memory_.data() + at_ + elem * tw_type_bytes(type_);
    }
    /** As they are in memory, widened. */
    Floats values() const
    {
        Floats wide(n_);
        tw_convert_to_fp32(type_, memory_.data() + at_, wide.data(), n_);
        return wide;
    }
    /** The bits of `wanted`, rounded to the array's type; NaN is NaN. */
    void expect(const Floats &wanted, const char *what) const
    {
        const size_t size = tw_type_bytes(type_);
        std::vector<uint8_t> rounded(n_ * size + 1);
        tw_convert_from_fp32(type_, wanted.data(), 1, rounded.data(), n_);
        const Floats got = values();
        for (size_t i = 0; i < n_; i++) {
            if (std::isnan(wanted[i])) {
                ASSERT_TRUE(std::isnan(got[i])) << what << " " << i;
            } else {
                ASSERT_EQ(memcmp(memory_.data() + at_ + i * size, rounded.data() + i * size, size), 0)
                    << what << " " << i << ": " << got[i] << ", not " << wanted[i];
            }
        }
        expect_guards(what);
    }
    /** Within `bound`, and a bf16's rounding. NaN is NaN. */
    void expect_near(const Floats &wanted, double bound, const char *what) const
    {
        const Floats got = values();
        ASSERT_EQ(got.size(), wanted.size()) << what;
        for (size_t i = 0; i < n_; i++) {
            const double rounding = type_ == TW_TYPE_BF16 ? bf16_unit * std::fabs(wanted[i]) : 0;
            if (std::isnan(wanted[i])) {
                ASSERT_TRUE(std::isnan(got[i])) << what << " " << i;
            } else {
                ASSERT_NEAR(got[i], wanted[i], bound + rounding) << what << " " << i;
            }
        }
        expect_guards(what);
    }

  private:
    void expect_guards(const char *what) const
    {
        for (size_t i = 0; i < memory_.size(); i++) {
            if (i < at_ || i >= at_ + n_ * tw_type_bytes(type_)) {
                ASSERT_EQ(memory_[i], 0xee) << what << ": written beside it";
            }
        }
    }

    tw_type_t type_;
    size_t n_, at_;
    Device<uint8_t> memory_;
};

} // namespace tw

#endif
