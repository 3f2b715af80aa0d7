/** Tensors of a job under the interposer: their values, as NCCL has them in memory, and what a codec makes of
 *  them. Bad arguments throw std::runtime_error. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_TENSORS_H
#define TW_TESTS_PLUGIN_INTERPOSE_TENSORS_H

#include <cstddef>
#include <string>
#include <vector>

#include <nccl.h>

namespace interposed
{

using Bytes = std::vector<char>;
using Floats = std::vector<float>;

constexpr float LARGEST = 5; /**< no value is more, to either side */

/** An element of a rank's tensor; no two ranks have the same. */
float value_of(int rank, size_t i);

/** Bytes of an element: fp32, fp16, bf16 or int32. */
size_t elem_bytes(ncclDataType_t type);
Bytes from_floats(ncclDataType_t type, const Floats &values);
Floats to_floats(ncclDataType_t type, const Bytes &bytes);

/** Encoded and decoded on the CPU: the bits that who has gathered it under the interposer must see. */
Bytes through_codec(const std::string &codec, ncclDataType_t type, const Bytes &plain);

} // namespace interposed

#endif
