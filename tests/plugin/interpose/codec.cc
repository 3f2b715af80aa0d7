#include "tests/plugin/interpose/codec.h"

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

std::vector<char> through_codec(const std::string &codec, tw_type_t type, const std::vector<char> &plain)
{
    tw_quant_params_t params = {};
    tw_quant_t *quant = nullptr;
    expect(tw_quant_codec_parse(codec.c_str(), &params.codec), codec);
    expect(tw_quant_create(&params, &quant), codec);
    const size_t count = plain.size() / tw_type_bytes(type);
    std::vector<char> encoded(tw_quant_encoded_bytes(&params.codec, count)), out(plain.size());
    tw_quant_args_t args = {};
    args.type = type;
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
