//! The table of what can be compared: for each name, what is set up in the guest. Pure data,
//! published with results.
//!
//! A name may carry options, each after a plus sign: `kernel:damos+quota_mb=0+hot_min=2`. The
//! options of a policy and their defaults are in its row; the grid from which tuned settings were
//! chosen is [`damos_grid`] and [`balancing_grid`].

use crate::error::{LabError, Result};
use crate::shape::Shape;
use crate::wire::{AtMark, MemoryPolicy, Reclaim, Setting};
use terrace_types::{BaselineId, Contender, PolicyId};

const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const DEMOTION: &str = "/sys/kernel/mm/numa/demotion_enabled";
const BALANCING_DEBUG: &str = "/sys/kernel/debug/sched/numa_balancing";
const WEIGHTS: &str = "/sys/kernel/mm/mempolicy/weighted_interleave";
const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const MPOL_BIND: i32 = 2;
const MPOL_WEIGHTED_INTERLEAVE: i32 = 6;
/// DAMON leaves the first MiB (legacy holes) alone.
const FIRST_MIB: u64 = 1 << 20;

/// Whether the lab can run it.
#[must_use]
pub fn runs_in_lab(contender: &Contender) -> bool {
    match contender {
        Contender::Policy(_) => true,
        // Nobody in a real machine knows which pages will be accessed next.
        Contender::Baseline(id) => *id != BaselineId::Clairvoyant,
        Contender::FarStore(_) | Contender::Custom(_) => false,
    }
}

/// Who moves pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageMover {
    /// Nobody, or the kernel by itself.
    Kernel,
    /// `terrace run --policy` around the command.
    Terrace {
        /// The policy.
        policy: PolicyId,
        /// Which trackers, for `--tracker`; `None`: the usual ones.
        tracker: Option<String>,
        /// Its parameters, `NAME=VALUE` each, for `--set`.
        set: Vec<String>,
    },
    /// The guest's agent, once, at the workload's mark, by a profile taken before.
    Agent,
}

/// How one policy is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicySetup {
    /// The name as asked, with its options.
    pub name: String,
    /// What it names.
    pub contender: Contender,
    /// Who acts.
    pub actor: PageMover,
    /// Written before the command starts.
    pub before: Vec<Setting>,
    /// Written after it ended.
    pub after: Vec<Setting>,
    /// Memory policy of the command.
    pub memory_policy: Option<MemoryPolicy>,
    /// At the workload's mark.
    pub at_mark: AtMark,
    /// While it runs.
    pub reclaim: Option<Reclaim>,
    /// Kernel threads whose processor time is overhead.
    pub cpu_of: Vec<String>,
    /// Files brought back for the account.
    pub fetch: Vec<String>,
    /// Arguments for the timing plugin.
    pub plugin: Vec<(String, String)>,
    /// What a reader has to know to repeat it.
    pub settings: Vec<(String, String)>,
}

/// Look a policy up and set its options.
pub fn plan(name: &str, shape: &Shape) -> Result<PolicySetup> {
    let mut words = name.split('+');
    let base = words.next().unwrap_or_default();
    let mut options = Options::parse(name, words)?;
    let contender: Contender = base.parse().map_err(|_| unknown(name))?;
    let mut plan = PolicySetup {
        name: name.to_string(),
        contender: contender.clone(),
        actor: PageMover::Kernel,
        before: vec![set(NUMA_BALANCING, "0"), optional(DEMOTION, "0")],
        after: Vec::new(),
        memory_policy: None,
        at_mark: AtMark::Nothing,
        reclaim: None,
        cpu_of: Vec::new(),
        fetch: Vec::new(),
        plugin: Vec::new(),
        settings: Vec::new(),
    };
    match contender {
        Contender::Policy(PolicyId::FirstTouch) => {}
        Contender::Policy(policy) => {
            plan.settings.clone_from(&options.left);
            let tracker = options.take_text("tracker");
            // Which parameters a policy has is not for the lab to judge.
            let pairs = options.left.drain(..).map(|(key, value)| format!("{key}={value}"));
            plan.actor = PageMover::Terrace { policy, tracker, set: pairs.collect() };
            plan.cpu_of.push("kdamond".into());
        }
        Contender::Baseline(id) => set_baseline(&mut plan, id, shape, &mut options)?,
        Contender::FarStore(_) | Contender::Custom(_) => return Err(unknown(name)),
    }
    options.all_used(name)?;
    let written = plan.before.iter().map(|s| (s.path.clone(), s.value.clone()));
    plan.settings = written.chain(std::mem::take(&mut plan.settings)).collect();
    let modes = plan
        .memory_policy
        .iter()
        .map(|p| ("set_mempolicy".to_string(), format!("{} {:?}", p.mode, p.nodes)));
    plan.settings.extend(modes);
    plan.settings.extend(plan.plugin.iter().cloned());
    Ok(plan)
}

/// Sets up what policies are compared with.
fn set_baseline(
    plan: &mut PolicySetup,
    id: BaselineId,
    shape: &Shape,
    options: &mut Options,
) -> Result<()> {
    match id {
        BaselineId::KernelNumaBalancing => balancing(plan, &[]),
        BaselineId::KernelNumaBalancingTuned => {
            let tuned = BALANCING_DEFAULTS.map(|(key, value)| (key, options.take(key, value)));
            balancing(plan, &tuned);
        }
        BaselineId::KernelDamos => damos(plan, shape, options, &DAMOS_DEFAULTS)?,
        BaselineId::KernelDamosTuned => damos(plan, shape, options, &DAMOS_TUNED)?,
        BaselineId::KernelReclaim => reclaim(plan, shape, options),
        BaselineId::KernelWeightedInterleave => weighted_interleave(plan, shape, options),
        BaselineId::MemoryMode => {
            plan.memory_policy = Some(MemoryPolicy { mode: MPOL_BIND, nodes: vec![shape.slow] });
            plan.plugin.push(("memory_mode".into(), "on".into()));
        }
        BaselineId::AllFast => plan.plugin.push(("all_fast".into(), "on".into())),
        BaselineId::IdealMove | BaselineId::StaticPlacement => {
            let reserve_pages = options.take("reserve_pages", 64);
            let counts = id == BaselineId::IdealMove;
            plan.at_mark =
                AtMark::Place { fast: shape.fast, slow: shape.slow, reserve_pages, counts };
            plan.actor = PageMover::Agent;
            plan.settings.push(("reserve_pages".into(), reserve_pages.to_string()));
        }
        BaselineId::Clairvoyant => return Err(unknown(&plan.name)),
    }
    Ok(())
}

const BALANCING_DEFAULTS: [(&str, u64); 3] =
    [("scan_size_mb", 1024), ("scan_period_min_ms", 100), ("scan_period_max_ms", 1000)];

/// The grid for the tuned NUMA balancing: the scan size of the rule, and its periods.
#[must_use]
pub fn balancing_grid() -> Vec<String> {
    let mut out = Vec::new();
    for size in [256, 1024] {
        for (min, max) in [(100, 1000), (100, 100), (1000, 1000)] {
            out.push(format!(
                "kernel:numa-balancing-tuned+scan_size_mb={size}+scan_period_min_ms={min}+scan_period_max_ms={max}"
            ));
        }
    }
    out
}

fn balancing(plan: &mut PolicySetup, tuned: &[(&str, u64)]) {
    plan.before = vec![set(DEMOTION, "1")];
    plan.before.extend(
        tuned
            .iter()
            .map(|(key, value)| set(&format!("{BALANCING_DEBUG}/{key}"), &value.to_string())),
    );
    plan.before.push(set(NUMA_BALANCING, "2"));
    plan.cpu_of.push("kswapd".into());
}

/// NUMA balancing as stock, with demotion, promotes; beside it the agent has a little of the
/// command's memory reclaimed whenever the fast node is short of free memory, before kswapd would:
/// what is reclaimed is demoted.
fn reclaim(plan: &mut PolicySetup, shape: &Shape, options: &mut Options) {
    let promote = options.take("promote", 1);
    let free_mb = options.take("free_mb", 8);
    let step_mb = options.take("step_mb", 4);
    let period_ms = options.take("period_ms", 50).max(1);
    if promote == 0 {
        plan.before = vec![set(NUMA_BALANCING, "0"), set(DEMOTION, "1")];
    } else {
        balancing(plan, &[]);
    }
    plan.reclaim = Some(Reclaim {
        node: shape.fast,
        free_bytes: free_mb << 20,
        step_bytes: step_mb << 20,
        period_nanos: period_ms * 1_000_000,
    });
    for (key, value) in [("free_mb", free_mb), ("step_mb", step_mb), ("period_ms", period_ms)] {
        plan.settings.push((format!("memory.reclaim {key}"), value.to_string()));
    }
}

/// Weights in the ratio of the nodes' read bandwidths, the slowest node at least one.
fn weighted_interleave(plan: &mut PolicySetup, shape: &Shape, options: &mut Options) {
    let rates: Vec<(u32, u64)> = shape
        .nodes
        .iter()
        .map(|n| (n.id, shape.link_to(n.id).map_or(1, |l| l.read_bandwidth).max(1)))
        .collect();
    let least = rates.iter().map(|r| r.1).min().unwrap_or(1);
    for (node, rate) in &rates {
        let by_bandwidth = ((rate + least / 2) / least).clamp(1, 255);
        let weight = options.take(&format!("node{node}"), by_bandwidth);
        plan.before.push(set(&format!("{WEIGHTS}/node{node}"), &weight.to_string()));
    }
    let nodes = rates.iter().map(|r| r.0).collect();
    plan.memory_policy = Some(MemoryPolicy { mode: MPOL_WEIGHTED_INTERLEAVE, nodes });
}

/// The grid for DAMOS: quota (MiB a second, 0 is none), hot threshold (accesses in an aggregation),
/// age of the cold; and, where the quota picks the coldest first, how many accesses the cold may
/// have.
#[must_use]
pub fn damos_grid() -> Vec<String> {
    let mut out = Vec::new();
    for quota in [200, 0] {
        for hot in [2, 5] {
            for cold in [1, 5] {
                out.push(format!("kernel:damos+quota_mb={quota}+hot_min={hot}+cold_age={cold}"));
            }
        }
    }
    for quota in [200, 50] {
        for cold_max in [4, 10] {
            out.push(format!(
                "kernel:damos+quota_mb={quota}+hot_min=5+cold_age=1+cold_max={cold_max}"
            ));
        }
    }
    out
}

/// Quota (MiB a second), hot threshold, age of the cold, accesses that the cold may have in an
/// aggregation.
type DamosSettings = [(&'static str, u64); 4];
const DAMOS_DEFAULTS: DamosSettings =
    [("quota_mb", 200), ("hot_min", 5), ("cold_age", 1), ("cold_max", 0)];
/// The best row of [`damos_grid`] of those measured so far, by the rule in docs/results/peers.md.
const DAMOS_TUNED: DamosSettings =
    [("quota_mb", 50), ("hot_min", 5), ("cold_age", 1), ("cold_max", 10)];

/// Two kdamonds on physical addresses: one promotes what is hot on the slow node, one demotes what
/// is cold on the fast.
fn damos(
    plan: &mut PolicySetup,
    shape: &Shape,
    options: &mut Options,
    defaults: &DamosSettings,
) -> Result<()> {
    let sample = options.take("sample_us", 5_000);
    let aggregate = options.take("aggr_us", 100_000);
    let update = options.take("update_us", 1_000_000);
    let [quota, hot_min, cold_age, cold_max] =
        defaults.map(|(key, value)| options.take(key, value));
    let regions = (options.take("regions_min", 100), options.take("regions_max", 500));
    let put =
        |plan: &mut PolicySetup, path: String, value: String| plan.before.push(set(&path, &value));
    put(plan, format!("{KDAMONDS}/nr_kdamonds"), "2".into());
    for (index, hot) in [(0, true), (1, false)] {
        let (watched, target) =
            if hot { (shape.slow, shape.fast) } else { (shape.fast, shape.slow) };
        let context = format!("{KDAMONDS}/{index}/contexts/0");
        let scheme = format!("{context}/schemes/0");
        let max = u64::MAX;
        // (accesses, age) of what the scheme acts on.
        let (accesses, age) =
            if hot { ((hot_min, 1000), (0, max)) } else { ((0, cold_max), (cold_age, max)) };
        let mut rows: Vec<(String, String)> = vec![
            (format!("{KDAMONDS}/{index}/contexts/nr_contexts"), "1".into()),
            (format!("{context}/operations"), "paddr".into()),
            (format!("{context}/targets/nr_targets"), "1".into()),
        ];
        rows.extend(region_rows(&context, shape, watched)?);
        for (name, value) in [("sample_us", sample), ("aggr_us", aggregate), ("update_us", update)]
        {
            rows.push((format!("{context}/monitoring_attrs/intervals/{name}"), value.to_string()));
        }
        rows.push((format!("{context}/monitoring_attrs/nr_regions/min"), regions.0.to_string()));
        rows.push((format!("{context}/monitoring_attrs/nr_regions/max"), regions.1.to_string()));
        rows.push((format!("{context}/schemes/nr_schemes"), "1".into()));
        rows.push((
            format!("{scheme}/action"),
            if hot { "migrate_hot" } else { "migrate_cold" }.into(),
        ));
        rows.push((format!("{scheme}/target_nid"), target.to_string()));
        for (name, (low, high)) in [("sz", (4096, max)), ("nr_accesses", accesses), ("age", age)] {
            rows.push((format!("{scheme}/access_pattern/{name}/max"), high.to_string()));
            rows.push((format!("{scheme}/access_pattern/{name}/min"), low.to_string()));
        }
        if quota > 0 {
            rows.push((format!("{scheme}/quotas/bytes"), (quota << 20).to_string()));
            rows.push((format!("{scheme}/quotas/reset_interval_ms"), "1000".into()));
        }
        for (name, value) in [("sz", 0), ("nr_accesses", 900), ("age", 100)] {
            rows.push((format!("{scheme}/quotas/weights/{name}_permil"), value.to_string()));
        }
        rows.push((format!("{KDAMONDS}/{index}/state"), "on".into()));
        rows.into_iter().for_each(|(path, value)| put(plan, path, value));
        plan.after.push(optional(&format!("{KDAMONDS}/{index}/state"), "update_schemes_stats"));
        plan.fetch.push(damos_applied_file(index));
    }
    plan.cpu_of.push("kdamond".into());
    Ok(())
}

/// Where DAMOS tells how many bytes a scheme moved; scheme 0 promotes, scheme 1 demotes.
#[must_use]
pub fn damos_applied_file(index: u32) -> String {
    format!("{KDAMONDS}/{index}/contexts/0/schemes/0/stats/sz_applied")
}

fn region_rows(context: &str, shape: &Shape, node: u32) -> Result<Vec<(String, String)>> {
    let owner = shape.nodes.iter().find(|n| n.id == node);
    let ranges: Vec<_> = owner.map(|n| n.physical.clone()).unwrap_or_default();
    if ranges.is_empty() {
        return Err(LabError::Machine {
            name: shape.name.clone(),
            why: format!("node {node} has no addresses"),
        });
    }
    let regions = format!("{context}/targets/0/regions");
    let mut rows = vec![(format!("{regions}/nr_regions"), ranges.len().to_string())];
    for (i, range) in ranges.iter().enumerate() {
        rows.push((format!("{regions}/{i}/start"), range.start.max(FIRST_MIB).to_string()));
        rows.push((format!("{regions}/{i}/end"), range.end.to_string()));
    }
    Ok(rows)
}

fn set(path: &str, value: &str) -> Setting {
    Setting { path: path.into(), value: value.into(), required: true }
}

fn optional(path: &str, value: &str) -> Setting {
    Setting { path: path.into(), value: value.into(), required: false }
}

fn unknown(name: &str) -> LabError {
    let known: Vec<String> = Contender::all().filter(runs_in_lab).map(|c| c.to_string()).collect();
    LabError::UnknownPolicy { name: name.to_string(), known: known.join(", ") }
}

/// `key=value` options of a name; each must be used.
struct Options {
    left: Vec<(String, String)>,
    numbers_only: Vec<(String, u64)>,
}

impl Options {
    fn parse<'a>(name: &str, words: impl Iterator<Item = &'a str>) -> Result<Self> {
        let mut left = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| unknown(name))?;
            left.push((key.to_string(), value.to_string()));
        }
        let numbers_only = left
            .iter()
            .filter_map(|(k, v): &(String, String)| Some((k.clone(), v.parse().ok()?)))
            .collect();
        Ok(Options { left, numbers_only })
    }

    fn take(&mut self, key: &str, default: u64) -> u64 {
        let found = self.numbers_only.iter().find(|(k, _)| k == key).map(|(_, v)| *v);
        if found.is_some() {
            self.left.retain(|(k, _)| k != key);
        }
        found.unwrap_or(default)
    }

    fn take_text(&mut self, key: &str) -> Option<String> {
        let at = self.left.iter().position(|(k, _)| k == key)?;
        Some(self.left.remove(at).1)
    }

    fn all_used(&self, name: &str) -> Result<()> {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(unknown(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape::from_machine(&terrace_machine::preset("lab-cxl").unwrap(), None).unwrap()
    }

    fn value<'a>(plan: &'a PolicySetup, path: &str) -> Option<&'a str> {
        plan.before.iter().find(|s| s.path == path).map(|s| s.value.as_str())
    }

    #[test]
    fn every_name_has_a_plan_that_publishes_its_settings() {
        for contender in Contender::all() {
            let name = contender.to_string();
            let planned = plan(&name, &shape());
            assert_eq!(planned.is_ok(), runs_in_lab(&contender), "{name}");
            let Ok(p) = planned else { continue };
            assert_eq!((&p.name, &p.contender), (&name, &contender));
            assert!(p
                .before
                .iter()
                .all(|s| p.settings.contains(&(s.path.clone(), s.value.clone()))));
        }
        assert!(matches!(plan("kernel:magic", &shape()), Err(LabError::UnknownPolicy { .. })));
    }

    #[test]
    fn balancing_is_stock_or_tuned() {
        let stock = plan("kernel:numa-balancing", &shape()).unwrap();
        assert_eq!(value(&stock, NUMA_BALANCING), Some("2"));
        assert_eq!(stock.before.len(), 2);
        let tuned = plan("kernel:numa-balancing-tuned+scan_size_mb=256", &shape()).unwrap();
        assert_eq!(value(&tuned, &format!("{BALANCING_DEBUG}/scan_size_mb")), Some("256"));
        assert_eq!(value(&tuned, &format!("{BALANCING_DEBUG}/scan_period_min_ms")), Some("100"));
    }

    #[test]
    fn weights_follow_bandwidth() {
        let p = plan("kernel:weighted-interleave", &shape()).unwrap();
        assert_eq!(value(&p, &format!("{WEIGHTS}/node0")), Some("5"));
        assert_eq!(value(&p, &format!("{WEIGHTS}/node1")), Some("1"));
        assert_eq!(p.memory_policy, Some(MemoryPolicy { mode: 6, nodes: vec![0, 1] }));
    }

    #[test]
    fn damos_watches_physical_ranges() {
        let p = plan("kernel:damos", &shape()).unwrap();
        let at = |i: u32, end: &str| {
            value(&p, &format!("{KDAMONDS}/{i}/contexts/0/targets/0/regions/0/{end}"))
        };
        assert_eq!((at(0, "start"), at(0, "end")), (Some("201326592"), Some("1275068416")));
        assert_eq!((at(1, "start"), at(1, "end")), (Some("1048576"), Some("201326592")));
        let cold = |p: &PolicySetup| {
            value(p, &format!("{KDAMONDS}/1/contexts/0/schemes/0/access_pattern/nr_accesses/max"))
                .map(str::to_string)
        };
        assert_eq!(cold(&p).as_deref(), Some("0"));
        assert_eq!(cold(&plan("kernel:damos+cold_max=4", &shape()).unwrap()).as_deref(), Some("4"));
        assert!(plan("kernel:damos+quota_mb=0", &shape()).unwrap().before.len() < p.before.len());
    }

    #[test]
    fn reclaim_keeps_space_for_promotions() {
        let p = plan("kernel:reclaim+period_ms=20", &shape()).unwrap();
        assert_eq!((value(&p, NUMA_BALANCING), value(&p, DEMOTION)), (Some("2"), Some("1")));
        let wanted =
            Reclaim { node: 0, free_bytes: 8 << 20, step_bytes: 4 << 20, period_nanos: 20_000_000 };
        assert_eq!(p.reclaim, Some(wanted));
        assert!(p.settings.contains(&("memory.reclaim period_ms".into(), "20".into())));
        let alone = plan("kernel:reclaim+promote=0", &shape()).unwrap();
        assert_eq!(
            (value(&alone, NUMA_BALANCING), value(&alone, DEMOTION)),
            (Some("0"), Some("1"))
        );
        let reclaims = |c: &Contender| {
            runs_in_lab(c) && plan(&c.to_string(), &shape()).unwrap().reclaim.is_some()
        };
        assert!(Contender::all().filter(reclaims).eq([BaselineId::KernelReclaim.into()]));
        assert!(plan("kernel:reclaim+step=1", &shape()).is_err());
    }

    #[test]
    fn the_static_bound_differs_from_the_ideal_move_only_in_what_counts() {
        let [moved, still] =
            ["bound:ideal-move", "bound:static"].map(|n| plan(n, &shape()).unwrap());
        assert_eq!(
            (&moved.before, &moved.plugin, &moved.actor),
            (&still.before, &still.plugin, &still.actor)
        );
        let at_mark = |counts| AtMark::Place { fast: 0, slow: 1, reserve_pages: 64, counts };
        assert_eq!((moved.at_mark, still.at_mark), (at_mark(true), at_mark(false)));
    }

    #[test]
    fn parameters_of_ours_are_passed_on() {
        let p = plan("terrace+least_evidence=2", &shape()).unwrap();
        let set = vec!["least_evidence=2".to_string()];
        let (policy, tracker) = (PolicyId::Terrace, None);
        assert_eq!(p.actor, PageMover::Terrace { policy, tracker, set: set.clone() });
        assert_eq!(p.settings.last(), Some(&("least_evidence".into(), "2".into())));
        let p = plan("terrace+tracker=damon+least_evidence=2", &shape()).unwrap();
        let tracker = Some("damon".to_string());
        assert_eq!(p.actor, PageMover::Terrace { policy, tracker, set });
        assert!(p.settings.contains(&("tracker".into(), "damon".into())));
    }

    #[test]
    fn unknown_options_are_refused() {
        assert!(plan("kernel:damos+nonsense=1", &shape()).is_err());
        assert!(plan("kernel:damos+quota_mb=lots", &shape()).is_err());
        assert!(plan("first-touch+x", &shape()).is_err());
        for name in damos_grid().iter().chain(&balancing_grid()) {
            assert!(plan(name, &shape()).is_ok(), "{name}");
        }
    }
}
