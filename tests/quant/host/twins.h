/** Fixture of tests that compare every other backend with the reference. */
#ifndef TW_TESTS_QUANT_HOST_TWINS_H
#define TW_TESTS_QUANT_HOST_TWINS_H

#include <string>
#include <vector>

#include "tests/common/fixture.h"
#include "tests/quant/quant_data.h"

namespace tw
{

/** Skips where there is no other backend. */
class Twins : public Fixture
{
  protected:
    const std::vector<std::string> twins = host_backends(false);

    void SetUp() override
    {
        Fixture::SetUp();
        if (extra_backends()) {
            allow_descriptors(""); /* a GPU's driver opens files when it likes */
        }
        if (twins.empty()) {
            GTEST_SKIP() << "this machine has no such backend";
        }
    }
};

} // namespace tw

#endif
