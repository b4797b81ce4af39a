// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Hides what QEMU adds to a program's run: its line about a signal that ends the program, and the
 * core file that it writes itself. Part of plugin.c.
 */

/* QEMU's own messages. The program writes to descriptor 2 by system calls, past this. */
static ssize_t forward_message(void *nothing, const char *text, size_t bytes)
{
    static const char uncaught[] = "qemu: uncaught target signal";
    (void)nothing;
    if (bytes >= sizeof uncaught - 1 && !memcmp(text, uncaught, sizeof uncaught - 1))
        return (ssize_t)bytes;
    return write(2, text, bytes);
}

/* Asked by QEMU before it writes a core file; the program's own question is answered as it is. */
static int getrlimit_without_core(int resource, struct rlimit *limit)
{
    int result = getrlimit((__rlimit_resource_t)resource, limit);
    if (result == 0 && resource == RLIMIT_CORE && call != SYS_getrlimit)
        limit->rlim_cur = 0;
    return result;
}

/* Puts another function where the emulator itself calls `name` of a library. */
static void redirect(struct dl_phdr_info *program, const char *name, void *to)
{
    const Elf64_Rela *calls = NULL;
    const Elf64_Sym *symbols = NULL;
    const char *texts = NULL;
    size_t bytes = 0;
    for (int i = 0; i < program->dlpi_phnum; i++) {
        if (program->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const Elf64_Dyn *entry = (const void *)(program->dlpi_addr + program->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            /* The C library may or may not have moved these by where the program lies. */
            uint64_t at = entry->d_un.d_ptr;
            at += at < program->dlpi_addr ? program->dlpi_addr : 0;
            if (entry->d_tag == DT_JMPREL)
                calls = (const void *)at;
            else if (entry->d_tag == DT_SYMTAB)
                symbols = (const void *)at;
            else if (entry->d_tag == DT_STRTAB)
                texts = (const void *)at;
            else if (entry->d_tag == DT_PLTRELSZ)
                bytes = entry->d_un.d_val;
        }
    }
    for (size_t i = 0; calls && symbols && texts && i < bytes / sizeof *calls; i++) {
        if (strcmp(texts + symbols[ELF64_R_SYM(calls[i].r_info)].st_name, name))
            continue;
        uint64_t place = program->dlpi_addr + calls[i].r_offset, page = place & ~4095ull;
        if (mprotect((void *)page, 4096, PROT_READ | PROT_WRITE) == 0) {
            *(void **)place = to;
            mprotect((void *)page, 4096, PROT_READ);
        }
    }
}

static int redirect_in_first(struct dl_phdr_info *program, size_t size, void *nothing)
{
    (void)size, (void)nothing;
    redirect(program, "getrlimit64", (void *)getrlimit_without_core);
    return 1;
}

static void hide_emulator(void)
{
    cookie_io_functions_t functions = { .write = forward_message };
    FILE *stream = fopencookie(NULL, "w", functions);
    if (stream) {
        setvbuf(stream, NULL, _IOLBF, 1024);
        stderr = stream;
    }
    dl_iterate_phdr(redirect_in_first, NULL);
}
