/* Finds symbols in the file of a library, and replaces functions. */
#include "tests/plugin/nccl/bench/nccl_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file that is mapped into memory. */
typedef struct image {
    const char *bytes;
    size_t size;
} image_t;

/** Return n items of item_bytes from `offset` on; NULL if they do not all lie inside the file. */
static const void *inside(const image_t *image, uint64_t offset, uint64_t item_bytes, uint64_t n)
{
    if (offset > image->size || (item_bytes > 0 && n > (image->size - offset) / item_bytes)) {
        return NULL;
    }
    return image->bytes + offset;
}

static int image_open(const char *path, image_t *image)
{
    struct stat status;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *at = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0) {
        at = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        *image = (image_t){.bytes = at, .size = (size_t)status.st_size};
    }
    if (fd >= 0) {
        close(fd);
    }
    return at != MAP_FAILED;
}

static const Elf64_Shdr *find_table(const image_t *image, const Elf64_Shdr **names)
{
    const Elf64_Ehdr *head = inside(image, 0, sizeof(*head), 1);
    const Elf64_Shdr *sections;
    if (!head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64) {
        return NULL;
    }
    sections = inside(image, head->e_shoff, sizeof(*sections), head->e_shnum);
    for (int i = 0; sections && i < head->e_shnum; i++) {
        if (sections[i].sh_type == SHT_SYMTAB && sections[i].sh_link < head->e_shnum) {
            *names = &sections[sections[i].sh_link];
            return &sections[i];
        }
    }
    return NULL;
}

/** Return a symbol's value, its offset from where the file is loaded; 0 if there is none. */
static uint64_t find_symbol(const image_t *image, const char *name)
{
    const Elf64_Shdr *names = NULL, *table = find_table(image, &names);
    const uint64_t n = table ? table->sh_size / sizeof(Elf64_Sym) : 0;
    const Elf64_Sym *symbols = n > 0 ? inside(image, table->sh_offset, sizeof(*symbols), n) : NULL;
    const char *texts = n > 0 ? inside(image, names->sh_offset, 1, names->sh_size) : NULL;
    const size_t length = strlen(name) + 1;
    for (uint64_t i = 0; symbols && texts && i < n; i++) {
        const uint64_t at = symbols[i].st_name;
        if (at < names->sh_size && names->sh_size - at >= length && memcmp(texts + at, name, length) == 0) {
            return symbols[i].st_value;
        }
    }
    return 0;
}

void *nccl_library_symbol(void *library, const char *name, char *why, size_t why_bytes)
{
    struct link_map *map = NULL;
    image_t image;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !image_open(map->l_name, &image)) {
        (void)snprintf(why, why_bytes, "%s cannot be read: %s", map ? map->l_name : "the library",
                       strerror(errno));
        return NULL;
    }
    const uint64_t value = find_symbol(&image, name);
    (void)munmap((void *)(uintptr_t)image.bytes, image.size);
    if (value == 0) {
        (void)snprintf(why, why_bytes, "%s has no symbol %s: its symbol table may have been stripped",
                       map->l_name, name);
        return NULL;
    }
    return (void *)(uintptr_t)(map->l_addr + value);
}

/* bytes of: mov rax, ADDRESS; jmp rax */
#define JUMP_BYTES 12

int nccl_library_replace(void *old, const void *instead)
{
#ifdef __x86_64__
    uint8_t jump[JUMP_BYTES] = {0x48, 0xb8, [10] = 0xff, [11] = 0xe0};
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)old;
    const uintptr_t page = at & ~(page_bytes - 1);
    const size_t bytes = at + JUMP_BYTES - page;

    memcpy(&jump[2], &instead, sizeof(instead));
    if (mprotect((void *)page, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
        return 0;
    }
    memcpy(old, jump, sizeof(jump));
    return mprotect((void *)page, bytes, PROT_READ | PROT_EXEC) == 0;
#else
    (void)old, (void)instead;
    errno = ENOSYS;
    return 0;
#endif
}
