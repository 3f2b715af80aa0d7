/* Every element belongs to one primary part, inside the secondary part of its place, for all N and L up to
 * 8. */
#include "tests/hpz/replicas.h"

namespace
{

using HpzLayout = tw::Fixture;

struct Layout {
    tw_hpz_layout_t *layout = nullptr;
    Layout(const std::vector<tw_hpz_tensor_t> &tensors, int n, int l)
    {
        EXPECT_EQ(tw_hpz_layout_create(tensors.data(), tensors.size(), n, l, &layout), TW_OK);
    }
    ~Layout()
    {
        tw_hpz_layout_destroy(layout);
    }
};

void expect_even(size_t n, size_t parts, size_t part)
{
    EXPECT_GE(part, n / parts);
    EXPECT_LE(part, n / parts + 1);
}

void expect_partition(const tw_hpz_layout_t *layout, size_t tensor, size_t n, int nodes, int locals)
{
    size_t outer_at = 0;
    for (int l = 0; l < locals; l++) {
        tw_hpz_piece_t outer = tw_hpz_secondary_piece(layout, tensor, l);
        EXPECT_EQ(outer.first, outer_at);
        expect_even(n, (size_t)locals, outer.n_elems);
        size_t at = outer.first;
        for (int node = 0; node < nodes; node++) {
            tw_hpz_piece_t piece = tw_hpz_primary_piece(layout, tensor, node, l);
            EXPECT_EQ(piece.first, at);
            expect_even(outer.n_elems, (size_t)nodes, piece.n_elems);
            at += piece.n_elems;
        }
        outer_at += outer.n_elems;
        EXPECT_EQ(at, outer_at);
    }
    EXPECT_EQ(outer_at, n);
}

TEST_F(HpzLayout, EveryElementHasOneOwner)
{
    for (size_t n : {0, 1, 2, 7, 8, 63, 1000}) {
        std::vector<tw_hpz_tensor_t> tensors = tw::tensors_of(n);
        for (int nodes = 1; nodes <= 8; nodes++) {
            for (int locals = 1; locals <= 8; locals++) {
                Layout layout(tensors, nodes, locals);
                for (size_t t = 0; t < tensors.size(); t++) {
                    expect_partition(layout.layout, t, tensors[t].n_elems, nodes, locals);
                }
            }
        }
    }
}

/* Pieces lie one after the other in their parts, and fill them. */
TEST_F(HpzLayout, PartsHaveNoGaps)
{
    std::vector<tw_hpz_tensor_t> tensors = tw::tensors_of(101);
    Layout layout(tensors, 3, 2);
    for (int unit = 0; unit < tw_hpz_layout_units(layout.layout); unit++) {
        size_t first, n = tw_hpz_layout_tensors(layout.layout, unit, &first);
        for (int l = 0; l < 2; l++) {
            for (int node = 0; node < 3; node++) {
                size_t primary = 0, secondary = 0, full = 0;
                for (size_t t = first; t < first + n; t++) {
                    EXPECT_EQ(tensors[t].unit, unit);
                    EXPECT_EQ(tw_hpz_primary_piece(layout.layout, t, node, l).offset, primary);
                    EXPECT_EQ(tw_hpz_secondary_piece(layout.layout, t, l).offset, secondary);
                    EXPECT_EQ(tw_hpz_full_piece(layout.layout, t).offset, full);
                    primary += tw_hpz_primary_piece(layout.layout, t, node, l).n_elems;
                    secondary += tw_hpz_secondary_piece(layout.layout, t, l).n_elems;
                    full += tensors[t].n_elems;
                }
                EXPECT_EQ(tw_hpz_primary_elems(layout.layout, unit, node, l), primary);
                EXPECT_EQ(tw_hpz_secondary_elems(layout.layout, unit, l), secondary);
                EXPECT_EQ(tw_hpz_full_elems(layout.layout, unit), full);
            }
        }
    }
}

/* The slices of a unit, each of at most `most` elements a rank or a step: they part no piece but after a
 * multiple of the step. */
void expect_slices(const Layout &layout, const std::vector<tw_hpz_tensor_t> &tensors, int unit, size_t most,
                   size_t step)
{
    size_t end = tw_hpz_primary_elems(layout.layout, unit, 0, 0), n_slices = 0;
    std::vector<size_t> at(tensors.size()); /* how far each tensor's piece at (1, 2) has come */
    tw_hpz_slice_t slice = {0, 0};
    size_t own = 0;
    while (slice.end < end || n_slices == 0) {
        slice = tw_hpz_slice_next(layout.layout, unit, slice.end, most, step);
        ASSERT_LE(slice.end - slice.first, std::max(most, step));
        ASSERT_TRUE(slice.end > slice.first || end == 0);
        n_slices++;
        size_t in_slice = 0;
        for (size_t t = 0; t < tensors.size(); t++) {
            tw_hpz_piece_t whole = tw_hpz_primary_piece(layout.layout, t, 1, 2);
            tw_hpz_piece_t piece = tw_hpz_slice_piece(layout.layout, t, 1, 2, slice);
            if (tensors[t].unit != unit || piece.n_elems == 0) {
                continue;
            }
            ASSERT_EQ(piece.first - whole.first, at[t]);
            ASSERT_EQ(piece.offset - whole.offset, at[t]);
            ASSERT_EQ(piece.offset, own + in_slice) << "one run of the part";
            at[t] += piece.n_elems;
            in_slice += piece.n_elems;
            ASSERT_TRUE(at[t] == whole.n_elems || at[t] % step == 0);
        }
        ASSERT_EQ(tw_hpz_slice_elems(layout.layout, unit, 1, 2, slice), in_slice);
        ASSERT_LE(in_slice, slice.end - slice.first);
        own += in_slice;
    }
    EXPECT_EQ(own, tw_hpz_primary_elems(layout.layout, unit, 1, 2));
}

TEST_F(HpzLayout, SlicesMakeTheUnit)
{
    std::vector<tw_hpz_tensor_t> tensors = {
        {5000, 0, 0, 0, 0}, {7, 0, 1, 0, 0}, {0, 0, 0, 0, 0}, {2048, 0, 0, 0, 0}, {1, 0, 0, 0, 0},
        {999, 0, 0, 0, 0},  {0, 1, 0, 0, 0}, {4, 2, 0, 0, 0}, {6400, 2, 0, 0, 0}, {0, 2, 0, 0, 0}};
    for (int nodes : {2, 3}) {
        Layout layout(tensors, nodes, 3);
        for (int unit = 0; unit < 3; unit++) {
            for (size_t most : {0, 1, 63, 64, 200, 1000, 100000}) {
                for (size_t step : {1, 32, 64, 500}) {
                    SCOPED_TRACE(testing::Message()
                                 << nodes << " nodes, unit " << unit << ", " << most << ", " << step);
                    expect_slices(layout, tensors, unit, most, step);
                }
            }
        }
    }
}

TEST_F(HpzLayout, StepsOfSlicesAreWholeBlocks)
{
    tw_quant_codec_t none = {}, codec = tw::codec_of("int8:block=96");
    EXPECT_EQ(tw_hpz_slice_step(0, &none), (size_t)TW_HPZ_SLICE_ELEMS);
    EXPECT_EQ(tw_hpz_slice_step(7, &none), 7U);
    EXPECT_EQ(tw_hpz_slice_step(96, &codec), 96U);
    EXPECT_EQ(tw_hpz_slice_step(97, &codec), 192U);
    EXPECT_GE(tw_hpz_slice_step(SIZE_MAX, &codec), TW_MEMORY_BYTES_MAX);
    EXPECT_EQ(tw_hpz_slice_step(SIZE_MAX, &codec) % 96, 0U);
    EXPECT_EQ(tw_hpz_slice_step(0, &codec) % 96, 0U);
}

TEST_F(HpzLayout, NoTensors)
{
    Layout layout({}, 2, 2);
    EXPECT_EQ(tw_hpz_layout_units(layout.layout), 0);
}

void expect_refused(const std::vector<tw_hpz_tensor_t> &tensors, int nodes, int locals)
{
    tw_hpz_layout_t *layout = nullptr;
    EXPECT_EQ(tw_hpz_layout_create(tensors.data(), tensors.size(), nodes, locals, &layout), TW_ERR_INVALID);
    EXPECT_EQ(layout, nullptr);
}

TEST_F(HpzLayout, UnitsMustAscend)
{
    expect_log("unit");
    expect_refused({{4, 1, 0, 0, 0}}, 1, 1);
    expect_refused({{4, 0, 0, 0, 0}, {4, 2, 0, 0, 0}}, 1, 1);
    expect_refused({{4, 0, 0, 0, 0}, {4, 1, 0, 0, 0}, {4, 0, 0, 0, 0}}, 1, 1);
}

TEST_F(HpzLayout, ThereMustBeRanks)
{
    expect_log("layout over");
    expect_refused({{4, 0, 0, 0, 0}}, 0, 1);
    expect_refused({{4, 0, 0, 0, 0}}, 1, 0);
}

/* Sums that wrap would make parts, and the memory for them, small. */
TEST_F(HpzLayout, TensorsMustFitInMemory)
{
    expect_log("tensor 1 has 18446744073709551615 elements: with those before it, more than fit in memory");
    expect_refused({{4, 0, 0, 0, 0}, {SIZE_MAX, 0, 0, 0, 0}, {65, 0, 0, 0, 0}}, 1, 1);
    expect_log("tensor 0 has 4611686018427387905 elements");
    expect_refused({{SIZE_MAX / 4 + 2, 0, 0, 0, 0}}, 1, 1); /* 4 bytes each would wrap to 4 */
    const size_t half = TW_MEMORY_BYTES_MAX / 8;
    expect_log("tensor 2 has 1 elements");
    expect_refused({{half, 0, 0, 0, 0}, {half, 0, 0, 0, 0}, {1, 1, 0, 0, 0}}, 1, 1);
    Layout layout({{half, 0, 0, 0, 0}, {half, 0, 0, 0, 0}}, 1, 1);
    EXPECT_EQ(tw_hpz_full_elems(layout.layout, 0), 2 * half);
}

} // namespace
