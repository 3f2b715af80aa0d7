/** The fixture of tests that multiply on a GPU: they skip where there is none, or no cuBLASLt. */
#ifndef TW_TESTS_TRAINER_DEVICE_CUBLAS_H
#define TW_TESTS_TRAINER_DEVICE_CUBLAS_H

#if __has_include(<cublas_api.h>)
#include <cublas_api.h>
#endif
#include <dlfcn.h>

#include <string>

#include "tests/trainer/cuda/memory.h"

namespace tw
{

class CublasFixture : public DeviceFixture
{
  protected:
    void SetUp() override
    {
        DeviceFixture::SetUp();
#ifdef CUBLAS_VER_MAJOR
        const std::string library = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
        if (!IsSkipped() && !dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
            GTEST_SKIP() << dlerror();
        }
#else
        GTEST_SKIP() << "built without cuBLASLt";
#endif
    }
};

} // namespace tw

#endif
