#include "tests/gpu/ptx/settings.h"

#include <cstdlib>

namespace tw::ptx
{

static std::string text_of(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static long number_of(const char *name, long otherwise)
{
    const std::string text = text_of(name);
    return text.empty() ? otherwise : atol(text.c_str());
}

static Settings read_settings()
{
    Settings s;
    s.files = text_of("PTX_FILES");
    s.log = text_of("PTX_LOG");
    s.expect = text_of("PTX_EXPECT");
    s.mutant = text_of("PTX_MUTANT");
    s.seed = (unsigned long)number_of("PTX_SEED", 0);
    s.diverge = number_of("PTX_DIVERGE", 0) != 0;
    s.races = number_of("PTX_RACES", 0) != 0;
    s.lazy = number_of("PTX_LAZY", 0) != 0;
    s.count = number_of("PTX_COUNT", 0) != 0;
    s.last_error = number_of("PTX_LAST_ERROR", 0) != 0;
    s.ulps = number_of("PTX_ULPS", 0);
    s.processors = number_of("PTX_PROCESSORS", 4);
    s.capability = number_of("PTX_CAPABILITY", 80);
    s.memory_mb = number_of("PTX_MEMORY_MB", 3000);
    s.driver = number_of("PTX_DRIVER", 0);
    s.runtime = number_of("PTX_RUNTIME", 0);
    s.branches = (unsigned long)number_of("PTX_BRANCHES", 2000000000);
    return s;
}

Settings &settings()
{
    static auto *all = new Settings(read_settings());
    return *all;
}

} // namespace tw::ptx
