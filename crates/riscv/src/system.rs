//! A machine: one hart with machine, supervisor and user mode, Sv39, and devices, on which
//! unmodified kernels run.
//!
//! Time is counted in instructions, so that a run is the same each time as long as its input is.

pub mod csr;
pub mod devices;
pub mod memory;
mod sbi;
pub mod tree;
pub mod virtio;

use crate::decode::{Instruction, Op};
use crate::execute::{CounterSource, DecodeCache, Hart, Trap};
use crate::memory::{AccessKind, HartMemory, MemoryFault};
use csr::{CsrEffect, CsrRefused, PrivilegeMode, PrivilegedState, TIMER_S};
use devices::MachineDevices;
use memory::{RefusalKind, SystemMemory, RAM_START};
use virtio::{BlockDevice, PhysicalMemory};

/// Instructions between looks at devices. Fewer cost speed; more delay interrupts.
const TURN: u64 = 2_000;
/// Instructions of a tick of the timer: a hart of 100 million a second beside a timer of 10.
const INSTRUCTIONS_PER_TICK: u64 = 10;
/// Of the timer, whose frequency the device tree has.
const TICKS_PER_US: u64 = tree::TICKS_PER_S as u64 / 1_000_000;
/// Where kernels are loaded: the second 2 MiB of memory, as their images ask for.
const KERNEL_AT: u64 = RAM_START + (2 << 20);
/// Bytes at the end of memory for the device tree, and the alignment of what lies below.
const TREE_BYTES: u64 = 2 << 20;
/// `RISCV` and `RSC\x05` of a kernel image.
const MAGIC_AT: usize = 56;
const MAGIC: &[u8] = b"RSC\x05";
/// Interrupts that a machine's devices hold up.
const BY_DEVICES: u64 = csr::SOFTWARE_M | csr::TIMER_M | csr::EXTERNAL_M | csr::EXTERNAL_S;

/// Why a machine cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    /// Not a kernel for RISC-V.
    #[error("no RISC-V kernel image; give an uncompressed Image, as Debian's vmlinux is")]
    Image,
    /// More than fits.
    #[error("{0} does not fit {1} bytes of memory; give the machine more")]
    Memory(&'static str, u64),
}

/// How a run of a machine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineEnd {
    /// The guest switched it off.
    PowerOff,
    /// The guest asked to start again.
    Reboot,
    /// The instructions granted are used up.
    Budget,
    /// It waits for input, and no timer would end the wait.
    Idle,
    /// A trap found no handler: the handler's first instruction traps in the same way.
    Stuck {
        /// Where.
        pc: u64,
        /// The cause, as in `mcause`.
        cause: u64,
    },
}

/// What a machine boots.
#[derive(Debug, Clone, Copy)]
pub struct BootFiles<'a> {
    /// The kernel's image.
    pub kernel: &'a [u8],
    /// Its initial file system.
    pub initrd: Option<&'a [u8]>,
    /// Its arguments.
    pub arguments: &'a str,
}

/// The machine.
#[derive(Debug)]
pub struct SystemMachine {
    pub(super) hart: Hart,
    pub(super) memory: SystemMemory,
    pub(super) code: DecodeCache,
    pub(super) privileged: PrivilegedState,
    /// When the kernel's timer interrupts, set by its call.
    pub(super) kernel_timer: u64,
    has_firmware: bool,
    /// Ticks that passed while the hart waited.
    skipped: u64,
    /// Where the last exception was taken from, and how often in a row from there.
    last_exception: (u64, u64),
}

impl SystemMachine {
    fn new(bytes: u64, disk: Option<BlockDevice>, privileged: PrivilegedState, pc: u64) -> Self {
        let mut hart = Hart::new(pc);
        hart.counters = CounterSource::Trap;
        let mut machine = Self {
            hart,
            memory: SystemMemory::new(bytes, MachineDevices::new(disk)),
            code: DecodeCache::default(),
            has_firmware: privileged.mode == PrivilegeMode::Supervisor,
            privileged,
            kernel_timer: u64::MAX,
            skipped: 0,
            last_exception: (0, 0),
        };
        machine.follow_mode();
        machine
    }

    /// A machine without firmware that begins in machine mode at the first byte of its memory,
    /// where `program` lies.
    ///
    /// # Errors
    /// The program does not fit.
    pub fn bare(program: &[u8], bytes: u64, disk: Option<BlockDevice>) -> Result<Self, BootError> {
        let mut machine = Self::new(bytes, disk, PrivilegedState::new(), RAM_START);
        if machine.memory.write_physical(RAM_START, program) {
            Ok(machine)
        } else {
            Err(BootError::Memory("the program", bytes))
        }
    }

    /// A machine with built-in firmware that begins in supervisor mode, at a kernel's start.
    ///
    /// # Errors
    /// [`BootError`].
    pub fn boot(
        files: &BootFiles<'_>,
        bytes: u64,
        disk: Option<BlockDevice>,
    ) -> Result<Self, BootError> {
        if files.kernel.get(MAGIC_AT..MAGIC_AT + 4) != Some(MAGIC) {
            return Err(BootError::Image);
        }
        let has_disk = disk.is_some();
        let mut machine = Self::new(bytes, disk, PrivilegedState::for_kernel(), KERNEL_AT);
        let ram = machine.memory.ram_bytes();
        let tree_at = (RAM_START + ram).saturating_sub(TREE_BYTES) / TREE_BYTES * TREE_BYTES;
        // The image says how much memory it needs with what is not in the file.
        let size = files.kernel[16..24].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        let size = size.max(files.kernel.len() as u64);
        let mut end = tree_at;
        let initrd = match files.initrd {
            None => None,
            Some(initrd) => {
                let length = initrd.len() as u64;
                let at = tree_at.checked_sub(length).map(|at| at / TREE_BYTES * TREE_BYTES);
                let at = at.filter(|at| machine.memory.write_physical(*at, initrd));
                let at = at.ok_or(BootError::Memory("the initial file system", bytes))?;
                end = at;
                Some((at, at + length))
            }
        };
        let fits = KERNEL_AT.checked_add(size).is_some_and(|kernel_end| kernel_end <= end);
        if !fits || !machine.memory.write_physical(KERNEL_AT, files.kernel) {
            return Err(BootError::Memory("the kernel", bytes));
        }
        let tree = tree::device_tree(ram, files.arguments, initrd, has_disk);
        if tree.len() as u64 > TREE_BYTES || !machine.memory.write_physical(tree_at, &tree) {
            return Err(BootError::Memory("the device tree", bytes));
        }
        machine.hart.x[11] = tree_at;
        Ok(machine)
    }

    /// Characters typed at the serial port.
    pub fn type_in(&mut self, bytes: &[u8]) {
        self.memory.devices.serial.type_in(bytes);
    }

    /// What the guest wrote to the serial port since this was last asked.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.memory.devices.serial.output)
    }

    /// Instructions executed.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.hart.instret
    }

    /// Microseconds of the machine's time that its hart spent waiting for its timer.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        self.skipped / TICKS_PER_US
    }

    /// The hart's registers.
    #[must_use]
    pub fn hart(&self) -> &Hart {
        &self.hart
    }

    fn follow_mode(&mut self) {
        self.memory.follow(&self.privileged);
        self.hart.has_floats = self.privileged.has_floats();
    }

    /// Runs about `budget` instructions, or until something happens that ends the run.
    pub fn run(&mut self, budget: u64) -> MachineEnd {
        let end = self.hart.instret.saturating_add(budget);
        while self.hart.instret < end {
            self.update_interrupts();
            if let Some(to) = self.privileged.take_interrupt(self.hart.pc) {
                self.hart.pc = to;
                self.hart.drop_reservation();
                self.follow_mode();
            }
            let turn = TURN.min(end - self.hart.instret);
            let trap = self.hart.run(&mut self.memory, &mut self.code, &mut (), turn);
            if self.memory.devices.disk_request.take().is_some() {
                if let Some(mut disk) = self.memory.devices.disk.take() {
                    disk.serve(&mut self.memory);
                    self.memory.devices.disk = Some(disk);
                }
            }
            if let Some(end) = self.handle(trap) {
                return end;
            }
        }
        MachineEnd::Budget
    }

    fn update_interrupts(&mut self) {
        let time = self.hart.instret / INSTRUCTIONS_PER_TICK + self.skipped;
        self.memory.devices.time = time;
        (self.privileged.time, self.privileged.instret) = (time, self.hart.instret);
        let held = self.memory.devices.pending();
        let timer = if time >= self.kernel_timer { TIMER_S } else { 0 };
        self.privileged.pending = self.privileged.pending & !BY_DEVICES | held | timer;
    }

    fn handle(&mut self, trap: Trap) -> Option<MachineEnd> {
        let pc = self.hart.pc;
        match trap {
            Trap::Budget => None,
            Trap::EnvironmentCall => match self.privileged.mode {
                PrivilegeMode::Supervisor if self.has_firmware => {
                    self.update_interrupts();
                    let end = self.answer_call();
                    self.advance();
                    end
                }
                mode => self.take_exception(8 + mode as u64, 0),
            },
            Trap::Breakpoint => self.take_exception(3, pc),
            Trap::Misaligned(address) => self.take_exception(6, address),
            Trap::Memory(MemoryFault { address, kind, .. }) => {
                let page = self.memory.refusal == RefusalKind::Page;
                let cause = match kind {
                    AccessKind::Fetch if page => 12,
                    AccessKind::Load if page => 13,
                    AccessKind::Store if page => 15,
                    AccessKind::Fetch => 1,
                    AccessKind::Load => 5,
                    AccessKind::Store => 7,
                };
                self.take_exception(cause, address)
            }
            Trap::Illegal => self.execute_privileged(),
        }
    }

    /// Takes an exception. One that is taken a thousand times in a row from the same place has no
    /// handler, which ends the run.
    fn take_exception(&mut self, cause: u64, value: u64) -> Option<MachineEnd> {
        let pc = self.hart.pc;
        self.hart.pc = self.privileged.take_exception(cause, value, pc);
        self.hart.drop_reservation();
        self.follow_mode();
        if self.hart.pc == pc {
            let (at, times) = self.last_exception;
            self.last_exception = (pc, if at == pc { times + 1 } else { 1 });
            if self.last_exception.1 > 1000 {
                return Some(MachineEnd::Stuck { pc, cause });
            }
        }
        None
    }

    /// Goes on behind an instruction that was executed here.
    fn advance(&mut self) {
        self.hart.pc = self.hart.pc.wrapping_add(4);
        self.hart.instret += 1;
    }

    /// Executes what the hart does not: instructions on privileged registers and modes.
    fn execute_privileged(&mut self) -> Option<MachineEnd> {
        let word = match self.memory.fetch(self.hart.pc) {
            Ok(word) => word,
            Err(fault) => return self.handle(Trap::Memory(fault)),
        };
        self.update_interrupts();
        let done = match word {
            0x3020_0073 => self.privileged.return_from_machine().map(|to| self.go_to(to)),
            0x1020_0073 => self.privileged.return_from_supervisor().map(|to| self.go_to(to)),
            0x1050_0073 if self.privileged.may_wait() => {
                self.advance();
                return self.wait();
            }
            _ if word & 0xfe00_7fff == 0x1200_0073 && self.privileged.may_fence() => {
                self.memory.forget_translations();
                self.advance();
                Ok(())
            }
            _ => self.access_register(Instruction::decode(word)),
        };
        match done {
            Ok(()) => {
                self.follow_mode();
                None
            }
            Err(CsrRefused) => self.take_exception(2, word.into()),
        }
    }

    fn go_to(&mut self, pc: u64) {
        self.hart.pc = pc;
        self.hart.instret += 1;
        self.hart.drop_reservation();
    }

    fn access_register(&mut self, i: Instruction) -> Result<(), CsrRefused> {
        let number = (i.immediate & 0xfff) as u32;
        let given = match i.op {
            Op::Csrrw | Op::Csrrs | Op::Csrrc => self.hart.x[usize::from(i.rs1)],
            Op::Csrrwi | Op::Csrrsi | Op::Csrrci => i.rs1.into(),
            _ => return Err(CsrRefused),
        };
        let writes = matches!(i.op, Op::Csrrw | Op::Csrrwi);
        let reads = !(writes && i.rd == 0);
        let old = if reads { self.privileged.read(number)? } else { 0 };
        let new = match i.op {
            Op::Csrrw | Op::Csrrwi => Some(given),
            _ if i.rs1 == 0 => None,
            Op::Csrrs | Op::Csrrsi => Some(old | given),
            _ => Some(old & !given),
        };
        if let Some(new) = new {
            if self.privileged.write(number, new)? == CsrEffect::Translation {
                self.memory.forget_translations();
            }
        }
        if i.rd != 0 {
            self.hart.x[usize::from(i.rd)] = old;
        }
        self.advance();
        Ok(())
    }

    /// `wfi`: time passes until the next timer.
    fn wait(&mut self) -> Option<MachineEnd> {
        self.update_interrupts();
        if self.privileged.wakes() {
            return None;
        }
        let next = self.kernel_timer.min(self.memory.devices.timer());
        if next == u64::MAX {
            return Some(MachineEnd::Idle);
        }
        self.skipped += next.saturating_sub(self.memory.devices.time);
        None
    }
}
