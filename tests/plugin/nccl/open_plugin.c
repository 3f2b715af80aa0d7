/* open_plugin LIBRARY SYMBOL...: open it as NCCL does, but with every reference resolved at once; find the
 * symbols, close it, and see that it is still there. In plain C: nothing but the C library is in the process
 * before it. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

    if (!library) {
        fprintf(stderr, "%s\n", argc > 2 ? dlerror() : "usage: open_plugin LIBRARY SYMBOL...");
        return 1;
    }
    for (int i = 2; i < argc; i++) {
        const char *const *table = dlsym(library, argv[i]);
        if (!table) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        printf("%s is \"%s\"\n", argv[i], *table);
    }
    if (dlclose(library) != 0 || !dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD)) {
        fprintf(stderr, "it is gone after dlclose\n");
        return 1;
    }
    return 0;
}
