/* AdamW's factors, each the fp32 number nearest to its value, and an element's step, operation by operation
 * as quant.h says. */
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "quant/arithmetic/adamw.h"

namespace
{

tw_quant_adamw_t random_parameters(std::mt19937 &random)
{
    std::uniform_real_distribution<double> share(0, 1);
    tw_quant_adamw_t adamw = {};
    adamw.lr = 1e-2 * share(random);
    adamw.beta1 = 0.8 + 0.19 * share(random);
    adamw.beta2 = 0.9 + 0.0999 * share(random);
    adamw.eps = 1e-8 * share(random);
    adamw.weight_decay = 0.3 * share(random);
    adamw.step = 1 + random() % 3000;
    return adamw;
}

/* fp64 is off by 2^-40 of the value at most, so that both neighbours may be the nearest when it lies that
 * close to the middle. */
::testing::AssertionResult is_nearest(float got, long double exact)
{
    const long double error = std::fabs(got - exact), slack = std::fabs(exact) * 0x1p-40L;
    for (float other : {std::nextafter(got, -INFINITY), std::nextafter(got, INFINITY)}) {
        if (error > std::fabs(other - exact) + slack) {
            return ::testing::AssertionFailure() << got << " is not the nearest to " << double(exact);
        }
    }
    return ::testing::AssertionSuccess();
}

} // namespace

TEST(AdamwFactors, AreRoundedOnce)
{
    std::mt19937 random(1);
    for (int i = 0; i < 500; i++) {
        const tw_quant_adamw_t a = random_parameters(random);
        const tw_adamw_factors_t f = tw_adamw_factors_of(&a);
        const long double correction1 = 1 - std::pow((long double)a.beta1, (long double)a.step);
        const long double correction2 = 1 - std::pow((long double)a.beta2, (long double)a.step);
        EXPECT_TRUE(is_nearest(f.keep, 1 - (long double)a.lr * a.weight_decay)) << "keep";
        EXPECT_TRUE(is_nearest(f.beta1, a.beta1)) << "beta1";
        EXPECT_TRUE(is_nearest(f.rest1, 1 - (long double)a.beta1)) << "rest1";
        EXPECT_TRUE(is_nearest(f.beta2, a.beta2)) << "beta2";
        EXPECT_TRUE(is_nearest(f.rest2, 1 - (long double)a.beta2)) << "rest2";
        EXPECT_TRUE(is_nearest(f.step_size, a.lr / correction1)) << "step_size, step " << a.step;
        EXPECT_TRUE(is_nearest(f.root_inv, 1 / std::sqrt(correction2))) << "root_inv, step " << a.step;
        EXPECT_TRUE(is_nearest(f.eps, a.eps)) << "eps";
    }
}

TEST(AdamwElement, EachOperationInFp32)
{
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 5000; i++) {
        const tw_quant_adamw_t a = random_parameters(random);
        const tw_adamw_factors_t f = tw_adamw_factors_of(&a);
        const float grad = normal(random), master = normal(random), m = normal(random),
                    v = std::fabs(normal(random));
        /* `volatile`: each result is rounded, whatever the compiler's flags. */
        volatile float m1 = f.beta1 * m, m2 = f.rest1 * grad, square = grad * grad, v1 = f.beta2 * v,
                       v2 = f.rest2 * square;
        volatile float new_m = m1 + m2, new_v = v1 + v2, root = std::sqrt(new_v), scaled = root * f.root_inv,
                       sum = scaled + f.eps, ratio = new_m / sum, step = f.step_size * ratio,
                       kept = master * f.keep;
        float got_m = m, got_v = v;
        const float got = tw_adamw_element(&f, grad, master, &got_m, &got_v);
        ASSERT_EQ(got, kept - step) << i;
        ASSERT_EQ(got_m, new_m) << i;
        ASSERT_EQ(got_v, new_v) << i;
    }
}
