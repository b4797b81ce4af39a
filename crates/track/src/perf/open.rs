//! Finding the events that can be opened here, and the nodes of CPUs.

use super::PerfSettings;
use std::collections::BTreeMap;
use terrace_sampling::{
    sample_type, EventAttributes, MemoryOperation, SampleDevice, SamplingEvent,
    LOAD_LATENCY_LEADER, PAGE_FAULTS, RING_SAMPLE_TYPE,
};
use terrace_sys::{page_size, task, Root, SampleEvent, SampleRing, SampledTask, SysError};
use terrace_types::NodeId;

/// Pages of a ring: 64 KiB for some 900 samples of 72 bytes.
pub(super) const RING_PAGES: usize = 16;
/// Bytes of rings for each CPU that an ordinary user may lock (`kernel.perf_event_mlock_kb`: 512
/// KiB and a page).
const LOCKED_FOR_EACH_CPU: u64 = 512 << 10;
/// Fields that every event's samples have.
const FIELDS: u64 = sample_type::IP
    | sample_type::TID
    | sample_type::TIME
    | sample_type::ADDR
    | sample_type::CPU
    | sample_type::PERIOD;

/// An event that was found to work.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenEvent {
    pub event: SamplingEvent,
    pub spec: SampleEvent,
    pub attributes: EventAttributes,
}

/// Pages of each of so many rings: together no more than an ordinary user may lock.
pub(super) fn ring_pages(rings: usize, cpus: usize) -> usize {
    let all = LOCKED_FOR_EACH_CPU / page_size().get() * cpus.max(1) as u64;
    let each = usize::try_from(all).unwrap_or(RING_PAGES) / rings.max(1);
    // Down to a power of two, since a ring's size is rounded up to one.
    (1 << each.max(1).ilog2()).clamp(1, RING_PAGES)
}

/// What the lab's unit samples: records say whether they are of loads or stores.
pub(super) fn unit_event() -> OpenEvent {
    OpenEvent {
        event: SamplingEvent { name: "the lab's sampling unit", ..PAGE_FAULTS },
        spec: SampleEvent::default(),
        attributes: EventAttributes { sample_type: RING_SAMPLE_TYPE, ..EventAttributes::default() },
    }
}

/// The event with its device's number.
pub(super) fn find(
    root: &Root,
    event: &SamplingEvent,
    settings: &PerfSettings,
) -> Result<OpenEvent, SysError> {
    let device = match event.device {
        SampleDevice::Number(number) => number,
        SampleDevice::Named(name) => {
            let path = format!("/sys/bus/event_source/devices/{name}/type");
            u32::try_from(root.number(&path)?).unwrap_or(u32::MAX)
        }
    };
    let auxiliary = root.exists("/sys/bus/event_source/devices/cpu/events/mem-loads-aux");
    let leads = auxiliary && event.detailed && event.operation == MemoryOperation::Load;
    let details = if event.detailed { sample_type::WEIGHT | sample_type::DATA_SRC } else { 0 };
    let callers = if settings.callers { sample_type::CALLCHAIN } else { 0 };
    let spec = SampleEvent {
        device,
        config: event.config,
        config1: event.config1,
        leader: leads.then_some(LOAD_LATENCY_LEADER),
        precise: event.precise,
        sample_type: FIELDS | details | callers,
        ..SampleEvent::default()
    };
    let attributes =
        EventAttributes { sample_type: spec.sample_type, ..EventAttributes::default() };
    Ok(OpenEvent { event: *event, spec, attributes })
}

/// Tries an event, the only way to know whether it works.
pub(super) fn opens(found: &OpenEvent, whose: SampledTask) -> Result<(), SysError> {
    const PERIOD: u64 = 10_007;
    SampleRing::open(&found.spec, whose, PERIOD, 1).map(|_| ())
}

/// Node of each CPU that is online.
pub(super) fn cpu_nodes(root: &Root) -> BTreeMap<u32, NodeId> {
    let nodes = "/sys/devices/system/node";
    let mut cells = BTreeMap::new();
    for name in root.list(nodes).unwrap_or_default() {
        let number = name.strip_prefix("node").and_then(|number| number.parse().ok());
        let Some(node) = number.map(NodeId) else { continue };
        let list = root.text(&format!("{nodes}/{name}/cpulist")).unwrap_or_default();
        let cpus = task::parse_list(list.trim(), 1 << 16).unwrap_or_default();
        cells.extend(cpus.into_iter().map(|cpu| (cpu, node)));
    }
    if cells.is_empty() {
        let list = root.text("/sys/devices/system/cpu/online").unwrap_or_default();
        let cpus = task::parse_list(list.trim(), 1 << 16).unwrap_or_default();
        cells.extend(cpus.into_iter().map(|cpu| (cpu, NodeId(0))));
    }
    cells
}
