/** Where the entropy codecs on streams are tried: an emulated device, whose memory is the host's, or a
 *  GPU. */
#ifndef TW_TESTS_QUANT_CUDA_STREAM_WORLD_H
#define TW_TESTS_QUANT_CUDA_STREAM_WORLD_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "quant/quant.h"
#include "tests/common/fixture.h"

namespace tw
{

struct StreamWorld {
    bool there;   /**< false: tests skip */
    bool slow;    /**< fewer cases will do */
    bool sampled; /**< of cases that differ in little one of two or three, too */
    tw_status_t (*create)(const tw_quant_codec_t *codec, tw_quant_messages_stream_t **out);
    tw_status_t (*create_delta)(tw_quant_delta_stream_t **out);
    void *(*alloc)(size_t bytes); /**< aligned to 256 bytes; of the host: pinned */
    void *(*alloc_host)(size_t bytes);
    void (*free)(void *memory);
    void (*free_host)(void *memory);
    void (*copy)(void *to, const void *from, size_t bytes); /**< either way, behind all that was enqueued */
    /** Enqueue a copy within the device's memory. */
    void (*copy_on_device)(void *to, const void *from, size_t bytes);
    /** Seconds that what `work` enqueues takes the device, the median of many in about `seconds`, with
     *  `before` before each. NULL: the device is emulated and has no time. */
    double (*time)(double seconds, const std::function<void()> &before, const std::function<void()> &work);
};

const StreamWorld &stream_world();

/** Device memory with a guard on both sides, which must not change. */
class DeviceBuffer
{
  public:
    /** `shift`: bytes from an address aligned to 256. */
    explicit DeviceBuffer(size_t bytes, size_t shift = 0);
    explicit DeviceBuffer(const std::vector<uint8_t> &content, size_t shift = 0);
    ~DeviceBuffer();
    DeviceBuffer(const DeviceBuffer &) = delete;
    DeviceBuffer &operator=(const DeviceBuffer &) = delete;

    uint8_t *data() const
    {
        return data_;
    }
    size_t bytes() const
    {
        return bytes_;
    }
    std::vector<uint8_t> get() const;

  private:
    static constexpr size_t guard = 256;
    size_t bytes_;
    uint8_t *memory_, *data_;
};

/** Tests of a codec on streams; skipped where there is no GPU. */
class StreamFixture : public Fixture
{
  protected:
    void SetUp() override;
    void TearDown() override;
    tw_quant_outcome_t *said_ = nullptr; /**< memory for an outcome, which the device writes */
};

} // namespace tw

#endif
