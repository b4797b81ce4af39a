//! Micro-benchmarks whose times have closed forms: ping-pong, pointer chase, STREAM.
//!
//! They check the simulation, and calibrate predictions: a machine's figures show in them alone.

use crate::code::{
    AluOperation, CodeAddress, MachineCode, Register, SpawnTarget, ThreadletInstruction,
    UpdateOperation,
};
use crate::memory::{ArrayId, MemoryImage, MemoryMap, MemoryView};
use crate::nodelet::Costs;
use crate::MigratoryMachine;

/// A program with its memory, and what it should take.
#[derive(Debug, Clone)]
pub struct MicroBenchmark {
    /// What it is.
    pub name: String,
    /// The instructions.
    pub code: MachineCode,
    /// Where the arrays lie.
    pub map: MemoryMap,
    /// What they hold.
    pub memory: MemoryImage,
    /// Picoseconds by the closed form.
    pub expected_ps: u64,
    /// Migrations.
    pub expected_migrations: u64,
}

/// Who visits the elements of STREAM's arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamWalk {
    /// Threads on each nodelet visit the elements that lie there.
    AtData,
    /// Each thread visits elements that follow one another, wherever they lie.
    InOrder,
}

const NOWHERE: CodeAddress = CodeAddress(0);

fn r(number: u8) -> Register {
    Register(number)
}

/// Emits `for counter in 0..count { body }`; the register after the counter holds the limit.
fn repeat(code: &mut MachineCode, counter: u8, count: i64, body: impl FnOnce(&mut MachineCode)) {
    code.push(ThreadletInstruction::Constant { d: r(counter), value: 0 }, 0);
    code.push(ThreadletInstruction::Constant { d: r(counter + 1), value: count }, 0);
    let again = code.end();
    body(code);
    let (operation, d) = (AluOperation::Add, r(counter));
    code.push(ThreadletInstruction::AluConstant { operation, d, a: d, value: 1 }, 0);
    let operation = AluOperation::Less;
    code.push(ThreadletInstruction::Branch { operation, a: d, b: r(counter + 1), to: again }, 0);
}

/// `threads` threads load a word of nodelet 0 and one of the last nodelet in turn, `rounds` times.
///
/// Closed form: a thread needs for each leg its engine, the way, a load and its share of the loop;
/// the migration engines need an interval for each thread and round.
#[must_use]
pub fn ping_pong(machine: &MigratoryMachine, threads: u32, rounds: u32) -> MicroBenchmark {
    let costs = Costs::new(machine);
    let nodelets = machine.nodelets();
    let mut map = MemoryMap::new(nodelets);
    let near = map.add("near", MemoryView::Local { nodelet: 0 }, 1);
    let far = map.add("far", MemoryView::Local { nodelet: nodelets - 1 }, 1);
    let mut code = MachineCode::default();
    code.push(ThreadletInstruction::Constant { d: r(4), value: 0 }, 0);
    let spawn = ThreadletInstruction::Spawn { entry: NOWHERE, target: SpawnTarget::Here };
    let mut at = NOWHERE;
    repeat(&mut code, 0, i64::from(threads), |code| at = code.push(spawn, 0));
    code.push(ThreadletInstruction::Sync, 0);
    code.push(ThreadletInstruction::End, 0);
    let body = code.end();
    code.set_target(at, body);
    repeat(&mut code, 2, i64::from(rounds), |code| {
        for array in [far, near] {
            code.push(ThreadletInstruction::Load { d: r(5), array, index: r(4) }, 0);
        }
    });
    code.push(ThreadletInstruction::End, 0);
    let moves = if nodelets > 1 { costs.engine_ps + costs.migration_ps } else { 0 };
    let leg_ps = moves + costs.issue_ps + costs.memory_latency_ps;
    let round_ps = 2 * (leg_ps + costs.issue_ps);
    let (threads, rounds) = (u64::from(threads), u64::from(rounds));
    let expected_ps = rounds * round_ps.max(threads * costs.engine_ps);
    let expected_migrations = if nodelets > 1 { 2 * threads * rounds } else { 0 };
    let memory = MemoryImage::new(&map);
    let name = format!("ping-pong, {threads} threads");
    MicroBenchmark { name, code, map, memory, expected_ps, expected_migrations }
}

/// One thread follows `words` pointers; `block` of them after another lie on one nodelet.
///
/// Closed form: loads and loop, and a migration for each block.
#[must_use]
pub fn pointer_chase(machine: &MigratoryMachine, words: u64, block: u64) -> MicroBenchmark {
    let costs = Costs::new(machine);
    let mut map = MemoryMap::new(machine.nodelets());
    let list = map.add("list", MemoryView::Blocked { words: block }, words);
    let mut memory = MemoryImage::new(&map);
    for index in 0..words {
        memory.set(&map, list, index as i64, ((index + 1) % words) as i64);
    }
    let mut code = MachineCode::default();
    code.push(ThreadletInstruction::Constant { d: r(4), value: 0 }, 0);
    repeat(&mut code, 0, words as i64, |code| {
        code.push(ThreadletInstruction::Load { d: r(4), array: list, index: r(4) }, 0);
    });
    code.push(ThreadletInstruction::End, 0);
    let expected_migrations =
        if machine.nodelets() > 1 { words.div_ceil(block).saturating_sub(1) } else { 0 };
    let expected_ps = words * (3 * costs.issue_ps + costs.memory_latency_ps)
        + expected_migrations * (costs.engine_ps + costs.migration_ps);
    let name = format!("pointer chase, blocks of {block}");
    MicroBenchmark { name, code, map, memory, expected_ps, expected_migrations }
}

/// `c[i] = a[i] + b[i]` for `words` elements by `threads` threads on each nodelet; of local arrays
/// on nodelet 0 only.
///
/// Closed form: the busiest of a nodelet's cores, its memory channel and its migration engine.
#[must_use]
pub fn stream(
    machine: &MigratoryMachine,
    view: MemoryView,
    walk: StreamWalk,
    words: u64,
    threads: u32,
) -> MicroBenchmark {
    let costs = Costs::new(machine);
    let nodelets = u64::from(machine.nodelets());
    let mut map = MemoryMap::new(machine.nodelets());
    let arrays = ["a", "b", "c"].map(|name| map.add(name, view, words));
    let active = if matches!(view, MemoryView::Local { .. }) { 1 } else { nodelets };
    let all_threads = active * u64::from(threads);
    let each = words / all_threads;
    let mut code = MachineCode::default();
    // A spawner on each nodelet; register 0 is its number.
    let mut far = NOWHERE;
    let target = SpawnTarget::Nodelet(r(0));
    repeat(&mut code, 0, active as i64, |code| {
        far = code.push(ThreadletInstruction::Spawn { entry: NOWHERE, target }, 0);
    });
    code.push(ThreadletInstruction::Sync, 0);
    code.push(ThreadletInstruction::End, 0);
    let here = code.end();
    code.set_target(far, here);
    let mut near = NOWHERE;
    let target = SpawnTarget::Here;
    repeat(&mut code, 2, i64::from(threads), |code| {
        near = code.push(ThreadletInstruction::Spawn { entry: NOWHERE, target }, 0);
    });
    code.push(ThreadletInstruction::Sync, 0);
    code.push(ThreadletInstruction::End, 0);
    let body = code.end();
    code.set_target(near, body);
    let step = stream_body(&mut code, arrays, walk, each, active);
    code.push(ThreadletInstruction::End, 0);
    let memory = MemoryImage::new(&map);
    let elements = each * u64::from(threads);
    let moves = walk == StreamWalk::InOrder && view == MemoryView::Striped && nodelets > 1;
    let engine_ps = if moves { costs.engine_ps } else { 0 };
    let busiest = (step * costs.cycle_ps / costs.cores).max(3 * costs.word_ps).max(engine_ps);
    let expected_migrations = if moves { each * all_threads } else { 0 };
    let expected_ps = elements * busiest;
    let name = format!("STREAM add, {view:?}, {walk:?}");
    MicroBenchmark { name, code, map, memory, expected_ps, expected_migrations }
}

/// The loop of one thread over its elements; instructions of an element.
fn stream_body(
    code: &mut MachineCode,
    arrays: [ArrayId; 3],
    walk: StreamWalk,
    each: u64,
    active: u64,
) -> u64 {
    // Thread j of nodelet k is thread k + j * nodelets of all.
    let multiply = AluOperation::Multiply;
    let (operation, d) = (AluOperation::Add, r(4));
    code.push(
        ThreadletInstruction::AluConstant { operation: multiply, d, a: r(2), value: active as i32 },
        0,
    );
    code.push(ThreadletInstruction::Alu { operation, d, a: d, b: r(0) }, 0);
    let step = match walk {
        StreamWalk::InOrder => {
            let value = each as i32;
            code.push(ThreadletInstruction::AluConstant { operation: multiply, d, a: d, value }, 0);
            1
        }
        // Register 3 holds how many threads a nodelet has.
        StreamWalk::AtData => 0,
    };
    if step == 0 {
        code.push(
            ThreadletInstruction::AluConstant {
                operation: multiply,
                d: r(9),
                a: r(3),
                value: active as i32,
            },
            0,
        );
    } else {
        code.push(ThreadletInstruction::Constant { d: r(9), value: step }, 0);
    }
    let begin = code.end();
    let mut body = 0;
    repeat(code, 5, each as i64, |code| {
        code.push(ThreadletInstruction::Load { d: r(7), array: arrays[0], index: d }, 0);
        code.push(ThreadletInstruction::Load { d: r(8), array: arrays[1], index: d }, 0);
        code.push(ThreadletInstruction::Alu { operation, d: r(7), a: r(7), b: r(8) }, 0);
        let store = UpdateOperation::Store;
        let (array, index, value) = (arrays[2], d, r(7));
        code.push(ThreadletInstruction::Update { operation: store, array, index, value }, 0);
        code.push(ThreadletInstruction::Alu { operation, d, a: d, b: r(9) }, 0);
        body = code.end().0;
    });
    // Two instructions set the loop up, two end a round.
    u64::from(body - begin.0) - 2 + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::{simulate, SimulationLimits};

    fn check(machine: &MigratoryMachine, bench: &MicroBenchmark) {
        let mut memory = bench.memory.clone();
        let limits = SimulationLimits::default();
        let counters = simulate(machine, &bench.map, &bench.code, &mut memory, limits).unwrap();
        let ratio = counters.elapsed_ps as f64 / bench.expected_ps as f64;
        assert!((ratio - 1.0).abs() < 0.02, "{} on {}: {ratio}", bench.name, machine.name);
        let migrations = counters.migrations();
        let off = migrations.abs_diff(bench.expected_migrations);
        // The first element of each thread may lie elsewhere than the thread begins.
        assert!(off <= 1 + migrations / 50, "{}: {migrations}", bench.name);
    }

    #[test]
    fn micro_benchmarks_agree_with_their_closed_forms() {
        for name in ["emu-chick", "emu-full-speed", "emu-chick,nodelets=3"] {
            let machine = MigratoryMachine::parse(name).unwrap();
            check(&machine, &ping_pong(&machine, 1, 2000));
            check(&machine, &ping_pong(&machine, 64, 2000));
            for block in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
                check(&machine, &pointer_chase(&machine, 8192, block));
            }
            // Long enough that spawning the threads takes little of it.
            let threads = 48 * machine.cores;
            let words = u64::from(machine.nodelets() * threads);
            let (striped, local) = (MemoryView::Striped, MemoryView::Local { nodelet: 0 });
            let at_data = StreamWalk::AtData;
            check(&machine, &stream(&machine, striped, at_data, words * 2048, threads));
            if name == "emu-chick" {
                check(&machine, &stream(&machine, local, at_data, words * 512, threads));
                // Parts of even length would all begin on one nodelet.
                let walk = StreamWalk::InOrder;
                check(&machine, &stream(&machine, striped, walk, words * 511, threads));
            }
        }
    }

    #[test]
    fn results_do_not_depend_on_host_threads() {
        let machine = MigratoryMachine::parse("emu-chick-8,nodes=2,nodelets=3").unwrap();
        let bench = ping_pong(&machine, 20, 30);
        let run = |host_threads| {
            let mut memory = bench.memory.clone();
            let limits = SimulationLimits { host_threads, ..SimulationLimits::default() };
            let counters =
                simulate(&machine, &bench.map, &bench.code, &mut memory, limits).unwrap();
            (counters, memory)
        };
        let expected = run(1);
        for host_threads in [2, 3, 6] {
            assert_eq!(run(host_threads), expected, "{host_threads} host threads");
        }
    }

    #[test]
    fn more_threads_than_slots_become_calls_or_wait() {
        let run = |machine: &str, bench: &dyn Fn(&MigratoryMachine) -> MicroBenchmark| {
            let machine = MigratoryMachine::parse(machine).unwrap();
            let bench = bench(&machine);
            let mut memory = bench.memory.clone();
            let limits = SimulationLimits::default();
            simulate(&machine, &bench.map, &bench.code, &mut memory, limits).unwrap()
        };
        let few = run("emu-chick,threads=2", &|machine| ping_pong(machine, 50, 3));
        let (calls, spawns) = (few.sum(|n| n.calls), few.sum(|n| n.spawns));
        assert_eq!(calls + spawns, 50);
        assert!(calls > 0);
        // One block holds everything: all threads want to be on nodelet 0.
        let crowded = run("emu-chick,threads=4,queue_length=2", &|machine| {
            let view = MemoryView::Blocked { words: 1 << 12 };
            stream(machine, view, StreamWalk::AtData, 1 << 12, 3)
        });
        assert!(crowded.nodelets[0].longest_arrivals > 2 && crowded.nodelets[0].spills > 0);
        assert_eq!(crowded.sum(|n| n.threads_created), crowded.sum(|n| n.threads_ended));
    }

    #[test]
    fn endless_programs_and_wrong_accesses_end_in_one_line() {
        let machine = MigratoryMachine::emu_chick();
        let map = MemoryMap::new(8);
        let run = |instructions: Vec<ThreadletInstruction>, most| {
            let mut code = MachineCode::default();
            for instruction in instructions {
                code.push(instruction, 7);
            }
            let limits = SimulationLimits { host_threads: 1, instructions: most };
            let mut memory = MemoryImage::new(&map);
            simulate(&machine, &map, &code, &mut memory, limits).unwrap_err().to_string()
        };
        let endless = run(vec![ThreadletInstruction::Jump { to: NOWHERE }], 1000);
        assert!(endless.contains("without an end"), "{endless}");
        let load = ThreadletInstruction::Load { d: r(0), array: ArrayId(3), index: r(0) };
        assert!(run(vec![load], 9).contains("(line 7) failed: array ? has no word 0"));
        let past = run(vec![ThreadletInstruction::Constant { d: r(0), value: 1 }], 9);
        assert!(past.contains("it is no instruction"), "{past}");
        assert!(run(vec![ThreadletInstruction::Jump { to: CodeAddress(9) }], 9)
            .contains("out of range"));
    }

    #[test]
    fn memory_that_does_not_fit_names_the_array() {
        let machine = MigratoryMachine::parse("emu-chick,memory_bytes=4096").unwrap();
        let mut map = MemoryMap::new(8);
        map.add("small", MemoryView::Striped, 64);
        map.add("big", MemoryView::Local { nodelet: 3 }, 512);
        let error = map.check(&machine).unwrap_err().to_string();
        assert!(error.contains("nodelet 3") && error.contains("for array big"), "{error}");
    }
}
