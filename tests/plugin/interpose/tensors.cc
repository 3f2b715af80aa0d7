#include "tests/plugin/interpose/tensors.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "quant/quant.h"

namespace interposed
{

static void expect(tw_status_t status, const std::string &what)
{
    if (status != TW_OK) {
        throw std::runtime_error(what + ": " + tw_status_string(status));
    }
}

/** Not asked of the plugin: a type that it takes for another one must show. */
static tw_type_t type_of(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat32:
        return TW_TYPE_FP32;
    case ncclFloat16:
        return TW_TYPE_FP16;
    case ncclBfloat16:
        return TW_TYPE_BF16;
    default:
        throw std::runtime_error("no tensors of NCCL's type " + std::to_string(type));
    }
}

/* A wave, in double, so that it is one to the end of a large tensor, too; its height changes from block to
 * block. */
float value_of(int rank, size_t i)
{
    const size_t height = 1 + (i / 512) % (size_t)LARGEST;
    return (float)(std::sin(0.37 * (double)i + rank) * (double)height);
}

size_t elem_bytes(ncclDataType_t type)
{
    return type == ncclInt32 ? sizeof(int32_t) : tw_type_bytes(type_of(type));
}

Bytes from_floats(ncclDataType_t type, const Floats &values)
{
    const size_t elem = elem_bytes(type);
    Bytes bytes(values.size() * elem);
    if (type != ncclInt32) {
        tw_convert_from_fp32(type_of(type), values.data(), 1, bytes.data(), values.size());
        return bytes;
    }
    for (size_t i = 0; i < values.size(); i++) {
        const int32_t value = (int32_t)values[i];
        memcpy(&bytes[i * elem], &value, elem);
    }
    return bytes;
}

Floats to_floats(ncclDataType_t type, const Bytes &bytes)
{
    const size_t elem = elem_bytes(type);
    Floats values(bytes.size() / elem);
    if (type != ncclInt32) {
        tw_convert_to_fp32(type_of(type), bytes.data(), values.data(), values.size());
        return values;
    }
    for (size_t i = 0; i < values.size(); i++) {
        int32_t value;
        memcpy(&value, &bytes[i * elem], elem);
        values[i] = (float)value;
    }
    return values;
}

Bytes through_codec(const std::string &codec, ncclDataType_t type, const Bytes &plain)
{
    tw_quant_params_t params = {};
    tw_quant_t *quant = nullptr;
    expect(tw_quant_codec_parse(codec.c_str(), &params.codec), codec);
    expect(tw_quant_create(&params, &quant), codec);
    const size_t count = plain.size() / elem_bytes(type);
    Bytes encoded(tw_quant_encoded_bytes(&params.codec, count)), out(plain.size());
    tw_quant_args_t args = {};
    args.type = type_of(type);
    args.factor = 1;
    tw_quant_segment_t segment = {};
    segment.src = plain.data();
    segment.dst = encoded.data();
    segment.n_elems = count;
    expect(tw_quant_encode(quant, &args, &segment, 1), codec + ", encoding");
    segment.src = encoded.data();
    segment.dst = out.data();
    expect(tw_quant_decode(quant, &args, &segment, 1), codec + ", decoding");
    tw_quant_destroy(quant);
    return out;
}

} // namespace interposed
