// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Functions of this program by name and by address, from its own file's symbol table. A stripped
 * program has none. */
#pragma once
#include <elf.h>
#include <link.h>

struct function {
    uint64_t start, bytes; /* in memory; start 0 where it is not known */
};

static int take_base(struct dl_phdr_info *info, size_t size, void *base)
{
    (void)size;
    *(uint64_t *)base = info->dlpi_addr;
    return 1; /* the first is the program itself */
}

struct symbols {
    const char *file;
    size_t file_bytes;
    const Elf64_Sym *table;
    size_t count;
    const char *names;
    size_t name_bytes;
    uint64_t base;
};

/* Kept for the life of the process once read. */
static const struct symbols *read_symbols(void)
{
    static struct symbols s;
    static _Atomic int done;
    if (atomic_load(&done))
        return &s;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd >= 0 && fstat(fd, &status) == 0 && (size_t)status.st_size > sizeof(Elf64_Ehdr)) {
        void *file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file != MAP_FAILED)
            s.file = file, s.file_bytes = (size_t)status.st_size;
    }
    if (fd >= 0)
        close(fd);
    const Elf64_Ehdr *head = (const void *)s.file;
    if (head && head->e_shoff < s.file_bytes && s.file_bytes - head->e_shoff >=
        head->e_shnum * sizeof(Elf64_Shdr)) {
        const Elf64_Shdr *sections = (const void *)(s.file + head->e_shoff);
        for (unsigned i = 0; i < head->e_shnum; i++) {
            const Elf64_Shdr *t = &sections[i];
            if (t->sh_type != SHT_SYMTAB || t->sh_link >= head->e_shnum)
                continue;
            const Elf64_Shdr *n = &sections[t->sh_link];
            if (t->sh_offset + t->sh_size > s.file_bytes || n->sh_offset +
                n->sh_size > s.file_bytes)
                continue;
            s.table = (const void *)(s.file + t->sh_offset);
            s.count = t->sh_size / sizeof(Elf64_Sym);
            s.names = s.file + n->sh_offset;
            s.name_bytes = n->sh_size;
        }
    }
    dl_iterate_phdr(take_base, &s.base);
    atomic_store(&done, 1);
    return &s;
}

static bool is_function(const struct symbols *s, const Elf64_Sym *symbol)
{
    return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_value &&
        symbol->st_name < s->name_bytes;
}

static struct function find_function(const char *name)
{
    struct function found = { 0, 0 };
    if (!name[0])
        return found;
    const struct symbols *s = read_symbols();
    size_t length = strlen(name);
    for (size_t i = 0; i < s->count && !found.start; i++) {
        const char *known = s->names + s->table[i].st_name;
        if (!is_function(s, &s->table[i]) || strncmp(known, name, length))
            continue;
        /* Compilers make `f.constprop.0` of f; `f.cold` is not where it is entered. */
        if (known[length] == 0 || (known[length] == '.' && strncmp(known + length, ".cold", 5))) {
            found.start = s->base + s->table[i].st_value;
            found.bytes = s->table[i].st_size;
        }
    }
    return found;
}

/* The function that an address of code lies in, and how far behind its begin; NULL where it is not
 * known. */
static const char *function_of(uint64_t place, uint64_t *behind)
{
    const struct symbols *s = read_symbols();
    for (size_t i = 0; i < s->count; i++) {
        uint64_t start = s->base + s->table[i].st_value;
        if (is_function(s, &s->table[i]) && place - start < s->table[i].st_size) {
            *behind = place - start;
            return s->names + s->table[i].st_name;
        }
    }
    return NULL;
}
