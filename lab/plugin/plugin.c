// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Timing plugin for QEMU 10.0 under TCG with -icount shift=0,sleep=off,align=off.
 *
 * This file owns all that touches QEMU: callbacks, the virtual clock and slices of execution. The
 * physics (caches, nodes, overlap of misses) is the library behind tp_*, shared with the simulator.
 *
 * The clock. The plugin replaces the two clock readers of the TCG accelerator. Guest time is
 *     clock0 + idle jumps made by QEMU (changes of the icount bias) + modelled time.
 * Each vCPU has its own modelled time and runs up to the end of a common quantum, then yields, so
 * vCPUs advance side by side although QEMU executes them one after the other; their clocks differ
 * by less than a quantum.
 *
 * Repeatability. QEMU's main loop may look at the clock at any moment that the host chooses. If it
 * saw modelled time move in the middle of a slice it would run timers there, and the guest would be
 * interrupted at a place that depends on the host's load. So a thread that is not a vCPU sees time
 * as of the quantum before, whose timers the vCPU thread has run at its own fixed places; only when
 * all vCPUs are halted does it see the present.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of QEMU's plugin interface that is used (qemu-plugin.h, API version 4). */
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
    int type; /* 0: u8, 1: u16, 2: u32, 3: u64, 4: u128 */
    union { uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64; struct { uint64_t low, high; } u128; } data;
} qemu_plugin_mem_value;
enum { NO_REGS = 0 };
enum { MEM_R = 1, MEM_W = 2 };
typedef void (*vcpu_simple_cb)(qemu_plugin_id_t, unsigned);
typedef void (*vcpu_udata_cb)(unsigned, void *);
typedef void (*vcpu_mem_cb)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *);
extern void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, vcpu_simple_cb);
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, vcpu_udata_cb, int, void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, vcpu_udata_cb, int, void *);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, vcpu_mem_cb, int, int, void *);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
extern qemu_plugin_mem_value qemu_plugin_mem_get_value(qemu_plugin_meminfo_t);
extern struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t, uint64_t);
extern bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
extern uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);

/* QEMU's own symbols, visible because Debian builds QEMU with loadable modules. */
struct timers_state_10_0 {
    int64_t ticks_prev, ticks_offset;
    uint32_t seq;
    int32_t lock;
    int16_t ticks_enabled, shift;
    int64_t last_delta;
    int64_t icount_bias;
};
extern struct timers_state_10_0 timers_state;
extern __thread void *current_cpu;
extern int64_t icount_get(void);
extern void cpu_exit(void *);
extern void tlb_flush(void *);
extern bool all_cpu_threads_idle(void);
extern bool qemu_in_vcpu_thread(void);
extern void *object_class_by_name(const char *);

/* The library. */
struct plugin;
struct timing { uint64_t ps_per_instruction, tlb_flush_ps, clock0_ns, quantum_ps; int count_only; };
struct executed { uint64_t instructions, loads, stores; };
extern struct plugin *tp_setup(const char *const *, size_t, size_t, struct timing *, char *, size_t);
extern int tp_hit(struct plugin *, size_t, uint64_t, int);
extern uint64_t tp_miss(struct plugin *, size_t, uint64_t, uint64_t, int, uint64_t, uint64_t, uint64_t);
extern void tp_mark(struct plugin *, uint32_t, uint64_t, const struct executed *);
extern void tp_finish(struct plugin *, uint64_t);

#define MAX_VCPUS 64
#define MARK_BASE 0x7e44a000u

struct vcpu {
    uint64_t time;       /* own modelled time, ps */
    uint64_t turns;      /* slices begun */
    uint64_t next_flush; /* ps */
    bool yielded;        /* asked to leave; the next block begins a new slice */
};
static struct vcpu vcpus[MAX_VCPUS];
static struct executed executed[MAX_VCPUS];
static void *handles[MAX_VCPUS];
static unsigned vcpu_count;

static struct plugin *model;
static struct timing timing;
static uint64_t quantum_start, quantum_end; /* ps */
static uint64_t turns_at_advance[MAX_VCPUS];
static unsigned running = MAX_VCPUS;        /* vCPU whose slice it is */
static int64_t bias_start, bias_seen;
static bool started;

/*
 * The index that callbacks get is that of the vCPU that translated the block, not of the one that
 * executes it (QEMU 10.0, one thread for all vCPUs), so the executing one is found by its handle.
 */
static inline unsigned who(void)
{
    static void *last;
    static unsigned index;
    void *cpu = current_cpu;
    if (cpu == last)
        return index;
    for (unsigned i = 0; i < MAX_VCPUS; i++) {
        if (!handles[i])
            handles[i] = cpu;
        if (handles[i] == cpu) {
            last = cpu;
            return index = i;
        }
    }
    return 0;
}

static uint64_t latest(void)
{
    uint64_t t = quantum_start;
    for (unsigned i = 0; i < vcpu_count; i++)
        if (vcpus[i].time > t)
            t = vcpus[i].time;
    return t;
}

static uint64_t guest_ns(uint64_t ps)
{
    int64_t jumps = started ? timers_state.icount_bias - bias_start : 0;
    return timing.clock0_ns + (uint64_t)jumps + ps / 1000;
}

/* Replaces the accelerator's clock readers. */
static int64_t clock_ns(void)
{
    if (!started)
        return (int64_t)timing.clock0_ns;
    if (qemu_in_vcpu_thread() && current_cpu) {
        if (all_cpu_threads_idle())
            return (int64_t)guest_ns(latest());
        uint64_t t = vcpus[who()].time;
        return (int64_t)guest_ns(t > quantum_start ? t : quantum_start);
    }
    if (all_cpu_threads_idle())
        return (int64_t)guest_ns(latest());
    uint64_t before = quantum_start > timing.quantum_ps ? quantum_start - timing.quantum_ps : 0;
    return (int64_t)guest_ns(before);
}

/* A vCPU gets its turn. */
static void begin_slice(unsigned me)
{
    struct vcpu *v = &vcpus[me];
    if (!started) {
        started = true;
        bias_start = bias_seen = timers_state.icount_bias;
        quantum_end = timing.quantum_ps;
    }
    if (timers_state.icount_bias != bias_seen) { /* all were idle: they wake at the same time */
        bias_seen = timers_state.icount_bias;
        quantum_start = latest();
        quantum_end = quantum_start + timing.quantum_ps;
    }
    if (v->time < quantum_start)
        v->time = quantum_start;
    if (v->time >= quantum_end) {
        /* Done, and asked again: the quantum ends unless another one has run since and is not done. */
        bool wait = false;
        for (unsigned i = 0; i < vcpu_count; i++)
            if (i != me && vcpus[i].turns != turns_at_advance[i] && vcpus[i].time < quantum_end)
                wait = true;
        for (unsigned i = 0; i < vcpu_count; i++)
            turns_at_advance[i] = vcpus[i].turns;
        if (!wait) {
            while (quantum_end <= v->time)
                quantum_end += timing.quantum_ps;
            quantum_start = quantum_end - timing.quantum_ps;
        }
    }
    v->turns++;
    v->yielded = false;
    running = me;
    if (timing.tlb_flush_ps && v->time >= v->next_flush) {
        v->next_flush = v->time + timing.tlb_flush_ps;
        tlb_flush(current_cpu);
    }
}

static inline void yield_if_done(struct vcpu *v)
{
    if (v->time >= quantum_end && !v->yielded) {
        v->yielded = true;
        cpu_exit(current_cpu);
    }
}

static void on_block(unsigned translated_by, void *instructions)
{
    (void)translated_by;
    unsigned me = who();
    struct vcpu *v = &vcpus[me];
    if (running != me || v->yielded)
        begin_slice(me);
    uint64_t n = (uintptr_t)instructions;
    executed[me].instructions += n;
    v->time += n * timing.ps_per_instruction;
    yield_if_done(v);
}

/*
 * The first level's most recent line of each set, by virtual address: accessing it again changes
 * nothing, so physical address and tags need not be looked up. The set index lies within the page
 * offset. After a page moved or another address space was switched to, at most these lines are
 * taken for hits that would have been misses.
 */
#define SETS 64
static uint64_t newest[MAX_VCPUS][SETS]; /* (line + 1) << 1 | written */

static inline void on_access(unsigned me, qemu_plugin_meminfo_t info, uint64_t address, int store)
{
    uint64_t *filter = &newest[me][(address >> 6) % SETS];
    uint64_t key = ((address >> 6) + 1) << 1;
    if (*filter == (key | 1) || (*filter == key && !store))
        return;
    int written = store; /* a line known to be written was returned for above */
    struct qemu_plugin_hwaddr *where = qemu_plugin_get_hwaddr(info, address);
    if (!where || qemu_plugin_hwaddr_is_io(where))
        return;
    uint64_t physical = qemu_plugin_hwaddr_phys_addr(where);
    *filter = key | (uint64_t)written;
    if (tp_hit(model, me, physical, store))
        return;
    uint64_t value = 0;
    if (!store) {
        qemu_plugin_mem_value loaded = qemu_plugin_mem_get_value(info);
        if (loaded.type == 3)
            value = loaded.data.u64;
    }
    struct vcpu *v = &vcpus[me];
    v->time = tp_miss(model, me, address, physical, store, value, v->time, executed[me].instructions);
    yield_if_done(v);
}

static void on_load(unsigned translated_by, qemu_plugin_meminfo_t info, uint64_t address, void *unused)
{
    (void)translated_by;
    (void)unused;
    unsigned me = who();
    executed[me].loads++;
    on_access(me, info, address, 0);
}

static void on_store(unsigned translated_by, qemu_plugin_meminfo_t info, uint64_t address, void *unused)
{
    (void)translated_by;
    (void)unused;
    unsigned me = who();
    executed[me].stores++;
    on_access(me, info, address, 1);
}

static void on_mark(unsigned translated_by, void *mark)
{
    (void)translated_by;
    unsigned me = who();
    tp_mark(model, (uint32_t)(uintptr_t)mark, guest_ns(vcpus[me].time), executed);
}

/* nopl disp32(%rax) with our displacement: does nothing anywhere but here. */
static uint32_t mark_of(const struct qemu_plugin_insn *insn)
{
    uint8_t bytes[8];
    if (qemu_plugin_insn_data(insn, bytes, sizeof bytes) != 7)
        return 0;
    if (bytes[0] != 0x0f || bytes[1] != 0x1f || bytes[2] != 0x80)
        return 0;
    uint32_t displacement;
    memcpy(&displacement, bytes + 3, sizeof displacement);
    return (displacement & ~0xffu) == MARK_BASE ? displacement & 0xffu : 0;
}

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    size_t n = qemu_plugin_tb_n_insns(block);
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, NO_REGS, (void *)(uintptr_t)n);
    for (size_t i = 0; i < n; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        uint32_t mark = mark_of(insn);
        if (mark)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, NO_REGS, (void *)(uintptr_t)mark);
        if (!timing.count_only) {
            qemu_plugin_register_vcpu_mem_cb(insn, on_load, NO_REGS, MEM_R, NULL);
            qemu_plugin_register_vcpu_mem_cb(insn, on_store, NO_REGS, MEM_W, NULL);
        }
    }
}

static void refuse(const char *why)
{
    fprintf(stderr, "terrace plugin: %s\n", why);
    exit(1);
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
        refuse("QEMU has no class tcg-accel-ops; start it with accel=tcg, version 10.0");
    int replaced = 0;
    for (int i = 0; i < 40; i++)
        if (table[i] == (void *)icount_get) {
            table[i] = (void *)clock_ns;
            replaced++;
        }
    if (replaced != 2)
        refuse("QEMU's clock readers were not found; it must be 10.0 with -icount shift=0,sleep=off,align=off");
}

static void on_exit_(qemu_plugin_id_t id, void *unused)
{
    (void)id;
    (void)unused;
    tp_finish(model, started ? guest_ns(latest()) : timing.clock0_ns);
}

__attribute__((visibility("default"))) int qemu_plugin_version = 4;

__attribute__((visibility("default"))) int
qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    char why[512];
    if (!info->system_emulation || strcmp(info->target_name, "x86_64") != 0) {
        fprintf(stderr, "terrace plugin: made for qemu-system-x86_64, not %s\n", info->target_name);
        return -1;
    }
    if (info->version.cur != 4) {
        fprintf(stderr, "terrace plugin: made for QEMU 10.0 (plugin interface 4), this one has %d\n", info->version.cur);
        return -1;
    }
    if (timers_state.shift != 0) {
        fprintf(stderr, "terrace plugin: icount shift must be 0 (found %d): layout or options differ\n", timers_state.shift);
        return -1;
    }
    vcpu_count = (unsigned)info->system.max_vcpus;
    if (vcpu_count > MAX_VCPUS) {
        fprintf(stderr, "terrace plugin: %u vCPUs, at most %d\n", vcpu_count, MAX_VCPUS);
        return -1;
    }
    model = tp_setup((const char *const *)argv, (size_t)argc, vcpu_count, &timing, why, sizeof why);
    if (!model) {
        fprintf(stderr, "terrace plugin: %s\n", why);
        return -1;
    }
    qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    qemu_plugin_register_atexit_cb(id, on_exit_, NULL);
    return 0;
}
