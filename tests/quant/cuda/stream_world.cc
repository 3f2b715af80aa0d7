#include "tests/quant/cuda/stream_world.h"

#include <gtest/gtest.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace tw
{

/* Guards of an emulated device's memory must not even be read, which a sanitizer sees. */
static void forbid([[maybe_unused]] const uint8_t *at, [[maybe_unused]] size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    if (!stream_world().time) {
        ASAN_POISON_MEMORY_REGION(at, bytes);
    }
#endif
}

static void allow([[maybe_unused]] const uint8_t *at, [[maybe_unused]] size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    if (!stream_world().time) {
        ASAN_UNPOISON_MEMORY_REGION(at, bytes);
    }
#endif
}

/* Not to be seen by others: nothing is read from a buffer before it was written. */
constexpr uint8_t untouched = 0xa5;

DeviceBuffer::DeviceBuffer(size_t bytes, size_t shift)
    : DeviceBuffer(std::vector<uint8_t>(bytes, untouched), shift)
{
}

DeviceBuffer::DeviceBuffer(const std::vector<uint8_t> &content, size_t shift) : bytes_(content.size())
{
    std::vector<uint8_t> image(guard + shift + bytes_ + guard, untouched);
    std::copy(content.begin(), content.end(), image.begin() + long(guard + shift));
    memory_ = static_cast<uint8_t *>(stream_world().alloc(image.size()));
    data_ = memory_ + guard + shift;
    stream_world().copy(memory_, image.data(), image.size());
    forbid(memory_, guard);
    forbid(data_ + bytes_, guard);
}

DeviceBuffer::~DeviceBuffer()
{
    std::vector<uint8_t> image(size_t(data_ - memory_) + bytes_ + guard);
    allow(memory_, image.size());
    stream_world().copy(image.data(), memory_, image.size());
    image.erase(image.begin() + (data_ - memory_), image.begin() + (data_ - memory_) + long(bytes_));
    EXPECT_EQ(image, std::vector<uint8_t>(image.size(), untouched)) << "written beside a buffer";
    stream_world().free(memory_);
}

std::vector<uint8_t> DeviceBuffer::get() const
{
    std::vector<uint8_t> content(bytes_);
    stream_world().copy(content.data(), data_, bytes_);
    return content;
}

void StreamFixture::SetUp()
{
    Fixture::SetUp();
    if (!stream_world().there) {
        GTEST_SKIP() << "no GPU";
    }
    allow_descriptors(""); /* a driver opens files when it likes */
    said_ = static_cast<tw_quant_outcome_t *>(stream_world().alloc_host(sizeof(*said_)));
}

void StreamFixture::TearDown()
{
    if (said_) {
        stream_world().free_host(said_);
    }
    Fixture::TearDown();
}

} // namespace tw
