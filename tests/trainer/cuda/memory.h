/** The device that the tests of trainer/cuda run on: the emulated one (device.cc) or a GPU (device_cuda.cc),
 *  as they are linked. Its memory is the CPU's, too. */
#ifndef TW_TESTS_TRAINER_CUDA_MEMORY_H
#define TW_TESTS_TRAINER_CUDA_MEMORY_H

#include <new>
#include <string>
#include <vector>

#include "core/core.h"
#include "tests/common/fixture.h"

namespace tw
{

/** Why there is no device; "": there is one. */
std::string device_lacks();
/** Take memory that kernels may use; NULL: there is not so much. */
void *device_take(size_t bytes);
void device_give(void *memory);
/** `launched`, or what went wrong until all that was launched had come to its end. */
tw_status_t device_wait(tw_status_t launched);

template <class T>
struct DeviceAllocator {
    using value_type = T;

    DeviceAllocator() = default;
    template <class U>
    DeviceAllocator(const DeviceAllocator<U> & /*other*/)
    {
    }
    T *allocate(size_t n)
    {
        void *memory = device_take(n * sizeof(T));
        if (!memory) {
            throw std::bad_alloc();
        }
        return static_cast<T *>(memory);
    }
    void deallocate(T *memory, size_t /*n*/)
    {
        device_give(memory);
    }
    bool operator==(const DeviceAllocator & /*other*/) const
    {
        return true;
    }
    bool operator!=(const DeviceAllocator & /*other*/) const
    {
        return false;
    }
};

/** What kernels may read and write. */
template <class T>
using Device = std::vector<T, DeviceAllocator<T>>;

/** Skips where there is no device. */
class DeviceFixture : public Fixture
{
  protected:
    void SetUp() override
    {
        Fixture::SetUp();
        allow_descriptors(""); /* a GPU's driver opens files when it likes */
        if (!device_lacks().empty()) {
            GTEST_SKIP() << device_lacks();
        }
    }
};

} // namespace tw

/** A call of trainer/cuda, and the end of what it launches. */
#define ASSERT_RUNS(call) ASSERT_EQ(tw::device_wait(call), TW_OK)

#endif
