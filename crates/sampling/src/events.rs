//! Which events sample memory accesses, by model of CPU.
//!
//! Codes of Intel's processors are those of the kernel (`mem-loads` and `mem-stores` in
//! `arch/x86/events/intel/core.c`) and of Intel's event lists (github.com/intel/perfmon); model
//! numbers are of `arch/x86/include/asm/intel-family.h`. AMD's IBS is as in
//! `arch/x86/events/amd/ibs.c`. Whether an event works is found by opening it, never from here.

use crate::source::MemoryOperation;

/// `PERF_TYPE_SOFTWARE` and `PERF_TYPE_RAW`.
const SOFTWARE: u32 = 1;
const RAW: u32 = 4;

/// Maker, family and model of a CPU, as `/proc/cpuinfo` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuModel {
    /// Maker.
    pub vendor: CpuVendor,
    /// Family.
    pub family: u32,
    /// Model.
    pub model: u32,
}

/// Maker of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuVendor {
    /// Intel.
    Intel,
    /// AMD, or Hygon after it.
    Amd,
    /// Another.
    Other,
}

impl CpuModel {
    /// Reads the first CPU of `/proc/cpuinfo`; `None` where it has no family and model, as on Arm.
    #[must_use]
    pub fn parse(cpuinfo: &str) -> Option<Self> {
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim())
            })
        };
        let vendor = match field("vendor_id")? {
            "GenuineIntel" => CpuVendor::Intel,
            "AuthenticAMD" | "HygonGenuine" => CpuVendor::Amd,
            _ => CpuVendor::Other,
        };
        let number = |name: &str| field(name)?.parse().ok();
        Some(Self { vendor, family: number("cpu family")?, model: number("model")? })
    }
}

/// Where the number of an event's device comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleDevice {
    /// It is fixed.
    Number(u32),
    /// `/sys/bus/event_source/devices/NAME/type`.
    Named(&'static str),
}

/// An event that samples accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplingEvent {
    /// Name, as the maker has it.
    pub name: &'static str,
    /// Counter device.
    pub device: SampleDevice,
    /// Event.
    pub config: u64,
    /// More of it: latency threshold in cycles for load latency.
    pub config1: u64,
    /// `precise_ip` that it takes.
    pub precise: u8,
    /// Loads, stores, or `Unknown` for both.
    pub operation: MemoryOperation,
    /// Samples carry latency and data source.
    pub detailed: bool,
    /// The period must be a multiple of this.
    pub period_unit: u64,
}

const fn raw(name: &'static str, config: u64, operation: MemoryOperation) -> SamplingEvent {
    SamplingEvent {
        name,
        device: SampleDevice::Number(RAW),
        config,
        config1: 0,
        precise: 2,
        operation,
        detailed: false,
        period_unit: 1,
    }
}

/// Load latency: loads that take at least as long as a hit in the second level does (Intel's
/// manuals give 12 to 16 cycles): what the first level serves says nothing of memory.
const LATENCY_CYCLES: u64 = 20;

const fn load_latency(config: u64) -> SamplingEvent {
    let event = raw("load latency", config, MemoryOperation::Load);
    SamplingEvent { config1: LATENCY_CYCLES, detailed: true, ..event }
}

const fn stores(config: u64, detailed: bool) -> SamplingEvent {
    SamplingEvent { detailed, ..raw("stores", config, MemoryOperation::Store) }
}

const fn l3_misses() -> SamplingEvent {
    raw("MEM_LOAD_RETIRED.L3_MISS", 0x20d1, MemoryOperation::Load)
}

const NEHALEM: &[SamplingEvent] = &[load_latency(0x100b)];
const SANDY_BRIDGE: &[SamplingEvent] = &[load_latency(0x01cd), stores(0x02cd, true)];
const HASWELL: &[SamplingEvent] = &[load_latency(0x01cd), stores(0x82d0, true)];
const SKYLAKE: &[SamplingEvent] = &[l3_misses(), load_latency(0x01cd), stores(0x82d0, true)];
const SAPPHIRE_RAPIDS: &[SamplingEvent] =
    &[l3_misses(), load_latency(0x01cd), stores(0x02cd, true)];
const KNIGHTS_LANDING: &[SamplingEvent] = &[
    raw("L2_MISS_LOADS", 0x0404, MemoryOperation::Load),
    raw("L2_HIT_LOADS", 0x0204, MemoryOperation::Load),
];
/// IBS counts operations (bit 19) and keeps those that missed the third level (bit 16), on
/// processors that can; all of them on others.
const IBS: &[SamplingEvent] =
    &[ibs("IBS op, L3 misses", 1 << 19 | 1 << 16), ibs("IBS op", 1 << 19)];

const fn ibs(name: &'static str, config: u64) -> SamplingEvent {
    SamplingEvent {
        device: SampleDevice::Named("ibs_op"),
        detailed: true,
        // The hardware counts in sixteens.
        period_unit: 16,
        precise: 0,
        ..raw(name, config, MemoryOperation::Unknown)
    }
}

/// Page faults, which the kernel counts on any machine: the first access to each page, and hint
/// faults. To try the rings, not to place memory.
pub const PAGE_FAULTS: SamplingEvent = SamplingEvent {
    device: SampleDevice::Number(SOFTWARE),
    precise: 0,
    ..raw("page faults", 2, MemoryOperation::Unknown)
};

/// Events of this model, those to prefer first; empty where none is known.
#[must_use]
pub fn sampling_events(model: CpuModel) -> &'static [SamplingEvent] {
    match (model.vendor, model.family) {
        (CpuVendor::Amd, 0x10..) => IBS,
        (CpuVendor::Intel, 6) => match model.model {
            0x1a | 0x1e | 0x1f | 0x2e | 0x25 | 0x2c | 0x2f => NEHALEM,
            0x2a | 0x2d | 0x3a | 0x3e => SANDY_BRIDGE,
            0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56 => HASWELL,
            0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6 | 0x7d | 0x7e | 0x6a | 0x6c | 0x8c
            | 0x8d | 0xa7 => SKYLAKE,
            0x8f | 0xcf | 0xad | 0xae => SAPPHIRE_RAPIDS,
            0x57 | 0x85 => KNIGHTS_LANDING,
            _ => &[],
        },
        _ => &[],
    }
}

/// Event that must lead a group with load latency where sysfs has `mem-loads-aux`
/// (`mem_ld_aux` in `arch/x86/events/intel/core.c`).
pub const LOAD_LATENCY_LEADER: u64 = 0x8203;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_read_and_have_their_events() {
        let info = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
                    model name\t: Intel(R) Xeon(R)\n";
        let model = CpuModel::parse(info).unwrap();
        assert_eq!(model, CpuModel { vendor: CpuVendor::Intel, family: 6, model: 0x8f });
        let names: Vec<&str> = sampling_events(model).iter().map(|e| e.name).collect();
        assert_eq!(names, ["MEM_LOAD_RETIRED.L3_MISS", "load latency", "stores"]);
        assert_eq!(sampling_events(model)[2].config, 0x02cd);
        let of = |vendor, family, model| sampling_events(CpuModel { vendor, family, model });
        assert_eq!(of(CpuVendor::Intel, 6, 0x57)[0].config, 0x0404);
        assert_eq!(of(CpuVendor::Amd, 0x19, 1)[0].device, SampleDevice::Named("ibs_op"));
        assert!(of(CpuVendor::Other, 6, 1).is_empty() && of(CpuVendor::Intel, 6, 0).is_empty());
        assert_eq!(CpuModel::parse("processor : 0\nCPU implementer : 0x41\n"), None);
    }
}
