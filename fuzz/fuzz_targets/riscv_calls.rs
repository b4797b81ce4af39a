//! Arbitrary system calls of a riscv64 process with a few files: no panic, no access beyond its
//! memory, and memory stays within its limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_riscv::linux::{Errno, GuestFileStatus, Host, Process, ProcessEnd};

const CODE: u64 = 0x1_0000;
const DATA: u64 = 0x2_0000;
const DATA_BYTES: usize = 0x4000;
/// Bytes of a call: its number, what kind each of six arguments is, and the arguments.
const CALL_BYTES: usize = 2 + 6 + 6 * 2;

/// Files that read as sevens and take everything; one in four calls fails.
#[derive(Default)]
struct FewFiles(u32);

impl FewFiles {
    fn answer<T>(&mut self, value: T) -> Result<T, Errno> {
        self.0 += 1;
        if self.0 % 4 == 0 {
            return Err(Errno(5));
        }
        Ok(value)
    }
}

impl Host for FewFiles {
    fn read(&mut self, _: i32, bytes: &mut [u8]) -> Result<usize, Errno> {
        bytes.fill(7);
        let count = bytes.len().min(100);
        self.answer(count)
    }
    fn write(&mut self, _: i32, bytes: &[u8]) -> Result<usize, Errno> {
        self.answer(bytes.len() / 2)
    }
    fn open(&mut self, _: &[u8], _: u32, _: u32) -> Result<i32, Errno> {
        self.answer(3)
    }
    fn close(&mut self, _: i32) -> Result<(), Errno> {
        self.answer(())
    }
    fn seek(&mut self, _: i32, to: i64, _: u32) -> Result<u64, Errno> {
        self.answer(to.unsigned_abs())
    }
    fn status(&mut self, _: i32) -> Result<GuestFileStatus, Errno> {
        self.answer(GuestFileStatus { mode: 0o10_0600, size: 100, ..GuestFileStatus::default() })
    }
    fn now_ns(&mut self, _: u32) -> u64 {
        self.0 += 1;
        self.0.into()
    }
    fn sleep_ns(&mut self, _: u64) {}
    fn fill_random(&mut self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// A program of `ecall` and a jump back to it, with data.
fn program(data: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 0x2000 + DATA_BYTES];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    for (at, value) in [(16, 2_u16), (18, 243), (52, 64), (54, 56), (56, 2)] {
        put(at, &value.to_le_bytes());
    }
    put(20, &[1]);
    put(24, &CODE.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    for (row, flags, offset, address, length) in
        [(0, 5_u8, 0x1000_u64, CODE, 0x1000), (1, 6, 0x2000, DATA, DATA_BYTES as u64)]
    {
        let at = 64 + 56 * row;
        put(at, &[1]);
        put(at + 4, &[flags]);
        for (field, value) in [offset, address, address, length, length, 4096].iter().enumerate() {
            put(at + 8 + 8 * field, &value.to_le_bytes());
        }
    }
    // ecall; j -4
    put(0x1000, &[0x73, 0, 0, 0, 0x6f, 0xf0, 0xdf, 0xff]);
    put(0x2000, &data[..data.len().min(DATA_BYTES)]);
    file
}

/// An argument: a small number, one near the ends of its range, or an address.
fn argument(kind: u8, value: u16) -> u64 {
    let value = u64::from(value);
    match kind % 6 {
        0 => value % 64,
        1 => value,
        2 => value.wrapping_neg(),
        3 => DATA + value % (DATA_BYTES as u64 + 16),
        4 => value << 12,
        _ => value << 48 | value,
    }
}

fuzz_target!(|data: &[u8]| {
    let (calls, content) = data.split_at(data.len() / 2);
    let file = program(content);
    let loaded = Process::new(&file, &[b"a".to_vec()], &[], 16 << 20, FewFiles::default());
    let Ok(mut process) = loaded else { return };
    process.run(&mut (), 0);
    for call in calls.chunks_exact(CALL_BYTES) {
        // Of the first thread; others that a call makes run the same code.
        let Some(hart) = process.hart_mut(0) else { break };
        hart.pc = CODE;
        hart.x[17] = u64::from(u16::from_le_bytes([call[0], call[1]])) % 512;
        for index in 0..6 {
            let value = u16::from_le_bytes([call[8 + 2 * index], call[9 + 2 * index]]);
            hart.x[10 + index] = argument(call[2 + index], value);
        }
        match process.run(&mut (), 4) {
            ProcessEnd::Budget => {}
            _ => break,
        }
    }
});
