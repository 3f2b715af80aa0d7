/* What sanitizers are told of UCX in programs that end after a failure: linked in, nothing to call. */

/* After a failure UCX's objects are left to the end of the process, on purpose. */
extern "C" const char *__lsan_default_suppressions();
extern "C" const char *__lsan_default_suppressions()
{
    return "leak:libucp.so\nleak:libuct.so\nleak:libucs.so\n";
}
/* Then UCX's own thread still runs while its library is taken down. */
extern "C" const char *__tsan_default_suppressions();
extern "C" const char *__tsan_default_suppressions()
{
    return "race:libucs.so\n";
}
