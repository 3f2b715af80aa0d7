/* Runs a job in the cluster in a box, and watches it from outside. */
#include "tests/faults/faults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster/cluster.h"

#define LINK_BPS 1e9
/* Time that all ranks have to end after a fault, beyond TW_PEER_TIMEOUT. */
#define MARGIN_SEC 4.0
/* Time to make the nodes and start the ranks. */
#define START_SEC 8.0
/* Time that the ranks' last lines take to come through. */
#define LAST_WORDS_SEC 0.05
/* Time that the kernel has to take processes away. */
#define CLEAN_UP_SEC 5.0
#define POLL_SEC 0.02

typedef struct run {
    const tw_fault_plan_t *plan;
    int pipe[2];
    FILE *log; /* log of the ranks and the cluster */
    pid_t child;
} run_t;

/* ---- the job ------------------------------------------------------------------------------------------- */

/** In the child process: start a cluster whose ranks run this program again. */
static int faults_run_cluster(const run_t *run)
{
    char numbers[5][24];
    snprintf(numbers[0], sizeof(numbers[0]), "%d", run->plan->n_nodes);
    snprintf(numbers[1], sizeof(numbers[1]), "%d", run->plan->ranks_per_node);
    snprintf(numbers[2], sizeof(numbers[2]), "%llu", (unsigned long long)run->plan->seed);
    snprintf(numbers[3], sizeof(numbers[3]), "%llu", (unsigned long long)run->plan->index);
    snprintf(numbers[4], sizeof(numbers[4]), "%d", run->pipe[1]);
    const char *argv[] = {"faults",   "--nodes", numbers[0], "--ranks-per-node", numbers[1], "--seed",
                          numbers[2], "--first", numbers[3], "--rank-fd",        numbers[4], NULL};
    tw_cluster_params_t params = {.n_nodes = run->plan->n_nodes,
                                  .ranks_per_node = run->plan->ranks_per_node,
                                  .link_bps = LINK_BPS,
                                  .grace_sec = 1e6, /* the campaign itself ends a run */
                                  .argv = argv,
                                  .no_loopback = 1};
    int code = 1;
    return tw_cluster_run_self(&params, &code) == TW_OK ? code : 127;
}

static tw_status_t faults_start(run_t *run)
{
    TW_FAIL_IF(!(run->log = tmpfile()) || pipe2(run->pipe, O_NONBLOCK) != 0, TW_ERR_IO,
               "run %llu: no file or pipe: %s", (unsigned long long)run->plan->index, strerror(errno));
    fcntl(run->pipe[0], F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    run->child = fork();
    if (run->child == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fileno(run->log), STDOUT_FILENO);
        dup2(fileno(run->log), STDERR_FILENO);
        _exit(faults_run_cluster(run));
    }
    TW_FAIL_IF(run->child < 0, TW_ERR_IO, "run %llu: fork: %s", (unsigned long long)run->plan->index,
               strerror(errno));
    setpgid(run->child, run->child);
    return TW_OK;
}

/** Read everything that has come through the pipe. Returns 0 when neither ranks nor the cluster are left. */
static int read_records(const run_t *run, tw_fault_story_t *story)
{
    tw_fault_record_t record;
    ssize_t n;
    while ((n = read(run->pipe[0], &record, sizeof(record))) == (ssize_t)sizeof(record)) {
        tw_fault_story_add(story, run->plan, &record);
    }
    return n != 0;
}

/** Wait until all ranks that are left have come to their end, or their time is up. */
static void faults_watch(const run_t *run, tw_fault_story_t *story)
{
    int is_there = 1;
    while (is_there && tw_fault_story_open(story, run->plan) > 0) {
        double since_sec = story->fault_sec > 0 ? story->fault_sec : story->start_sec + START_SEC;
        if (tw_time_sec() > since_sec + story->limit_sec) {
            return;
        }
        struct pollfd poll_fd = {.fd = run->pipe[0], .events = POLLIN};
        poll(&poll_fd, 1, (int)(POLL_SEC * 1e3));
        is_there = read_records(run, story);
    }
}

/* ---- afterwards ---------------------------------------------------------------------------------------- */

/** Return a process's group, from "123 (name) S 1 GROUP ..."; -1 if the process is gone or a zombie. */
static int group_of(const char *pid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%.16s/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) {
        return -1;
    }
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = '\0';
    int group = -1;
    char state = 'Z';
    const char *rest = strrchr(text, ')');
    return rest && sscanf(rest, ") %c %*d %d", &state, &group) == 2 && state != 'Z' ? group : -1;
}

static int count_group(pid_t group)
{
    int n = 0;
    DIR *folder = opendir("/proc");
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        n += atoi(entry->d_name) > 0 && group_of(entry->d_name) == (int)group;
    }
    if (folder) {
        closedir(folder);
    }
    return n;
}

/** End what still runs, and wait until the kernel has removed it. Returns how many processes are left. */
static int clean_up(const run_t *run)
{
    double deadline_sec = tw_time_sec() + CLEAN_UP_SEC;
    int n;
    kill(run->child, SIGKILL);
    while (waitpid(run->child, NULL, 0) < 0 && errno == EINTR) {
    }
    while ((n = count_group(run->child)) > 0 && tw_time_sec() < deadline_sec) {
        usleep((useconds_t)(POLL_SEC * 1e6));
    }
    return n;
}

static void show_log(FILE *log)
{
    char line[4096];
    rewind(log);
    while (fgets(line, sizeof(line), log)) {
        fputs(line, stderr);
    }
}

static double limit_sec(void)
{
    const char *text = getenv("TW_PEER_TIMEOUT");
    double timeout_sec = 0;
    return text && tw_parse_time(text, &timeout_sec) == TW_OK ? timeout_sec + MARGIN_SEC : MARGIN_SEC;
}

tw_status_t tw_fault_run(const tw_fault_plan_t *plan, tw_fault_story_t *story, tw_fault_verdict_t *verdict)
{
    run_t run = {.plan = plan, .pipe = {-1, -1}};
    *story = (tw_fault_story_t){.start_sec = tw_time_sec(), .limit_sec = limit_sec()};
    tw_status_t status = faults_start(&run);
    if (run.pipe[1] >= 0) {
        close(run.pipe[1]);
    }
    if (status == TW_OK) {
        faults_watch(&run, story);
        usleep((useconds_t)(LAST_WORDS_SEC * 1e6));
        story->n_left_over = clean_up(&run);
        tw_fault_judge(plan, story, verdict);
        if (!tw_fault_verdict_ok(verdict)) {
            show_log(run.log);
        }
    }
    if (run.log) {
        fclose(run.log);
    }
    if (run.pipe[0] >= 0) {
        close(run.pipe[0]);
    }
    return status;
}
