//! One kdamond of our own, through sysfs and perf (kernel: `mm/damon/{core,sysfs,vaddr,paddr}.c`,
//! `include/trace/events/damon.h`). Never touches a kdamond that somebody else set up.

use crate::guardian::Guardian;
use crate::{PerfRing, Root, SysError, Tracepoint};
use terrace_types::{Nanos, Pid};

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// What addresses mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamonOps {
    /// Virtual; the kernel chooses and updates the regions unless some are given.
    Vaddr,
    /// Virtual; only the regions given.
    Fvaddr,
    /// Physical; only the regions given.
    Paddr,
}

impl DamonOps {
    const fn word(self) -> &'static str {
        match self {
            Self::Vaddr => "vaddr",
            Self::Fvaddr => "fvaddr",
            Self::Paddr => "paddr",
        }
    }
}

/// One address space to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamonTarget {
    /// Process; ignored for physical addresses.
    pub pid: Pid,
    /// First regions, in bytes, `[start, end)`, in order; may be empty for [`DamonOps::Vaddr`].
    pub regions: Vec<(u64, u64)>,
}

/// What a kdamond is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamonPlan {
    /// Kind of addresses.
    pub ops: DamonOps,
    /// What to watch.
    pub targets: Vec<DamonTarget>,
    /// Time between samples.
    pub sample: Nanos,
    /// Time between reports.
    pub aggregate: Nanos,
    /// Time between looks at the mappings.
    pub update: Nanos,
    /// Fewest regions (at least 3).
    pub min_regions: u64,
    /// Most regions.
    pub max_regions: u64,
    /// Report only regions with at least one hit.
    pub accessed_only: bool,
    /// Pages of the ring that carries the reports.
    pub ring_pages: usize,
}

/// One region in one report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSample {
    /// Target, as an index into the plan.
    pub target: u64,
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// Samples that found it accessed.
    pub hits: u32,
    /// Reports for which it has looked alike.
    pub age: u32,
}

/// Places of the fields in a report record.
#[derive(Debug, Clone, Copy)]
struct Fields {
    target: (usize, usize),
    start: (usize, usize),
    end: (usize, usize),
    hits: (usize, usize),
    age: (usize, usize),
}

impl Fields {
    fn of(point: &Tracepoint, target: &str) -> Option<Self> {
        Some(Self {
            target: point.field(target)?,
            start: point.field("start")?,
            end: point.field("end")?,
            hits: point.field("nr_accesses")?,
            age: point.field("age")?,
        })
    }

    fn read(&self, record: &[u8]) -> Option<RegionSample> {
        Some(RegionSample {
            target: Tracepoint::value(record, self.target)?,
            start: Tracepoint::value(record, self.start)?,
            end: Tracepoint::value(record, self.end)?,
            hits: Tracepoint::value(record, self.hits)? as u32,
            age: Tracepoint::value(record, self.age)? as u32,
        })
    }
}

/// A running kdamond that we started, and its guardian. Dropping it turns it off.
#[derive(Debug)]
pub struct DamonRun {
    root: Root,
    ring: PerfRing,
    fields: Fields,
    kdamond: Pid,
    guardian: Option<Guardian>,
    last_cpu: Nanos,
}

/// Whether somebody has a kdamond, running or set up.
///
/// # Errors
/// [`SysError::Absent`] without DAMON in sysfs.
pub(crate) fn taken(root: &Root) -> Result<bool, SysError> {
    let remedy = "boot a kernel with CONFIG_DAMON_SYSFS";
    let count = root.number(&format!("{ADMIN}/nr_kdamonds")).map_err(|e| match e {
        SysError::Absent { call, target, errno, .. } => {
            SysError::Absent { call, target, errno, remedy }
        }
        other => other,
    })?;
    let module = |name: &str| {
        root.text(&format!("/sys/module/{name}/parameters/enabled"))
            .is_ok_and(|t| t.trim().eq_ignore_ascii_case("y"))
    };
    Ok(count != 0 || module("damon_reclaim") || module("damon_lru_sort") || module("damon_stat"))
}

impl DamonRun {
    /// Starts a kdamond.
    ///
    /// # Errors
    /// [`SysError::NotPermitted`] without leave or while DAMON is somebody else's,
    /// [`SysError::Absent`] on a kernel without it.
    pub fn start(root: &Root, plan: &DamonPlan) -> Result<Self, SysError> {
        if taken(root)? {
            return Err(SysError::NotPermitted {
                call: "start a kdamond",
                target: ADMIN.to_owned(),
                errno: libc::EBUSY,
                remedy: "DAMON is in use by somebody else: stop that first, or do without",
            });
        }
        let (event, target) = if plan.accessed_only {
            ("damos_before_apply", "target_idx")
        } else {
            ("damon_aggregated", "target_id")
        };
        let point = Tracepoint::find(root, "damon", event)?;
        let fields = Fields::of(&point, target).ok_or(SysError::Malformed {
            target: event.to_owned(),
            what: "a field is missing",
            line: 0,
        })?;
        let file =
            |name: &str| root.path(&format!("{ADMIN}/{name}")).to_string_lossy().into_owned();
        let guardian = Guardian::watch(&[
            (file("0/state"), "off".to_owned()),
            (file("nr_kdamonds"), "0".to_owned()),
        ])?;
        let started = Self::set_up(root, plan)
            .and_then(|kdamond| Ok((kdamond, PerfRing::open(&point, kdamond, plan.ring_pages)?)));
        match started {
            Ok((kdamond, ring)) => Ok(Self {
                root: root.clone(),
                ring,
                fields,
                kdamond,
                guardian: Some(guardian),
                last_cpu: Nanos::ZERO,
            }),
            Err(e) => {
                turn_off(root);
                guardian.dismiss();
                Err(e)
            }
        }
    }

    fn set_up(root: &Root, plan: &DamonPlan) -> Result<Pid, SysError> {
        let put = |name: &str, value: &str| root.write(&format!("{ADMIN}/{name}"), value);
        let micros = |span: Nanos| (span.0 / 1000).max(1).to_string();
        put("nr_kdamonds", "1")?;
        put("0/contexts/nr_contexts", "1")?;
        put("0/contexts/0/operations", plan.ops.word())?;
        let attrs = "0/contexts/0/monitoring_attrs";
        put(&format!("{attrs}/intervals/sample_us"), &micros(plan.sample))?;
        put(&format!("{attrs}/intervals/aggr_us"), &micros(plan.aggregate))?;
        put(&format!("{attrs}/intervals/update_us"), &micros(plan.update))?;
        // The kernel refuses min above max at every step, so widen first.
        put(&format!("{attrs}/nr_regions/max"), &plan.max_regions.to_string())?;
        put(&format!("{attrs}/nr_regions/min"), &plan.min_regions.to_string())?;
        let targets = "0/contexts/0/targets";
        put(&format!("{targets}/nr_targets"), &plan.targets.len().to_string())?;
        for (at, target) in plan.targets.iter().enumerate() {
            if plan.ops != DamonOps::Paddr {
                put(&format!("{targets}/{at}/pid_target"), &target.pid.to_string())?;
            }
            let regions = format!("{targets}/{at}/regions");
            put(&format!("{regions}/nr_regions"), &target.regions.len().to_string())?;
            for (number, (start, end)) in target.regions.iter().enumerate() {
                put(&format!("{regions}/{number}/start"), &start.to_string())?;
                put(&format!("{regions}/{number}/end"), &end.to_string())?;
            }
        }
        if plan.accessed_only {
            let scheme = "0/contexts/0/schemes/0";
            put("0/contexts/0/schemes/nr_schemes", "1")?;
            put(&format!("{scheme}/action"), "stat")?;
            for (name, least) in [("sz", 0), ("nr_accesses", 1), ("age", 0)] {
                let most = if name == "sz" { u64::MAX } else { u64::from(u32::MAX) };
                let pattern = format!("{scheme}/access_pattern/{name}");
                put(&format!("{pattern}/max"), &most.to_string())?;
                put(&format!("{pattern}/min"), &least.to_string())?;
            }
        }
        put("0/state", "on")?;
        Ok(Pid(root.number(&format!("{ADMIN}/0/pid"))? as i32))
    }

    /// The kernel thread.
    #[must_use]
    pub const fn kdamond(&self) -> Pid {
        self.kdamond
    }

    /// Hands the waiting reports to `each`.
    pub fn drain(&mut self, mut each: impl FnMut(RegionSample)) {
        let fields = self.fields;
        self.ring.drain(|record| {
            if let Some(sample) = fields.read(record) {
                each(sample);
            }
        });
    }

    /// Reports lost so far.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.ring.lost()
    }

    /// Bytes of the ring.
    #[must_use]
    pub const fn ring_bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// CPU time the kernel thread has used.
    pub fn cpu(&mut self) -> Nanos {
        if let Ok(cpu) = crate::task::cpu_time(&self.root, self.kdamond) {
            self.last_cpu = cpu;
        }
        self.last_cpu
    }

    /// Whether the kernel thread still runs (it ends by itself when its target ends).
    #[must_use]
    pub fn running(&self) -> bool {
        self.root.text(&format!("{ADMIN}/0/state")).is_ok_and(|t| t.trim() == "on")
    }
}

fn turn_off(root: &Root) {
    // Off fails when it is off already; the count then still has to go back.
    let _already_off = root.write(&format!("{ADMIN}/0/state"), "off");
    let _nothing_to_give_back = root.write(&format!("{ADMIN}/nr_kdamonds"), "0");
}

impl Drop for DamonRun {
    fn drop(&mut self) {
        self.cpu();
        turn_off(&self.root);
        if let Some(guardian) = self.guardian.take() {
            guardian.dismiss();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> DamonPlan {
        DamonPlan {
            ops: DamonOps::Vaddr,
            targets: vec![DamonTarget { pid: Pid(1), regions: vec![] }],
            sample: Nanos::millis(5),
            aggregate: Nanos::millis(100),
            update: Nanos::secs(1),
            min_regions: 10,
            max_regions: 100,
            accessed_only: true,
            ring_pages: 8,
        }
    }

    #[test]
    fn a_kdamond_of_others_is_never_touched() {
        let dir = std::env::temp_dir().join(format!("terrace-damon-{}", std::process::id()));
        let admin = dir.join(&ADMIN[1..]);
        std::fs::create_dir_all(&admin).unwrap();
        std::fs::write(admin.join("nr_kdamonds"), "1\n").unwrap();
        let refused = DamonRun::start(&Root::with_prefix(&dir), &plan()).unwrap_err();
        assert!(matches!(refused, SysError::NotPermitted { .. }));
        assert_eq!(std::fs::read_to_string(admin.join("nr_kdamonds")).unwrap(), "1\n");
        std::fs::remove_dir_all(&dir).unwrap();
        let absent = DamonRun::start(&Root::with_prefix(&dir), &plan()).unwrap_err();
        assert!(matches!(absent, SysError::Absent { .. }));
    }
}
