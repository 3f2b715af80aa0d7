#include "tests/gpu/children.h"

#include <algorithm>
#include <cmath>
#include <csignal>

#include "core/core.h"

namespace tw::gpu
{

namespace
{

constexpr int look_ms = 20; /**< how long nobody is looked at */

} // namespace

Children::Children(const std::vector<ChildSpec> &specs) : n_left_(specs.size())
{
    for (const ChildSpec &spec : specs) {
        process::Spec child;
        child.argv = spec.argv;
        child.env = spec.env;
        child.stderr_to = process::Stderr::with_stdout;
        children_.push_back({std::make_unique<process::Child>(child)});
    }
}

void Children::kill_all()
{
    for (const Listened &child : children_) {
        child.process->signal(SIGKILL);
    }
}

size_t Children::n_left() const
{
    return n_left_;
}

/* What a child has said, as lines; of one that has ended, the rest too. */
void Children::take_lines(size_t i)
{
    Listened &child = children_[i];
    const std::string &text = child.process->out();
    size_t end;
    while ((end = text.find('\n', child.heard)) != std::string::npos) {
        events_.push_back({ChildEvent::line, i, text.substr(child.heard, end - child.heard), 0});
        child.heard = end + 1;
    }
    if (child.process->pid() < 0 && child.heard < text.size()) {
        events_.push_back({ChildEvent::line, i, text.substr(child.heard), 0});
        child.heard = text.size();
    }
}

void Children::listen_for(int timeout_ms)
{
    std::vector<process::Child *> all;
    for (const Listened &child : children_) {
        all.push_back(child.process.get());
    }
    process::listen(all, timeout_ms);
    for (size_t i = 0; i < children_.size(); i++) {
        Listened &child = children_[i];
        if (child.is_over) {
            continue;
        }
        take_lines(i);
        if (child.process->pid() < 0) {
            child.is_over = true;
            events_.push_back({ChildEvent::end, i, "", child.process->wait().code});
        }
    }
}

ChildEvent Children::next(double until_sec)
{
    double left_ms = 0; /* look at least once */
    do {
        if (events_.empty() && n_left_ > 0) {
            listen_for((int)std::min<double>(look_ms, left_ms));
        }
        if (!events_.empty()) {
            ChildEvent event = events_.front();
            events_.pop_front();
            n_left_ -= event.kind == ChildEvent::end;
            return event;
        }
        left_ms = std::ceil((until_sec - tw_time_sec()) * 1e3);
    } while (n_left_ > 0 && left_ms > 0);
    return {ChildEvent::silence, 0, "", 0};
}

} // namespace tw::gpu
