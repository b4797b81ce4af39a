// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Timing plugin for QEMU 10.0 (qemu-system-x86_64, TCG, -icount shift=0,sleep=off,align=off): the
 * part that touches QEMU. The physics is Rust (crates/model), reached through the lab_* functions
 * of lab/plugin/src/lib.rs.
 *
 * Time. The plugin takes QEMU's virtual clock over: guest time = clock0 + QEMU's jumps over idle
 * time (changes of the icount bias) + modelled time. Each vCPU has its own modelled time. All run
 * the same quantum of it, one after the other (QEMU's round robin), and the next quantum begins
 * when every vCPU that is not idle has run this one.
 *
 * Repeatability. Nothing the guest can see may depend on the host's clock or load:
 * - The main loop may look at the clock at any moment. It is told the time of the last quantum's
 * start less one
 * nanosecond, so timers fire on the vCPU thread, between quanta, always at the same guest
 * instruction. Only when every
 *   vCPU is idle does the main loop see the present, and then it alone moves time.
 * - QEMU sizes its software TLB by the host's clock, which decides when translations are dropped
 * and so when accessed
 * bits are set again. It asks gettimeofday(): on the vCPU thread that call is answered with guest
 * time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

/* ---- QEMU's plugin interface, version 4, as far as used ---- */
typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
typedef struct {
    const char *target_name;
    struct { int min, cur; } version;
    bool system_emulation;
    union { struct { int smp_vcpus, max_vcpus; } system; };
} qemu_info_t;
typedef struct {
    int type; /* 0: 8 bits, 1: 16, 2: 32, 3: 64, 4: 128 */
    union { uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64; struct { uint64_t low, high;
        } u128; } data;
} qemu_plugin_mem_value;
enum { NO_REGS = 0, MEM_R = 1, MEM_W = 2 };
typedef void (*vcpu_simple_cb)(qemu_plugin_id_t, unsigned);
typedef void (*vcpu_udata_cb)(unsigned, void *);
typedef void (*vcpu_mem_cb)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *);
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, vcpu_simple_cb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t,
    struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, vcpu_udata_cb, int, void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, vcpu_udata_cb, int, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, vcpu_mem_cb, int, int, void *);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
qemu_plugin_mem_value qemu_plugin_mem_get_value(qemu_plugin_meminfo_t);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t, uint64_t);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);
struct qemu_plugin_register;
struct register_description { struct qemu_plugin_register *handle; const char *name, *feature; };
struct glib_array { char *data; unsigned length; };      /* GArray */
struct glib_bytes { uint8_t *data; unsigned length; };   /* GByteArray */
struct glib_array *qemu_plugin_get_registers(void);
int qemu_plugin_read_register(struct qemu_plugin_register *, struct glib_bytes *);
struct glib_bytes *g_byte_array_new(void);
struct glib_bytes *g_byte_array_set_size(struct glib_bytes *, unsigned);

/* ---- QEMU's own symbols, exported because Debian builds it with modules. Layout of 10.0.x,
 * checked at start ---- */
struct timers_state_10_0 {
    int64_t ticks_prev, ticks_offset;
    uint32_t seq;
    int32_t lock;
    int16_t ticks_enabled, shift;
    int64_t last_delta;
    int64_t icount_bias;
};
extern struct timers_state_10_0 timers_state;
extern __thread void *current_cpu __attribute__((tls_model("initial-exec")));
int64_t icount_get(void);
void cpu_exit(void *);
void cpu_exec_start(void *);
void cpu_loop_exit_restore(void *, uintptr_t) __attribute__((noreturn));
void tlb_flush(void *);
bool cpu_thread_is_idle(void *);
bool all_cpu_threads_idle(void);
void *qemu_get_cpu(int);
void *object_class_by_name(const char *);
void *object_resolve_path(const char *path, bool *ambiguous);
void *host_memory_backend_get_memory(void *backend);
void *memory_region_get_ram_ptr(void *region);
uint64_t memory_region_size(void *region);
int cpu_memory_rw_debug(void *cpu, uint64_t address, void *bytes, size_t length, bool write);
void *qemu_add_vm_change_state_handler(void (*)(void *, bool, int), void *);

/* ---- The Rust side (lab/plugin/src/lib.rs) ---- */
struct lab;
struct lab *lab_new(const char *const *argv, size_t argc, unsigned vcpus, char *error, size_t room);
uint64_t lab_clock0_ns(const struct lab *);
bool lab_count_only(const struct lab *);
unsigned lab_block(struct lab *, unsigned vcpu, uint64_t instructions);
void lab_load(struct lab *, unsigned vcpu, uint64_t address, uint32_t info, uint64_t instruction);
void lab_store(struct lab *, unsigned vcpu, uint64_t address, uint32_t info, uint64_t instruction);
void lab_store_past(struct lab *, unsigned vcpu, uint64_t address, uint32_t info,
    uint64_t instruction);
void lab_forget_translations(struct lab *, unsigned vcpu);
bool lab_advance(struct lab *, uint64_t idle_vcpus);
void lab_restart(struct lab *);
uint64_t lab_time_ns(const struct lab *, unsigned vcpu);
uint64_t lab_start_ns(const struct lab *);
uint64_t lab_furthest_ns(const struct lab *);
void lab_mark(struct lab *, uint32_t mark, int64_t now_ns);
void lab_finish(struct lab *, int64_t now_ns);
/* KIND_*, and with KIND_MARK the mark in the lowest byte */
unsigned lab_kind(const uint8_t *bytes, size_t length);
enum { KIND_MARK = 1 << 8, KIND_CHANGES_TRANSLATIONS = 1 << 9, KIND_STORES_PAST = 1 << 10 };
enum { BLOCK_QUANTUM_DONE = 1, BLOCK_FLUSH_DUE = 2 }; /* what lab_block answers */

#define MAX_VCPUS 64
#define PROBE_BYTES 65536

static struct lab *lab;
static unsigned vcpu_count;
static void *handles[MAX_VCPUS];
/* start of the quantum at whose end the vCPU was asked to leave, ns + 1 */
static uint64_t asked_to_leave[MAX_VCPUS];
static size_t running_offset;              /* of CPUState.running */
static bool vm_running;
/* the clock while the machine is stopped or being loaded */
static int64_t frozen_ns;
/* clock = base_ns + (bias - base_bias) + modelled time */
static int64_t base_ns, base_bias;
static int64_t bias_seen;
static int64_t published_ns;               /* what other threads see */
/* largest time given to a vCPU: the clock never goes back */
static int64_t latest_ns;
static int (*real_gettimeofday)(struct timeval *restrict, void *restrict);

static void refuse(const char *why)
{
    fprintf(stderr, "terrace plugin: %s\n", why);
    exit(1);
}

/*
 * The vCPU that executes. QEMU 10.0 hands callbacks the index of the vCPU that *translated* the
 * block (all vCPUs share one thread and one translation), so it is found by its handle.
 */
static inline unsigned who(void)
{
    static void *last;
    static unsigned index;
    void *cpu = current_cpu;
    if (__builtin_expect(cpu != last, 0)) {
        for (unsigned i = 0; i < vcpu_count; i++) {
            if (!handles[i])
                handles[i] = qemu_get_cpu((int)i);
            if (handles[i] == cpu) {
                last = cpu;
                index = i;
            }
        }
    }
    return index;
}

static inline int64_t guest_ns(uint64_t modelled_ns)
{
    int64_t bias = __atomic_load_n(&timers_state.icount_bias, __ATOMIC_RELAXED);
    return base_ns + (bias - base_bias) + (int64_t)modelled_ns;
}

/* On the vCPU thread, between slices: the next quantum, if this one is done. */
static bool advance(void)
{
    int64_t bias = __atomic_load_n(&timers_state.icount_bias, __ATOMIC_RELAXED);
    if (bias != bias_seen) { /* all vCPUs were idle and time jumped: they go on together */
        bias_seen = bias;
        lab_restart(lab);
        return true;
    }
    uint64_t idle = 0;
    for (unsigned i = 0; i < vcpu_count; i++) {
        if (!handles[i])
            handles[i] = qemu_get_cpu((int)i);
        if (!handles[i] || cpu_thread_is_idle(handles[i]))
            idle |= 1ull << i;
    }
    if (all_cpu_threads_idle()) {
        /*
         * The main loop is told the time of the vCPU that is furthest; so must this thread be. Were
         * it told the quantum's start, a timer between the two would be due for the one, which
         * leaves it to this thread, and not for the other, which would go back to sleep: for ever.
         */
        lab_restart(lab);
        return true;
    }
    return lab_advance(lab, idle);
}

static int64_t at_least_latest(int64_t now)
{
    if (now > latest_ns)
        latest_ns = now;
    return latest_ns;
}

/* In place of icount_get(), in the accelerator's table of operations. */
static int64_t clock_ns(void)
{
    const char *cpu = current_cpu;
    if (!vm_running)
        return frozen_ns;
    if (!cpu) {
        if (all_cpu_threads_idle()) {
            int64_t now = guest_ns(lab_furthest_ns(lab));
            if (now > __atomic_load_n(&published_ns, __ATOMIC_ACQUIRE))
                __atomic_store_n(&published_ns, now, __ATOMIC_RELEASE);
            return now;
        }
        return __atomic_load_n(&published_ns, __ATOMIC_ACQUIRE) - 1;
    }
    if (*(const volatile bool *)(cpu + running_offset))
        return at_least_latest(guest_ns(lab_time_ns(lab, who())));
    advance();
    int64_t now = guest_ns(lab_start_ns(lab));
    if (now > published_ns)
        __atomic_store_n(&published_ns, now, __ATOMIC_RELEASE);
    return at_least_latest(now);
}

static int guest_gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    if (!current_cpu || !vm_running)
        return real_gettimeofday(tv, zone);
    int64_t now = guest_ns(lab_time_ns(lab, who()));
    tv->tv_sec = now / 1000000000;
    tv->tv_usec = now % 1000000000 / 1000;
    return 0;
}

static void on_vm_state(void *unused, bool running, int state)
{
    (void)unused;
    (void)state;
    if (running == vm_running)
        return;
    if (running) {
        bias_seen = base_bias = timers_state.icount_bias;
        base_ns = frozen_ns - (int64_t)lab_furthest_ns(lab);
        published_ns = latest_ns = frozen_ns;
        lab_restart(lab);
    } else {
        int64_t now = guest_ns(lab_furthest_ns(lab));
        frozen_ns = now > latest_ns ? now : latest_ns;
    }
    vm_running = running;
}

static void __attribute__((noinline)) between_blocks(unsigned vcpu, unsigned what)
{
    if (what & BLOCK_FLUSH_DUE) {
        tlb_flush(current_cpu);
        lab_forget_translations(lab, vcpu);
    }
    if (what & BLOCK_QUANTUM_DONE) {
        uint64_t quantum = lab_start_ns(lab) + 1;
        if (asked_to_leave[vcpu] == quantum && advance())
            /* it left and came back, and nobody looked at the clock between: the quantum turns here */
            return;
        asked_to_leave[vcpu] = quantum;
        cpu_exit(current_cpu);
    }
}

/*
 * A vCPU that has run its quantum, was asked to leave, and is back while another is behind: it
 * leaves again before this block, as if it had not been entered. QEMU gives each vCPU a turn
 * whenever another pauses or halts; were a block run at each turn, vCPUs would run ahead of one
 * that spins. A machine of one vCPU never comes here: nobody is behind it.
 *
 * Leaving here is as from a helper that faults at the block's first instruction: nothing of it was
 * done, registers are all in the CPU's state, and `from`, the address in the translation that
 * called us, tells QEMU which instruction it is.
 */
static inline void stay_behind(unsigned vcpu, uintptr_t from)
{
    if (__builtin_expect(asked_to_leave[vcpu] == lab_start_ns(lab) + 1, 0) && !advance()) {
        cpu_exit(current_cpu);
        cpu_loop_exit_restore(current_cpu, from);
    }
}

static void on_block(unsigned translated_by, void *instructions)
{
    (void)translated_by;
    unsigned vcpu = who();
    stay_behind(vcpu, (uintptr_t)__builtin_return_address(0));
    unsigned what = lab_block(lab, vcpu, (uintptr_t)instructions);
    if (__builtin_expect(what, 0))
        between_blocks(vcpu, what);
}

static void on_load(unsigned translated_by, qemu_plugin_meminfo_t info, uint64_t address,
    void *instruction)
{
    (void)translated_by;
    lab_load(lab, who(), address, info, (uintptr_t)instruction);
}

static void on_store(unsigned translated_by, qemu_plugin_meminfo_t info, uint64_t address,
    void *instruction)
{
    (void)translated_by;
    lab_store(lab, who(), address, info, (uintptr_t)instruction);
}

static void on_store_past(unsigned translated_by, qemu_plugin_meminfo_t info, uint64_t address,
    void *instruction)
{
    (void)translated_by;
    lab_store_past(lab, who(), address, info, (uintptr_t)instruction);
}

static void on_mark(unsigned translated_by, void *mark)
{
    (void)translated_by;
    lab_mark(lab, (uint32_t)(uintptr_t)mark, guest_ns(lab_time_ns(lab, who())));
}

static void on_translation_change(unsigned translated_by, void *unused)
{
    (void)translated_by;
    (void)unused;
    lab_forget_translations(lab, who());
}

/* For the Rust side: physical address behind the access that is being reported; all ones for
 * devices. */
uint64_t lab_host_translate(uint32_t info, uint64_t address);
uint64_t lab_host_translate(uint32_t info, uint64_t address)
{
    struct qemu_plugin_hwaddr *where = qemu_plugin_get_hwaddr(info, address);
    if (!where || qemu_plugin_hwaddr_is_io(where))
        return UINT64_MAX;
    return qemu_plugin_hwaddr_phys_addr(where);
}

/* For the Rust side: the value that the reported access loaded; false if it is no 32- or 64-bit
 * value. */
bool lab_host_value(uint32_t info, uint64_t *value);
bool lab_host_value(uint32_t info, uint64_t *value)
{
    qemu_plugin_mem_value v = qemu_plugin_mem_get_value(info);
    if (v.type == 3)
        *value = v.data.u64;
    else if (v.type == 2)
        *value = v.data.u32;
    return v.type == 2 || v.type == 3;
}

/* For the Rust side: the memory of the mailbox device, which the guest maps. */
uint8_t *lab_host_shared(uint64_t *bytes);
uint8_t *lab_host_shared(uint64_t *bytes)
{
    void *backend = object_resolve_path("/objects/mailbox", NULL);
    void *region = backend ? host_memory_backend_get_memory(backend) : NULL;
    if (!region)
        return NULL;
    *bytes = memory_region_size(region);
    return memory_region_get_ram_ptr(region);
}

/* For the Rust side: guest memory as the vCPU that executes translates it. */
bool lab_host_read(uint64_t address, uint8_t *into, size_t bytes);
bool lab_host_read(uint64_t address, uint8_t *into, size_t bytes)
{
    return cpu_memory_rw_debug(current_cpu, address, into, bytes, false) == 0;
}

/*
 * For the Rust side, in user mode: what the kernel will have as its GS base on the vCPU that
 * executes, which is where its own area begins. It never changes once the kernel runs. Zero if QEMU
 * does not tell.
 */
uint64_t lab_host_kernel_area(void);
uint64_t lab_host_kernel_area(void)
{
    static uint64_t known[MAX_VCPUS];
    static struct qemu_plugin_register *handle;
    unsigned vcpu = who();
    if (known[vcpu])
        return known[vcpu];
    if (!handle) {
        struct glib_array *all = qemu_plugin_get_registers();
        struct register_description *each = (struct register_description *)all->data;
        for (unsigned i = 0; i < all->length; i++) {
            if (strcmp(each[i].name, "k_gs_base") == 0)
                handle = each[i].handle;
        }
    }
    static struct glib_bytes *buffer;
    if (!buffer)
        buffer = g_byte_array_new();
    g_byte_array_set_size(buffer, 0);
    uint64_t base = 0;
    if (handle && qemu_plugin_read_register(handle, buffer) == sizeof base)
        memcpy(&base, buffer->data, sizeof base);
    if (base >> 47 == 0x1ffff) /* an address of the kernel's */
        known[vcpu] = base;
    return known[vcpu];
}

int64_t lab_host_guest_ns(uint64_t modelled_ns);
int64_t lab_host_guest_ns(uint64_t modelled_ns)
{
    return guest_ns(modelled_ns);
}

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    size_t n = qemu_plugin_tb_n_insns(block);
    bool timed = !lab_count_only(lab);
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, NO_REGS, (void *)(uintptr_t)n);
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        uint8_t bytes[16];
        size_t length = qemu_plugin_insn_data(insn, bytes, sizeof bytes);
        unsigned kind = lab_kind(bytes, length);
        if (kind & KIND_MARK)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, NO_REGS,
                (void *)(uintptr_t)(kind & 0xff));
        if (!timed)
            continue;
        if (kind & KIND_CHANGES_TRANSLATIONS)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_translation_change, NO_REGS, NULL);
        void *at = (void *)(uintptr_t)qemu_plugin_insn_vaddr(insn);
        qemu_plugin_register_vcpu_mem_cb(insn, on_load, NO_REGS, MEM_R, at);
        qemu_plugin_register_vcpu_mem_cb(insn, kind & KIND_STORES_PAST ? on_store_past : on_store,
            NO_REGS, MEM_W, at);
    }
}

/* The accelerator's table of operations exists by the time the first vCPU does. */
static void on_vcpu_init(qemu_plugin_id_t id, unsigned index)
{
    (void)id;
    (void)index;
    static bool done;
    if (done)
        return;
    done = true;
    void **table = object_class_by_name("tcg-accel-ops");
    if (!table)
        refuse("QEMU has no class tcg-accel-ops: it must be 10.0, started with accel=tcg");
    int replaced = 0;
    for (int i = 0; i < 40; i++) {
        if (table[i] == (void *)icount_get) {
            table[i] = (void *)clock_ns;
            replaced++;
        }
    }
    if (replaced != 2)
        refuse("QEMU's clock is not where it should be: it must be 10.0 with -icount "
            "shift=0,sleep=off,align=off");
}

static void on_qemu_exit(qemu_plugin_id_t id, void *unused)
{
    (void)id;
    (void)unused;
    int64_t now = frozen_ns;
    if (vm_running) {
        now = guest_ns(lab_furthest_ns(lab));
        now = now > latest_ns ? now : latest_ns;
    }
    lab_finish(lab, now);
}

/* Where CPUState keeps `running`: let QEMU set it in a block of zeroes. */
static bool find_running_offset(void)
{
    uint8_t *probe = calloc(1, PROBE_BYTES);
    size_t found = 0;
    if (!probe)
        return false;
    cpu_exec_start(probe);
    for (size_t i = 0; i < PROBE_BYTES; i++) {
        if (probe[i]) {
            running_offset = i;
            found += probe[i] == 1 ? 1 : 2;
        }
    }
    free(probe);
    return found == 1;
}

/* Point the main program's import of gettimeofday at ours. */
static int patch_import(struct dl_phdr_info *object, size_t size, void *patched)
{
    (void)size;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const ElfW(Rela) *tables[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *d = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
        for (; d->d_tag != DT_NULL; d++) {
            switch (d->d_tag) {
            case DT_SYMTAB: symbols = (const void *)d->d_un.d_ptr; break;
            case DT_STRTAB: strings = (const void *)d->d_un.d_ptr; break;
            case DT_JMPREL: tables[0] = (const void *)d->d_un.d_ptr; break;
            case DT_PLTRELSZ: bytes[0] = d->d_un.d_val; break;
            case DT_RELA: tables[1] = (const void *)d->d_un.d_ptr; break;
            case DT_RELASZ: bytes[1] = d->d_un.d_val; break;
            default: break;
            }
        }
    }
    for (int t = 0; symbols && strings && t < 2; t++) {
        for (size_t i = 0; tables[t] && i < bytes[t] / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) *r = &tables[t][i];
            if (strcmp(strings + symbols[ELF64_R_SYM(r->r_info)].st_name, "gettimeofday") != 0)
                continue;
            uintptr_t slot = object->dlpi_addr + r->r_offset;
            long page = sysconf(_SC_PAGESIZE);
            void *start = (void *)(slot & ~((uintptr_t)page - 1));
            if (mprotect(start, (size_t)page, PROT_READ | PROT_WRITE) == 0) {
                *(void **)slot = (void *)guest_gettimeofday;
                *(int *)patched += 1;
            }
        }
    }
    return 1; /* the main program comes first; no other is looked at */
}

__attribute__((visibility("default"))) int qemu_plugin_version = 4;

__attribute__((visibility("default"))) int
qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    char why[512];
    int patched = 0;
    if (!info->system_emulation || strcmp(info->target_name, "x86_64") != 0)
        refuse("made for qemu-system-x86_64 only");
    if (info->version.cur != 4)
        refuse("made for QEMU 10.0 (plugin interface 4); this one has another interface");
    if (timers_state.shift != 0)
        refuse("start QEMU with -icount shift=0,sleep=off,align=off");
    if (info->system.max_vcpus < 1 || info->system.max_vcpus > MAX_VCPUS)
        refuse("1 to 64 vCPUs work");
    vcpu_count = (unsigned)info->system.max_vcpus;
    if (!find_running_offset())
        refuse("QEMU's CPUState is not as in 10.0: its `running` flag was not found");
    real_gettimeofday = (int (*)(struct timeval *restrict, void *restrict))dlsym(RTLD_NEXT,
        "gettimeofday");
    if (!real_gettimeofday)
        real_gettimeofday = (int (*)(struct timeval *restrict, void *restrict))gettimeofday;
    dl_iterate_phdr(patch_import, &patched);
    if (patched == 0)
        refuse("QEMU's import of gettimeofday was not found: runs would not repeat");
    lab = lab_new((const char *const *)argv, (size_t)argc, vcpu_count, why, sizeof why);
    if (!lab)
        refuse(why);
    frozen_ns = published_ns = latest_ns = (int64_t)lab_clock0_ns(lab);
    qemu_add_vm_change_state_handler(on_vm_state, NULL);
    qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_atexit_cb(id, on_qemu_exit, NULL);
    return 0;
}
