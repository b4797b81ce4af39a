//! Runs a program without time: a spawn is a call, an update happens at once. It counts what a
//! machine of this size would do; order-dependent programs may do something else with time.

use crate::code::{
    CodeAddress, MachineCode, Register, SpawnTarget, ThreadletInstruction, REGISTERS,
};
use crate::memory::{ArrayId, MemoryImage, MemoryMap};
use crate::semantics::{compute, update};
use crate::MigratoryError;

/// Counts of a run without time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UntimedCounts {
    /// Threads that were spawned.
    pub spawns: u64,
    /// Migrations, by the nodelet that they leave.
    pub migrations: Vec<u64>,
    /// Updates of other nodelets' words, by the nodelet that sends them.
    pub remote_updates: Vec<u64>,
    /// Updates of other nodelets' words, by the nodelet that gets them.
    pub remote_updates_in: Vec<u64>,
    /// Instructions by nodelet.
    pub instructions: Vec<u64>,
    /// Loads, by nodelet.
    pub loads: Vec<u64>,
    /// Instructions of the threads that spawn, which nothing else does meanwhile.
    pub serial_instructions: u64,
    /// Syncs.
    pub syncs: u64,
    /// Of the threads between two syncs the most migrations of one, summed over syncs.
    pub longest_migrations: u64,
    /// The same of instructions.
    pub longest_instructions: u64,
}

/// What a thread did, with the longest of those that it waited for.
#[derive(Debug, Clone, Copy, Default)]
struct ThreadPath {
    migrations: u64,
    instructions: u64,
}

impl ThreadPath {
    fn then(self, other: Self) -> Self {
        Self {
            migrations: self.migrations + other.migrations,
            instructions: self.instructions + other.instructions,
        }
    }

    fn longest(self, other: Self) -> Self {
        Self {
            migrations: self.migrations.max(other.migrations),
            instructions: self.instructions.max(other.instructions),
        }
    }
}

struct Caller {
    pc: CodeAddress,
    registers: [i64; REGISTERS],
    nodelet: u32,
    path: ThreadPath,
    children: ThreadPath,
}

/// Runs `code` from its first instruction on nodelet 0; each thread to its end where it is spawned.
///
/// # Errors
/// [`MigratoryError::Fault`], [`MigratoryError::Unfinished`] beyond `most_instructions`.
pub fn count(
    map: &MemoryMap,
    code: &MachineCode,
    memory: &mut MemoryImage,
    most_instructions: u64,
) -> Result<UntimedCounts, MigratoryError> {
    let nodelets = map.nodelets() as usize;
    let zeros = || vec![0; nodelets];
    let mut counts = UntimedCounts {
        migrations: zeros(),
        remote_updates: zeros(),
        remote_updates_in: zeros(),
        instructions: zeros(),
        loads: zeros(),
        ..UntimedCounts::default()
    };
    let mut registers = [0i64; REGISTERS];
    let (mut pc, mut here) = (CodeAddress(0), 0u32);
    let mut callers: Vec<Caller> = Vec::new();
    let mut executed = 0u64;
    let (mut path, mut children) = (ThreadPath::default(), ThreadPath::default());
    let fault = |pc: CodeAddress, why: String| MigratoryError::Fault {
        instruction: pc.0,
        line: code.line(pc),
        why,
    };
    loop {
        let instruction = code.instructions().get(pc.0 as usize);
        let instruction = instruction.ok_or_else(|| fault(pc, "it is no instruction".into()))?;
        executed += 1;
        if executed > most_instructions {
            return Err(MigratoryError::Unfinished { instructions: executed });
        }
        let get = |r: Register| registers[usize::from(r.0)];
        let locate = |array: ArrayId, index: Register| {
            map.locate(array, get(index), here).ok_or_else(|| {
                fault(pc, format!("array {} has no word {}", map.name(array), get(index)))
            })
        };
        let mut next = CodeAddress(pc.0 + 1);
        match *instruction {
            ThreadletInstruction::Constant { d, value } => registers[usize::from(d.0)] = value,
            ThreadletInstruction::Copy { d, a } => registers[usize::from(d.0)] = get(a),
            ThreadletInstruction::Alu { operation, d, a, b } => {
                registers[usize::from(d.0)] = compute(operation, get(a), get(b));
            }
            ThreadletInstruction::AluConstant { operation, d, a, value } => {
                registers[usize::from(d.0)] = compute(operation, get(a), i64::from(value));
            }
            ThreadletInstruction::Jump { to } => next = to,
            ThreadletInstruction::Branch { operation, a, b, to } => {
                if compute(operation, get(a), get(b)) != 0 {
                    next = to;
                }
            }
            ThreadletInstruction::BranchZero { a, to } if get(a) == 0 => next = to,
            ThreadletInstruction::BranchZero { .. } => {}
            ThreadletInstruction::Load { d, array, index } => {
                let place = locate(array, index)?;
                move_to(&mut here, place.nodelet, &mut counts, &mut path);
                counts.loads[here as usize] += 1;
                registers[usize::from(d.0)] = memory.nodelets[here as usize][place.word as usize];
            }
            ThreadletInstruction::Atomic { operation, d, array, index, value } => {
                let (place, value) = (locate(array, index)?, get(value));
                move_to(&mut here, place.nodelet, &mut counts, &mut path);
                let word = &mut memory.nodelets[here as usize][place.word as usize];
                registers[usize::from(d.0)] = *word;
                *word = update(operation, *word, value);
            }
            ThreadletInstruction::Update { operation, array, index, value } => {
                let place = locate(array, index)?;
                if place.nodelet != here {
                    counts.remote_updates[here as usize] += 1;
                    counts.remote_updates_in[place.nodelet as usize] += 1;
                }
                let word = &mut memory.nodelets[place.nodelet as usize][place.word as usize];
                *word = update(operation, *word, get(value));
            }
            ThreadletInstruction::Spawn { entry, target } => {
                counts.spawns += 1;
                callers.push(Caller { pc: next, registers, nodelet: here, path, children });
                (path, children) = (ThreadPath::default(), ThreadPath::default());
                if let SpawnTarget::Nodelet(r) = target {
                    let nodelet = u32::try_from(get(r)).ok().filter(|n| *n < map.nodelets());
                    here = nodelet.ok_or_else(|| fault(pc, "there is no such nodelet".into()))?;
                }
                next = entry;
            }
            ThreadletInstruction::Sync => {
                counts.syncs += 1;
                if callers.is_empty() {
                    counts.longest_migrations += children.migrations;
                    counts.longest_instructions += children.instructions;
                }
                path = path.then(std::mem::take(&mut children));
            }
            ThreadletInstruction::End => match callers.pop() {
                None => return Ok(counts),
                Some(caller) => {
                    (next, registers, here) = (caller.pc, caller.registers, caller.nodelet);
                    (path, children) = (caller.path, caller.children.longest(path));
                }
            },
        }
        counts.instructions[here as usize] += 1;
        path.instructions += 1;
        counts.serial_instructions += u64::from(callers.is_empty());
        pc = next;
    }
}

fn move_to(here: &mut u32, nodelet: u32, counts: &mut UntimedCounts, path: &mut ThreadPath) {
    if *here != nodelet {
        path.migrations += 1;
        counts.migrations[*here as usize] += 1;
        *here = nodelet;
    }
}
