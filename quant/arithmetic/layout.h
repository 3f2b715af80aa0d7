/** Where the scales and codes of a segment lie; block_codec.h describes the wire format.
 *  Compiles as C11, C++17 and CUDA. */
#pragma once

#include "quant/arithmetic/float.h"
#include "quant/quant.h"

/* ---- scales ---------------------------------------------------------------------------------------- */

TW_HD static inline size_t tw_layout_scale_bytes(tw_quant_scale_t type)
{
    return type == TW_QUANT_SCALE_BF16 ? 2 : 4;
}

/** Store a scale, little-endian, at any alignment. */
TW_HD static inline void tw_layout_scale_put(uint8_t *at, tw_quant_scale_t type, float scale)
{
    uint32_t bits = tw_float_bits(scale);
    if (type == TW_QUANT_SCALE_BF16) {
        bits >>= 16;
    }
    for (size_t i = 0; i < tw_layout_scale_bytes(type); i++) {
        at[i] = (uint8_t)(bits >> (8 * i));
    }
}

TW_HD static inline float tw_layout_scale_get(const uint8_t *at, tw_quant_scale_t type)
{
    uint32_t low = (uint32_t)at[0] | (uint32_t)at[1] << 8;
    if (type == TW_QUANT_SCALE_BF16) {
        return tw_float_of_bits(low << 16);
    }
    return tw_float_of_bits(low | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

/* ---- codes ------------------------------------------------------------------------------------------
 * Code i of a block is `bits` bits, from bit i * bits on, the lowest bit of a byte first. bits divides 8, so
 * each code is in one byte. */

/** Bits of a code. It is a constant expression if kind is one. */
#define TW_CODE_BITS(kind) ((kind) == TW_QUANT_INT4 ? 4 : (kind) == TW_QUANT_INT2 ? 2 : 8)
/** The kinds that have codes, and the kinds whose encoded segments can be summed. */
#define TW_CODE_KINDS TW_QUANT_INT8, TW_QUANT_INT4, TW_QUANT_INT2, TW_QUANT_FP8
#define TW_CODE_KINDS_OF_SUMS TW_QUANT_INT8, TW_QUANT_INT4, TW_QUANT_FP8
/** Call FUNCTION(kind, ...) with kind as a constant. If FUNCTION is always inlined, it is compiled once for
 *  each kind, without branches on the kind. _SUMS leaves out the kinds that cannot be summed. */
#define TW_CODE_FOR(kind, FUNCTION, ...)                            \
    ((kind) == TW_QUANT_INT2 ? FUNCTION(TW_QUANT_INT2, __VA_ARGS__) \
                             : TW_CODE_FOR_SUMS(kind, FUNCTION, __VA_ARGS__))
#define TW_CODE_FOR_SUMS(kind, FUNCTION, ...)                         \
    ((kind) == TW_QUANT_INT8   ? FUNCTION(TW_QUANT_INT8, __VA_ARGS__) \
     : (kind) == TW_QUANT_INT4 ? FUNCTION(TW_QUANT_INT4, __VA_ARGS__) \
                               : FUNCTION(TW_QUANT_FP8, __VA_ARGS__))

/** Bytes of n codes. */
TW_HD static inline size_t tw_layout_code_bytes(int bits, size_t n)
{
    return n / 8 * (size_t)bits + (n % 8 * (size_t)bits + 7) / 8;
}

/** Store code i. Its bits must be zero before the call. */
TW_HD static inline void tw_layout_code_put(uint8_t *codes, int bits, size_t i, int q)
{
    size_t per_byte = 8 / (size_t)bits;
    unsigned shift = (unsigned)(i % per_byte) * (unsigned)bits, mask = (1u << bits) - 1u;
    codes[i / per_byte] = (uint8_t)(codes[i / per_byte] | ((unsigned)q & mask) << shift);
}

TW_HD static inline int tw_layout_code_get(const uint8_t *codes, int bits, size_t i)
{
    size_t per_byte = 8 / (size_t)bits;
    unsigned shift = (unsigned)(i % per_byte) * (unsigned)bits, mask = (1u << bits) - 1u;
    unsigned code = (codes[i / per_byte] >> shift) & mask, sign = 1u << (bits - 1);
    return (int)(code ^ sign) - (int)sign;
}

/* ---- blocks and frames ------------------------------------------------------------------------------ */

TW_HD static inline size_t tw_layout_frame_elems(const tw_quant_codec_t *codec)
{
    return (size_t)codec->block * TW_QUANT_FRAME_BLOCKS;
}

TW_HD static inline size_t tw_layout_frame_scales_bytes(const tw_quant_codec_t *codec)
{
    return tw_layout_scale_bytes(codec->scale) * TW_QUANT_FRAME_BLOCKS;
}

TW_HD static inline size_t tw_layout_frame_bytes(const tw_quant_codec_t *codec)
{
    return tw_layout_frame_scales_bytes(codec) +
           tw_layout_code_bytes(TW_CODE_BITS(codec->kind), tw_layout_frame_elems(codec));
}

/** Bytes of a segment without the padding, and with it. */
TW_HD static inline size_t tw_layout_payload_bytes(const tw_quant_codec_t *codec, size_t n_elems)
{
    size_t frames = n_elems / tw_layout_frame_elems(codec), rest = n_elems % tw_layout_frame_elems(codec);
    size_t tail =
        rest ? tw_layout_frame_scales_bytes(codec) + tw_layout_code_bytes(TW_CODE_BITS(codec->kind), rest)
             : 0;
    return frames * tw_layout_frame_bytes(codec) + tail;
}

TW_HD static inline size_t tw_layout_encoded_bytes(const tw_quant_codec_t *codec, size_t n_elems)
{
    size_t mask = TW_QUANT_ALIGN_BYTES - 1;
    return (tw_layout_payload_bytes(codec, n_elems) + mask) & ~mask;
}

TW_HD static inline size_t tw_layout_block_count(const tw_quant_codec_t *codec, size_t n_elems)
{
    size_t block = (size_t)codec->block;
    return n_elems / block + (n_elems % block != 0);
}

/** The number of elements in block b of a segment of n_elems. */
TW_HD static inline size_t tw_layout_block_elems(const tw_quant_codec_t *codec, size_t n_elems, size_t b)
{
    size_t block = (size_t)codec->block, left = n_elems - b * block;
    return left < block ? left : block;
}

/** Offsets in the segment of block b's scale and codes. */
TW_HD static inline size_t tw_layout_scale_offset(const tw_quant_codec_t *codec, size_t b)
{
    return b / TW_QUANT_FRAME_BLOCKS * tw_layout_frame_bytes(codec) +
           b % TW_QUANT_FRAME_BLOCKS * tw_layout_scale_bytes(codec->scale);
}

TW_HD static inline size_t tw_layout_codes_offset(const tw_quant_codec_t *codec, size_t b)
{
    return b / TW_QUANT_FRAME_BLOCKS * tw_layout_frame_bytes(codec) + tw_layout_frame_scales_bytes(codec) +
           b % TW_QUANT_FRAME_BLOCKS * tw_layout_code_bytes(TW_CODE_BITS(codec->kind), (size_t)codec->block);
}
