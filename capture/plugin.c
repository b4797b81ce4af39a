// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Capture plugin for QEMU 7.2's user mode (qemu-x86_64, plugin interface 1): hands every load and
 * store of the program, and every block of code it executes, to a recorder in another process. The
 * plugin only writes words into rings of shared memory (ring.h); what they mean as a trace is
 * worked out by the recorder (crates/sys/src/capture.rs reads the rings, crates/trace/src/capture/
 * understands the words).
 *
 * The program is never harmed: where the recorder is gone or asks to stop, words are dropped and
 * the program goes on.
 *
 * Words (64 bits). Bit 63 clear: an access; bits 0-47 address, 48-50 log2 of its bytes, 51 store,
 * 52-60 index of the instruction in its block. Bit 63 set: bits 60-62 say what.
 *   0  a block begins: bits 0-31 its number, 32-43 its instructions
 *   1  a message: bits 0-15 which, 16-31 how many words of content follow
 * With the option `values`, every store is followed by one word: the value stored.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/xattr.h>

/* ---- QEMU's plugin interface, version 1, as far as used ---- */
typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
    const char *target_name;
    struct { int min, cur; } version;
    bool system_emulation;
} qemu_info_t;
enum { NO_REGS = 0, MEM_R = 1, MEM_W = 2 };
typedef void (*vcpu_simple_cb)(qemu_plugin_id_t, unsigned);
typedef void (*vcpu_udata_cb)(unsigned, void *);
typedef void (*vcpu_mem_cb)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *);
typedef void (*syscall_cb)(qemu_plugin_id_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t,
    uint64_t, uint64_t,
                           uint64_t, uint64_t, uint64_t);
typedef void (*syscall_ret_cb)(qemu_plugin_id_t, unsigned, int64_t, int64_t);
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, vcpu_simple_cb);
void qemu_plugin_register_vcpu_exit_cb(qemu_plugin_id_t, vcpu_simple_cb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t,
    struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, vcpu_udata_cb, int, void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, vcpu_udata_cb, int, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, vcpu_mem_cb, int, int, void *);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, syscall_cb);
void qemu_plugin_register_vcpu_syscall_ret_cb(qemu_plugin_id_t, syscall_ret_cb);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
const char *qemu_plugin_path_to_binary(void);
__attribute__((visibility("default"))) int qemu_plugin_version = 1;

#define RING_WRITER static
#include "ring.h"

static bool flat;        /* the program's addresses are ours */
static bool fast_info;   /* size and direction can be read off meminfo directly */
static bool first_block = true;
static char *maps_before;
static _Atomic uint64_t begin_pc, end_pc; /* entries of the two functions, once seen */
static pthread_mutex_t translating = PTHREAD_MUTEX_INITIALIZER;
static __thread int64_t call;         /* the system call being made, and its arguments */
static __thread uint64_t arguments[6];
static char own_program[4096];        /* the program's file, for /proc/self/exe */

#include "emulator.h"

/* Blocks keep the clock. */
static void keep_clock(void)
{
}

static void after_claim(void)
{
}

/* ---- Accesses and blocks ---- */

/*
 * QEMU 7.2 confuses the two directions when it chooses callbacks for one of them, so there is one
 * for both, which reads the direction off `info`. An atomic read-modify-write is told once, with
 * both bits set.
 */
static inline unsigned direction(qemu_plugin_meminfo_t info)
{
    return fast_info ? info >> 16 & 3 : qemu_plugin_mem_is_store(info) ? MEM_W : MEM_R;
}

static inline uint64_t access_word(qemu_plugin_meminfo_t info, uint64_t address, void *index)
{
    uint64_t shift = fast_info ? info >> 4 & 7 : qemu_plugin_mem_size_shift(info);
    return (address & 0xffffffffffffull) | shift << 48 | (uint64_t)(uintptr_t)index;
}

/* The rare half of `put`, apart, so that its callers need no stack. */
static __attribute__((noinline)) void put_at_limit(uint64_t word)
{
    RING_REFILL();
    *me.next++ = word;
}

static inline void put_one(uint64_t word)
{
    uint64_t *next = me.next;
    if (__builtin_expect(next == me.limit, 0)) {
        put_at_limit(word);
        return;
    }
    *next = word;
    me.next = next + 1;
}

static __attribute__((noinline)) void on_access(unsigned cpu, qemu_plugin_meminfo_t info,
    uint64_t address, void *index)
{
    (void)cpu;
    uint64_t word = access_word(info, address, index);
    unsigned way = direction(info);
    if (__builtin_expect(way == (MEM_R | MEM_W), 0)) {
        put(word);
        way = MEM_W;
    }
    put(word | (uint64_t)(way >> 1) << 51);
}

/* The same where `info` can be read directly: the one that nearly always runs. */
static void on_access_fast(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *index)
{
    if (__builtin_expect((info >> 16 & 3) == (MEM_R | MEM_W), 0)) {
        on_access(cpu, info, address, index);
        return;
    }
    uint64_t kind = (info >> 4 & 7) | (info >> 14 & 8);
    put_one((address & 0xffffffffffffull) | kind << 48 | (uint64_t)(uintptr_t)index);
}

static void on_access_with_value(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address,
    void *index)
{
    uint64_t value = 0;
    on_access(cpu, info, address, index);
    if (!(direction(info) & MEM_W))
        return;
    /* Through the kernel: another thread may unmap the page meanwhile, and the program must not die
     * of our looking. */
    struct iovec here = { &value, (size_t)1 << (qemu_plugin_mem_size_shift(info) & 3) };
    struct iovec there = { (void *)(uintptr_t)address, here.iov_len };
    if (flat)
        (void)!process_vm_readv((pid_t)syscall(SYS_gettid), &here, 1, &there, 1, 0);
    put(value);
}

static void on_block(unsigned cpu, void *word)
{
    (void)cpu;
    uint64_t w = (uint64_t)(uintptr_t)word;
    me.clock += w >> 32 & 0xfff;
    put_one(w);
}

static void on_mark(unsigned cpu, void *which)
{
    (void)cpu;
    uint64_t id = (uint64_t)(uintptr_t)which;
    put_message(M_MARK, &id, 1);
}

static void on_border(unsigned cpu, void *which)
{
    (void)cpu;
    put_message((unsigned)(uintptr_t)which, NULL, 0);
}

/* ---- Translation ---- */
static char *read_maps(void)
{
    size_t room = 1 << 20, got = 0;
    char *text = malloc(room);
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && text && got < room - 1) {
        ssize_t n = read(fd, text + got, room - 1 - got);
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    if (text)
        text[got] = 0;
    return text;
}

/* What was mapped since the emulator was ready and before the program's first instruction is the
 * program's. */
static void tell_maps(void)
{
    char *now = read_maps(), *save = NULL;
    for (char *line = now ? strtok_r(now, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n",
        &save)) {
        if (maps_before && strstr(maps_before, line))
            continue;
        unsigned long start, end;
        char bits[8] = "", name[2048] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %2047[^\n]", &start, &end, bits, name) < 3)
            continue;
        /* What the emulator itself took meanwhile: its heap, and anonymous memory at the top, where
         * it never puts the
           program's. */
        if (strstr(name, "qemu") || !strcmp(name, "[heap]") || (!name[0] && start >=
            0x7f0000000000ul))
            continue;
        uint64_t prot = (bits[0] == 'r') | (bits[1] == 'w') << 1 | (bits[2] == 'x') << 2;
        uint64_t content[] = { start, end - start, prot, 2 };
        put_text(M_MAP, content, 4, name);
    }
    free(now);
    free(maps_before);
    maps_before = NULL;
}

/* The program, by its absolute path; and the thread's name, which is the emulator's until now. */
static void know_program(void)
{
    const char *path = qemu_plugin_path_to_binary();
    if (!path || !realpath(path, own_program))
        own_program[0] = 0;
    const char *name = path ? strrchr(path, '/') : NULL;
    if (path)
        prctl(PR_SET_NAME, name ? name + 1 : path);
}

static void check_flat(const void *code, uint64_t address)
{
    uint64_t there = 0, here = 0;
    memcpy(&here, code, 1);
    struct iovec to = { &there, 1 }, from = { (void *)(uintptr_t)address, 1 };
    flat = process_vm_readv((pid_t)syscall(SYS_gettid), &to, 1, &from, 1, 0) == 1 && here == there;
}

static uint32_t mark_of(const uint8_t *code, size_t size)
{
    uint32_t id;
    if (size != 7 || code[0] != 0x0f || code[1] != 0x1f || code[2] != 0x80)
        return 0;
    memcpy(&id, code + 3, 4);
    return (id & 0xffffff00) == 0x7e44a000 ? id & 0xff : 0;
}

/*
 * Whether a block is where a function is entered. QEMU tells which function an address lies in and
 * not where that begins; but what is executed of a function first is its begin, and translation
 * comes before execution.
 */
static bool is_entry(const struct qemu_plugin_tb *tb, const struct qemu_plugin_insn *first,
    const char *function,
                     _Atomic uint64_t *entry)
{
    uint64_t pc = qemu_plugin_tb_vaddr(tb), none = 0;
    if (atomic_load(entry))
        return atomic_load(entry) == pc;
    const char *symbol = qemu_plugin_insn_symbol(first);
    if (!symbol || strcmp(symbol, function))
        return false;
    return atomic_compare_exchange_strong(entry, &none, pc) || none == pc;
}

static void on_translate(qemu_plugin_id_t plugin, struct qemu_plugin_tb *tb)
{
    (void)plugin;
    size_t n = qemu_plugin_tb_n_insns(tb);
    uint64_t content[MESSAGE_MOST + 512];
    uint8_t *code = (uint8_t *)(content + 4);
    size_t bytes = 0;
    uint32_t number = atomic_fetch_add(&control->blocks, 1) + 1;
    struct qemu_plugin_insn *first = qemu_plugin_tb_get_insn(tb, 0);

    pthread_mutex_lock(&translating);
    if (first_block) {
        first_block = false;
        know_program();
        check_flat(qemu_plugin_insn_data(first), qemu_plugin_tb_vaddr(tb));
        tell_maps();
    }
    pthread_mutex_unlock(&translating);
    if (control->begin_at[0] && is_entry(tb, first, control->begin_at, &begin_pc))
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_border, NO_REGS, (void *)(uintptr_t)M_BEGIN);
    if (control->end_at[0] && is_entry(tb, first, control->end_at, &end_pc))
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_border, NO_REGS, (void *)(uintptr_t)M_END);
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, NO_REGS, (void *)(uintptr_t)(IS_WORD |
        number | (uint64_t)n << 32));
    vcpu_mem_cb told = control->options & KEEP_VALUES ? on_access_with_value : fast_info ?
        on_access_fast : on_access;
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        size_t size = qemu_plugin_insn_size(insn);
        void *index = (void *)(uintptr_t)((uint64_t)i << 52);
        qemu_plugin_register_vcpu_mem_cb(insn, told, NO_REGS, MEM_R | MEM_W, index);
        uint32_t mark = mark_of(qemu_plugin_insn_data(insn), size);
        if (mark)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, NO_REGS, (void *)(uintptr_t)mark);
        if (bytes + size <= 8 * (MESSAGE_MOST - 8)) {
            memcpy(code + bytes, qemu_plugin_insn_data(insn), size);
            bytes += size;
        }
    }
    content[0] = number;
    content[1] = qemu_plugin_tb_vaddr(tb);
    content[2] = n;
    content[3] = bytes;
    memset(code + bytes, 0, 8);
    put_message(M_BLOCK, content, 4 + (unsigned)(bytes + 7) / 8);
    write_out();
}

/* ---- System calls ---- */
static bool read_memory(uint64_t address, void *out, size_t bytes)
{
    struct iovec to = { out, bytes }, from = { (void *)(uintptr_t)address, bytes };
    pid_t thread = (pid_t)syscall(SYS_gettid);
    return flat && process_vm_readv(thread, &to, 1, &from, 1, 0) == (ssize_t)bytes;
}

/* A string of the program's; false where it cannot be read or is too long. */
static bool read_string(uint64_t address, char *out, size_t room)
{
    for (size_t i = 0; i < room; i++) {
        if (!read_memory(address + i, out + i, 1))
            return false;
        if (!out[i])
            return true;
    }
    return false;
}

#define MOST_WORDS 32768
static char **read_list(uint64_t address)
{
    char **list = calloc(MOST_WORDS + 8, sizeof *list);
    char *text = malloc(131072);
    for (size_t i = 0; list && text && i < MOST_WORDS; i++) {
        uint64_t pointer = 0;
        if (address && !read_memory(address + 8 * i, &pointer, 8))
            break;
        if (!pointer) {
            free(text);
            return list;
        }
        if (!read_string(pointer, text, 131072) || !(list[i] = strdup(text)))
            break;
    }
    free(text);
    return NULL; /* what was read is lost: the program is about to be replaced, or gets its error */
}

#include "exec.h"

static bool waits(int64_t number, const uint64_t *a)
{
    switch (number) {
    case SYS_futex: {
        unsigned operation = a[1] & 127;
        return operation == 0 || operation == 9 || operation == 6 || operation == 11;
    }
    case SYS_poll: case SYS_ppoll: case SYS_select: case SYS_pselect6: case SYS_epoll_wait:
        case SYS_epoll_pwait:
    case SYS_pause: case SYS_nanosleep: case SYS_clock_nanosleep: case SYS_wait4: case SYS_waitid:
    case SYS_rt_sigsuspend: case SYS_rt_sigtimedwait:
        return true;
    default:
        return false;
    }
}

static void on_syscall(qemu_plugin_id_t plugin, unsigned cpu, int64_t number, uint64_t a1,
    uint64_t a2, uint64_t a3,
                       uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
    (void)plugin, (void)cpu, (void)a7, (void)a8;
    uint64_t a[] = { a1, a2, a3, a4, a5, a6 };
    call = number;
    memcpy(arguments, a, sizeof a);
    if (number == SYS_execve)
        follow_exec(a1, a2, a3);
    else if (gives_up_access(number, a1))
        save_descriptors();
    write_out();
    if (number == SYS_exit_group) {
        /* QEMU would stop reporting the other threads first and let them run until it ends. */
        release();
        syscall(SYS_exit_group, (int)a1);
    }
}

static void on_syscall_done(qemu_plugin_id_t plugin, unsigned cpu, int64_t number, int64_t result)
{
    (void)plugin, (void)cpu;
    const uint64_t *a = arguments;
    if (call != number)
        return;
    call = -1;
    if (waits(number, a) && result != -EAGAIN) {
        uint64_t now = furthest();
        if (now > me.clock) {
            uint64_t ticks = now - me.clock;
            me.clock = now;
            put_message(M_JUMP, &ticks, 1);
        }
        return;
    }
    if (number != SYS_mmap && number != SYS_munmap && number != SYS_brk && number != SYS_mremap)
        return;
    uint64_t content[] = { (uint64_t)number, (uint64_t)result, a[0], a[1], a[2], a[3], a[4], a[5] };
    char name[2048] = "", link[64];
    if (number == SYS_mmap && !(a[3] & MAP_ANONYMOUS) && (int)a[4] >= 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", (int)a[4]);
        ssize_t n = readlink(link, name, sizeof name - 1);
        name[n > 0 ? n : 0] = 0;
    }
    put_text(M_SYSCALL, content, 8, name);
    write_out();
}

/* ---- Begin and end ---- */
static void on_thread_end(qemu_plugin_id_t plugin, unsigned cpu)
{
    (void)plugin, (void)cpu;
    release();
}

/* The process ends: other threads stop wherever they are, and the recorder takes what they wrote
 * out. */
static void on_end(qemu_plugin_id_t plugin, void *nothing)
{
    (void)plugin, (void)nothing;
    release();
}

static void on_thread_begin(qemu_plugin_id_t plugin, unsigned cpu)
{
    (void)plugin;
    if (cpu == 0)
        maps_before = read_maps();
}

static bool info_is_as_known(void)
{
    for (uint32_t info = 0; info < 1u << 18; info++)
        if (qemu_plugin_mem_size_shift(info) != (info >> 4 & 7) ||
            qemu_plugin_mem_is_store(info) != (info >> 17 & 1))
            return false;
    return true;
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id,
    const qemu_info_t *info, int argc,
                                                               char **argv)
{
    const char *path = NULL;
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], "area=", 5))
            path = argv[i] + 5;
        else if (!strncmp(argv[i], "plugin=", 7))
            plugin_fd = keep_for_us(atoi(argv[i] + 7));
    if (info->system_emulation || strcmp(info->target_name, "x86_64") || !path) {
        fprintf(stderr, "terrace capture: wants qemu-x86_64 and area=FILE\n");
        return 1;
    }
    const char *why = open_area(path);
    if (why) {
        fprintf(stderr, "terrace capture: %s: %s\n", path, why);
        return 1;
    }
    if (sscanf(path, "/proc/self/fd/%d", &area_fd) == 1)
        keep_for_us(area_fd);
    know_root();
    hide_emulator();
    fast_info = info_is_as_known();
    pthread_atfork(NULL, NULL, in_child);
    qemu_plugin_register_vcpu_init_cb(id, on_thread_begin);
    qemu_plugin_register_vcpu_exit_cb(id, on_thread_end);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, on_syscall_done);
    qemu_plugin_register_atexit_cb(id, on_end, NULL);
    return 0;
}
