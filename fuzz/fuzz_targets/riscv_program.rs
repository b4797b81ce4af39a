//! Arbitrary bytes as a riscv64 program that runs for a while on two processing elements, and as
//! instructions: no panic, and memory stays within its limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_riscv::decode::Instruction;
use terrace_riscv::linux::{Errno, GuestFileStatus, Host, Process};
use terrace_xbgas::element::{ElementMachine, ElementSchedule, ElementSetup};
use terrace_xbgas::lookaside::{LookasideSize, ObjectTable};
use terrace_xbgas::note::dialect_of_program;
use terrace_xbgas::{Dialect, ExtendedInstruction};

/// A host with nothing in it.
struct EmptyHost;

impl Host for EmptyHost {
    fn read(&mut self, _: i32, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
    fn write(&mut self, _: i32, bytes: &[u8]) -> Result<usize, Errno> {
        Ok(bytes.len())
    }
    fn open(&mut self, _: &[u8], _: u32, _: u32) -> Result<i32, Errno> {
        Ok(3)
    }
    fn close(&mut self, _: i32) -> Result<(), Errno> {
        Ok(())
    }
    fn seek(&mut self, _: i32, _: i64, _: u32) -> Result<u64, Errno> {
        Ok(0)
    }
    fn status(&mut self, _: i32) -> Result<GuestFileStatus, Errno> {
        Ok(GuestFileStatus::default())
    }
    fn now_ns(&mut self, _: u32) -> u64 {
        0
    }
    fn sleep_ns(&mut self, _: u64) {}
    fn fill_random(&mut self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

fuzz_target!(|data: &[u8]| {
    for bytes in data.chunks_exact(4) {
        let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        assert!(!Instruction::decode(word).print(0, word).is_empty());
        for dialect in [Dialect::V2018, Dialect::V2_0, Dialect::Rev] {
            if let Some(instruction) = ExtendedInstruction::decode(dialect, word) {
                assert!(!instruction.to_string().is_empty());
                let _effect = instruction.effect(&[1; 32], &[2; 32]);
            }
        }
    }
    let _dialect = dialect_of_program(data);
    // A stack and a few segments of 64 MiB.
    let load = || Process::new(data, &[b"a".to_vec()], &[], 64 << 20, EmptyHost);
    if let (Ok(first), Ok(second)) = (load(), load()) {
        let setup = ElementSetup {
            objects: ObjectTable::of_elements(2),
            files: Vec::new(),
            dialect: Dialect::V2018,
            schedule: ElementSchedule::from_seed(1),
            lookaside: LookasideSize::default(),
        };
        let mut machine = ElementMachine::new(vec![first, second], &setup);
        let _end = machine.run(20_000);
    }
});
