#ifndef TW_TESTS_PLUGIN_NCCL_NET_TICKER_SLEEPS_H
#define TW_TESTS_PLUGIN_NCCL_NET_TICKER_SLEEPS_H

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

/* How often the plugin's own thread of this process has gone to sleep; it has one for each device in use. */
inline long ticker_sleeps()
{
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name, word;
        std::getline(std::ifstream(task.path() / "comm"), name);
        std::ifstream status(task.path() / "status");
        long n = 0;
        while (name == "thinwire net" && status >> word) {
            if (word == "voluntary_ctxt_switches:" && status >> n) {
                return n;
            }
        }
    }
    throw std::runtime_error("the plugin has no thread");
}

#endif
