//! DAX and CXL devices: what memory-only nodes are made of, and memory that is not in use as such.

use crate::error::TopologyError;
use crate::tree::View;
use terrace_machine::{CxlDevice, DaxDevice, Figure, Link, MemoryKind, Node};
use terrace_types::{Bytes, BytesPerSec, NodeId};

pub(crate) const DAX: &str = "sys/bus/dax/devices";
pub(crate) const CXL: &str = "sys/bus/cxl/devices";

/// What Optane reads and writes at a time; no other such memory was ever sold.
const OPTANE_BLOCK: Bytes = Bytes(256);

/// DAX devices (`drivers/dax/bus.c`: `target_node`, `size`; the driver `kmem` makes a device
/// ordinary memory).
pub(crate) fn dax(view: &View<'_>) -> Result<Vec<DaxDevice>, TopologyError> {
    let mut devices = Vec::new();
    for name in view.list(DAX)? {
        let folder = format!("{DAX}/{name}");
        let Some(real) = view.resolve(&folder)? else {
            continue;
        };
        let driver = view.resolve(&format!("{folder}/driver"))?;
        let target = view.number(&format!("{folder}/target_node"))?;
        let size = view.number(&format!("{folder}/size"))?;
        devices.push(DaxDevice {
            system_ram: Some(driver.is_some_and(|d| d.ends_with("/kmem")) || bound(view, &name)?),
            size: size.and_then(|s| u64::try_from(s).ok()).map(Bytes),
            target_node: target.and_then(|t| u16::try_from(t).ok()).map(NodeId),
            nature: nature(&real).map(str::to_owned),
            name,
        });
    }
    Ok(devices)
}

/// Gathered trees may lack the device's `driver` link, but have the driver's link to the device.
fn bound(view: &View<'_>, name: &str) -> Result<bool, TopologyError> {
    Ok(view.bare(&format!("sys/bus/dax/drivers/kmem/{name}"))?.is_some())
}

/// What a DAX device is, from where in the device tree it sits: under an NVDIMM bus (`ndbusN`,
/// `drivers/nvdimm`), a CXL region (`drivers/dax/cxl.c`), or memory that firmware set aside for a
/// purpose (`hmem`, `drivers/dax/hmem`).
fn nature(path: &str) -> Option<&'static str> {
    let has = |prefix: &str| {
        path.split('/').any(|part| {
            part.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
        })
    };
    if has("ndbus") {
        Some("NVM")
    } else if has("decoder") {
        Some("CXL")
    } else if has("hmem") {
        Some("SPM")
    } else {
        None
    }
}

/// Names the kinds of nodes that DAX devices make up.
pub(crate) fn name_kinds(nodes: &mut [Node], devices: &[DaxDevice]) {
    for device in devices.iter().filter(|d| d.system_ram == Some(true)) {
        let kind = match device.nature.as_deref() {
            Some("NVM") => MemoryKind::Pmem,
            Some("CXL") => MemoryKind::Cxl,
            _ => MemoryKind::Dax,
        };
        for node in nodes.iter_mut().filter(|n| Some(n.id) == device.target_node) {
            // A node may join ordinary memory and a device; its CPUs then say what it mostly is.
            if node.cpus.is_empty() {
                node.kind = kind;
                if kind == MemoryKind::Pmem {
                    node.block = OPTANE_BLOCK;
                }
            }
        }
    }
}

/// Blocks of what is Optane by its figures: a node without CPUs and of no known kind that firmware
/// says to be written at half of the speed it is read at, or less. So it is where a hypervisor
/// hands on the memory and its HMAT, but not the NVDIMM (ADR 0186; figures of Optane:
/// `machine/presets/lab-dcpmm.toml`).
pub(crate) fn guess_blocks(nodes: &mut [Node], links: &[Link], notes: &mut Vec<String>) {
    let best = |node: NodeId, figure: fn(&Link) -> Option<Figure<BytesPerSec>>| {
        let links = links.iter().filter(|l| l.target == node);
        links.filter_map(figure).map(|f| f.value.get()).max()
    };
    for node in nodes.iter_mut().filter(|n| n.kind == MemoryKind::Unknown && n.cpus.is_empty()) {
        let (read, write) =
            (best(node.id, |l| l.read_bandwidth), best(node.id, |l| l.write_bandwidth));
        if read.zip(write).is_some_and(|(read, write)| write <= read / 2) {
            node.block = OPTANE_BLOCK;
            notes.push(format!(
                "Node {} is written at half its read bandwidth or less, as Optane is: blocks of \
                    {} bytes are assumed.",
                node.id.0,
                OPTANE_BLOCK.get()
            ));
        }
    }
}

/// CXL memory devices (`Documentation/ABI/testing/sysfs-bus-cxl`: `memN/ram/size`,
/// `memN/pmem/size`, hexadecimal).
pub(crate) fn cxl(view: &View<'_>) -> Result<Vec<CxlDevice>, TopologyError> {
    let mut devices = Vec::new();
    for number in view.numbered(CXL, "mem", 65_535)? {
        let name = format!("mem{number}");
        let size = |part: &str| -> Result<Bytes, TopologyError> {
            let text = view.text(&format!("{CXL}/{name}/{part}/size"))?.unwrap_or_default();
            let digits = text.trim().trim_start_matches("0x");
            // An unreadable size is none: nothing is ranked by it.
            Ok(Bytes(u64::from_str_radix(digits, 16).unwrap_or(0)))
        };
        devices.push(CxlDevice { ram: size("ram")?, pmem: size("pmem")?, name });
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_machine::preset;

    /// The block of node 1 of a machine whose firmware tells these bandwidths, and the notes made.
    fn guessed(read: u64, write: u64, change: fn(&mut Node)) -> (u64, usize) {
        let mut machine = preset("lab-cxl").unwrap();
        machine.nodes[1].kind = MemoryKind::Unknown;
        change(&mut machine.nodes[1]);
        let figure = |value| {
            Some(Figure { value: BytesPerSec(value), ..machine.links[1].read_bandwidth.unwrap() })
        };
        let (read, write) = (figure(read), figure(write));
        (machine.links[1].read_bandwidth, machine.links[1].write_bandwidth) = (read, write);
        let mut notes = Vec::new();
        guess_blocks(&mut machine.nodes, &machine.links, &mut notes);
        assert_eq!(machine.nodes[0].block, Bytes(64), "the node with CPUs");
        (machine.nodes[1].block.get(), notes.len())
    }

    #[test]
    fn memory_written_at_half_its_read_bandwidth_is_taken_for_optane() {
        assert_eq!(guessed(13_000, 4_600, |_| ()), (256, 1));
        assert_eq!(guessed(10_000, 5_000, |_| ()), (256, 1));
        assert_eq!(guessed(10_000, 5_001, |_| ()), (64, 0));
    }

    #[test]
    fn what_the_kernel_names_or_has_cpus_is_not_guessed_at() {
        assert_eq!(guessed(13_000, 4_600, |n| n.kind = MemoryKind::Cxl), (64, 0));
        assert_eq!(guessed(13_000, 4_600, |n| n.cpus = vec![terrace_types::CpuId(7)]), (64, 0));
    }
}
