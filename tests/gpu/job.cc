#include "tests/gpu/job.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/core.h"

namespace tw::gpu
{

namespace
{

constexpr size_t kept_lines = 25;
constexpr double for_ever = 1e18;

struct Rank {
    int begun = -1;        /**< the case it is in or was in last */
    int n_done = 0;        /**< cases that it has a word about */
    bool is_wrong = false; /**< it has found something wrong itself */
    bool ended = false;
    double since_sec; /**< of the last step */
    std::deque<std::string> said;
};

class Job
{
  public:
    Job(const JobSpec &the_spec, const std::function<void(const Verdict &)> &the_progress)
        : spec(the_spec), progress(the_progress), children(the_spec.ranks), ranks(the_spec.ranks.size()),
          n_ok(the_spec.cases.size()), wrong(the_spec.cases.size() + 1), last_sec(tw_time_sec())
    {
        for (Rank &rank : ranks) {
            rank.since_sec = last_sec;
        }
    }

    std::vector<Verdict> run()
    {
        while (children.n_left() > 0) {
            const ChildEvent event = children.next(deadline());
            if (event.kind == ChildEvent::line) {
                hear(event.child, event.text);
            } else if (event.kind == ChildEvent::end) {
                take_end(event.child, event.code);
            } else {
                time_out();
            }
            settle();
        }
        is_over = true;
        settle();
        return verdicts;
    }

  private:
    int n_cases() const
    {
        return (int)spec.cases.size();
    }
    bool is_victim(size_t r) const
    {
        return (int)r == spec.victim;
    }
    std::string rank_name(size_t r) const
    {
        return "rank " + std::to_string(r);
    }

    /* ---- time ---- */

    double limit_of(const Rank &rank) const
    {
        return rank.begun < 0             ? spec.limits.start_sec
               : rank.n_done >= n_cases() ? spec.limits.end_sec
                                          : spec.limits.case_sec;
    }
    double deadline() const
    {
        double first = over_sec;
        for (const Rank &rank : ranks) {
            if (!rank.ended && !was_killed) {
                first = std::min(first, rank.since_sec + limit_of(rank));
            }
        }
        return first;
    }
    /* The case that a rank is in: where it has nothing to do, it is on its way to the next one. */
    int place_of(const Rank &rank) const
    {
        return std::max(rank.begun, rank.n_done);
    }
    /* Who hangs makes others hang: all that have been silent for long are named. */
    void time_out()
    {
        const double now = tw_time_sec();
        for (size_t r = 0; r < ranks.size() && over_sec > now; r++) {
            const Rank &rank = ranks[r];
            const double still = now - rank.since_sec;
            char text[64];
            if (rank.ended || still < limit_of(rank) / 2) {
                continue;
            }
            snprintf(text, sizeof(text), " hangs: nothing for %.1f s", still);
            blame(r, text + std::string(rank.begun < 0             ? " before the first case"
                                        : rank.n_done >= n_cases() ? " after the last case"
                                        : rank.begun < rank.n_done ? " before this case"
                                                                   : " in this case"));
        }
        children.kill_all();
        over_sec = for_ever;
        was_killed = true;
    }

    /* ---- what ranks say ---- */

    void hear(size_t r, const std::string &text)
    {
        Rank &rank = ranks[r];
        std::istringstream words(text);
        std::string what, rest;
        int number = -1;
        if (text[0] == '@' && words >> what >> number && number >= 0 && number < n_cases()) {
            std::getline(words, rest);
            step(r, what, number, rest);
            return;
        }
        rank.said.push_back(text);
        if (rank.said.size() > kept_lines) {
            rank.said.pop_front();
        }
    }
    void step(size_t r, const std::string &what, int number, const std::string &rest)
    {
        Rank &rank = ranks[r];
        rank.since_sec = tw_time_sec();
        if (what == "@begin") {
            rank.begun = number;
            return;
        }
        rank.n_done = number + 1;
        rank.begun = number;
        if (what == "@ok") {
            n_ok[(size_t)number]++;
        } else {
            wrong[(size_t)number] += rank_name(r) + ":" + rest + "\n" + output_of(rank);
            rank.is_wrong = true;
        }
    }
    std::string output_of(const Rank &rank) const
    {
        std::string text;
        for (const std::string &line : rank.said) {
            text += "    | " + line + "\n";
        }
        return text;
    }

    /* ---- ends ---- */

    void take_end(size_t r, int code)
    {
        Rank &rank = ranks[r];
        rank.ended = true;
        if (was_killed) {
            return;
        }
        const bool is_killed = code == 128 + SIGKILL;
        const bool as_it_should = is_victim(r) ? is_killed : code == 0 && rank.n_done == n_cases();
        if (as_it_should) {
            return;
        }
        if (!(rank.is_wrong && code == 1)) { /* else it has said why */
            blame(r, is_victim(r) ? " should have been killed, but ended with " + end_text(code)
                                  : " ended with " + end_text(code));
        }
        over_sec = std::min(over_sec, tw_time_sec() + spec.limits.grace_sec);
    }
    static std::string end_text(int code)
    {
        return code > 128
                   ? std::string("signal ") + std::to_string(code - 128) + " (" + strsignal(code - 128) + ")"
                   : "exit status " + std::to_string(code);
    }
    /* In the case that it is in; past the last one is the end of the job. */
    void blame(size_t r, const std::string &what)
    {
        const Rank &rank = ranks[r];
        wrong[(size_t)std::min(place_of(rank), n_cases())] += rank_name(r) + what + "\n" + output_of(rank);
        if (first_blame.empty()) {
            first_blame = rank_name(r) + what;
        }
    }

    /* ---- verdicts ---- */

    size_t n_wanted() const
    {
        return ranks.size() - (spec.victim >= 0 ? 1 : 0);
    }
    bool all_done(int number) const
    {
        for (size_t r = 0; r < ranks.size(); r++) {
            if (!is_victim(r) && ranks[r].n_done <= number) {
                return false;
            }
        }
        return true;
    }
    std::string not_run() const
    {
        return "not run: " + (first_blame.empty() ? "a rank had given up" : first_blame) + "\n";
    }
    void settle()
    {
        while ((int)verdicts.size() < n_cases() && (is_over || all_done((int)verdicts.size()))) {
            const size_t i = verdicts.size();
            std::string why = wrong[i];
            if (why.empty() && n_ok[i] < n_wanted()) {
                why = not_run();
            }
            tell(spec.cases[i], why);
        }
        if (is_over && (int)verdicts.size() == n_cases()) {
            tell("end", wrong.back().empty() && !first_blame.empty() ? not_run() : wrong.back());
        }
    }
    void tell(const std::string &name, const std::string &why)
    {
        const double now = tw_time_sec();
        verdicts.push_back({spec.name + ": " + name, why.empty(), why, now - last_sec});
        last_sec = now;
        progress(verdicts.back());
    }

    const JobSpec &spec;
    const std::function<void(const Verdict &)> &progress;
    Children children;
    std::vector<Rank> ranks;
    std::vector<size_t> n_ok;       /**< per case, ranks that are satisfied */
    std::vector<std::string> wrong; /**< per case, and of the end */
    std::string first_blame;
    double over_sec = for_ever; /**< when the rest is killed */
    bool was_killed = false, is_over = false;
    std::vector<Verdict> verdicts;
    double last_sec;
};

/* A rank's line about a case; line ends in the text become spaces. */
void tell(const char *kind, size_t number, const std::string &text)
{
    std::string line = text;
    for (char &each : line) {
        each = each == '\n' ? ' ' : each;
    }
    printf("@%s %zu%s%s\n", kind, number, line.empty() ? "" : " ", line.c_str());
    fflush(stdout);
}

} // namespace

std::vector<Verdict> run_job(const JobSpec &spec, const std::function<void(const Verdict &)> &progress)
{
    return Job(spec, progress).run();
}

/* Few channels: the kernels of all ranks share one GPU. */
std::map<std::string, std::string> nccl_env(int rank)
{
    return {
        {"NCCL_HOSTID", "gpu-check-" + std::to_string(rank)},
        {"NCCL_NET", "Socket"},
        {"NCCL_NET_PLUGIN", "none"},
        {"NCCL_TUNER_PLUGIN", "none"},
        {"NCCL_SOCKET_IFNAME", "lo"},
        {"NCCL_IB_DISABLE", "1"},
        {"NCCL_P2P_DISABLE", "1"},
        {"NCCL_SHM_DISABLE", "1"},
        {"NCCL_CUMEM_ENABLE", "0"},
        {"NCCL_RUNTIME_CONNECT", "0"},
        {"NCCL_MNNVL_ENABLE", "0"},
        {"NCCL_NVLS_ENABLE", "0"},
        {"NCCL_COLLNET_ENABLE", "0"},
        {"NCCL_MAX_NCHANNELS", "2"},
        {"NCCL_RAS_ENABLE", "0"},
        {"NCCL_IGNORE_CPU_AFFINITY", "1"},
        {"NCCL_DEBUG", "WARN"},
    };
}

bool run_cases(size_t n_cases, const std::function<std::string(size_t)> &run, const bool &is_broken)
{
    bool all_right = true;
    for (size_t i = 0; i < n_cases && !is_broken; i++) {
        tell("begin", i, "");
        const std::string wrong = run(i);
        tell(wrong.empty() ? "ok" : "wrong", i, wrong);
        all_right = all_right && wrong.empty();
    }
    return all_right;
}

} // namespace tw::gpu
