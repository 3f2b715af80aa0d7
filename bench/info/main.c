/* The program tw_info: reports the build, this machine, and every variable with its meaning. */
#include <argp.h>
#include <stddef.h>
#include <stdlib.h>

#include "bench/info/info.h"
#include "cluster/cluster.h"
#include "collectives/collectives.h"
#include "flags/flags.h"
#include "hpz/hpz.h"
#include "plugin/plugin.h"
#include "transport/transport.h"

const char *argp_program_version = "tw_info " TW_VERSION;

static const char doc[] =
    "Prints what this build of Thinwire is made of, what it finds on this machine (CPU, codec backends, "
    "network interfaces, UCX, GPUs, NCCL), and every TW_ variable with its value, default and meaning.\v"
    "Exit status: 0; 1 if a TW_ variable has a bad value or the output cannot be written. An unknown TW_ "
    "variable is only warned of.";

static const tw_flag_t flag_list[] = {
    {.field = {"json", NULL, NULL, "Print JSON, one object per line, instead of text", TW_CONFIG_BOOL,
               offsetof(info_report_t, as_json), 0, 0, NULL},
     .letter = 'j'},
};

static const tw_flags_t flags = {
    .flags = flag_list, .n_flags = sizeof(flag_list) / sizeof(flag_list[0]), .doc = doc};

int main(int argc, char **argv)
{
    static const tw_config_table_t *const tables[] = {
        &tw_log_config_table,     &tw_transport_config_table, &tw_coll_config_table,
        &tw_hpz_config_table,     &tw_cluster_config_table,   &tw_net_config_table,
        &tw_collnet_config_table, &tw_tuner_config_table,     &tw_interpose_config_table};
    const size_t n_tables = sizeof(tables) / sizeof(tables[0]);
    info_report_t report = {.out = stdout};
    tw_flags_read(&flags, argc, argv, &report);
    info_build(&report);
    info_cpu(&report);
    info_nics(&report);
    info_tcp(&report);
    info_gpus(&report);
    info_nccl(&report);
    tw_status_t status = info_variables(&report, tables, n_tables);
    tw_config_check_environment(tables, n_tables);
    TW_FAIL_IF(fflush(stdout) != 0 || ferror(stdout), EXIT_FAILURE, "tw_info: cannot write the output");
    return status == TW_OK && report.status == TW_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
