/** Copies lists of words to a GPU's memory, on a stream. */
#pragma once

#include "quant/quant.h"

#include <cuda_runtime.h>

/** Enqueue a copy of n words of 8 bytes (numbers or pointers) to device memory. The caller may free `words`
 *  when this returns. */
tw_status_t tw_quant_cuda_words_fill(void *at, const void *words, size_t n, tw_stream_t stream);

/** Load the kernel of tw_quant_cuda_words_fill: loading it at the first launch could wait for the device. */
tw_status_t tw_quant_cuda_words_load();
