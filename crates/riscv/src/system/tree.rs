//! The device tree that a kernel is given: which devices there are, and where.
//!
//! Source: Devicetree Specification 0.4, chapter 5 (flattened format).

use super::devices::{CLINT, DISK, DISK_INTERRUPT, PLIC, SOURCES, UART, UART_INTERRUPT};
use super::memory::RAM_START;

/// Ticks of the timer in a second, as on QEMU's `virt` machine.
pub const TICKS_PER_S: u32 = 10_000_000;
/// Numbers by which nodes name each other.
const CPU: u32 = 1;
const CONTROLLER: u32 = 2;
/// Interrupts of the hart as its controller numbers them.
const SOFTWARE_M: u32 = 3;
const TIMER_M: u32 = 7;
const EXTERNAL_M: u32 = 11;
const EXTERNAL_S: u32 = 9;

/// A tree being written.
#[derive(Debug, Default)]
struct TreeWriter {
    structure: Vec<u8>,
    strings: Vec<u8>,
}

impl TreeWriter {
    fn word(&mut self, word: u32) {
        self.structure.extend_from_slice(&word.to_be_bytes());
    }

    fn align(&mut self) {
        self.structure.resize(self.structure.len().next_multiple_of(4), 0);
    }

    fn node(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.word(1);
        self.structure.extend_from_slice(name.as_bytes());
        self.structure.push(0);
        self.align();
        fill(self);
        self.word(2);
    }

    fn property(&mut self, name: &str, value: &[u8]) {
        let at = self.strings.len();
        self.strings.extend_from_slice(name.as_bytes());
        self.strings.push(0);
        self.word(3);
        self.word(value.len() as u32);
        self.word(at as u32);
        self.structure.extend_from_slice(value);
        self.align();
    }

    fn words(&mut self, name: &str, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        self.property(name, &bytes);
    }

    fn text(&mut self, name: &str, text: &str) {
        self.property(name, &[text.as_bytes(), b"\0"].concat());
    }

    fn doubles(&mut self, name: &str, doubles: &[u64]) {
        let words: Vec<u32> = doubles.iter().flat_map(|d| [(d >> 32) as u32, *d as u32]).collect();
        self.words(name, &words);
    }

    fn device(&mut self, (start, length): (u64, u64), compatible: &str) {
        self.text("compatible", compatible);
        self.doubles("reg", &[start, length]);
    }

    fn interrupt(&mut self, source: u32) {
        self.words("interrupts", &[source]);
        self.words("interrupt-parent", &[CONTROLLER]);
    }

    fn finish(mut self) -> Vec<u8> {
        self.word(9);
        let (header, reserved) = (40, 16);
        let structure_at = header + reserved;
        let strings_at = structure_at + self.structure.len();
        let total = strings_at + self.strings.len();
        let (structure, strings) = (self.structure.len(), self.strings.len());
        let words =
            [0xd00d_feed, total, structure_at, strings_at, header, 17, 16, 0, strings, structure];
        let mut tree: Vec<u8> = words.iter().flat_map(|w| (*w as u32).to_be_bytes()).collect();
        tree.resize(structure_at, 0);
        tree.extend_from_slice(&self.structure);
        tree.extend_from_slice(&self.strings);
        tree
    }
}

/// The tree of a machine with so much memory. `initrd` is the first byte of the initial file
/// system and the one after its last.
#[must_use]
pub fn device_tree(
    ram_bytes: u64,
    arguments: &str,
    initrd: Option<(u64, u64)>,
    has_disk: bool,
) -> Vec<u8> {
    let mut tree = TreeWriter::default();
    tree.node("", |tree| {
        tree.words("#address-cells", &[2]);
        tree.words("#size-cells", &[2]);
        tree.text("compatible", "riscv-virtio");
        tree.text("model", "terrace,virt");
        tree.node("chosen", |tree| {
            tree.text("bootargs", arguments);
            tree.text("stdout-path", "/soc/serial@10000000");
            if let Some((start, end)) = initrd {
                tree.doubles("linux,initrd-start", &[start]);
                tree.doubles("linux,initrd-end", &[end]);
            }
        });
        tree.node("memory@80000000", |tree| {
            tree.text("device_type", "memory");
            tree.doubles("reg", &[RAM_START, ram_bytes]);
        });
        tree.node("cpus", hart);
        tree.node("soc", |tree| soc(tree, has_disk));
    });
    tree.finish()
}

fn hart(tree: &mut TreeWriter) {
    tree.words("#address-cells", &[1]);
    tree.words("#size-cells", &[0]);
    tree.words("timebase-frequency", &[TICKS_PER_S]);
    tree.node("cpu@0", |tree| {
        tree.text("device_type", "cpu");
        tree.words("reg", &[0]);
        tree.text("status", "okay");
        tree.text("compatible", "riscv");
        tree.text("riscv,isa", "rv64imafdc_zicsr_zifencei_zba_zbb");
        tree.text("riscv,isa-base", "rv64i");
        let extensions = "i m a f d c zicsr zifencei zba zbb".replace(' ', "\0");
        tree.text("riscv,isa-extensions", &extensions);
        tree.text("mmu-type", "riscv,sv39");
        tree.node("interrupt-controller", |tree| {
            tree.words("#interrupt-cells", &[1]);
            tree.property("interrupt-controller", &[]);
            tree.text("compatible", "riscv,cpu-intc");
            tree.words("phandle", &[CPU]);
        });
    });
}

fn soc(tree: &mut TreeWriter, has_disk: bool) {
    tree.words("#address-cells", &[2]);
    tree.words("#size-cells", &[2]);
    tree.text("compatible", "simple-bus");
    tree.property("ranges", &[]);
    tree.node("clint@2000000", |tree| {
        tree.device(CLINT, "riscv,clint0");
        tree.words("interrupts-extended", &[CPU, SOFTWARE_M, CPU, TIMER_M]);
    });
    tree.node("plic@c000000", |tree| {
        tree.device(PLIC, "riscv,plic0");
        tree.words("#interrupt-cells", &[1]);
        tree.words("#address-cells", &[0]);
        tree.property("interrupt-controller", &[]);
        tree.words("interrupts-extended", &[CPU, EXTERNAL_M, CPU, EXTERNAL_S]);
        tree.words("riscv,ndev", &[SOURCES - 1]);
        tree.words("phandle", &[CONTROLLER]);
    });
    tree.node("serial@10000000", |tree| {
        tree.device(UART, "ns16550a");
        tree.interrupt(UART_INTERRUPT);
        tree.words("clock-frequency", &[3_686_400]);
    });
    if has_disk {
        tree.node("virtio_mmio@10001000", |tree| {
            tree.device(DISK, "virtio,mmio");
            tree.interrupt(DISK_INTERRUPT);
        });
    }
}
