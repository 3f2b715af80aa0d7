/** Part of trainer/cuda (see cuda.h): causal attention, softmax(Q K' / sqrt(D)) V for each head (arXiv
 *  1706.03762). It works in tiles, and stores no T x T matrix (arXiv 2205.14135, 2307.08691). */
#pragma once

#include "trainer/cuda/attention_args.h"

TW_C_BEGIN

/** Computes y (B,T,HD), rows y_stride elements apart. Also TW_ERR_INVALID: a bad width or number of heads. */
tw_status_t tw_cuda_attention_forward(const tw_cuda_attention_t *attention, void *y, size_t y_stride,
                                      tw_stream_t stream);
static inline size_t tw_cuda_attention_workspace_bytes(const tw_cuda_attention_t *attention)
{
    return attention->batch * attention->heads * attention->seq_len * sizeof(float);
}
tw_status_t tw_cuda_attention_backward(const tw_cuda_attention_t *attention,
                                       const tw_cuda_attention_gradients_t *gradients, tw_stream_t stream);

TW_C_END
