/* The AVX-512 backend. Compiled with -mavx512{f,bw,vl,dq}, used only if the machine has them all. */
#include "quant/entropy/vec_avx512.h"

#define DECODE_SECOND decode_wide
#include "quant/delta/lanes.h"

/* The second context (states) limits the speed of decoding. So here 16-bit operations work on a group's 32
 * elements at once. The coders' lanes have 32 bits and take two vectors. */
_Static_assert(VECTORS == 2 && TW_DELTA_EXPONENTS == WIDTH16, "a group is one vector of 16 bits");

/* The model's rows as vectors, with a number for each of the 32 exponents. */
typedef struct {
    __m512i tables, factors;
    uint8_t base;
} wide_rows_t;

/* What the model predicts about the changes of 32 elements. */
typedef struct {
    __m512i table, raw_bits, expected;
    __mmask32 sign;
} wide_belief_t;

/** Join the low 16 bits of all elements of two vectors. */
INLINE __m512i wide_of(__m512i low, __m512i high)
{
    uint16_t even[WIDTH16];
    for (uint16_t i = 0; i < WIDTH16; i++) {
        even[i] = (uint16_t)(2 * i);
    }
    return _mm512_permutex2var_epi16(low, _mm512_loadu_si512(even), high);
}

/** Widen half v of 32 elements to 32 bits each. */
INLINE vec_t wide_half(__m512i x, size_t v)
{
    return _mm512_cvtepu16_epi32(v ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x));
}

INLINE wide_rows_t wide_rows(const tw_delta_model_t *model)
{
    vec_t low = _mm512_loadu_si512(model->rows), high = _mm512_loadu_si512(model->rows + WIDTH);
    return (wide_rows_t){wide_of(low, high), wide_of(vec_shr(low, 16), vec_shr(high, 16)),
                         (uint8_t)model->base};
}

/** order() of lanes.h, for 32 elements. */
INLINE __m512i wide_order(__m512i bits)
{
    return _mm512_ternarylogic_epi32(bits, _mm512_srai_epi16(bits, 15), vec16_set(0x7fff), 0x78);
}

/** believe() of lanes.h with the second context, for 32 elements. */
INLINE wide_belief_t wide_believe(const wide_rows_t *rows, __m512i old_bits, __m512i state)
{
    const __m512i shifts = _mm512_set1_epi64(0x0c08080400);
    wide_belief_t belief = {.sign = _mm512_test_epi16_mask(state, vec16_set(0x80))};
    __m512i exponent = vec16_and(vec16_shr(old_bits, 7), vec16_set(0xff));
    __m512i row = vec16_min(_mm512_subs_epu16(exponent, vec16_set(rows->base)), vec16_set(WIDTH16 - 1));
    __m512i code = vec16_and(state, vec16_set(0x7f));
    __m512i shift = _mm512_shuffle_epi8(shifts, vec16_min(code, vec16_set(4)));
    __m512i tables = _mm512_permutexvar_epi16(row, rows->tables);
    belief.table = vec16_and(_mm512_srlv_epi16(tables, shift), vec16_set(0xf));
    belief.raw_bits =
        vec16_min(_mm512_subs_epu16(belief.table, vec16_set(7)), vec16_set(TW_DELTA_RAW_BITS_MAX));
    __m512i size =
        _mm512_sllv_epi16(vec16_or(vec16_and(code, vec16_set(7)), vec16_set(8)), vec16_shr(code, 3));
    __m512i factor = _mm512_permutexvar_epi16(row, rows->factors);
    size = vec16_sub(size, vec16_set(8));
    /* the low 16 bits of (product + 64) / 128 of 32-bit products */
    __m512i low = vec16_shr(vec16_add(vec16_shr(_mm512_mullo_epi16(size, factor), 6), vec16_set(1)), 1);
    belief.expected = vec16_add(vec16_shl(_mm512_mulhi_epu16(size, factor), 9), low);
    return belief;
}

/** tw_delta_state of value.h, for 32 changes. */
INLINE __m256i wide_state_of(__m512i change)
{
    __m512i size = vec16_add(_mm512_abs_epi16(change), vec16_set(8));
    __m512i code =
        wide_of(vec_shr(vec_float(wide_half(size, 0)), 20), vec_shr(vec_float(wide_half(size, 1)), 20));
    code = vec16_sub(code, vec16_set((127 + 3) << 3));
    __m512i sign = vec16_and(vec16_shr(change, 8), vec16_set(0x80));
    return _mm512_cvtepi16_epi8(vec16_or(code, sign));
}

static int decode_wide(const tw_delta_model_t *model, const tw_delta_run_t *run, size_t first, size_t n,
                       tw_entropy_reader_t *reader)
{
    const wide_rows_t rows = wide_rows(model);
    vec_t lanes[VECTORS], check = vec_set(0);
    const uint8_t *words = reader->words;
    memcpy(lanes, reader->lanes, sizeof(lanes));
    for (size_t i = n; i > first;) {
        i -= TW_ENTROPY_LANES;
        uint32_t escapes = 0;
        __m512i old_bits = vec16_load(run->old_values + i);
        __m256i states = _mm256_loadu_si256((const __m256i *)(run->state + i));
        wide_belief_t wide = wide_believe(&rows, old_bits, _mm512_cvtepu8_epi16(states));
        vec_t z[VECTORS];
#pragma GCC unroll 2
        for (size_t v = 0; v < VECTORS; v++) {
            belief_t belief = {.table = wide_half(wide.table, v), .raw_bits = wide_half(wide.raw_bits, v)};
            escapes |= mask_bits(lanes_take(model, &belief, &lanes[v], &z[v])) << (v * WIDTH);
        }
        if (!refill_all(lanes, &words, reader->words_begin)) {
            return 0;
        }
        __m512i zigzag = wide_of(z[0], z[1]), odd = vec16_and(zigzag, vec16_set(1));
        __m512i rest = vec_xor(vec16_shr(zigzag, 1), vec16_sub(vec_set(0), odd));
        __m512i change = vec16_add(rest, wide.expected);
        change = _mm512_mask_sub_epi16(change, wide.sign, vec_set(0), change);
        __m512i new_bits = wide_order(vec16_add(wide_order(old_bits), change));
        check = vec_add(
            check, vec_add(check_of(i, wide_half(new_bits, 0)), check_of(i + WIDTH, wide_half(new_bits, 1))));
        vec16_store(run->new_values + i, new_bits);
        _mm256_storeu_si256((__m256i *)(run->state + i), wide_state_of(change));
        if (__builtin_expect(escapes != 0, 0)) {
            uint16_t old_values[TW_ENTROPY_LANES]; /* a copy: new values may overwrite them */
            vec16_store(old_values, old_bits);
            if (!take_escapes(old_values, run, i, escapes, reader)) {
                return 0;
            }
        }
    }
    memcpy(reader->lanes, lanes, sizeof(lanes));
    reader->words = words;
    reader->check += total(check);
    return 1;
}

const tw_delta_backend_t tw_delta_avx512 = {
    .is = VEC_BACKEND,
    .encode = lanes_encode,
    .decode = lanes_decode,
};
