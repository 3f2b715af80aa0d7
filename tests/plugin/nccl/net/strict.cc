#include "tests/plugin/nccl/net/strict.h"

#include <cstddef>
#include <cstring>
#include <ctime>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

namespace strict
{

namespace
{

using Filter = std::vector<sock_filter>;

void add(Filter &filter, unsigned short code, unsigned k, unsigned char yes = 0, unsigned char no = 0)
{
    filter.push_back({code, yes, no, k});
}

constexpr unsigned offset_of_argument(int i)
{
    return (unsigned)(offsetof(seccomp_data, args) + 8 * (unsigned)i);
}

/* That call ends the process. */
void forbid(Filter &filter, unsigned number)
{
    add(filter, BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
    add(filter, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
}

/* That call does, unless this argument, an int or a pointer, is 0. */
void forbid_unless_zero(Filter &filter, unsigned number, int argument)
{
    add(filter, BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4);
    add(filter, BPF_LD | BPF_W | BPF_ABS, offset_of_argument(argument));
    add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1);
    add(filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    add(filter, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
}

void forbid_sleep()
{
    Filter filter;
    add(filter, BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
    forbid_unless_zero(filter, SYS_epoll_wait, 3);
    forbid_unless_zero(filter, SYS_epoll_pwait, 3);
    forbid_unless_zero(filter, SYS_poll, 2);
    for (unsigned number : {SYS_ppoll, SYS_select, SYS_pselect6, SYS_nanosleep, SYS_clock_nanosleep,
                            SYS_pause, SYS_connect, SYS_accept, SYS_accept4, SYS_wait4, SYS_fsync}) {
        forbid(filter, number);
    }
    add(filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const sock_fprog program = {(unsigned short)filter.size(), filter.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) {
        throw std::runtime_error("system calls cannot be filtered here");
    }
}

} // namespace

void without_sleep(const std::function<void()> &body)
{
    std::exception_ptr thrown;
    std::thread([&] {
        try {
            forbid_sleep();
            body();
        } catch (...) {
            thrown = std::current_exception();
        }
    }).join();
    if (thrown) {
        std::rethrow_exception(thrown);
    }
}

double Longest::now_sec()
{
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double copy_sec(unsigned long bytes)
{
    std::vector<char> from(bytes, 1), to(bytes, 2);
    Longest copy;
    for (int round = 0; round < rounds; round++) {
        copy([&] { return memcpy(to.data(), from.data(), bytes); });
        copy.end_round();
    }
    return copy.best_sec();
}

} // namespace strict
