//! Machines: a bare one that goes through modes, translation and devices, and the firmware that
//! kernels find.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use terrace_riscv::system::virtio::{BlockDevice, DiskImage};
use terrace_riscv::system::{BootError, BootFiles, MachineEnd, SystemMachine};
use terrace_testkit::{run_riscv_compiler, RISCV_COMPILER};

/// A disk in memory that the test keeps hold of.
#[derive(Debug, Clone)]
struct SharedDisk(Arc<Mutex<Vec<u8>>>);

impl DiskImage for SharedDisk {
    fn length(&self) -> u64 {
        self.0.lock().map_or(0, |bytes| bytes.len() as u64)
    }
    fn read_at(&mut self, offset: u64, to: &mut [u8]) -> bool {
        let bytes = self.0.lock().expect("not poisoned");
        to.copy_from_slice(&bytes[offset as usize..offset as usize + to.len()]);
        true
    }
    fn write_at(&mut self, offset: u64, from: &[u8]) -> bool {
        let mut bytes = self.0.lock().expect("not poisoned");
        bytes[offset as usize..offset as usize + from.len()].copy_from_slice(from);
        true
    }
}

/// The bytes of an assembled program; `None` without an assembler.
fn assemble(name: &str) -> Option<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (linked, flat) = (folder.join(format!("{name}.elf")), folder.join(format!("{name}.bin")));
    let flags = ["-nostdlib", "-static", "-march=rv64g", "-Wl,-Ttext=0x80000000"];
    let mut words: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
    words.extend([OsStr::new("-Wl,--build-id=none"), source.as_os_str()]);
    if !run_riscv_compiler(RISCV_COMPILER, words, &linked) {
        return None;
    }
    let objcopy = ["-O", "binary", "-j", ".text"];
    let copied = Command::new("riscv64-linux-gnu-objcopy")
        .args(objcopy)
        .args([&linked, &flat])
        .status()
        .expect("it comes with the compiler");
    assert!(copied.success());
    Some(std::fs::read(flat).expect("it was written"))
}

#[test]
fn a_bare_machine_traps_translates_and_serves_its_devices() {
    let Some(program) = assemble("machine.S") else { return };
    let content: Vec<u8> = (0..2048_u32).map(|at| b'a' + (at / 512) as u8).collect();
    let disk = SharedDisk(Arc::new(Mutex::new(content)));
    let device = BlockDevice::new(Box::new(disk.clone()));
    let mut machine = SystemMachine::bare(&program, 1 << 20, Some(device)).expect("it fits");
    let end = machine.run(100_000);
    assert_eq!(end, MachineEnd::Budget, "{:?}", machine.take_output());
    let first = String::from_utf8(machine.take_output()).expect("text");
    assert_eq!(first, "LDCFJCICItPNNJH");
    machine.type_in(b"x");
    // Nothing is left to wait for in the end.
    assert_eq!(machine.run(1_000_000), MachineEnd::Idle);
    let rest = String::from_utf8(machine.take_output()).expect("text");
    assert_eq!(rest, "x0b0!");
    let bytes = disk.0.lock().expect("not poisoned");
    assert_eq!((bytes[1024], bytes[1025], bytes[1023]), (b'c', b'b', b'b'));
}

/// A kernel image that begins with these instructions.
fn image(words: &[u32]) -> Vec<u8> {
    let mut image = vec![0; 64];
    // j 64
    image[..4].copy_from_slice(&0x0400_006f_u32.to_le_bytes());
    image[56..60].copy_from_slice(b"RSC\x05");
    image.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    image
}

#[test]
fn firmware_starts_a_kernel_with_its_tree_prints_and_switches_off() {
    let kernel = image(&[
        0x0005_e603, // lwu a2, 0(a1): the tree's magic
        0x0ff6_7513, // andi a0, a2, 0xff
        0xf985_0513, // addi a0, a0, -104: d0 -> 'h'
        0x0010_0893, // li a7, 1: console_putchar
        0x0000_0073, // ecall
        0x0690_0513, // li a0, 'i'
        0x0000_0073, // ecall
        0x0080_0893, // li a7, 8: shutdown
        0x0000_0073, // ecall
    ]);
    let files = BootFiles { kernel: &kernel, initrd: Some(&[1, 2, 3]), arguments: "quiet" };
    let mut machine = SystemMachine::boot(&files, 64 << 20, None).expect("it fits");
    assert_eq!(machine.run(1000), MachineEnd::PowerOff);
    assert_eq!(machine.take_output(), b"hi");

    let mut cut = SystemMachine::boot(&files, 64 << 20, None).expect("it fits");
    assert_eq!(cut.run(3), MachineEnd::Budget);
    // A trap without a handler.
    let lost = image(&[0xffff_ffff]);
    let files = BootFiles { kernel: &lost, ..files };
    let mut machine = SystemMachine::boot(&files, 64 << 20, None).expect("it fits");
    assert!(matches!(machine.run(1_000_000), MachineEnd::Stuck { pc: 0, cause: 1 }));
}

#[test]
fn what_is_no_kernel_or_does_not_fit_is_refused() {
    let kernel = image(&[0]);
    let files = BootFiles { kernel: &kernel, initrd: None, arguments: "" };
    for length in 0..kernel.len().min(60) {
        let cut = BootFiles { kernel: &kernel[..length], ..files };
        assert_eq!(SystemMachine::boot(&cut, 64 << 20, None).err(), Some(BootError::Image));
    }
    for bytes in [0, 4096, 2 << 20, 4 << 20] {
        assert!(
            matches!(SystemMachine::boot(&files, bytes, None), Err(BootError::Memory(..))),
            "{bytes}"
        );
    }
    let large = vec![0; 64 << 20];
    let with = BootFiles { initrd: Some(&large), ..files };
    assert!(matches!(SystemMachine::boot(&with, 64 << 20, None), Err(BootError::Memory(..))));
    let mut huge = kernel.clone();
    huge[16..24].fill(0xff);
    let huge = BootFiles { kernel: &huge, ..files };
    assert!(matches!(SystemMachine::boot(&huge, 64 << 20, None), Err(BootError::Memory(..))));
    assert!(SystemMachine::bare(&[0; 8192], 4096, None).is_err());
}
