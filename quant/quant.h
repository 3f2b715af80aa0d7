/** Thinwire quant: codecs of tensors, bit-identical on every backend (CPU reference, CPU SIMD, CUDA).
 *
 *  codec.h           codecs as data, and the table of them
 *  block_codec.h     blocks of a scale and short codes: int8, int4, int2, fp8
 *  delta_codec.h     changes of weights in bf16 or fp8, without loss
 *  lossless_codec.h  tensors of floating-point numbers, without loss
 *  message_codec.h   one interface to codecs of messages: lossless and ecdq
 *  streams.h         codecs of messages, and the delta, in GPU memory
 *  convert.h         conversions and sums of unencoded values */
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
