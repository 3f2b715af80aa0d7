/** Processes as ranks: starts rank_main once per rank, and says how each ended. */
#ifndef TW_TESTS_TRANSPORT_RANKS_H
#define TW_TESTS_TRANSPORT_RANKS_H

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/common/process.h"

using Env = std::map<std::string, std::string>;
using process::free_port;

class Ranks
{
  public:
    struct Options {
        int world = 2;
        std::vector<std::string> arguments;           /**< of rank_main */
        Env env;                                      /**< of all ranks, besides the job's own */
        std::function<Env(int rank)> rank_env;        /**< of each */
        std::function<void(int rank)> in_child;       /**< before exec: namespaces */
        std::function<std::string(int rank)> program; /**< instead of RANK_MAIN */
        std::string master_addr = "127.0.0.1";
        int port = 0; /**< 0: a free one */
    };
    explicit Ranks(const Options &options);

    int port() const
    {
        return options_.port;
    }
    pid_t pid(int rank) const
    {
        return children_[rank]->pid();
    }
    void start(int rank);
    void signal(int rank, int number);
    /** Wait until every rank has said "ready"; false: not in time, or one ended before. */
    bool wait_ready(double sec);
    /** What all have said so far, for messages. */
    std::string transcript() const;
    /** Wait for the ends of all but `except`; who takes longer than `sec` is killed. */
    std::vector<process::Result> wait_all(double sec, int except = -1);
    process::Result wait_one(int rank, double sec);

  private:
    void listen();

    Options options_;
    std::vector<std::unique_ptr<process::Child>> children_;
};

#endif
