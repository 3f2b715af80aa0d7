/* The NEON backend. */
#include "quant/entropy/vec_neon.h"

#include "quant/lossless/symbols.h"

typedef const uint64_t *encode_tables_t;

INLINE void make_tables(const tw_lossless_model_t *model, encode_tables_t *tables)
{
    *tables = model->encode;
}

INLINE void look_up(const encode_tables_t *tables, const uint16_t *heads, const uint16_t *expected,
                    vec_t *entries, vec_t *reciprocals)
{
    for (size_t i = 0; i < TW_ENTROPY_LANES; i += WIDTH16) {
        vec16_t expect = vec16_load(expected + i), symbols = symbols_of(vec16_load(heads + i), expect);
        vec16_t classes = vec16_shl(vec16_shr(expect, TW_LOSSLESS_CLASS_SHIFT), 7);
        vec16_t index = vec16_or(symbols_places_of(symbols, expect), classes);
        for (size_t v = 0; v < 2; v++) {
            vec_t places = vmovl_u16(v ? vget_high_u16(index) : vget_low_u16(index));
            entries[i / WIDTH + v] = vec_gather_pair(*tables, places, &reciprocals[i / WIDTH + v]);
        }
    }
}

#include "quant/lossless/lanes.h"

/* For the high bit of byte k: the byte of the second 16 that holds its element (28 to 31), and which bit of
 * that element. Bytes 28 to 31 have no high bit. */
#define ELEMENT(k) ((k) < 28 ? 12 + (k) / 7 : 0)
#define BIT(k) ((k) < 28 ? 1 << (k) % 7 : 0)
#define EACH4(f, k) f(k), f((k) + 1), f((k) + 2), f((k) + 3)
#define EACH16(f, k)                                                          \
    {                                                                         \
        EACH4(f, k), EACH4(f, (k) + 4), EACH4(f, (k) + 8), EACH4(f, (k) + 12) \
    }

static const uint8x16_t high_elements[2] = {EACH16(ELEMENT, 0), EACH16(ELEMENT, 16)};
static const uint8x16_t high_bits[2] = {EACH16(BIT, 0), EACH16(BIT, 16)};

/** The 7 bits of 16 heads: the low 6 bits, and the sign above them. */
INLINE uint8x16_t bits_of(const uint16_t *heads)
{
    const vec16_t a = vec16_load(heads), b = vec16_load(heads + WIDTH16);
    return vcombine_u8(vmovn_u16((a & 0x3f) | ((a >> 9) & 0x40)), vmovn_u16((b & 0x3f) | ((b >> 9) & 0x40)));
}

static void neon_pack(const uint16_t *heads, size_t n, uint8_t *raw)
{
    size_t whole = n - n % 32;
    for (size_t i = 0; i < whole; i += 32, raw += TW_LOSSLESS_RAW_BYTES) {
        const uint8x16_t halves[2] = {bits_of(heads + i), bits_of(heads + i + 16)};
        for (size_t h = 0; h < 2; h++) {
            uint8x16_t has = vtstq_u8(vqtbl1q_u8(halves[1], high_elements[h]), high_bits[h]);
            vst1q_u8(raw + 16 * h, halves[h] | (has & 0x80));
        }
    }
    tw_lossless_ref.pack(heads + whole, n - whole, raw);
}

INLINE uint32_t high_bits_of(uint8x16_t bytes)
{
    static const int8_t places[16] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
    const uint8x16_t bits = vshlq_u8(bytes >> 7, vld1q_s8(places));
    return vaddv_u8(vget_low_u8(bits)) | (uint32_t)vaddv_u8(vget_high_u8(bits)) << 8;
}

static void neon_unpack(const uint8_t *raw, size_t n, uint16_t *heads)
{
    size_t whole = n - n % 32;
    for (size_t i = 0; i < whole; i += 32, raw += TW_LOSSLESS_RAW_BYTES) {
        uint8x16_t halves[2] = {vld1q_u8(raw), vld1q_u8(raw + 16)};
        const uint32_t high = high_bits_of(halves[0]) | high_bits_of(halves[1]) << 16;
        const uint32_t last =
            (high & 0x7f) | (high >> 7 & 0x7f) << 8 | (high >> 14 & 0x7f) << 16 | (high >> 21 & 0x7f) << 24;
        halves[1] = (uint8x16_t)vsetq_lane_u32(last, (uint32x4_t)halves[1], 3);
        for (size_t h = 0; h < 4; h++) {
            const uint8x16_t half = halves[h / 2];
            const vec16_t bits = vmovl_u8(h % 2 ? vget_high_u8(half) : vget_low_u8(half));
            uint16_t *at = heads + i + WIDTH16 * h;
            vec16_store(at, (vec16_load(at) << 6) | (bits & 0x3f) | ((bits & 0x40) << 9));
        }
    }
    tw_lossless_ref.unpack(raw, n - whole, heads + whole);
}

/** Messages of fp16 are rare, so their tails use the portable loops. */
static void neon_pack_tails(const uint16_t *tails, size_t n, uint8_t *planes)
{
    tw_lossless_ref.pack_tails(tails, n, planes);
}

static void neon_unpack_tails(const uint8_t *planes, size_t n, uint16_t *tails)
{
    tw_lossless_ref.unpack_tails(planes, n, tails);
}

const tw_lossless_backend_t tw_lossless_neon = {
    .is = VEC_BACKEND,
    LANES,
    .sum = loops_sum,
    .deviation = loops_deviation,
    .bins = loops_bins,
    .pack = neon_pack,
    .unpack = neon_unpack,
    .pack_tails = neon_pack_tails,
    .unpack_tails = neon_unpack_tails,
};
