/** Processes as ranks: starts rank_main once per rank, and says how each ended. */
#ifndef TW_TESTS_TRANSPORT_RANKS_H
#define TW_TESTS_TRANSPORT_RANKS_H

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

using Env = std::map<std::string, std::string>;

/** A port that was free a moment ago. */
int free_port();

/** How a rank ended. */
struct Ending {
    int exit_status = -1; /**< -1: by a signal, or not at all */
    bool in_time = true;  /**< false: killed by the test */
    std::string out, err;
    double sec = 0; /**< from the start of the job */
};

class Ranks
{
  public:
    struct Options {
        int world = 2;
        std::vector<std::string> arguments;     /**< of rank_main */
        Env env;                                /**< of all ranks, besides the job's own */
        std::function<Env(int rank)> rank_env;  /**< of each */
        std::function<void(int rank)> in_child; /**< before exec: namespaces */
        std::string master_addr = "127.0.0.1";
        int port = 0; /**< 0: a free one */
    };
    explicit Ranks(const Options &options);
    ~Ranks();
    Ranks(const Ranks &) = delete;
    Ranks &operator=(const Ranks &) = delete;

    int port() const
    {
        return options_.port;
    }
    pid_t pid(int rank) const
    {
        return children_[rank].pid;
    }
    void start(int rank);
    void signal(int rank, int number);
    /** Until every rank has said "ready"; false: not in time, or one ended before. */
    bool wait_ready(double sec);
    /** What all have said so far, for messages. */
    std::string transcript() const;
    /** Wait for the ends of all but `except`; who takes longer than `sec` is killed. */
    std::vector<Ending> wait_all(double sec, int except = -1);
    Ending wait_one(int rank, double sec);

  private:
    struct Child {
        pid_t pid = -1;
        int out = -1, err = -1;
        Ending ending;
    };
    void read_some(int timeout_ms);

    Options options_;
    std::vector<Child> children_;
    double start_sec_;
};

#endif
