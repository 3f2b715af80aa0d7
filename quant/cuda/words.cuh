/** Lists of words that a stream brings to a GPU's memory. */
#pragma once

#include "quant/quant.h"

#include <cuda_runtime.h>

/** Enqueue: n words of 8 bytes, numbers or pointers, to device memory; the list itself is not needed
 *  afterwards. */
tw_status_t tw_quant_cuda_words_fill(void *at, const void *words, size_t n, tw_stream_t stream);

/** Load its kernel: a launch that loads one may wait for the device. */
tw_status_t tw_quant_cuda_words_load();
