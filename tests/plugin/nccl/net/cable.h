/** A cable between two processes of run_pair, each in a network namespace of its own. */
#ifndef TW_TESTS_PLUGIN_NCCL_NET_CABLE_H
#define TW_TESTS_PLUGIN_NCCL_NET_CABLE_H

#include <string>

#include "tests/plugin/nccl/net/proxy.h"

namespace cable
{

/** Why there can be none here; "": there can. */
std::string why_not();
/** Runs `ip` with these words. */
void ip(const std::string &words);
/** Moves this process into a namespace with eth0, a cable to the other process's; one of both makes it. */
void enter(const proxy::Channel &channel, bool makes_it);

} // namespace cable

#endif
