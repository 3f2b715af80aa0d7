/* The AVX2 backend. Compiled with -mavx2, used only if the machine has AVX2. */
#include "quant/entropy/vec_avx2.h"

#include "quant/lossless/symbols.h"

typedef const uint64_t *encode_tables_t;

INLINE void make_tables(const tw_lossless_model_t *model, encode_tables_t *tables)
{
    *tables = model->encode;
}

INLINE void look_up(const encode_tables_t *tables, const uint16_t *heads, const uint16_t *expected,
                    vec_t *entries, vec_t *reciprocals)
{
    const uint64_t *table = *tables;
    uint16_t index[TW_ENTROPY_LANES];
    for (size_t i = 0; i < TW_ENTROPY_LANES; i += WIDTH16) {
        vec16_t expect = vec16_load(expected + i), symbols = symbols_of(vec16_load(heads + i), expect);
        vec16_t classes = vec16_shl(vec16_shr(expect, TW_LOSSLESS_CLASS_SHIFT), 7);
        vec16_store(index + i, vec16_or(symbols_places_of(symbols, expect), classes));
    }
#pragma GCC unroll 4
    for (size_t v = 0; v < VECTORS; v++) {
        const uint16_t *at = index + v * WIDTH;
        __m256 a = _mm256_set_m128(vec_load2(table, at[4], at[5]), vec_load2(table, at[0], at[1]));
        __m256 b = _mm256_set_m128(vec_load2(table, at[6], at[7]), vec_load2(table, at[2], at[3]));
        entries[v] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        reciprocals[v] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    }
}

#include "quant/lossless/heads_avx2.h"
#include "quant/lossless/lanes.h"

const tw_lossless_backend_t tw_lossless_avx2 = {.is = VEC_BACKEND, HEADS, LANES};
