/** Data, codecs and guarded buffers for the tests of quant. */
#ifndef TW_TESTS_QUANT_DATA_H
#define TW_TESTS_QUANT_DATA_H

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "quant/backend.h"

namespace tw
{

/** Kinds of input; all but `nan` and `infinity` (and, with Hadamard, `huge`) are to survive the round
 *  trip. */
enum class Data {
    gauss,
    outlier,  /**< Gaussian, one element of every 500 is 200 sigma */
    denormal, /**< smallest numbers of the type, both signs */
    zeros,    /**< +0 and -0 */
    nan,      /**< Gaussian with a few NaN */
    infinity, /**< Gaussian with a few infinities */
    negative, /**< all negative */
    constant, /**< one value per 64 elements */
    huge,     /**< near the largest finite value of the type, both signs */
    spread,   /**< every order of magnitude that the type has */
};
constexpr int n_data = 10;
const char *name_of(Data data);

/** n elements of `type`, always the same for the same arguments. */
std::vector<uint8_t> make_data(tw_type_t type, Data data, size_t n, uint64_t seed);

/** The kinds of codecs with blocks. */
std::vector<tw_quant_kind_t> block_kinds();
/** Every combination of kind, scale, rounding and Hadamard for these block sizes. */
std::vector<tw_quant_codec_t> all_codecs(const std::vector<int> &blocks);
/** Those that reductions take. */
std::vector<tw_quant_codec_t> sum_codecs(const std::vector<int> &blocks);
std::string text_of(const tw_quant_codec_t &codec);

/** Bytes at a chosen offset from a 64-byte boundary between guards; check() tells whether somebody wrote on
 *  those. */
class Guarded
{
  public:
    Guarded(size_t bytes, size_t offset);
    Guarded(const std::vector<uint8_t> &content, size_t offset);
    uint8_t *data()
    {
        return memory_.get() + start_;
    }
    size_t size() const
    {
        return bytes_;
    }
    bool intact() const;
    std::vector<uint8_t> content() const;

  private:
    size_t bytes_, start_, total_;
    std::unique_ptr<uint8_t[]> memory_;
};

/** A context; fails the test if it can not be made. */
class Codec
{
  public:
    Codec(const tw_quant_codec_t &codec, const std::string &backend);
    ~Codec();
    Codec(const Codec &) = delete;
    Codec &operator=(const Codec &) = delete;
    operator tw_quant_t *() const
    {
        return quant_;
    }

  private:
    tw_quant_t *quant_ = nullptr;
};

/** Where stochastic rounding takes its numbers from. */
struct Place {
    uint64_t seed = 1, first_elem = 0;
    uint32_t step = 0, tensor = 0;
};

/** One-segment calls that must succeed. */
std::vector<uint8_t> encode(tw_quant_t *quant, tw_type_t type, const std::vector<uint8_t> &plain,
                            const Place &place = Place());
std::vector<uint8_t> decode(tw_quant_t *quant, tw_type_t type, const std::vector<uint8_t> &encoded, size_t n);
/** As fp32, which holds every decoded value before it is rounded to a type. */
std::vector<float> decode_fp32(tw_quant_t *quant, const std::vector<uint8_t> &encoded, size_t n);

std::vector<uint8_t> bytes_of(const std::vector<float> &values);
/** Every element of a plain array as fp32, exactly. */
std::vector<float> floats_of(tw_type_t type, const std::vector<uint8_t> &array);

/** Backends that only one test program has, if it defines these: then it tests those and no others, with
 *  every n-th case. They take pointers to host memory, wherever they work. */
std::optional<std::vector<const tw_quant_backend_t *>> extra_backends();
size_t extra_backends_take_every();

/** Names of the host's backends, the reference left out or not. */
std::vector<std::string> host_backends(bool with_reference);

/** Element i of a plain array of bytes, as a double. */
double value_at(tw_type_t type, const std::vector<uint8_t> &array, size_t i);

/** Equal bytes, or both NaN. */
bool same_values(tw_type_t type, const std::vector<uint8_t> &a, const std::vector<uint8_t> &b);

} // namespace tw

std::ostream &operator<<(std::ostream &out, const tw_quant_codec_t &codec);

#endif
