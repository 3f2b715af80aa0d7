/* The AVX-512 backend. Compiled with -mavx512{f,bw,vl,dq}, used only if the machine has them all. */
#include "quant/entropy/vec_avx512.h"

#include "quant/lossless/symbols.h"

#define CLASS_ENTRIES (TW_LOSSLESS_PHASES * TW_ENTROPY_SYMBOLS)

/* The encoder's entries of each class, in four 16-bit parts, for look-ups by permutations of registers. */
typedef struct {
    const uint64_t *all;
    uint16_t quarters[TW_LOSSLESS_CLASSES][4][CLASS_ENTRIES];
} encode_tables_t;

static void make_tables(const tw_lossless_model_t *model, encode_tables_t *tables)
{
    tables->all = model->encode;
    for (size_t c = 0; c < TW_LOSSLESS_CLASSES; c++) {
        const uint64_t *entries = model->encode + c * CLASS_ENTRIES;
        for (size_t i = 0; model->encoder.classes >> c & 1 && i < CLASS_ENTRIES; i++) {
            tables->quarters[c][0][i] = (uint16_t)entries[i];
            tables->quarters[c][1][i] = (uint16_t)(entries[i] >> 16);
            tables->quarters[c][2][i] = (uint16_t)(entries[i] >> 32);
            tables->quarters[c][3][i] = (uint16_t)(entries[i] >> 48);
        }
    }
}

/** Look up table[places] in a table of 128 entries. `high`: the places from 64 on. */
INLINE __m512i look_up16(const uint16_t *table, __m512i places, __mmask32 high)
{
    __m512i low =
        _mm512_permutex2var_epi16(_mm512_loadu_si512(table), places, _mm512_loadu_si512(table + 32));
    __m512i up =
        _mm512_permutex2var_epi16(_mm512_loadu_si512(table + 64), places, _mm512_loadu_si512(table + 96));
    return _mm512_mask_blend_epi16(high, low, up);
}

INLINE void look_up(const encode_tables_t *tables, const uint16_t *heads, const uint16_t *expected,
                    vec_t *entries, vec_t *reciprocals)
{
    vec16_t expect = vec16_load(expected);
    vec16_t places = symbols_places_of(symbols_of(vec16_load(heads), expect), expect);
    size_t row_class = expected[0] >> TW_LOSSLESS_CLASS_SHIFT;
    vec16_t classes = vec16_shr(expect, TW_LOSSLESS_CLASS_SHIFT);
    if (__builtin_expect(_mm512_cmpneq_epi16_mask(classes, vec16_set(row_class)) != 0, 0)) {
        vec16_t index = vec16_or(places, vec16_shl(classes, 7));
        __m256i halves[2] = {_mm512_castsi512_si256(index), _mm512_extracti64x4_epi64(index, 1)};
        for (size_t v = 0; v < VECTORS; v++) {
            entries[v] = vec_gather_pair(tables->all, _mm512_cvtepu16_epi32(halves[v]), &reciprocals[v]);
        }
        return;
    }
    /* so that the unpacks below give elements in order */
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    places = _mm512_permutexvar_epi64(order, places);
    __mmask32 high = _mm512_test_epi16_mask(places, vec16_set(64));
    const uint16_t(*quarters)[CLASS_ENTRIES] = tables->quarters[row_class];
    __m512i a = look_up16(quarters[0], places, high), b = look_up16(quarters[1], places, high);
    __m512i c = look_up16(quarters[2], places, high), d = look_up16(quarters[3], places, high);
    entries[0] = _mm512_unpacklo_epi16(a, b);
    entries[1] = _mm512_unpackhi_epi16(a, b);
    reciprocals[0] = _mm512_unpacklo_epi16(c, d);
    reciprocals[1] = _mm512_unpackhi_epi16(c, d);
}

#include "quant/lossless/heads_avx2.h"
#include "quant/lossless/lanes.h"

const tw_lossless_backend_t tw_lossless_avx512 = {.is = VEC_BACKEND, HEADS, LANES};
