//! An element as gdb's protocol sees it: a process whose threads are numbered from 1.

use super::super::HostFiles;
use super::connection::DebuggerConnection;
use gdbstub::arch::{Arch, RegId};
use gdbstub::common::{Signal, Tid};
use gdbstub::conn::ConnectionExt;
use gdbstub::stub::run_blocking::{BlockingEventLoop, Event, WaitForStopReasonError};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadResume, MultiThreadResumeOps, MultiThreadSchedulerLocking,
    MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::single_register_access::{
    SingleRegisterAccess, SingleRegisterAccessOps,
};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, SwBreakpoint, SwBreakpointOps,
};
use gdbstub::target::{Target, TargetError, TargetResult};
use gdbstub_arch::riscv::reg::RiscvCoreRegs;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use terrace_riscv::execute::Hart;
use terrace_riscv::linux::Process;
use terrace_xbgas::element::{ElementMachine, ElementsEnd};

/// Instructions between looks at what the debugger sends: a few milliseconds.
const SLICE: u64 = 500_000;

/// RV64GC with extended registers.
pub(super) enum ElementArch {}

impl Arch for ElementArch {
    type Usize = u64;
    type Registers = RiscvCoreRegs<u64>;
    type BreakpointKind = usize;
    type RegId = ElementRegister;

    fn target_description_xml() -> Option<&'static str> {
        Some(include_str!("../element.xml"))
    }
}

/// A register by gdb's number, as `element.xml` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementRegister {
    Integer(u8),
    Pc,
    Float(u8),
    /// `fflags`, `frm`, `fcsr` by their CSR numbers.
    FloatStatus(u8),
    Extended(u8),
}

impl RegId for ElementRegister {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        let register = match id {
            0..=31 => Self::Integer(id as u8),
            32 => Self::Pc,
            33..=64 => Self::Float(id as u8 - 33),
            66..=68 => Self::FloatStatus(id as u8 - 65),
            4162..=4193 => Self::Extended((id - 4162) as u8),
            _ => return None,
        };
        Some((register, NonZeroUsize::new(8)))
    }
}

/// How the element goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resume {
    Continue,
    Step(u32),
}

/// An element that a debugger controls.
pub(super) struct DebuggedElement {
    machine: ElementMachine<HostFiles>,
    element: u32,
    resume: Resume,
    /// The thread that stopped last.
    stopped: u32,
    /// How the run ended, which the debugger may not know yet.
    end: Option<ElementsEnd>,
}

fn tid(thread: u32) -> Tid {
    Tid::MIN.saturating_add(thread as usize)
}

fn thread(tid: Tid) -> u32 {
    (tid.get() - 1) as u32
}

impl DebuggedElement {
    pub(super) fn new(machine: ElementMachine<HostFiles>, element: u32) -> Self {
        Self { machine, element, resume: Resume::Continue, stopped: 0, end: None }
    }

    /// The machine without breakpoints, and how its run ended.
    pub(super) fn into_machine(mut self) -> (ElementMachine<HostFiles>, Option<ElementsEnd>) {
        if let Some(process) = self.process() {
            process.clear_breakpoints();
        }
        (self.machine, self.end)
    }

    fn process(&mut self) -> Option<&mut Process<HostFiles>> {
        self.machine.process_mut(self.element)
    }

    fn hart(&mut self, of: Tid) -> TargetResult<&mut Hart, Self> {
        let hart = self.process().and_then(|process| process.hart_mut(thread(of)));
        hart.ok_or(TargetError::NonFatal)
    }

    /// Runs for a while; why the element stopped, if it did.
    fn run(&mut self) -> Option<MultiThreadStopReason<u64>> {
        if let Some(end) = &self.end {
            // The error was reported; it wants to go on.
            let status = end.status().0;
            return Some(match end {
                ElementsEnd::Signal { .. } | ElementsEnd::Fault { .. } => {
                    MultiThreadStopReason::Terminated(Signal(status.wrapping_sub(128)))
                }
                _ => MultiThreadStopReason::Exited(status),
            });
        }
        let (element, stepped) = (self.element, self.stepped_thread());
        let end = match stepped {
            Some(thread) => self.machine.step(element, thread),
            None => Some(self.machine.run(SLICE)),
        };
        match end {
            None | Some(ElementsEnd::Budget) => {}
            Some(ElementsEnd::Breakpoint { thread, .. }) => {
                self.stopped = thread;
                return Some(MultiThreadStopReason::SwBreak(tid(thread)));
            }
            Some(end) => return Some(self.settle(end)),
        }
        if let Some(status) = self.machine.exit_status(element) {
            return Some(MultiThreadStopReason::Exited(status));
        }
        match (self.resume, stepped) {
            (Resume::Step(asked), Some(thread)) if asked == thread => {
                self.stopped = thread;
                Some(MultiThreadStopReason::DoneStep)
            }
            // Over a breakpoint; now it goes on.
            (_, Some(_)) => {
                self.stopped = u32::MAX;
                None
            }
            _ => None,
        }
    }

    /// The thread that is to execute one instruction only: the one asked for, where it can go on,
    /// or the one that stands at a breakpoint.
    fn stepped_thread(&mut self) -> Option<u32> {
        let (resume, stopped) = (self.resume, self.stopped);
        let process = self.process()?;
        if let Resume::Step(thread) = resume {
            return process.is_running(thread).then_some(thread);
        }
        let pc = process.hart_mut(stopped)?.pc;
        (process.has_breakpoint(pc) && process.is_running(stopped)).then_some(stopped)
    }

    /// Tells why the run ended, and what was this element's doing before it ends.
    fn settle(&mut self, end: ElementsEnd) -> MultiThreadStopReason<u64> {
        let status = end.status().0;
        let reason = match end {
            ElementsEnd::Signal { element, thread, .. }
            | ElementsEnd::Fault { element, thread, .. }
                if element == self.element =>
            {
                self.stopped = thread;
                let signal = Signal(status.wrapping_sub(128));
                MultiThreadStopReason::SignalWithThread { tid: tid(thread), signal }
            }
            // Its own status, where the others' are worse.
            _ => MultiThreadStopReason::Exited(
                self.machine.exit_status(self.element).unwrap_or(status),
            ),
        };
        self.end = Some(end);
        reason
    }
}

impl Target for DebuggedElement {
    type Arch = ElementArch;
    type Error = Infallible;

    fn base_ops(&mut self) -> BaseOps<'_, Self::Arch, Self::Error> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    /// Loopback is fast enough for zeros.
    fn use_rle(&self) -> bool {
        false
    }
}

impl MultiThreadBase for DebuggedElement {
    fn read_registers(
        &mut self,
        registers: &mut RiscvCoreRegs<u64>,
        of: Tid,
    ) -> TargetResult<(), Self> {
        let hart = self.hart(of)?;
        (registers.x, registers.pc) = (hart.x, hart.pc);
        Ok(())
    }

    fn write_registers(
        &mut self,
        registers: &RiscvCoreRegs<u64>,
        of: Tid,
    ) -> TargetResult<(), Self> {
        let hart = self.hart(of)?;
        (hart.x, hart.pc) = (registers.x, registers.pc);
        hart.x[0] = 0;
        Ok(())
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], _: Tid) -> TargetResult<usize, Self> {
        let memory = self.process().ok_or(TargetError::NonFatal)?.memory_mut();
        let read = |(at, byte): (usize, &mut u8)| {
            let read = memory.read(start.wrapping_add(at as u64), std::slice::from_mut(byte));
            read.is_ok()
        };
        match data.iter_mut().enumerate().map(read).take_while(|read| *read).count() {
            0 if !data.is_empty() => Err(TargetError::NonFatal),
            count => Ok(count),
        }
    }

    fn write_addrs(&mut self, start: u64, data: &[u8], _: Tid) -> TargetResult<(), Self> {
        let process = self.process().ok_or(TargetError::NonFatal)?;
        let written = process.memory_mut().write(start, data);
        process.forget_code();
        written.map_err(|_| TargetError::NonFatal)
    }

    fn list_active_threads(&mut self, active: &mut dyn FnMut(Tid)) -> Result<(), Infallible> {
        if let Some(process) = self.process() {
            process.live_threads().for_each(|thread| active(tid(thread)));
        }
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadResume for DebuggedElement {
    fn resume(&mut self) -> Result<(), Infallible> {
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Infallible> {
        self.resume = Resume::Continue;
        Ok(())
    }

    /// Signals that a debugger sends along are dropped.
    fn set_resume_action_continue(&mut self, _: Tid, _: Option<Signal>) -> Result<(), Infallible> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSchedulerLocking for DebuggedElement {
    /// gdb asks for it where it steps by breakpoints. The other threads run on all the same: one
    /// that waits for them would never stop.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl MultiThreadSingleStep for DebuggedElement {
    fn set_resume_action_step(&mut self, of: Tid, _: Option<Signal>) -> Result<(), Infallible> {
        self.resume = Resume::Step(thread(of));
        Ok(())
    }
}

impl SingleRegisterAccess<Tid> for DebuggedElement {
    fn read_register(
        &mut self,
        of: Tid,
        register: ElementRegister,
        buffer: &mut [u8],
    ) -> TargetResult<usize, Self> {
        let hart = self.hart(of)?;
        let (fflags, frm) = (u64::from(hart.fflags), u64::from(hart.frm));
        let value = match register {
            ElementRegister::Integer(number) => hart.x[usize::from(number)],
            ElementRegister::Pc => hart.pc,
            ElementRegister::Float(number) => hart.f[usize::from(number)],
            ElementRegister::FloatStatus(1) => fflags,
            ElementRegister::FloatStatus(2) => frm,
            ElementRegister::FloatStatus(_) => frm << 5 | fflags,
            ElementRegister::Extended(number) => {
                self.machine.extended_registers(self.element, thread(of))[usize::from(number)]
            }
        };
        let bytes = value.to_le_bytes();
        buffer.get_mut(..bytes.len()).ok_or(TargetError::NonFatal)?.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write_register(
        &mut self,
        of: Tid,
        register: ElementRegister,
        value: &[u8],
    ) -> TargetResult<(), Self> {
        let value = u64::from_le_bytes(value.try_into().map_err(|_| TargetError::NonFatal)?);
        let element = self.element;
        let hart = self.hart(of)?;
        match register {
            ElementRegister::Integer(0) => {}
            ElementRegister::Integer(number) => hart.x[usize::from(number)] = value,
            ElementRegister::Pc => hart.pc = value,
            ElementRegister::Float(number) => hart.f[usize::from(number)] = value,
            ElementRegister::FloatStatus(number) => {
                if number != 2 {
                    hart.fflags = value as u8 & 31;
                }
                if number != 1 {
                    hart.frm = (if number == 3 { value >> 5 } else { value }) as u8 & 7;
                }
            }
            ElementRegister::Extended(number) => {
                self.machine.set_extended_register(element, thread(of), number, value);
            }
        }
        Ok(())
    }
}

impl Breakpoints for DebuggedElement {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for DebuggedElement {
    fn add_sw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        let process = self.process().ok_or(TargetError::NonFatal)?;
        let is_code = process.memory_mut().protection_at(at).is_some();
        if is_code {
            process.insert_breakpoint(at);
        }
        Ok(is_code)
    }

    fn remove_sw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.process().ok_or(TargetError::NonFatal)?.remove_breakpoint(at))
    }
}

/// Runs the element until it stops or the debugger sends something.
pub(super) enum DebugLoop {}

impl BlockingEventLoop for DebugLoop {
    type Target = DebuggedElement;
    type Connection = DebuggerConnection;
    type StopReason = MultiThreadStopReason<u64>;

    fn wait_for_stop_reason(
        target: &mut DebuggedElement,
        connection: &mut DebuggerConnection,
    ) -> Result<Event<Self::StopReason>, WaitForStopReasonError<Infallible, std::io::Error>> {
        loop {
            if let Some(reason) = target.run() {
                return Ok(Event::TargetStopped(reason));
            }
            let lost = WaitForStopReasonError::Connection;
            if connection.peek().map_err(lost)?.is_some() {
                return Ok(Event::IncomingData(connection.read().map_err(lost)?));
            }
        }
    }

    fn on_interrupt(target: &mut DebuggedElement) -> Result<Option<Self::StopReason>, Infallible> {
        // Any thread that is left.
        let process = target.process();
        let left = process.and_then(|process| process.live_threads().next()).unwrap_or(0);
        target.stopped = left;
        Ok(Some(MultiThreadStopReason::SignalWithThread { tid: tid(left), signal: Signal::SIGINT }))
    }
}
