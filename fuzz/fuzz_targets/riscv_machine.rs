//! Arbitrary bytes as firmware and as a kernel on a machine with a disk and a keyboard: no panic,
//! and a run ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_riscv::system::virtio::{BlockDevice, DiskImage};
use terrace_riscv::system::{BootFiles, SystemMachine};

/// A disk in memory.
#[derive(Debug)]
struct SmallDisk(Vec<u8>);

impl DiskImage for SmallDisk {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> bool {
        to.copy_from_slice(&self.0[offset as usize..offset as usize + to.len()]);
        true
    }
    fn write_at(&mut self, offset: u64, from: &[u8]) -> bool {
        self.0[offset as usize..offset as usize + from.len()].copy_from_slice(from);
        true
    }
}

fn run(mut machine: SystemMachine) {
    machine.run(10_000);
    machine.type_in(b"ab\r");
    machine.run(10_000);
    machine.take_output();
}

fuzz_target!(|data: &[u8]| {
    let disk = || Some(BlockDevice::new(Box::new(SmallDisk(vec![7; 4096]))));
    if let Ok(machine) = SystemMachine::bare(data, 1 << 20, disk()) {
        run(machine);
    }
    // As a file, and as the code behind a header.
    let mut kernel = vec![0; 64];
    kernel[..4].copy_from_slice(&0x0400_006f_u32.to_le_bytes());
    kernel[56..60].copy_from_slice(b"RSC\x05");
    kernel.extend_from_slice(data);
    for kernel in [data, &kernel] {
        let files = BootFiles { kernel, initrd: Some(data), arguments: "quiet" };
        if let Ok(machine) = SystemMachine::boot(&files, 8 << 20, disk()) {
            run(machine);
        }
    }
});
