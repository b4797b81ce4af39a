//! Which accesses the sampling unit is shown, and what its records say of them.

use crate::host::{lab_host_guest_ns, lab_host_kernel_area, lab_host_shared, read_guest};
use crate::unit::{is_user, UnitRegion};
use crate::{report, PluginState, ReportedAccess};
use std::panic::{catch_unwind, AssertUnwindSafe};
use terrace_machine::MemoryKind;
use terrace_model::PS;
use terrace_sampling::{
    AccessLocality, DataSource, MemoryLevel, MemoryOperation, PerfSample, UnitEvent,
};

/// What served an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedBy {
    Cache(MemoryLevel),
    /// Of this index.
    Node(usize),
}

/// Level that a record names for memory of this kind.
pub const fn level_of(kind: MemoryKind) -> MemoryLevel {
    match kind {
        MemoryKind::Cxl => MemoryLevel::CxlMemory,
        MemoryKind::Pmem => MemoryLevel::PersistentMemory,
        _ => MemoryLevel::Ram,
    }
}

impl PluginState {
    /// Has the sampling unit count an access, and charges the vCPU for a record of it.
    #[inline(never)]
    pub fn sample<const WRITE: bool>(&mut self, vcpu: usize, a: ReportedAccess, served: ServedBy) {
        if !is_user(a.instruction) {
            return;
        }
        let missed = !WRITE && matches!(served, ServedBy::Node(_));
        let events = [
            (UnitEvent::LoadMisses, missed),
            (UnitEvent::Loads, !WRITE),
            (UnitEvent::Stores, WRITE),
        ];
        for (event, _) in events.into_iter().filter(|(_, happened)| *happened) {
            if self.sampling.counts(vcpu, event) {
                let sample = self.describe(vcpu, a, served, event.operation());
                self.engine.units[vcpu].core.time += self.sampling.record(vcpu, event, sample);
            }
        }
    }

    #[cold]
    fn describe(
        &self,
        vcpu: usize,
        a: ReportedAccess,
        served: ServedBy,
        operation: MemoryOperation,
    ) -> PerfSample<'static> {
        let params = self.engine.params();
        let core = &self.engine.units[vcpu].core;
        let (level, locality, added_ps) = match served {
            ServedBy::Cache(level) => {
                let added = match level {
                    MemoryLevel::L2 => params.l2.map_or(0, |l2| l2.hit_ps),
                    MemoryLevel::L3 => params.llc.hit_ps,
                    _ => 0,
                };
                (level, AccessLocality::Local, added)
            }
            ServedBy::Node(node) => {
                let local = params.homes.get(vcpu) == Some(&node);
                let locality = if local { AccessLocality::Local } else { AccessLocality::Remote };
                (self.levels[node], locality, params.links[vcpu][node].read_latency)
            }
        };
        let (pid, tid) = self.current_task().unwrap_or((-1, -1));
        PerfSample {
            instruction: a.instruction,
            pid,
            tid,
            // SAFETY: a callback of a vCPU is running.
            time_ns: unsafe { lab_host_guest_ns(core.time / PS) }.max(0) as u64,
            address: a.address,
            cpu: Some(vcpu as u32),
            // Of the time stamp counter, which turns once a nanosecond.
            latency_cycles: u32::try_from((added_ps + core.pace()) / PS).unwrap_or(u32::MAX),
            source: DataSource::new(operation, level, locality),
            ..PerfSample::default()
        }
    }

    /// The guest has written settings for the sampling unit. Without shared memory nobody answers.
    pub fn control_sampling(&mut self) {
        let mut bytes = 0;
        // SAFETY: a callback of a vCPU is running, and `bytes` is writable.
        let start = unsafe { lab_host_shared(&mut bytes) };
        if start.is_null() {
            return;
        }
        // SAFETY: QEMU keeps the device's memory mapped as long as it runs, and only the guest
        // uses it besides.
        let region = unsafe { UnitRegion::at_end(start, bytes) };
        let done = catch_unwind(AssertUnwindSafe(|| {
            region.into_iter().for_each(|region| self.sampling.control(region));
            Ok(())
        }));
        report(done);
    }

    /// Process and thread that the executing vCPU runs, as the guest's kernel has them; `None`
    /// where that cannot be read.
    fn current_task(&self) -> Option<(i32, i32)> {
        let settings = self.sampling.settings();
        // SAFETY: a callback of a vCPU is running.
        let area = unsafe { lab_host_kernel_area() };
        let task =
            u64::from_le_bytes(read_guest((area != 0).then_some(area)?, settings.current_task)?);
        let number = |offset| read_guest(task, offset).map(i32::from_le_bytes);
        Some((number(settings.task_tgid)?, number(settings.task_pid)?))
    }
}
