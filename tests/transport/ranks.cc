#include "tests/transport/ranks.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "core/core.h"

Ranks::Ranks(const Options &options) : options_(options), children_(options.world)
{
    if (!options_.port) {
        options_.port = free_port();
    }
    for (int r = 0; r < options_.world; r++) {
        start(r);
    }
}

void Ranks::start(int rank)
{
    process::Spec spec;
    spec.env = {{"RANK", std::to_string(rank)},
                {"WORLD_SIZE", std::to_string(options_.world)},
                {"MASTER_ADDR", options_.master_addr},
                {"TW_RENDEZVOUS_PORT", std::to_string(options_.port)},
                {"TW_JOB_TOKEN", "the token of this test, 5f0c9b1e7ad24836"}};
    for (const auto &var : options_.env) {
        spec.env[var.first] = var.second;
    }
    if (options_.rank_env) {
        for (const auto &var : options_.rank_env(rank)) {
            spec.env[var.first] = var.second;
        }
    }
    if (options_.in_child) {
        spec.before = [this, rank]() { options_.in_child(rank); };
    }
    spec.argv = {options_.program ? options_.program(rank) : getenv("RANK_MAIN")};
    spec.argv.insert(spec.argv.end(), options_.arguments.begin(), options_.arguments.end());
    children_[rank] = std::make_unique<process::Child>(spec);
}

void Ranks::signal(int rank, int number)
{
    children_[rank]->signal(number);
}

/* To all, so that nobody blocks on a full pipe. */
void Ranks::listen()
{
    std::vector<process::Child *> all;
    for (const auto &child : children_) {
        all.push_back(child.get());
    }
    process::listen(all, 20);
}

bool Ranks::wait_ready(double sec)
{
    const double until = tw_time_sec() + sec;
    const auto ready = [](const auto &child) { return child->out().find("ready") != std::string::npos; };
    const auto ended = [&](const auto &child) { return child->pid() < 0 && !ready(child); };
    while (!std::all_of(children_.begin(), children_.end(), ready)) {
        if (tw_time_sec() > until || std::any_of(children_.begin(), children_.end(), ended)) {
            return false;
        }
        listen();
    }
    return true;
}

std::string Ranks::transcript() const
{
    std::string text;
    for (const auto &child : children_) {
        text += child->out() + child->err();
    }
    return text;
}

process::Result Ranks::wait_one(int rank, double sec)
{
    const double until = tw_time_sec() + sec;
    while (children_[rank]->pid() > 0 && tw_time_sec() < until) {
        listen();
    }
    return children_[rank]->wait(0);
}

std::vector<process::Result> Ranks::wait_all(double sec, int except)
{
    const double until = tw_time_sec() + sec;
    std::vector<process::Result> endings(children_.size());
    for (size_t r = 0; r < children_.size(); r++) {
        if ((int)r != except) {
            endings[r] = wait_one((int)r, std::max(0.0, until - tw_time_sec()));
        }
    }
    return endings;
}
