//! The devices: interrupt controllers, timer, serial port, disk, and the map that they lie in
//! (that of QEMU's `virt` machine).

use super::csr::{EXTERNAL_M, EXTERNAL_S, SOFTWARE_M, TIMER_M};
use super::virtio::{BlockDevice, DiskRequest};
use std::collections::VecDeque;

/// First bytes and lengths of the devices.
pub const CLINT: (u64, u64) = (0x0200_0000, 0x1_0000);
/// See [`CLINT`].
pub const PLIC: (u64, u64) = (0x0c00_0000, 0x400_0000);
/// See [`CLINT`].
pub const UART: (u64, u64) = (0x1000_0000, 0x100);
/// See [`CLINT`].
pub const DISK: (u64, u64) = (0x1000_1000, 0x1000);
/// Interrupts of serial port and disk.
pub const UART_INTERRUPT: u32 = 10;
/// See [`UART_INTERRUPT`].
pub const DISK_INTERRUPT: u32 = 1;
/// Sources of the PLIC.
pub const SOURCES: u32 = 32;

/// A 16550 serial port.
#[derive(Debug, Default)]
pub struct SerialPort {
    input: VecDeque<u8>,
    /// What the guest wrote since this was last taken.
    pub output: Vec<u8>,
    enabled: u8,
    line: u8,
    modem: u8,
    scratch: u8,
    divisor: u16,
    /// The transmitter became empty, and the guest has not seen it yet.
    emptied: bool,
}

impl SerialPort {
    /// Characters typed.
    pub fn type_in(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
    }

    /// One typed character that the guest has not read by the port.
    pub fn take_input(&mut self) -> Option<u8> {
        self.input.pop_front()
    }

    /// The most urgent cause: data first.
    fn cause(&self) -> Option<u8> {
        if self.enabled & 1 != 0 && !self.input.is_empty() {
            Some(4)
        } else if self.enabled & 2 != 0 && self.emptied {
            Some(2)
        } else {
            None
        }
    }

    fn load(&mut self, register: u64) -> u8 {
        let divisor = self.line & 0x80 != 0;
        match register {
            0 if divisor => self.divisor as u8,
            1 if divisor => (self.divisor >> 8) as u8,
            0 => self.input.pop_front().unwrap_or(0),
            1 => self.enabled,
            2 => {
                let cause = self.cause();
                self.emptied &= cause != Some(2);
                0xc0 | cause.unwrap_or(1)
            }
            3 => self.line,
            4 => self.modem,
            // The transmitter is always empty.
            5 => 0x60 | u8::from(!self.input.is_empty()),
            // Carrier, ready, clear to send.
            6 => 0xb0,
            _ => self.scratch,
        }
    }

    fn store(&mut self, register: u64, value: u8) {
        let divisor = self.line & 0x80 != 0;
        match register {
            0 if divisor => self.divisor = self.divisor & 0xff00 | u16::from(value),
            1 if divisor => self.divisor = self.divisor & 0xff | u16::from(value) << 8,
            0 => {
                self.output.push(value);
                self.emptied = true;
            }
            1 => {
                self.emptied |= value & 2 != 0;
                self.enabled = value & 15;
            }
            2 if value & 2 != 0 => self.input.clear(),
            3 => self.line = value,
            4 => self.modem = value,
            7 => self.scratch = value,
            _ => {}
        }
    }
}

/// The platform's interrupt controller, for the machine and supervisor modes of one hart.
#[derive(Debug, Default)]
struct InterruptController {
    priority: [u32; SOURCES as usize],
    pending: u32,
    claimed: u32,
    enabled: [u32; 2],
    threshold: [u32; 2],
}

impl InterruptController {
    /// The source that a context takes next.
    fn best(&self, context: usize) -> u32 {
        let ready = self.pending & !self.claimed & self.enabled[context];
        (1..SOURCES)
            .filter(|source| ready & 1 << source != 0)
            .filter(|source| self.priority[*source as usize] > self.threshold[context])
            .max_by_key(|source| (self.priority[*source as usize], SOURCES - source))
            .unwrap_or(0)
    }

    fn load(&mut self, offset: u64) -> u32 {
        match offset {
            0..0x80 => self.priority[(offset / 4) as usize],
            0x1000 => self.pending,
            0x2000 | 0x2080 => self.enabled[(offset >> 7 & 1) as usize],
            0x20_0000 | 0x20_1000 => self.threshold[(offset >> 12 & 1) as usize],
            0x20_0004 | 0x20_1004 => {
                let source = self.best((offset >> 12 & 1) as usize);
                self.claimed |= 1 << source & !1;
                source
            }
            _ => 0,
        }
    }

    fn store(&mut self, offset: u64, value: u32) {
        match offset {
            4..0x80 => self.priority[(offset / 4) as usize] = value & 7,
            0x2000 | 0x2080 => self.enabled[(offset >> 7 & 1) as usize] = value & !1,
            0x20_0000 | 0x20_1000 => self.threshold[(offset >> 12 & 1) as usize] = value & 7,
            0x20_0004 | 0x20_1004 if value < SOURCES => self.claimed &= !(1 << value),
            _ => {}
        }
    }
}

/// All devices of a machine.
#[derive(Debug)]
pub struct MachineDevices {
    /// The serial port.
    pub serial: SerialPort,
    /// The disk, where there is one.
    pub disk: Option<BlockDevice>,
    /// What the disk is asked to do, for whoever reaches guest memory.
    pub disk_request: Option<DiskRequest>,
    controller: InterruptController,
    /// Ticks of the timer.
    pub time: u64,
    /// When machine mode's timer interrupts.
    timer: u64,
    software: bool,
}

impl MachineDevices {
    /// MachineDevices after a reset.
    #[must_use]
    pub fn new(disk: Option<BlockDevice>) -> Self {
        Self {
            serial: SerialPort::default(),
            disk,
            disk_request: None,
            controller: InterruptController::default(),
            time: 0,
            timer: u64::MAX,
            software: false,
        }
    }

    /// When machine mode's timer interrupts, in ticks.
    #[must_use]
    pub const fn timer(&self) -> u64 {
        self.timer
    }

    /// The bits of `mip` that devices hold up.
    pub fn pending(&mut self) -> u64 {
        let disk = self.disk.as_ref().is_some_and(BlockDevice::interrupts);
        let serial = self.serial.cause().is_some();
        self.controller.pending =
            u32::from(disk) << DISK_INTERRUPT | u32::from(serial) << UART_INTERRUPT;
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        bit(self.controller.best(0) != 0, EXTERNAL_M)
            | bit(self.controller.best(1) != 0, EXTERNAL_S)
            | bit(self.time >= self.timer, TIMER_M)
            | bit(self.software, SOFTWARE_M)
    }

    /// A load of so many bytes; `None` where nothing is.
    pub fn load(&mut self, at: u64, bytes: u64) -> Option<u64> {
        let within = |(start, length): (u64, u64)| at.checked_sub(start).filter(|o| *o < length);
        if let Some(offset) = within(CLINT) {
            let word = match offset & !7 {
                0 => u64::from(self.software),
                0x4000 => self.timer,
                0xbff8 => self.time,
                _ => 0,
            };
            return Some(word >> (8 * (offset & 7)));
        }
        if let Some(offset) = within(PLIC) {
            self.pending();
            return Some(self.controller.load(offset).into());
        }
        if let Some(offset) = within(UART) {
            return Some(self.serial.load(offset & 7).into());
        }
        let offset = within(DISK)?;
        Some(self.disk.as_mut().map_or(0, |disk| disk.load(offset, bytes)))
    }

    /// A store of so many bytes; `false` where nothing is.
    pub fn store(&mut self, at: u64, bytes: u64, value: u64) -> bool {
        let within = |(start, length): (u64, u64)| at.checked_sub(start).filter(|o| *o < length);
        if let Some(offset) = within(CLINT) {
            let part = |old: u64| {
                let shift = 8 * (offset & 7);
                let mask = if bytes == 8 { u64::MAX } else { 0xffff_ffff << shift };
                old & !mask | value << shift & mask
            };
            match offset & !7 {
                0 => self.software = value & 1 != 0,
                0x4000 => self.timer = part(self.timer),
                0xbff8 => self.time = part(self.time),
                _ => {}
            }
        } else if let Some(offset) = within(PLIC) {
            self.controller.store(offset, value as u32);
        } else if let Some(offset) = within(UART) {
            self.serial.store(offset & 7, value as u8);
        } else if let Some(offset) = within(DISK) {
            let request = self.disk.as_mut().and_then(|disk| disk.store(offset, value as u32));
            self.disk_request = request.or(self.disk_request.take());
        } else {
            return false;
        }
        true
    }
}
