/* The program of the doctor: its command line. */
#include "doctor/doctor.h"
#include "flags/flags.h"

static const char doc[] =
    "Examines a cluster: started on every node by the launcher of the jobs (torchrun, mpirun, srun), it "
    "measures what TCP makes of every link, reads the settings that matter, and ends in four lines: what is "
    "slow, why it might be, what to change, and what Thinwire would make of a step.\v"
    "Measured, from node to node, with plain sockets on the devices that jobs use (TW_NET_DEVICES, or the "
    "one on the way to rank 0): every pair alone, several streams beside one, all nodes at once, packets "
    "sent again, congestion control in effect, the largest packet that passes. Of each rank: device, NUMA "
    "node, clock, codecs' speed; of each node: open files, memory for replicas, /dev/shm, sockets' buffers. "
    "With more nodes than there is time for pairs, pairs are measured side by side; what is left after twice "
    "the time, or 30 s more, whichever is later, is not measured, which is said.\n\n"
    "Rank 0 prints. The exit code is 0 whatever is found, 1 when a rank has failed or a file cannot be "
    "written.\n\n"
    "Example: srun -N 8 --ntasks-per-node 1 doctor --params 7e9 --json doctor.json, and then plan --cluster "
    "doctor.json --params 7e9";

#define AT(member) offsetof(tw_doctor_params_t, member)

static const tw_flag_t flag_list[] = {
    {.field = {"seconds", "60s", "TIME",
               "For all links together, about, up to 3600s; not less than 0.3 s for each step",
               TW_CONFIG_TIME, AT(seconds), 0.1, TW_DOCTOR_SECONDS_MAX, NULL},
     .letter = 's'},
    {.field = {"streams", "4", "N", "Where several streams are measured, so many, 2 to 32", TW_CONFIG_INT32,
               AT(n_streams), 2, TW_DOCTOR_STREAMS_MAX, NULL}},
    {.field = {"params", NULL, "N",
               "Parameters of your model: what a step of it takes on these links, and would with Thinwire "
               "(default: some sizes)",
               TW_CONFIG_COUNT, AT(n_params), 1, TW_DOCTOR_PARAMS_MAX, NULL},
     .letter = 'p'},
    {.field = {"json", NULL, "FILE",
               "Write everything as a JSON object, on rank 0, which plan --cluster takes (default: do not)",
               TW_CONFIG_STRING, AT(json), 0, 0, NULL}},
};

int main(int argc, char **argv)
{
    static const tw_flags_t flags = {
        .flags = flag_list, .n_flags = sizeof(flag_list) / sizeof(flag_list[0]), .doc = doc};
    tw_doctor_params_t params = {0};
    tw_flags_read(&flags, argc, argv, &params);
    return tw_doctor_run(&params) != TW_OK;
}
