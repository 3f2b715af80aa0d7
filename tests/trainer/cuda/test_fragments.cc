/* Which elements of a product the lanes of a warp have: in the words of the PTX ISA. */
#include <gtest/gtest.h>

#include <random>
#include <vector>

#define TW_DEVICE inline
#define TW_UNROLL
#include "trainer/cuda/fragments.cuh"

namespace
{

using tw_trainer_kernels::bf16_bits;

struct Place {
    uint32_t row, col;
};

/* "Matrix Fragments for mma.m16n8k16 with floating point type", of .bf16. */
Place place_of_a(uint32_t lane, uint32_t i)
{
    const uint32_t group = lane >> 2, in_group = lane % 4;
    return {i < 2 || (i >= 4 && i < 6) ? group : group + 8, in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}

Place place_of_b(uint32_t lane, uint32_t i)
{
    const uint32_t group = lane >> 2, in_group = lane % 4;
    return {in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0), group};
}

Place place_of_c(uint32_t lane, uint32_t i)
{
    const uint32_t group = lane >> 2, in_group = lane % 4;
    return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

/* Small whole numbers: sums are exact, in any order. */
TEST(Fragments, AreThoseOfThePtxIsa)
{
    int a[16][16], b[16][8];
    std::mt19937 random(1);
    for (auto &row : a) {
        for (int &value : row) {
            value = int(random() % 15) - 7;
        }
    }
    for (auto &row : b) {
        for (int &value : row) {
            value = int(random() % 15) - 7;
        }
    }
    const auto word = [&](uint32_t lane, uint32_t w) {
        uint32_t bits = 0;
        for (uint32_t e = 0; e < 2; e++) {
            const uint32_t i = 2 * w + e;
            const Place at = w < 4 ? place_of_a(lane, i) : place_of_b(lane, i - 8);
            const int value = w < 4 ? a[at.row][at.col] : b[at.row][at.col];
            bits |= uint32_t(bf16_bits(float(value))) << (16 * e);
        }
        return bits;
    };
    for (uint32_t lane = 0; lane < 32; lane++) {
        float c[4] = {100, 200, 300, 400};
        tw_trainer_kernels::multiply_fragments(lane, c, word);
        for (uint32_t i = 0; i < 4; i++) {
            const Place at = place_of_c(lane, i);
            int wanted = 100 * int(i + 1);
            for (uint32_t k = 0; k < 16; k++) {
                wanted += a[at.row][k] * b[k][at.col];
            }
            EXPECT_EQ(c[i], float(wanted)) << "lane " << lane << " element " << i;
        }
    }
}

} // namespace
