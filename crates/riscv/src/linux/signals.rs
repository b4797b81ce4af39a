//! Signals: actions, masks, and handlers that are entered by a frame on the guest's stack.
//!
//! Layout of the frame: Linux `arch/riscv/kernel/signal.c` (`struct rt_sigframe`) and
//! `arch/riscv/include/uapi/asm/{ucontext,sigcontext,ptrace}.h`.

use super::calls::{EAGAIN, EINTR, EINVAL, ENOMEM, EPERM, ESRCH, PID};
use super::{Activity, Errno, Host, Process, ProcessEnd};
use crate::execute::Trap;
use crate::memory::{GuestMemory, MemoryFault, EXECUTE, PAGE_BYTES, READ, USER_END, WRITE};

/// `_NSIG`.
pub(super) const SIGNALS: u64 = 64;
/// Signals whose default is to be ignored: child, continue, urgent data, window size.
const IGNORED: [u8; 4] = [17, 18, 23, 28];
const SIGKILL: u8 = 9;
const SIGSEGV: u8 = 11;
const SIGSTOP: u8 = 19;
/// `SIG_DFL` and `SIG_IGN`.
const DEFAULT: u64 = 0;
const IGNORE: u64 = 1;
/// `SA_ONSTACK`, `SA_RESTART`, `SA_NODEFER`, `SA_RESETHAND`.
const ON_STACK: u64 = 0x0800_0000;
const RESTART: u64 = 0x1000_0000;
const NO_DEFER: u64 = 0x4000_0000;
const RESET_HANDLER: u64 = 0x8000_0000;
/// `SS_ONSTACK`, `SS_DISABLE`, `MINSIGSTKSZ`.
const STACK_IN_USE: u32 = 1;
const STACK_DISABLED: u32 = 2;
const LEAST_STACK: u64 = 2048;
/// `SI_TKILL` and `SI_USER`.
pub(super) const SENT_TO_THREAD: i32 = -6;
pub(super) const SENT_TO_PROCESS: i32 = 0;

/// The frame: `siginfo`, then `ucontext` with the registers in it.
const FRAME_BYTES: usize = 1088;
const CONTEXT_AT: usize = 128;
const STACK_AT: usize = CONTEXT_AT + 16;
const MASK_AT: usize = CONTEXT_AT + 40;
const REGISTERS_AT: usize = CONTEXT_AT + 176;
const FLOATS_AT: usize = REGISTERS_AT + 256;
const FLAGS_AT: usize = FLOATS_AT + 256;
/// Where handlers return to: `li a7, 139; ecall`, in the last page of user memory.
const RETURN_PAGE: u64 = USER_END - PAGE_BYTES;
const RETURN_CODE: [u8; 8] = [0x93, 0x08, 0xb0, 0x08, 0x73, 0, 0, 0];

#[derive(Debug, Clone, Copy, Default)]
struct SignalAction {
    handler: u64,
    flags: u64,
    mask: u64,
}

/// A signal on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingSignal {
    pub signal: u8,
    /// `si_code`.
    pub code: i32,
    /// The faulting address, or the sender.
    pub value: u64,
}

/// What a process's signals do, and those that no thread has taken yet.
#[derive(Debug)]
pub(super) struct SignalTable {
    actions: [SignalAction; SIGNALS as usize + 1],
    pending: Vec<PendingSignal>,
}

impl SignalTable {
    pub fn new() -> Self {
        Self { actions: [SignalAction::default(); SIGNALS as usize + 1], pending: Vec::new() }
    }
}

/// An alternative stack.
#[derive(Debug, Clone, Copy)]
struct SignalStack {
    start: u64,
    bytes: u64,
    flags: u32,
}

/// A thread's part of it.
#[derive(Debug)]
pub(super) struct ThreadSignals {
    mask: u64,
    pending: Vec<PendingSignal>,
    stack: SignalStack,
    /// The mask before `sigsuspend`.
    suspended_mask: Option<u64>,
}

impl ThreadSignals {
    /// Of a new thread, which inherits its maker's mask.
    pub fn new(maker: Option<&Self>) -> Self {
        Self {
            mask: maker.map_or(0, |maker| maker.mask),
            pending: Vec::new(),
            stack: SignalStack { start: 0, bytes: 0, flags: STACK_DISABLED },
            suspended_mask: None,
        }
    }

    const fn lets_through(&self, signal: u8) -> bool {
        signal == SIGKILL || signal == SIGSTOP || self.mask & bit(signal) == 0
    }
}

const fn bit(signal: u8) -> u64 {
    1 << (signal - 1)
}

/// Mask without the signals that cannot be blocked.
const fn blockable(mask: u64) -> u64 {
    mask & !(bit(SIGKILL) | bit(SIGSTOP))
}

/// Maps the page that handlers return through.
pub(super) fn map_return_page(memory: &mut GuestMemory) -> Result<(), MemoryFault> {
    memory.map(RETURN_PAGE, USER_END, WRITE);
    memory.write(RETURN_PAGE, &RETURN_CODE)?;
    memory.protect(RETURN_PAGE, USER_END, READ | EXECUTE);
    Ok(())
}

/// The signal, its `si_code` and its address for a trap that a thread cannot go on from.
pub(super) fn fault_signal(trap: Trap, memory: &GuestMemory, pc: u64) -> Option<PendingSignal> {
    let (signal, code, value) = match trap {
        Trap::Budget | Trap::EnvironmentCall => return None,
        Trap::Breakpoint => (5, 1, pc),
        Trap::Illegal => (4, 1, pc),
        Trap::Misaligned(address) => (7, 1, address),
        Trap::Memory(fault) => {
            let mapped = memory.protection_at(fault.address).is_some();
            (SIGSEGV, if mapped { 2 } else { 1 }, fault.address)
        }
    };
    Some(PendingSignal { signal, code, value })
}

impl<H: Host> Process<H> {
    fn is_ignored(&self, signal: u8) -> bool {
        match self.signals.actions[usize::from(signal)].handler {
            IGNORE => signal != SIGKILL && signal != SIGSTOP,
            DEFAULT => IGNORED.contains(&signal),
            _ => false,
        }
    }

    fn end_by(&mut self, index: usize, signal: u8, trap: Option<Trap>) {
        let pc = self.threads[index].hart.pc;
        self.end = Some(ProcessEnd::Signal { signal, thread: index as u32, pc, trap });
    }

    /// Sends a signal to a thread, or to the process.
    fn send(&mut self, by: usize, to: Option<usize>, pending: PendingSignal) {
        let signal = pending.signal;
        if self.is_ignored(signal) {
            return;
        }
        let lets = |index: &usize| {
            let thread = &self.threads[*index];
            thread.activity != Activity::Ended && thread.signals.lets_through(signal)
        };
        let taker = match to {
            Some(index) => Some(index).filter(lets),
            None => (0..self.threads.len()).find(lets),
        };
        let fatal = self.signals.actions[usize::from(signal)].handler == DEFAULT;
        if signal == SIGKILL || signal == SIGSTOP || fatal && taker.is_some() {
            return self.end_by(by, signal, None);
        }
        let queue = match to.or(taker) {
            Some(index) => &mut self.threads[index].signals.pending,
            None => &mut self.signals.pending,
        };
        // Those that are not real-time signals are kept once.
        if signal >= 32 && queue.len() < 1024 || queue.iter().all(|one| one.signal != signal) {
            queue.push(pending);
        }
        if let Some(index) = taker {
            self.interrupt(index, signal);
        }
    }

    /// Ends a thread's wait for the sake of a handler.
    fn interrupt(&mut self, index: usize, signal: u8) {
        let restarts = self.signals.actions[usize::from(signal)].flags & RESTART != 0;
        let thread = &mut self.threads[index];
        match thread.activity {
            Activity::Running | Activity::Ended => return,
            // The call is made again: its arguments are still in the registers.
            Activity::Waiting { deadline_ns: None, .. } if restarts => thread.hart.pc -= 4,
            _ => thread.hart.x[10] = -i64::from(EINTR.0) as u64,
        }
        thread.activity = Activity::Running;
    }

    /// Whether a thread has signals to look at before it goes on.
    pub(super) fn has_signals(&self, index: usize) -> bool {
        !self.threads[index].signals.pending.is_empty() || !self.signals.pending.is_empty()
    }

    /// Lets a running thread take the signals that its mask lets through.
    pub(super) fn take_signals(&mut self, index: usize) {
        while self.end.is_none() {
            let signals = &mut self.threads[index].signals;
            let (mask, own) = (signals.mask, &mut signals.pending);
            let open = |one: &PendingSignal| mask & bit(one.signal) == 0;
            let next = match own.iter().position(open) {
                Some(at) => own.remove(at),
                None => match self.signals.pending.iter().position(open) {
                    Some(at) => self.signals.pending.remove(at),
                    None => return,
                },
            };
            match self.signals.actions[usize::from(next.signal)].handler {
                _ if self.is_ignored(next.signal) => {}
                DEFAULT => self.end_by(index, next.signal, None),
                _ => {
                    if self.enter_handler(index, next).is_err() {
                        self.end_by(index, SIGSEGV, None);
                    }
                }
            }
        }
    }

    /// Sends a thread the signal of its own fault, which ends the process without a handler.
    pub(super) fn fault(&mut self, index: usize, trap: Trap) {
        let pc = self.threads[index].hart.pc;
        let Some(fault) = fault_signal(trap, &self.memory, pc) else { return };
        let handler = self.signals.actions[usize::from(fault.signal)].handler;
        let handled = handler != DEFAULT
            && handler != IGNORE
            && self.threads[index].signals.lets_through(fault.signal);
        if !handled || self.enter_handler(index, fault).is_err() {
            self.end_by(index, fault.signal, Some(trap));
        }
    }

    /// Makes a thread execute a handler next.
    fn enter_handler(&mut self, index: usize, pending: PendingSignal) -> Result<(), Errno> {
        let action = self.signals.actions[usize::from(pending.signal)];
        let thread = &mut self.threads[index];
        let (hart, signals) = (&mut thread.hart, &mut thread.signals);
        let stack = signals.stack;
        let within = hart.x[2].wrapping_sub(stack.start) < stack.bytes;
        let top = match stack.flags & STACK_DISABLED {
            0 if action.flags & ON_STACK != 0 && !within => stack.start.wrapping_add(stack.bytes),
            _ => hart.x[2],
        };
        let at = top.wrapping_sub(FRAME_BYTES as u64) & !15;
        let mut frame = [0; FRAME_BYTES];
        let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &u32::from(pending.signal).to_le_bytes());
        put(8, &pending.code.to_le_bytes());
        put(16, &pending.value.to_le_bytes());
        put(STACK_AT, &stack.start.to_le_bytes());
        put(STACK_AT + 8, &(stack.flags | if within { STACK_IN_USE } else { 0 }).to_le_bytes());
        put(STACK_AT + 16, &stack.bytes.to_le_bytes());
        let mask = signals.suspended_mask.take().unwrap_or(signals.mask);
        put(MASK_AT, &mask.to_le_bytes());
        put(REGISTERS_AT, &hart.pc.to_le_bytes());
        for register in 1..32 {
            put(REGISTERS_AT + 8 * register, &hart.x[register].to_le_bytes());
        }
        for (register, bits) in hart.f.iter().enumerate() {
            put(FLOATS_AT + 8 * register, &bits.to_le_bytes());
        }
        put(FLAGS_AT, &u32::from(hart.frm << 5 | hart.fflags).to_le_bytes());
        self.memory.write(at, &frame)?;
        hart.x[1] = RETURN_PAGE;
        hart.x[2] = at;
        hart.x[10] = pending.signal.into();
        hart.x[11] = at;
        hart.x[12] = at + CONTEXT_AT as u64;
        hart.pc = action.handler & !1;
        hart.drop_reservation();
        let own = if action.flags & NO_DEFER == 0 { bit(pending.signal) } else { 0 };
        signals.mask |= blockable(action.mask | own);
        if action.flags & RESET_HANDLER != 0 {
            self.signals.actions[usize::from(pending.signal)].handler = DEFAULT;
        }
        Ok(())
    }

    /// `rt_sigreturn`: what the frame at the stack pointer holds.
    fn leave_handler(&mut self, index: usize) -> Result<u64, Errno> {
        let at = self.threads[index].hart.x[2];
        let mut frame = [0; FRAME_BYTES];
        self.memory.read(at, &mut frame)?;
        let double = |at: usize| -> u64 {
            frame[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let thread = &mut self.threads[index];
        let hart = &mut thread.hart;
        hart.pc = double(REGISTERS_AT) & !1;
        for register in 1..32 {
            hart.x[register] = double(REGISTERS_AT + 8 * register);
        }
        for register in 0..32 {
            hart.f[register] = double(FLOATS_AT + 8 * register);
        }
        (hart.fflags, hart.frm) = (frame[FLAGS_AT] & 31, frame[FLAGS_AT] >> 5);
        hart.drop_reservation();
        thread.signals.mask = blockable(double(MASK_AT));
        Ok(thread.hart.x[10])
    }

    /// A call on signals; `None` for other numbers.
    pub(super) fn signal_call(
        &mut self,
        number: u64,
        a: [u64; 6],
        index: usize,
    ) -> Option<Result<u64, Errno>> {
        let pid_of = |index: usize| PID + index as u64;
        Some(match number {
            129 => match a[0] as i64 {
                0 | -1 => self.kill(index, None, a[1], SENT_TO_PROCESS),
                pid if pid.unsigned_abs() == PID => self.kill(index, None, a[1], SENT_TO_PROCESS),
                _ => Err(ESRCH),
            },
            130 | 131 => {
                let (thread, signal) = if number == 131 { (a[1], a[2]) } else { (a[0], a[1]) };
                let to = (0..self.threads.len())
                    .find(|to| pid_of(*to) == thread && a[0] != 0)
                    .filter(|to| self.threads[*to].activity != Activity::Ended);
                match to {
                    Some(to) => self.kill(index, Some(to), signal, SENT_TO_THREAD),
                    None => Err(ESRCH),
                }
            }
            132 => self.set_signal_stack(a, index),
            133 => self.suspend(a, index),
            134 => self.set_action(a),
            135 => self.set_mask(a, index),
            136 => {
                let queues = [&self.threads[index].signals.pending, &self.signals.pending];
                let set = queues.into_iter().flatten().fold(0, |set, one| set | bit(one.signal));
                self.memory.store(a[0], set.to_le_bytes()).map(|()| 0).map_err(Errno::from)
            }
            // Nobody but the process itself sends to it: it would wait for ever.
            137 => Err(EAGAIN),
            139 => self.leave_handler(index),
            _ => return None,
        })
    }

    fn kill(&mut self, by: usize, to: Option<usize>, signal: u64, code: i32) -> Result<u64, Errno> {
        match u8::try_from(signal) {
            Ok(0) => Ok(0),
            Ok(signal) if u64::from(signal) <= SIGNALS => {
                self.send(by, to, PendingSignal { signal, code, value: PID | 1000 << 32 });
                Ok(0)
            }
            _ => Err(EINVAL),
        }
    }

    fn set_action(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let signal = a[0];
        if !(1..=SIGNALS).contains(&signal) || a[3] != 8 {
            return Err(EINVAL);
        }
        let old = self.signals.actions[signal as usize];
        if a[1] != 0 {
            if [SIGKILL, SIGSTOP].map(u64::from).contains(&signal) {
                return Err(EINVAL);
            }
            let new = SignalAction {
                handler: self.double(a[1])?,
                flags: self.double(a[1].wrapping_add(8))?,
                mask: self.double(a[1].wrapping_add(16))?,
            };
            self.signals.actions[signal as usize] = new;
        }
        if a[2] != 0 {
            for (i, value) in [old.handler, old.flags, old.mask].into_iter().enumerate() {
                self.memory.store(a[2].wrapping_add(8 * i as u64), value.to_le_bytes())?;
            }
        }
        Ok(0)
    }

    fn set_mask(&mut self, a: [u64; 6], index: usize) -> Result<u64, Errno> {
        let old = self.threads[index].signals.mask;
        if a[3] != 8 {
            return Err(EINVAL);
        }
        if a[1] != 0 {
            let given = self.double(a[1])?;
            self.threads[index].signals.mask = blockable(match a[0] {
                0 => old | given,
                1 => old & !given,
                2 => given,
                _ => return Err(EINVAL),
            });
        }
        if a[2] != 0 {
            self.memory.store(a[2], old.to_le_bytes())?;
        }
        Ok(0)
    }

    /// `rt_sigsuspend`: waits with another mask until a handler has run.
    fn suspend(&mut self, a: [u64; 6], index: usize) -> Result<u64, Errno> {
        let mask = blockable(self.double(a[0])?);
        let thread = &mut self.threads[index];
        let old = std::mem::replace(&mut thread.signals.mask, mask);
        thread.signals.suspended_mask = Some(old);
        self.pause(index)
    }

    /// Waits until a handler has run.
    pub(super) fn pause(&mut self, index: usize) -> Result<u64, Errno> {
        let signals = &self.threads[index].signals;
        let lets = |one: &PendingSignal| signals.lets_through(one.signal);
        let interrupted = signals.pending.iter().chain(&self.signals.pending).any(lets);
        if !interrupted {
            self.threads[index].activity = Activity::Paused;
        }
        Err(EINTR)
    }

    fn set_signal_stack(&mut self, a: [u64; 6], index: usize) -> Result<u64, Errno> {
        let pointer = self.threads[index].hart.x[2];
        let old = self.threads[index].signals.stack;
        let within = pointer.wrapping_sub(old.start) < old.bytes;
        if a[0] != 0 {
            let new = SignalStack {
                start: self.double(a[0])?,
                flags: u32::from_le_bytes(self.memory.load(a[0].wrapping_add(8))?),
                bytes: self.double(a[0].wrapping_add(16))?,
            };
            self.threads[index].signals.stack = match new.flags & !STACK_IN_USE {
                _ if within => return Err(EPERM),
                STACK_DISABLED => SignalStack { start: 0, bytes: 0, flags: STACK_DISABLED },
                0 if new.bytes < LEAST_STACK => return Err(ENOMEM),
                0 => SignalStack { flags: 0, ..new },
                _ => return Err(EINVAL),
            };
        }
        if a[1] != 0 {
            let flags = u64::from(old.flags | if within { STACK_IN_USE } else { 0 });
            for (i, value) in [old.start, flags, old.bytes].into_iter().enumerate() {
                self.memory.store(a[1].wrapping_add(8 * i as u64), value.to_le_bytes())?;
            }
        }
        Ok(0)
    }
}
