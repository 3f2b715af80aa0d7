#include "tests/common/fixture.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <dirent.h>
#include <unistd.h>

namespace tw
{

namespace
{

bool contains(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

bool contains_any(const std::string &text, const std::vector<std::string> &parts)
{
    return std::any_of(parts.begin(), parts.end(),
                       [&](const std::string &part) { return contains(text, part); });
}

const char *level_name(tw_log_level_t level)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    return names[level];
}

bool is_complaint(const LogCapture::Line &line)
{
    return line.level <= TW_LOG_WARN;
}

} // namespace

LogCapture::LogCapture()
{
    tw_log_set_sink(sink, this);
}

LogCapture::~LogCapture()
{
    tw_log_set_sink(nullptr, nullptr);
}

void LogCapture::sink(void *ctx, tw_log_level_t level, const char *file, int line, const char *message)
{
    auto *self = static_cast<LogCapture *>(ctx);
    std::lock_guard<std::mutex> guard(self->mutex_);
    self->lines_.push_back({level, std::string(file) + ":" + std::to_string(line), message});
    if (!is_complaint(self->lines_.back()) || !self->covered(self->lines_.back())) {
        fprintf(stderr, "[log] %s %s:%d: %s\n", level_name(level), file, line, message);
    }
}

bool LogCapture::covered(const Line &line) const
{
    return contains_any(line.text, expected_) || contains_any(line.text, allowed_);
}

void LogCapture::expect(const std::string &substring)
{
    std::lock_guard<std::mutex> guard(mutex_);
    expected_.push_back(substring);
}

void LogCapture::allow(const std::string &substring)
{
    std::lock_guard<std::mutex> guard(mutex_);
    allowed_.push_back(substring);
}

size_t LogCapture::count(const std::string &substring) const
{
    std::lock_guard<std::mutex> guard(mutex_);
    return std::count_if(lines_.begin(), lines_.end(),
                         [&](const Line &line) { return contains(line.text, substring); });
}

std::vector<LogCapture::Line> LogCapture::lines() const
{
    std::lock_guard<std::mutex> guard(mutex_);
    return lines_;
}

std::vector<std::string> LogCapture::unexpected() const
{
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<std::string> found;
    for (const Line &line : lines_) {
        if (is_complaint(line) && !covered(line)) {
            found.push_back(std::string(level_name(line.level)) + " " + line.where + ": " + line.text);
        }
    }
    return found;
}

std::vector<std::string> LogCapture::unmet() const
{
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<std::string> found;
    for (const std::string &expected : expected_) {
        bool met = std::any_of(lines_.begin(), lines_.end(), [&](const Line &line) {
            return is_complaint(line) && contains(line.text, expected);
        });
        if (!met) {
            found.push_back(expected);
        }
    }
    return found;
}

std::map<int, std::string> open_descriptors()
{
    std::map<int, std::string> found;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == nullptr) {
        return found;
    }
    while (const dirent *entry = readdir(folder)) {
        char target[512];
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target));
        int fd = atoi(entry->d_name);
        if (length > 0 && fd != dirfd(folder)) {
            found[fd] = std::string(target, length);
        }
    }
    closedir(folder);
    return found;
}

ScopedEnv::ScopedEnv(const std::string &name, const std::optional<std::string> &value) : name_(name)
{
    const char *before = getenv(name.c_str());
    if (before != nullptr) {
        before_ = before;
    }
    if (value) {
        setenv(name.c_str(), value->c_str(), 1);
    } else {
        unsetenv(name.c_str());
    }
}

ScopedEnv::~ScopedEnv()
{
    if (before_) {
        setenv(name_.c_str(), before_->c_str(), 1);
    } else {
        unsetenv(name_.c_str());
    }
}

void Fixture::SetUp()
{
    level_before_ = tw_log_level();
    tw_log_set_level(std::max(level_before_, TW_LOG_WARN));
    log_ = std::make_unique<LogCapture>();
    descriptors_before_ = open_descriptors();
}

void Fixture::TearDown()
{
    check_log();
    check_descriptors();
    log_.reset();
    tw_log_set_level(level_before_);
    while (!env_.empty()) {
        env_.pop_back();
    }
}

void Fixture::set_env(const std::string &name, const std::optional<std::string> &value)
{
    env_.push_back(std::make_unique<ScopedEnv>(name, value));
}

void Fixture::unset_env(const std::string &prefix)
{
    std::vector<std::string> names;
    for (char **entry = environ; *entry; entry++) {
        const std::string text = *entry;
        if (text.compare(0, prefix.size(), prefix) == 0) {
            names.push_back(text.substr(0, text.find('=')));
        }
    }
    for (const std::string &name : names) {
        set_env(name, std::nullopt);
    }
}

void Fixture::check_log()
{
    for (const std::string &line : log_->unexpected()) {
        ADD_FAILURE() << "unexpected log line: " << line;
    }
    /* A test that was skipped or has already failed may well not have got there. */
    if (IsSkipped() || HasFailure()) {
        return;
    }
    for (const std::string &substring : log_->unmet()) {
        ADD_FAILURE() << "expected a log line with \"" << substring << "\"";
    }
}

void Fixture::check_descriptors()
{
    for (const auto &[fd, what] : open_descriptors()) {
        auto before = descriptors_before_.find(fd);
        bool ours = before == descriptors_before_.end() || before->second != what;
        if (ours && !contains_any(what, allowed_descriptors_)) {
            ADD_FAILURE() << "leaked descriptor " << fd << ": " << what;
        }
    }
}

} // namespace tw
