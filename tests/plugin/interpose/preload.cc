#include "tests/plugin/interpose/preload.h"

#include <cstring>

#include <link.h>

static int look(dl_phdr_info *info, size_t, void *arg)
{
    if (strstr(info->dlpi_name, "/libasan.so") != nullptr ||
        strstr(info->dlpi_name, "/libtsan.so") != nullptr) {
        *(std::string *)arg = info->dlpi_name;
    }
    return 0;
}

std::string preload_with(const std::string &library)
{
    std::string sanitizer;
    dl_iterate_phdr(look, &sanitizer);
    return sanitizer.empty() ? library : sanitizer + ":" + library;
}
