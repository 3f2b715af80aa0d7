/** Thinwire quant: codecs of tensors, bit-identical on every backend (CPU reference, CPU SIMD, CUDA).
 *
 *  codec.h           codecs as data, and the table of them
 *  block_codec.h     blocks of short codes with a scale each: int8, int4, int2, fp8
 *  delta_codec.h     how weights in bf16, or in fp8, have changed, without loss
 *  lossless_codec.h  tensors of floating-point numbers, without loss
 *  message_codec.h   codecs of messages, whichever they are: the lossless one, and ecdq
 *  streams.h         the two lossless ones for memory of a GPU
 *  convert.h         plain conversions and sums */
#ifndef TW_QUANT_QUANT_H
#define TW_QUANT_QUANT_H

#include "quant/block_codec.h"
#include "quant/codec.h"
#include "quant/convert.h"
#include "quant/delta_codec.h"
#include "quant/lossless_codec.h"
#include "quant/message_codec.h"
#include "quant/streams.h"

#endif
