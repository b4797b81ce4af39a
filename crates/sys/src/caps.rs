//! What this machine lets this user do, tried at run time and never guessed from a version.

use crate::{
    controllers, now, query_pages, zones, Category, Clear, ClearRefs, ControllerTraffic,
    KernelMemory, PageEntry, PageMap, PageTables, PerfRing, Root, SysError, Tracepoint,
};
use terrace_types::{NodeId, Pid, Vpn, VpnRange};

/// One thing the machine can or cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// Short name.
    pub name: &'static str,
    /// What Terrace uses it for, a few words.
    pub purpose: &'static str,
    /// Whether it works for this user, now.
    pub usable: bool,
    /// Why not; empty when usable.
    pub why_not: String,
    /// The one command that would help; none when usable or where no command does.
    pub remedy: Option<String>,
    /// Linux capabilities that this user lacks for it.
    lacks: Vec<&'static str>,
}

impl Capability {
    fn probed(name: &'static str, purpose: &'static str, tried: Tried) -> Self {
        let (why_not, remedy) = tried.err().unwrap_or_default();
        let (remedy, lacks) = match remedy {
            None => (None, Vec::new()),
            Some(Remedy::Run(command)) => (Some(command), Vec::new()),
            Some(Remedy::Grant(names)) => (None, names.split(',').collect()),
        };
        Self { name, purpose, usable: why_not.is_empty(), why_not, remedy, lacks }
    }

    /// Why not, and what to try, on one line.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.remedy {
            Some(command) => format!("{}; try: {command}", self.why_not),
            None => self.why_not.clone(),
        }
    }
}

/// Whether DAMON and its tracepoints are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamonProbe {
    /// In any case.
    Always,
    /// Only where page tables cannot be read. The kernel takes some 50 ms to attach a tracepoint,
    /// in which the command would wait.
    WithoutPageTables,
}

/// All that `terrace doctor` and the choice of trackers rest on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// DAMON can be started: in the kernel, ours to use, and readable through perf.
    pub damon: Capability,
    /// Tracepoints through `perf_event_open`.
    pub tracepoints: Capability,
    /// Soft-dirty bits are kept by this kernel.
    pub soft_dirty: Capability,
    /// `PAGEMAP_SCAN`.
    pub pagemap_scan: Capability,
    /// Frame numbers are shown in pagemap.
    pub frames: Capability,
    /// Page tables of others can be read (accessed bits page by page).
    pub page_tables: Capability,
    /// Pages can be moved.
    pub move_pages: Capability,
    /// More than one node has memory.
    pub tiers: Capability,
    /// Memory controllers tell what is written.
    pub write_counters: Capability,
    /// The kernel's own NUMA balancing keeps still.
    pub numa_balancing_quiet: Capability,
    /// Value of `kernel.numa_balancing`; `None` without it.
    pub numa_balancing: Option<u64>,
    /// Nodes with memory.
    pub nodes: Vec<NodeId>,
    /// Runs as root.
    pub root: bool,
}

impl Capabilities {
    /// Tries everything. Changes nothing but bits of this process's own pages.
    #[must_use]
    pub fn probe(root: &Root) -> Self {
        Self::probe_with(root, DamonProbe::Always)
    }

    /// As [`Capabilities::probe`], but for what `damon` leaves out.
    #[must_use]
    pub fn probe_with(root: &Root, damon_probe: DamonProbe) -> Self {
        // SAFETY: geteuid takes no argument, touches no memory and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let nodes = zones::nodes_with_memory(root);
        let numa_balancing = root.number("/proc/sys/kernel/numa_balancing").ok();
        let page_tables = page_tables(root);
        let (tracepoints, damon) = match damon_probe {
            DamonProbe::WithoutPageTables if page_tables.is_ok() => {
                let why = "not tried, for page tables can be read".to_owned();
                (Err((why.clone(), None)), Err((why, None)))
            }
            _ => damon_and_tracepoints(root),
        };
        let mut found = Self {
            damon: Capability::probed("damon", "reads and writes by region", damon),
            tracepoints: Capability::probed("tracepoints", "reading DAMON's reports", tracepoints),
            soft_dirty: Capability::probed("soft-dirty", "writes page by page", soft_dirty(root)),
            pagemap_scan: Capability::probed(
                "pagemap-scan",
                "fast page queries",
                pagemap_scan(root),
            ),
            frames: Capability::probed("frames", "where pages are, cheaply", frames(root)),
            page_tables: Capability::probed(
                "page-tables",
                "reads and writes page by page",
                page_tables,
            ),
            move_pages: Capability::probed("move-pages", "moving pages", move_pages()),
            tiers: Capability::probed("tiers", "somewhere to move to", tiers(&nodes)),
            write_counters: Capability::probed(
                "write-counters",
                "bytes written to a tier, counted",
                write_counters(root),
            ),
            numa_balancing_quiet: Capability::probed(
                "numa-balancing-off",
                "nobody else moves the same pages",
                balancing(numa_balancing),
            ),
            numa_balancing,
            nodes,
            root: is_root,
        };
        found.grant_together();
        found
    }

    /// `setcap` replaces what a file had, so that each remedy grants what all of them lack. Root
    /// that lacks a capability is confined, and no command of its own helps.
    fn grant_together(&mut self) {
        let mut names: Vec<&str> = self.all().iter().flat_map(|c| c.lacks.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let command = grant_command(&names);
        let root = self.root;
        for capability in self.all_mut().into_iter().filter(|c| !c.lacks.is_empty()) {
            if root {
                capability.why_not.push_str(", which this root is denied, as in a container");
            } else {
                capability.remedy = Some(command.clone());
            }
        }
    }

    /// One line for a shell that does all that root can do for this user; none where nothing is
    /// lacking that a command gives.
    #[must_use]
    pub fn grant_all(&self) -> Option<String> {
        let mut commands: Vec<&str> = Vec::new();
        for command in self.all().into_iter().filter_map(|c| c.remedy.as_deref()) {
            if command.starts_with("sudo ") && !commands.contains(&command) {
                commands.push(command);
            }
        }
        (!commands.is_empty()).then(|| commands.join(" && "))
    }

    fn all_mut(&mut self) -> [&mut Capability; 10] {
        [
            &mut self.tiers,
            &mut self.move_pages,
            &mut self.page_tables,
            &mut self.soft_dirty,
            &mut self.damon,
            &mut self.tracepoints,
            &mut self.pagemap_scan,
            &mut self.frames,
            &mut self.write_counters,
            &mut self.numa_balancing_quiet,
        ]
    }

    /// Every capability, in the order `doctor` prints them.
    #[must_use]
    pub fn all(&self) -> [&Capability; 10] {
        [
            &self.tiers,
            &self.move_pages,
            &self.page_tables,
            &self.soft_dirty,
            &self.damon,
            &self.tracepoints,
            &self.pagemap_scan,
            &self.frames,
            &self.write_counters,
            &self.numa_balancing_quiet,
        ]
    }
}

/// Worked, or why not and the command that would help.
type Tried = Result<(), (String, Option<Remedy>)>;

/// What would help.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Remedy {
    /// These Linux capabilities, separated by commas.
    Grant(&'static str),
    /// This command.
    Run(String),
}

const MOUNT_TRACING: &str = "sudo mount -t tracefs nodev /sys/kernel/tracing";

/// Gives the running program these capabilities, so that the command it runs need not be root's.
fn grant_command(capabilities: &[&str]) -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| "terrace".into());
    let program = program.to_string_lossy().replace('\'', r"'\''");
    format!("sudo setcap {}+ep '{program}'", capabilities.join(","))
}

/// Why not, with the capabilities that are missing where the kernel refuses this user, and with
/// what kernel it takes where this one has no such thing: no command helps then.
fn said(error: &SysError, capabilities: &'static str, kernel: &str) -> (String, Option<Remedy>) {
    match error {
        filtered if filtered.may_be_filtered() => (filtered.to_string(), None),
        SysError::NotPermitted { call, target, errno, .. } => {
            let names = capabilities.to_uppercase().replace(',', ", ");
            let why = format!(
                "{call} on {target} is not permitted (errno {errno}); it takes \
                {names}"
            );
            (why, Some(Remedy::Grant(capabilities)))
        }
        SysError::Absent { call, target, errno, .. } => (
            format!(
                "{call} on {target}: this kernel offers no such thing (errno {errno}); it \
                takes {kernel}"
            ),
            None,
        ),
        _ => (error.to_string(), None),
    }
}

fn me() -> Pid {
    Pid(std::process::id() as i32)
}

/// Four touched pages of our own; keeps them alive while `with` runs.
fn with_pages<T>(with: impl FnOnce(VpnRange, &mut [u8]) -> T) -> T {
    let page = crate::page_size().get() as usize;
    let mut memory = vec![1_u8; 5 * page];
    let first = (memory.as_ptr() as u64).div_ceil(page as u64);
    with(VpnRange::new(Vpn(first), Vpn(first + 4)), &mut memory)
}

fn tracepoints(root: &Root) -> Tried {
    let kernel = "a kernel with tracepoints and a mounted tracefs";
    let mounted = root.path("/sys/kernel/tracing/events").exists();
    let point = Tracepoint::find(root, "damon", "damon_aggregated")
        .or_else(|_| Tracepoint::find(root, "sched", "sched_switch"))
        .map_err(|e| {
            let (why, command) = said(&e, "cap_dac_read_search,cap_perfmon", kernel);
            let hidden = matches!(e, SysError::Absent { .. })
                && !mounted
                && root.path("/sys/kernel/tracing").exists();
            (why, if hidden { Some(Remedy::Run(MOUNT_TRACING.to_owned())) } else { command })
        })?;
    PerfRing::open(&point, Pid(0), 1)
        .map(|_| ())
        .map_err(|e| said(&e, "cap_perfmon", "a kernel with perf events"))
}

fn damon_and_tracepoints(root: &Root) -> (Tried, Tried) {
    let tracepoints = tracepoints(root);
    let damon = damon(root, &tracepoints);
    (tracepoints, damon)
}

/// Whether DAMON can be started, tried now.
#[must_use]
pub fn damon_is_usable(root: &Root) -> bool {
    damon_and_tracepoints(root).1.is_ok()
}

fn damon(root: &Root, tracepoints: &Tried) -> Tried {
    let kernel = "a kernel with CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR";
    let capabilities = "cap_dac_override,cap_dac_read_search,cap_perfmon";
    if crate::damon::taken(root).map_err(|e| said(&e, capabilities, kernel))? {
        let whose = "somebody else has a kdamond set up, and it is left alone; free it with the \
            tool that made it";
        return Err((whose.to_owned(), None));
    }
    let path = root.path("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds");
    std::fs::OpenOptions::new().write(true).open(&path).map_err(|e| {
        let error = SysError::from_io("open", path.to_string_lossy(), &e, "run as root");
        said(&error, capabilities, kernel)
    })?;
    tracepoints.clone()
}

fn soft_dirty(root: &Root) -> Tried {
    let kernel = "a kernel with CONFIG_MEM_SOFT_DIRTY";
    let bits = |map: &PageMap, range| -> Result<Vec<bool>, SysError> {
        let mut entries: Vec<PageEntry> = Vec::new();
        map.read(range, &mut entries)?;
        Ok(entries.into_iter().map(PageEntry::soft_dirty).collect())
    };
    let tried = with_pages(|range, memory| -> Result<bool, SysError> {
        let map = PageMap::open(root, me())?;
        ClearRefs::open(root, me())?.clear(Clear::SoftDirty)?;
        let clean = bits(&map, range)?;
        let page = crate::page_size().get();
        let second = ((range.start.0 + 1) * page - memory.as_ptr() as u64) as usize;
        // SAFETY: `second` lies inside `memory`, one page after its first whole page.
        unsafe { memory.as_mut_ptr().add(second).write_volatile(2) };
        let after = bits(&map, range)?;
        Ok(!clean[1] && after[1] && !after[2])
    });
    match tried {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err((format!("this kernel keeps no soft-dirty bits; it takes {kernel}"), None))
        }
        Err(e) => Err(said(&e, "cap_dac_override", kernel)),
    }
}

fn pagemap_scan(root: &Root) -> Tried {
    with_pages(|range, _| {
        let mut pages = 0;
        PageMap::open(root, me())?
            .scan(range, Category::PRESENT, Category::PRESENT, |r, _| pages += r.len())?;
        Ok(pages)
    })
    .map(|_: u64| ())
    .map_err(|e: SysError| said(&e, "cap_dac_read_search", "Linux 6.7 or later"))
}

fn frames(root: &Root) -> Tried {
    let reported =
        |e: SysError| said(&e, "cap_sys_admin", "a kernel with CONFIG_PROC_PAGE_MONITOR");
    let shown = with_pages(|range, _| {
        let mut entries = Vec::new();
        PageMap::open(root, me())?.read(range, &mut entries)?;
        Ok(entries.iter().any(|e: &PageEntry| e.pfn() != 0))
    })
    .map_err(reported)?;
    if !shown {
        let hidden = "frame numbers are hidden from this user; it takes CAP_SYS_ADMIN";
        return Err((hidden.to_owned(), Some(Remedy::Grant("cap_sys_admin"))));
    }
    let zones = zones::zones(root).map_err(reported)?;
    if zones::FrameMap::new(&zones).usable() {
        Ok(())
    } else {
        Err(("the nodes' frames interleave".to_owned(), None))
    }
}

/// A page of our own, found by its frame in kernel memory: then tables can be read there too.
fn page_tables(root: &Root) -> Tried {
    let capabilities = "cap_sys_rawio,cap_dac_read_search,cap_sys_admin";
    let reported = |e: SysError| {
        said(&e, capabilities, "a kernel with CONFIG_PROC_KCORE that is not locked down")
    };
    PageTables::check_processor().map_err(reported)?;
    let memory = KernelMemory::open(root).map_err(reported)?;
    with_pages(|range, pages| {
        let mark = (now().0 | 1).to_ne_bytes();
        let first = (range.start.0 * crate::page_size().get() - pages.as_ptr() as u64) as usize;
        pages[first..first + 8].copy_from_slice(&mark);
        let mut entries: Vec<PageEntry> = Vec::new();
        PageMap::open(root, me())?.read(range, &mut entries)?;
        let mut words = [0_u64; 512];
        let pfn = entries.first().map_or(0, |e| e.pfn());
        Ok(pfn != 0 && memory.read_frame(pfn, &mut words) && words[0].to_ne_bytes() == mark)
    })
    .map_err(reported)
    .and_then(|found| {
        let why = "kernel memory does not show the frames that pagemap tells; it takes \
            CAP_SYS_ADMIN and CAP_SYS_RAWIO";
        found.then_some(()).ok_or((why.to_owned(), Some(Remedy::Grant(capabilities))))
    })
}

/// Whether pages can be moved. Since Linux 4.13 the call asks for leave to look at the process
/// (`PTRACE_MODE_READ_REALCREDS` in `mm/migrate.c`), which the owner has; CAP_SYS_NICE is needed
/// only to move pages that others share, which is never asked for. So trying it on ourselves tells.
fn move_pages() -> Tried {
    with_pages(|range, _| query_pages(me(), &[range.start]).map(|_| ()))
        .map_err(|e| said(&e, "cap_sys_nice", "a kernel with CONFIG_MIGRATION and CONFIG_NUMA"))
}

fn write_counters(root: &Root) -> Tried {
    let found = controllers(root, ControllerTraffic::DramWrites);
    let Some((controller, cpu)) = found.first().and_then(|c| Some((c, *c.cpus.first()?))) else {
        let none =
            "no memory controller here shows what it writes (uncore_imc), so that it is estimated \
                from page heat";
        return Err((none.to_owned(), None));
    };
    controller
        .open(cpu)
        .map(|_| ())
        .map_err(|e| said(&e, "cap_perfmon", "a kernel with perf events"))
}

fn tiers(nodes: &[NodeId]) -> Tried {
    if nodes.len() > 1 {
        return Ok(());
    }
    Err((
        "only one memory node; machines with several can be simulated".to_owned(),
        Some(Remedy::Run(
            "terrace sim --machine lab-cxl --policy first-touch,terrace --workload skew,accesses=8M"
                .to_owned(),
        )),
    ))
}

fn balancing(value: Option<u64>) -> Tried {
    match value {
        Some(v) if v != 0 => Err((
            format!("kernel.numa_balancing is {v}: the kernel moves pages too"),
            Some(Remedy::Run("sudo sysctl -w kernel.numa_balancing=0".to_owned())),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_grants_all_and_none_takes_away_what_another_gave() {
        let mut found = Capabilities::probe(&Root::live());
        found.root = false;
        let lacking = |name, names| Capability::probed(name, "", Err(("no".into(), Some(names))));
        found.frames = lacking("frames", Remedy::Grant("cap_sys_admin"));
        found.damon = lacking("damon", Remedy::Grant("cap_perfmon,cap_dac_override"));
        found.tracepoints = lacking("tracepoints", Remedy::Run(MOUNT_TRACING.into()));
        found.grant_together();
        let command = found.frames.remedy.clone().expect("a command");
        assert_eq!(found.damon.remedy.as_ref(), Some(&command));
        for name in ["cap_sys_admin", "cap_perfmon", "cap_dac_override"] {
            assert_eq!(command.matches(name).count(), 1, "{command}");
        }
        let all = found.grant_all().expect("one line");
        assert!(all.contains(&command) && all.contains(MOUNT_TRACING), "{all}");
        assert_eq!(all.matches("setcap").count(), 1, "{all}");
    }

    #[test]
    fn each_capability_is_usable_or_says_why() {
        let found = Capabilities::probe(&Root::live());
        for capability in found.all() {
            assert_eq!(capability.usable, capability.why_not.is_empty());
            assert!(!capability.usable || capability.remedy.is_none());
            is_a_command(capability);
            println!("{}: {} {}", capability.name, capability.usable, capability.why_not);
        }
        assert!(!found.nodes.is_empty());
    }

    /// Somebody may paste it into a shell.
    fn is_a_command(of: &Capability) {
        let Some(command) = &of.remedy else { return };
        let word = command.split(' ').next().unwrap_or_default();
        assert!(
            ["sudo", "terrace"].contains(&word) && !command.contains("..."),
            "{}: {command}",
            of.name
        );
    }

    #[test]
    fn a_refusal_names_the_capability_and_a_missing_kernel_feature_no_command() {
        let error = |errno| SysError::from_errno("open", "nr_kdamonds", errno, "run as root");
        let (why, command) =
            said(&error(libc::EACCES), "cap_perfmon,cap_sys_admin", "CONFIG_DAMON");
        assert!(why.contains("CAP_PERFMON, CAP_SYS_ADMIN") && !why.contains("CONFIG"), "{why}");
        assert_eq!(command, Some(Remedy::Grant("cap_perfmon,cap_sys_admin")));
        let command = grant_command(&["cap_perfmon", "cap_sys_admin"]);
        assert!(command.starts_with("sudo setcap cap_perfmon,cap_sys_admin+ep '/"), "{command}");
        let (why, command) = said(&error(libc::ENOENT), "cap_perfmon", "CONFIG_DAMON");
        assert!(why.contains("CONFIG_DAMON") && !why.contains("CAP_"), "{why}");
        assert_eq!(command, None);
    }

    #[test]
    fn damon_is_tried_where_page_tables_cannot_be_read() {
        let nowhere = Root::with_prefix("/nonexistent");
        let [all, few] = [DamonProbe::Always, DamonProbe::WithoutPageTables]
            .map(|damon| Capabilities::probe_with(&nowhere, damon));
        assert_eq!(all.damon, few.damon, "no page tables there");
        let here = Capabilities::probe_with(&Root::live(), DamonProbe::WithoutPageTables);
        let tried = !here.damon.why_not.contains("not tried");
        assert_eq!(tried, !here.page_tables.usable);
        assert!(here.page_tables.usable || !here.tracepoints.why_not.contains("not tried"));
    }

    #[test]
    fn an_empty_tree_has_nothing_and_nothing_panics() {
        let found = Capabilities::probe(&Root::with_prefix("/nonexistent"));
        assert!(!found.damon.usable && !found.page_tables.usable && !found.soft_dirty.usable);
    }
}
