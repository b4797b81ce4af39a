//! Privilege modes, their control and status registers, and traps into them.
//!
//! Source: The RISC-V Instruction Set Manual, volume II (privileged architecture), 20211203.

/// How much a hart may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrivilegeMode {
    /// Programs.
    User = 0,
    /// Kernels.
    Supervisor = 1,
    /// Firmware.
    Machine = 3,
}

impl PrivilegeMode {
    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::User,
            3 => Self::Machine,
            _ => Self::Supervisor,
        }
    }
}

/// Bits of `mstatus`.
const SIE: u64 = 1 << 1;
const MIE: u64 = 1 << 3;
const SPIE: u64 = 1 << 5;
const MPIE: u64 = 1 << 7;
const SPP: u64 = 1 << 8;
const MPP_SHIFT: u32 = 11;
const MPP: u64 = 3 << MPP_SHIFT;
const FS: u64 = 3 << 13;
const MPRV: u64 = 1 << 17;
const SUM: u64 = 1 << 18;
const MXR: u64 = 1 << 19;
const TVM: u64 = 1 << 20;
const TW: u64 = 1 << 21;
const TSR: u64 = 1 << 22;
/// `UXL` and `SXL`: 64 bits; `SD`: registers to save.
const LENGTHS: u64 = 2 << 32 | 2 << 34;
const DIRTY: u64 = 1 << 63;
const SSTATUS: u64 = SIE | SPIE | SPP | FS | SUM | MXR;
const MSTATUS: u64 = SSTATUS | MIE | MPIE | MPP | MPRV | TVM | TW | TSR;

/// Interrupts, as bits of `mip`.
pub const SOFTWARE_S: u64 = 1 << 1;
/// See [`SOFTWARE_S`].
pub const SOFTWARE_M: u64 = 1 << 3;
/// See [`SOFTWARE_S`].
pub const TIMER_S: u64 = 1 << 5;
/// See [`SOFTWARE_S`].
pub const TIMER_M: u64 = 1 << 7;
/// See [`SOFTWARE_S`].
pub const EXTERNAL_S: u64 = 1 << 9;
/// See [`SOFTWARE_S`].
pub const EXTERNAL_M: u64 = 1 << 11;
const SUPERVISOR_INTERRUPTS: u64 = SOFTWARE_S | TIMER_S | EXTERNAL_S;
const INTERRUPTS: u64 = SUPERVISOR_INTERRUPTS | SOFTWARE_M | TIMER_M | EXTERNAL_M;
/// Exceptions that can be delegated: all but calls from machine mode.
const DELEGABLE: u64 = 0xb3ff;
/// Highest bit of a cause: an interrupt.
const INTERRUPT: u64 = 1 << 63;
/// `satp` of Sv39, and its mode field.
const SATP_MODE: u64 = 15 << 60;
const SATP_SV39: u64 = 8 << 60;
/// RV64 with A, C, D, F, I, M, S, U.
const MISA: u64 = 2 << 62 | 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 8 | 1 << 12 | 1 << 18 | 1 << 20;
/// Where traps go, and what they leave: one set for each mode that takes them.
#[derive(Debug, Clone, Copy, Default)]
struct TrapRegisters {
    vector: u64,
    scratch: u64,
    pc: u64,
    cause: u64,
    value: u64,
}

/// What a write to a register means for whoever caches what it governs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CsrEffect {
    /// Nothing.
    None,
    /// Translations may differ.
    Translation,
}

/// A register that is not there, or not for this mode, or not to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such register for this mode")]
pub struct CsrRefused;

/// The privileged registers of a hart.
#[derive(Debug, Clone)]
pub struct PrivilegedState {
    /// The mode that the hart is in.
    pub mode: PrivilegeMode,
    /// `mip`, without what devices hold up.
    pub pending: u64,
    /// `satp`.
    pub satp: u64,
    /// What `time` reads.
    pub time: u64,
    /// What `cycle` and `instret` read.
    pub instret: u64,
    status: u64,
    enabled: u64,
    delegated_exceptions: u64,
    delegated_interrupts: u64,
    machine: TrapRegisters,
    supervisor: TrapRegisters,
    counters_for: [u64; 2],
    configuration: [u64; 2],
}

impl PrivilegedState {
    /// As after a reset, in machine mode.
    #[must_use]
    pub fn new() -> Self {
        Self {
            mode: PrivilegeMode::Machine,
            pending: 0,
            satp: 0,
            time: 0,
            instret: 0,
            status: 0,
            enabled: 0,
            delegated_exceptions: 0,
            delegated_interrupts: 0,
            machine: TrapRegisters::default(),
            supervisor: TrapRegisters::default(),
            counters_for: [0; 2],
            configuration: [0; 2],
        }
    }

    /// As firmware leaves it to a kernel: in supervisor mode, which takes all traps of programs
    /// and its own but calls.
    #[must_use]
    pub fn for_kernel() -> Self {
        Self {
            mode: PrivilegeMode::Supervisor,
            status: 1 << 13,
            delegated_exceptions: DELEGABLE & !(1 << 9),
            delegated_interrupts: SUPERVISOR_INTERRUPTS,
            counters_for: [7, 7],
            ..Self::new()
        }
    }

    /// Whether instructions on floating-point registers are legal.
    #[must_use]
    pub const fn has_floats(&self) -> bool {
        self.status & FS != 0
    }

    /// The mode that loads and stores count as made in.
    #[must_use]
    pub const fn data_mode(&self) -> PrivilegeMode {
        if self.status & MPRV != 0 {
            PrivilegeMode::from_bits(self.status >> MPP_SHIFT)
        } else {
            self.mode
        }
    }

    /// Whether supervisor mode may access user pages.
    #[must_use]
    pub const fn accesses_user_pages(&self) -> bool {
        self.status & SUM != 0
    }

    /// Whether executable pages can be read.
    #[must_use]
    pub const fn reads_executable_pages(&self) -> bool {
        self.status & MXR != 0
    }

    /// Where a trap continues; the registers tell it why. `cause` without the interrupt's bit.
    fn enter(&mut self, cause: u64, interrupt: bool, value: u64, pc: u64) -> u64 {
        let delegated =
            if interrupt { self.delegated_interrupts } else { self.delegated_exceptions };
        let to_supervisor = self.mode != PrivilegeMode::Machine && delegated & (1 << cause) != 0;
        let registers = if to_supervisor { &mut self.supervisor } else { &mut self.machine };
        registers.cause = if interrupt { cause | INTERRUPT } else { cause };
        (registers.pc, registers.value) = (pc, value);
        let vector = registers.vector;
        let mode = self.mode as u64;
        if to_supervisor {
            let previous = (self.status & SIE) << 4;
            let from = if mode == 1 { SPP } else { 0 };
            self.status = self.status & !(SIE | SPIE | SPP) | previous | from;
            self.mode = PrivilegeMode::Supervisor;
        } else {
            let previous = (self.status & MIE) << 4;
            self.status = self.status & !(MIE | MPIE | MPP) | previous | mode << MPP_SHIFT;
            self.mode = PrivilegeMode::Machine;
        }
        let offset = if interrupt && vector & 3 == 1 { 4 * cause } else { 0 };
        (vector & !3).wrapping_add(offset)
    }

    /// Takes an exception: where to continue.
    pub fn take_exception(&mut self, cause: u64, value: u64, pc: u64) -> u64 {
        self.enter(cause, false, value, pc)
    }

    /// Takes the most urgent interrupt that is pending and enabled: where to continue.
    pub fn take_interrupt(&mut self, pc: u64) -> Option<u64> {
        let ready = self.pending & self.enabled;
        let machine = match self.mode {
            PrivilegeMode::Machine if self.status & MIE == 0 => 0,
            _ => ready & !self.delegated_interrupts,
        };
        let supervisor = match self.mode {
            PrivilegeMode::Machine => 0,
            PrivilegeMode::Supervisor if self.status & SIE == 0 => 0,
            _ => ready & self.delegated_interrupts,
        };
        let taken = if machine != 0 { machine } else { supervisor };
        let order = [11, 3, 7, 9, 1, 5];
        let cause = order.into_iter().find(|cause| taken & 1 << cause != 0)?;
        Some(self.enter(cause, true, 0, pc))
    }

    /// Whether `wfi` goes on: an interrupt is pending that is enabled one by one.
    #[must_use]
    pub const fn wakes(&self) -> bool {
        self.pending & self.enabled != 0
    }

    /// `mret`: where to continue.
    ///
    /// # Errors
    /// Not in machine mode.
    pub fn return_from_machine(&mut self) -> Result<u64, CsrRefused> {
        if self.mode != PrivilegeMode::Machine {
            return Err(CsrRefused);
        }
        self.mode = PrivilegeMode::from_bits(self.status >> MPP_SHIFT);
        let enabled = (self.status & MPIE) >> 4;
        self.status = self.status & !(MIE | MPP) | MPIE | enabled;
        if self.mode != PrivilegeMode::Machine {
            self.status &= !MPRV;
        }
        Ok(self.machine.pc)
    }

    /// `sret`: where to continue.
    ///
    /// # Errors
    /// In user mode, or where machine mode keeps supervisor mode from it.
    pub fn return_from_supervisor(&mut self) -> Result<u64, CsrRefused> {
        let trapped = self.mode == PrivilegeMode::Supervisor && self.status & TSR != 0;
        if self.mode == PrivilegeMode::User || trapped {
            return Err(CsrRefused);
        }
        self.mode = PrivilegeMode::from_bits(self.status >> 8 & 1);
        let enabled = (self.status & SPIE) >> 4;
        self.status = self.status & !(SIE | SPP | MPRV) | SPIE | enabled;
        Ok(self.supervisor.pc)
    }

    /// Whether `wfi` and `sfence.vma` are legal here.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.mode == PrivilegeMode::Machine
            || self.mode == PrivilegeMode::Supervisor && self.status & TW == 0
    }

    /// See [`Self::may_wait`].
    #[must_use]
    pub fn may_fence(&self) -> bool {
        self.mode == PrivilegeMode::Machine
            || self.mode == PrivilegeMode::Supervisor && self.status & TVM == 0
    }

    fn check(&self, number: u32) -> Result<(), CsrRefused> {
        let trapped =
            number == 0x180 && self.mode == PrivilegeMode::Supervisor && self.status & TVM != 0;
        if (self.mode as u32) < number >> 8 & 3 || trapped {
            return Err(CsrRefused);
        }
        Ok(())
    }

    fn may_count(&self, number: u32) -> bool {
        let bit = 1 << (number & 31);
        match self.mode {
            PrivilegeMode::Machine => true,
            PrivilegeMode::Supervisor => self.counters_for[0] & bit != 0,
            PrivilegeMode::User => self.counters_for[0] & self.counters_for[1] & bit != 0,
        }
    }

    /// The value of a register.
    ///
    /// # Errors
    /// [`CsrRefused`].
    pub fn read(&self, number: u32) -> Result<u64, CsrRefused> {
        self.check(number)?;
        let dirty = if self.status & FS == FS { DIRTY } else { 0 };
        let delegated = self.delegated_interrupts;
        Ok(match number {
            0x100 => self.status & SSTATUS | 2 << 32 | dirty,
            0x104 => self.enabled & delegated,
            0x106 => self.counters_for[1],
            0x10a => self.configuration[1],
            0x144 => self.pending & delegated,
            0x105 => self.supervisor.vector,
            0x140 => self.supervisor.scratch,
            0x141 => self.supervisor.pc,
            0x142 => self.supervisor.cause,
            0x143 => self.supervisor.value,
            0x180 => self.satp,
            0x300 => self.status | LENGTHS | dirty,
            0x301 => MISA,
            0x302 => self.delegated_exceptions,
            0x303 => delegated,
            0x304 => self.enabled,
            0x306 => self.counters_for[0],
            0x30a => self.configuration[0],
            0x344 => self.pending,
            0x305 => self.machine.vector,
            0x340 => self.machine.scratch,
            0x341 => self.machine.pc,
            0x342 => self.machine.cause,
            0x343 => self.machine.value,
            0xc01 if self.may_count(number) => self.time,
            0xc00 | 0xc02 if self.may_count(number) => self.instret,
            0xb00 | 0xb02 => self.instret,
            // Vendor, architecture, implementation, hart, and what selects counted events.
            0xf11..=0xf15 | 0x320..=0x33f | 0xb03..=0xb1f => 0,
            _ => return Err(CsrRefused),
        })
    }

    /// Writes a register.
    ///
    /// # Errors
    /// [`CsrRefused`].
    pub fn write(&mut self, number: u32, value: u64) -> Result<CsrEffect, CsrRefused> {
        self.check(number)?;
        if number >> 10 == 3 {
            return Err(CsrRefused);
        }
        let replace = |old: u64, mask: u64| old & !mask | value & mask;
        let delegated = self.delegated_interrupts;
        match number {
            0x100 | 0x300 => {
                let mask = if number == 0x100 { SSTATUS } else { MSTATUS };
                let new = replace(self.status, mask);
                // Two is no mode.
                let new = if new & MPP == 2 << MPP_SHIFT { new & !MPP } else { new };
                let governs = (self.status ^ new) & (MXR | MPRV | MPP) != 0;
                self.status = new;
                return Ok(if governs { CsrEffect::Translation } else { CsrEffect::None });
            }
            0x104 => self.enabled = replace(self.enabled, delegated & SUPERVISOR_INTERRUPTS),
            0x106 => self.counters_for[1] = value & 7,
            0x10a => self.configuration[1] = value & 1,
            0x144 => self.pending = replace(self.pending, delegated & SOFTWARE_S),
            0x105 => self.supervisor.vector = value & !2,
            0x140 => self.supervisor.scratch = value,
            0x141 => self.supervisor.pc = value & !1,
            0x142 => self.supervisor.cause = value,
            0x143 => self.supervisor.value = value,
            0x180 => {
                // A mode that is not there leaves the register as it is.
                if matches!(value & SATP_MODE, 0 | SATP_SV39) {
                    self.satp = value;
                    return Ok(CsrEffect::Translation);
                }
            }
            0x301 | 0x320..=0x33f | 0xb00..=0xb1f => {}
            0x302 => self.delegated_exceptions = value & DELEGABLE,
            0x303 => self.delegated_interrupts = value & SUPERVISOR_INTERRUPTS,
            0x304 => self.enabled = value & INTERRUPTS,
            0x306 => self.counters_for[0] = value & 7,
            0x30a => self.configuration[0] = value & 1,
            0x344 => self.pending = replace(self.pending, SUPERVISOR_INTERRUPTS),
            0x305 => self.machine.vector = value & !2,
            0x340 => self.machine.scratch = value,
            0x341 => self.machine.pc = value & !1,
            0x342 => self.machine.cause = value,
            0x343 => self.machine.value = value,
            _ => return Err(CsrRefused),
        }
        Ok(CsrEffect::None)
    }
}

impl Default for PrivilegedState {
    fn default() -> Self {
        Self::new()
    }
}
