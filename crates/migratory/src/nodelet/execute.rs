//! Instructions of a thread on its nodelet.

use super::{Environment, Nodelet, Payload};
use crate::code::{CodeAddress, Register, SpawnTarget, ThreadletInstruction, UpdateOperation};
use crate::memory::{ArrayId, WordPlace};
use crate::semantics::{compute, update};
use crate::thread::ThreadContext;
use crate::MigratoryError;

/// What becomes of a thread after an instruction.
enum Next {
    /// It goes on.
    Continue,
    /// It goes on at this time.
    Later(u64),
    /// It waits in its slot until another wakes it.
    Blocked,
    /// It goes to this nodelet.
    Migrate(u32),
    /// It is at its end.
    Ended,
}

impl Nodelet {
    /// Runs a thread to the end of the window at most; when it is ready again, if it is.
    pub(super) fn execute(
        &mut self,
        slot: u32,
        ready_ps: u64,
        environment: &Environment,
    ) -> Option<u64> {
        let mut thread = self.slots.get_mut(slot as usize)?.take()?;
        thread.now_ps = thread.now_ps.max(ready_ps).max(self.window.0);
        let capacity_ps = environment.costs.window_ps * environment.costs.cores;
        loop {
            self.compute(&mut thread, capacity_ps, environment);
            if thread.now_ps >= self.window.1 || self.core_ps >= capacity_ps {
                let ready_ps = thread.now_ps.max(self.window.1);
                self.slots[slot as usize] = Some(thread);
                return Some(ready_ps);
            }
            match self.step(&mut thread, slot, environment) {
                Next::Continue => {}
                Next::Later(ready_ps) => {
                    self.slots[slot as usize] = Some(thread);
                    return Some(ready_ps);
                }
                Next::Blocked => {
                    self.slots[slot as usize] = Some(thread);
                    return None;
                }
                Next::Migrate(to) => return self.leave(thread, slot, to, environment),
                Next::Ended => {
                    self.release(slot, thread.now_ps);
                    return None;
                }
            }
        }
    }

    /// A thread leaves for the nodelet that its instruction needs.
    fn leave(
        &mut self,
        thread: Box<ThreadContext>,
        slot: u32,
        to: u32,
        environment: &Environment,
    ) -> Option<u64> {
        let (now_ps, pc) = (thread.now_ps, thread.pc.0 as usize);
        if let Err((thread, room_ps)) = self.depart(to, thread, false, &environment.costs) {
            self.slots[slot as usize] = Some(thread);
            return Some(room_ps);
        }
        self.counters.migrations_to[to as usize] += 1;
        self.migrations_at[pc] += 1;
        self.release(slot, now_ps);
        None
    }

    fn locate(
        &self,
        thread: &ThreadContext,
        array: ArrayId,
        index: Register,
        environment: &Environment,
    ) -> Option<WordPlace> {
        environment.map.locate(array, thread.registers[usize::from(index.0)], self.index)
    }

    /// Runs instructions of a thread that need its registers only, until another one comes or its
    /// time is over. Time is kept in locals: most instructions are such.
    #[inline]
    fn compute(&mut self, thread: &mut ThreadContext, capacity_ps: u64, environment: &Environment) {
        let (costs, instructions) = (&environment.costs, environment.code.instructions());
        let (mut pc, mut now_ps, mut core_ps) = (thread.pc.0, thread.now_ps, self.core_ps);
        let (mut executed, end_ps) = (0, self.window.1);
        let registers = &mut thread.registers;
        while now_ps < end_ps && core_ps < capacity_ps {
            let Some(instruction) = instructions.get(pc as usize) else { break };
            let get = |r: Register| registers[usize::from(r.0)];
            let mut next = pc + 1;
            let written = match *instruction {
                ThreadletInstruction::Constant { d, value } => Some((d, value)),
                ThreadletInstruction::Copy { d, a } => Some((d, get(a))),
                ThreadletInstruction::Alu { operation, d, a, b } => {
                    Some((d, compute(operation, get(a), get(b))))
                }
                ThreadletInstruction::AluConstant { operation, d, a, value } => {
                    Some((d, compute(operation, get(a), i64::from(value))))
                }
                ThreadletInstruction::Jump { to } => {
                    next = to.0;
                    None
                }
                ThreadletInstruction::Branch { operation, a, b, to } => {
                    if compute(operation, get(a), get(b)) != 0 {
                        next = to.0;
                    }
                    None
                }
                ThreadletInstruction::BranchZero { a, to } => {
                    if get(a) == 0 {
                        next = to.0;
                    }
                    None
                }
                _ => break,
            };
            if let Some((d, value)) = written {
                registers[usize::from(d.0)] = value;
            }
            pc = next;
            now_ps += costs.issue_ps;
            core_ps += costs.cycle_ps;
            executed += 1;
        }
        (thread.pc, thread.now_ps, self.core_ps) = (CodeAddress(pc), now_ps, core_ps);
        self.counters.instructions += executed;
    }

    /// Executes an instruction that needs more than registers.
    #[inline]
    fn step(
        &mut self,
        thread: &mut Box<ThreadContext>,
        slot: u32,
        environment: &Environment,
    ) -> Next {
        let Some(instruction) = environment.code.instructions().get(thread.pc.0 as usize) else {
            return self.fail(thread, environment, "it is no instruction".to_owned());
        };
        match *instruction {
            ThreadletInstruction::Load { d, array, index } => {
                self.load(thread, slot, environment, (None, d, array, index, index))
            }
            ThreadletInstruction::Atomic { operation, d, array, index, value } => {
                let access = (Some(operation), d, array, index, value);
                self.load(thread, slot, environment, access)
            }
            ThreadletInstruction::Update { operation, array, index, value } => {
                let value = thread.registers[usize::from(value.0)];
                self.update(thread, slot, environment, (operation, array, index, value))
            }
            ThreadletInstruction::Spawn { entry, target } => {
                self.spawn(thread, entry, target, environment)
            }
            ThreadletInstruction::Sync => self.sync(thread, slot, environment),
            ThreadletInstruction::End => self.end(thread, slot, environment),
            // Those that need registers only were executed before.
            _ => Next::Continue,
        }
    }

    fn issue(&mut self, thread: &mut ThreadContext, environment: &Environment) {
        thread.pc.0 += 1;
        thread.now_ps += environment.costs.issue_ps;
        self.core_ps += environment.costs.cycle_ps;
        self.counters.instructions += 1;
    }

    /// Waits until fewer than `limit` updates of a thread are unacknowledged.
    fn wait_below(&mut self, slot: u32, limit: u32) -> Next {
        self.waits[slot as usize] = limit;
        Next::Blocked
    }

    /// A load, or an atomic: an operation and a register with its operand.
    #[inline]
    fn load(
        &mut self,
        thread: &mut Box<ThreadContext>,
        slot: u32,
        environment: &Environment,
        access: (Option<UpdateOperation>, Register, ArrayId, Register, Register),
    ) -> Next {
        let (operation, d, array, index, operand) = access;
        let Some(place) = self.locate(thread, array, index, environment) else {
            return self.fail_access(thread, array, index, environment);
        };
        if place.nodelet != self.index {
            if thread.unacknowledged > 0 {
                return self.wait_below(slot, 1);
            }
            return Next::Migrate(place.nodelet);
        }
        let costs = &environment.costs;
        if self.memory_ps >= costs.window_ps {
            return Next::Later(self.window.1);
        }
        let Some(word) = self.memory.get_mut(place.word as usize) else {
            return self.fail_access(thread, array, index, environment);
        };
        let old = *word;
        let mut words = 1;
        if let Some(operation) = operation {
            *word = update(operation, old, thread.registers[usize::from(operand.0)]);
            words = 2;
        }
        thread.registers[usize::from(d.0)] = old;
        self.memory_ps += words * costs.word_ps;
        self.counters.memory_words += words;
        self.issue(thread, environment);
        thread.now_ps += costs.memory_latency_ps;
        Next::Continue
    }

    fn update(
        &mut self,
        thread: &mut Box<ThreadContext>,
        slot: u32,
        environment: &Environment,
        access: (UpdateOperation, ArrayId, Register, i64),
    ) -> Next {
        let (operation, array, index, value) = access;
        let Some(place) = self.locate(thread, array, index, environment) else {
            return self.fail_access(thread, array, index, environment);
        };
        let costs = &environment.costs;
        if place.nodelet == self.index {
            if self.memory_ps >= costs.window_ps {
                return Next::Later(self.window.1);
            }
            let Some(word) = self.memory.get_mut(place.word as usize) else {
                return self.fail_access(thread, array, index, environment);
            };
            *word = update(operation, *word, value);
            let words = if operation == UpdateOperation::Store { 1 } else { 2 };
            self.memory_ps += words * costs.word_ps;
            self.counters.memory_words += words;
        } else {
            if thread.unacknowledged >= costs.unacknowledged {
                return self.wait_below(slot, costs.unacknowledged);
            }
            thread.unacknowledged += 1;
            self.counters.remote_out += 1;
            self.remote_at[thread.pc.0 as usize] += 1;
            let payload = Payload::Update { operation, word: place.word, value, slot };
            self.send(place.nodelet, payload, thread.now_ps, costs);
        }
        self.issue(thread, environment);
        Next::Continue
    }

    fn spawn(
        &mut self,
        thread: &mut Box<ThreadContext>,
        entry: CodeAddress,
        target: SpawnTarget,
        environment: &Environment,
    ) -> Next {
        let costs = &environment.costs;
        let to = match target {
            SpawnTarget::Here => self.index,
            SpawnTarget::Nodelet(r) => {
                let nodelet = thread.registers[usize::from(r.0)];
                match u32::try_from(nodelet).ok().filter(|n| *n < environment.map.nodelets()) {
                    Some(nodelet) => nodelet,
                    None => {
                        let why = format!("there is no nodelet {nodelet}");
                        return self.fail(thread, environment, why);
                    }
                }
            }
        };
        if to == self.index && self.live >= costs.slots {
            self.counters.calls += 1;
            self.counters.instructions += 1;
            thread.call(entry);
            thread.now_ps += costs.issue_ps;
            self.core_ps += costs.cycle_ps;
            return Next::Continue;
        }
        let frame = match thread.children {
            Some(frame) => frame,
            None => self.new_frame(),
        };
        thread.children = Some(frame);
        let mut child = Box::new(ThreadContext::new(entry, thread.registers, Some(frame)));
        child.now_ps = thread.now_ps + costs.spawn_ps;
        if to == self.index {
            self.counters.threads_created += 1;
            self.place(child);
        } else if let Err((_, room_ps)) = self.depart(to, child, true, costs) {
            return Next::Later(room_ps);
        }
        thread.spawned += 1;
        self.counters.spawns += 1;
        self.issue(thread, environment);
        thread.now_ps += costs.spawn_ps;
        self.core_ps += costs.spawn_cycles * costs.cycle_ps;
        Next::Continue
    }

    fn sync(
        &mut self,
        thread: &mut Box<ThreadContext>,
        slot: u32,
        environment: &Environment,
    ) -> Next {
        let Some(frame) = thread.children else {
            self.issue(thread, environment);
            return Next::Continue;
        };
        if frame.nodelet != self.index {
            if thread.unacknowledged > 0 {
                return self.wait_below(slot, 1);
            }
            return Next::Migrate(frame.nodelet);
        }
        let Some(children) = self.frames.get_mut(frame.frame as usize) else {
            return self.fail(thread, environment, "its children are not counted".to_owned());
        };
        if children.ended < thread.spawned {
            children.waiting = Some((thread.spawned, slot));
            return Next::Blocked;
        }
        self.free_frames.push(frame.frame);
        thread.children = None;
        thread.spawned = 0;
        self.issue(thread, environment);
        Next::Continue
    }

    fn end(
        &mut self,
        thread: &mut Box<ThreadContext>,
        slot: u32,
        environment: &Environment,
    ) -> Next {
        if thread.unacknowledged > 0 {
            return self.wait_below(slot, 1);
        }
        self.issue(thread, environment);
        if thread.go_back() {
            return Next::Continue;
        }
        self.counters.threads_ended += 1;
        match thread.parent {
            None => self.finished_ps = Some(thread.now_ps),
            Some(frame) if frame.nodelet == self.index => {
                self.end_child(frame.frame, thread.now_ps);
            }
            Some(frame) => {
                let payload = Payload::ChildEnded { frame: frame.frame };
                self.send(frame.nodelet, payload, thread.now_ps, &environment.costs);
            }
        }
        Next::Ended
    }

    fn fail(&mut self, thread: &ThreadContext, environment: &Environment, why: String) -> Next {
        let (instruction, line) = (thread.pc.0, environment.code.line(thread.pc));
        self.failure = Some(MigratoryError::Fault { instruction, line, why });
        Next::Blocked
    }

    fn fail_access(
        &mut self,
        thread: &ThreadContext,
        array: ArrayId,
        index: Register,
        environment: &Environment,
    ) -> Next {
        let value = thread.registers[usize::from(index.0)];
        let name = environment.map.name(array);
        self.fail(thread, environment, format!("array {name} has no word {value}"))
    }
}
