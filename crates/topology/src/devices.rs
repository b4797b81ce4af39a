//! DAX and CXL devices: what memory-only nodes are made of, and memory that is not in use as such.

use crate::error::TopologyError;
use crate::tree::View;
use terrace_machine::{CxlDevice, DaxDevice, Kind, Node};
use terrace_types::{Bytes, NodeId};

pub(crate) const DAX: &str = "sys/bus/dax/devices";
pub(crate) const CXL: &str = "sys/bus/cxl/devices";

/// DAX devices (`drivers/dax/bus.c`: `target_node`, `size`; the driver `kmem` makes a device ordinary memory).
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

/// What a DAX device is, from where in the device tree it sits: under an NVDIMM bus (`ndbusN`, `drivers/nvdimm`), a CXL
/// region (`drivers/dax/cxl.c`), or memory that firmware set aside for a purpose (`hmem`, `drivers/dax/hmem`).
fn nature(path: &str) -> Option<&'static str> {
    let has = |prefix: &str| {
        path.split('/').any(|part| {
            part.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
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
            Some("NVM") => Kind::Pmem,
            Some("CXL") => Kind::Cxl,
            _ => Kind::Dax,
        };
        for node in nodes.iter_mut().filter(|n| Some(n.id) == device.target_node) {
            // A node may join ordinary memory and a device; its CPUs then say what it mostly is.
            if node.cpus.is_empty() {
                node.kind = kind;
                if kind == Kind::Pmem {
                    // Optane, the only such memory: blocks of 256 bytes.
                    node.block = Bytes(256);
                }
            }
        }
    }
}

/// CXL memory devices (`Documentation/ABI/testing/sysfs-bus-cxl`: `memN/ram/size`, `memN/pmem/size`, hexadecimal).
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
