/** What LD_PRELOAD has to be. */
#ifndef TW_TESTS_PLUGIN_INTERPOSE_PRELOAD_H
#define TW_TESTS_PLUGIN_INTERPOSE_PRELOAD_H

#include <string>

/** For this library; a sanitizer that this process was built with insists on being first. */
std::string preload_with(const std::string &library);

#endif
