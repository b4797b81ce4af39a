//! The firmware that a kernel finds: the Supervisor Binary Interface, built in.
//!
//! Source: RISC-V SBI specification 2.0.

use super::virtio::PhysicalMemory;
use super::{MachineEnd, SystemMachine};
use crate::system::csr::{SOFTWARE_S, TIMER_S};

/// Extensions, by the numbers that kernels ask for.
const BASE: u64 = 0x10;
const TIMER: u64 = 0x5449_4d45;
const INTER_PROCESSOR: u64 = 0x0073_5049;
const REMOTE_FENCE: u64 = 0x5246_4e43;
const HART_STATE: u64 = 0x0048_534d;
const SYSTEM_RESET: u64 = 0x5352_5354;
const DEBUG_CONSOLE: u64 = 0x4442_434e;
const ALL: [u64; 7] =
    [BASE, TIMER, INTER_PROCESSOR, REMOTE_FENCE, HART_STATE, SYSTEM_RESET, DEBUG_CONSOLE];
/// `SBI_ERR_*`.
const NOT_SUPPORTED: i64 = -2;
const INVALID_PARAMETER: i64 = -3;
const ALREADY_AVAILABLE: i64 = -6;
/// Version 2.0.
const VERSION: u64 = 2 << 24;
/// Characters that one call prints at most.
const MOST_CHARACTERS: u64 = 4096;

impl SystemMachine {
    /// Answers a call of the kernel; the end where it asks for one.
    pub(super) fn answer_call(&mut self) -> Option<MachineEnd> {
        let x = self.hart.x;
        let (extension, function) = (x[17], x[16]);
        let mut end = None;
        let answer: Result<u64, i64> = match (extension, function) {
            // The calls of the first version answer in one register.
            (0..=8, _) => {
                end = self.answer_old_call(extension, x[10]);
                return end;
            }
            (BASE, 0) => Ok(VERSION),
            // Implementation: none of the registered ones.
            (BASE, 1) => Ok(0xffff),
            (BASE, 3) => Ok(ALL.contains(&x[10]).into()),
            (BASE, 2 | 4..=6) => Ok(0),
            (TIMER, 0) => {
                self.set_timer(x[10]);
                Ok(0)
            }
            (INTER_PROCESSOR, 0) => {
                self.privileged.pending |= SOFTWARE_S;
                Ok(0)
            }
            (REMOTE_FENCE, 0) => {
                self.code.clear();
                Ok(0)
            }
            (REMOTE_FENCE, 1 | 2) => {
                self.memory.forget_translations();
                Ok(0)
            }
            (HART_STATE, 0) if x[10] == 0 => Err(ALREADY_AVAILABLE),
            (HART_STATE, 2) if x[10] == 0 => Ok(0),
            (HART_STATE, 0 | 2) => Err(INVALID_PARAMETER),
            (SYSTEM_RESET, 0) => {
                end = Some(match x[10] {
                    0 => MachineEnd::PowerOff,
                    _ => MachineEnd::Reboot,
                });
                Ok(0)
            }
            (DEBUG_CONSOLE, 0) => self.print_text(x[10], x[11]),
            (DEBUG_CONSOLE, 1) => Ok(0),
            (DEBUG_CONSOLE, 2) => {
                self.memory.devices.serial.output.push(x[10] as u8);
                Ok(0)
            }
            _ => Err(NOT_SUPPORTED),
        };
        let (error, value) = match answer {
            Ok(value) => (0, value),
            Err(error) => (error, 0),
        };
        (self.hart.x[10], self.hart.x[11]) = (error as u64, value);
        end
    }

    fn answer_old_call(&mut self, number: u64, argument: u64) -> Option<MachineEnd> {
        let mut value = 0;
        match number {
            0 => self.set_timer(argument),
            1 => self.memory.devices.serial.output.push(argument as u8),
            2 => value = self.memory.devices.serial.take_input().map_or(u64::MAX, u64::from),
            3 => self.privileged.pending &= !SOFTWARE_S,
            4 => self.privileged.pending |= SOFTWARE_S,
            5 => self.code.clear(),
            8 => return Some(MachineEnd::PowerOff),
            _ => self.memory.forget_translations(),
        }
        self.hart.x[10] = value;
        None
    }

    fn set_timer(&mut self, at: u64) {
        self.kernel_timer = at;
        self.privileged.pending &= !TIMER_S;
    }

    fn print_text(&mut self, count: u64, at: u64) -> Result<u64, i64> {
        let mut bytes = vec![0; count.min(MOST_CHARACTERS) as usize];
        if !self.memory.read_physical(at, &mut bytes) {
            return Err(INVALID_PARAMETER);
        }
        self.memory.devices.serial.output.extend_from_slice(&bytes);
        Ok(bytes.len() as u64)
    }
}
