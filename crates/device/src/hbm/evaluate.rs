//! All figures of a design: the models put together, with the loop of power, temperature and
//! refresh closed.
//!
//! The loop starts at the coolant's temperature: power gives temperatures, these give refresh
//! rates, these give power and the bandwidth that is left. Refresh rates never fall again within
//! the loop, as a controller with hysteresis would have it, so that they are found in as many steps
//! as there are rates; between two, leakage converges or runs away.

use super::banks::{self, AccessPattern, BandwidthBounds};
use super::cost::{cost, StackCost};
use super::cycle::{serve, Arrival};
use super::design::StackDesign;
use super::energy::{self, BitEnergy, StackPower, StackTraffic};
use super::heat::{self, PackageHeat, StackTemperatures};
use super::reliability::{rates as fault_rates, FaultRates};
use super::supply::{loss, SupplyLoss};
use super::tsv::{self, PathFigures, ViaFigures};
use super::{height, refresh};

/// Temperature beyond which the loop is a runaway, C: silicon conducts by itself here.
const RUNAWAY_C: f64 = 250.0;
/// Steps of the loop at most: enough for all rates and leakage that converges at all.
const MAX_STEPS: usize = 60;
/// Change of the hottest place at which the loop ends, K.
const SETTLED_K: f64 = 0.01;
/// Bursts that the cycle model serves for a figure, in units of refresh intervals' worth and more:
/// ours; ten times as many change a figure by less than 2%.
const BURSTS: u32 = 4000;
/// First step of the warm-up, s, its growth, and steps at most: from a millisecond to minutes.
const FIRST_STEP_S: f64 = 1e-3;
/// See [`FIRST_STEP_S`].
const STEP_GROWTH: f64 = 1.2;
/// See [`FIRST_STEP_S`].
const WARM_UP_STEPS: usize = 60;
/// Seed of the cycle model's requests.
const SEED: u64 = 1;

/// What is asked of a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StackLoad {
    /// As much as it sustains: rows of four bursts, a third of them writes (ours).
    Saturated,
    /// This much, or less where it does not sustain it.
    Demand(StackTraffic),
}

/// How much to work out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All.
    Full,
    /// Without latency under load, for sweeps.
    Sweep,
}

/// Sustained bandwidth by pattern, bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct SustainedBandwidth {
    /// Whole rows, read.
    pub stream_read: f64,
    /// Whole rows, written.
    pub stream_write: f64,
    /// Rows of four bursts, a third written.
    pub mixed: f64,
    /// Single bursts, read.
    pub random_read: f64,
}

/// Latency at a share of the sustained random bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LoadedLatency {
    /// Share of the sustained bandwidth of single bursts.
    pub load_share: f64,
    /// At the stack's pins, ns.
    pub latency_ns: f64,
}

/// A layer of the stack, from the bottom, for a cross-section.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StackLayer {
    /// What it is: `base`, `bond` or `die`.
    pub kind: &'static str,
    /// Thickness, um.
    pub thickness_um: f64,
    /// Its hottest place, C; of a bond layer none is reported.
    pub hottest_c: Option<f64>,
}

/// How the loop ended.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ThermalState {
    /// All dies within what is specified.
    Within,
    /// It settles above the highest temperature at which the part may work.
    TooHot,
    /// It does not settle: each degree makes more power than the cooling takes.
    Runaway,
}

/// All figures of a design.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StackEvaluation {
    /// Name of the design.
    pub name: String,
    /// DRAM dies.
    pub dies: u32,
    /// Bonding.
    pub bonding: &'static str,
    /// Capacity, bytes.
    pub capacity_bytes: u64,
    /// One via.
    pub via: ViaFigures,
    /// The tallest path.
    pub path: PathFigures,
    /// Rate of a data pin that vias and interface keep up with, Gbit/s.
    pub pin_rate_gbps: f64,
    /// Share of a die that vias take.
    pub tsv_area_share: f64,
    /// Peak bandwidth, bytes a second.
    pub peak_bytes_per_s: f64,
    /// Sustained bandwidth, bytes a second.
    pub sustained_bytes_per_s: SustainedBandwidth,
    /// Closed-form bounds of single bursts, bytes a second.
    pub random_bounds_bytes_per_s: BandwidthBounds,
    /// Idle latency at the pins, ns.
    pub idle_latency_ns: f64,
    /// Latency under load.
    pub loaded_latency: Vec<LoadedLatency>,
    /// Energy of a bit read in whole rows, pJ.
    pub stream_pj_per_bit: BitEnergy,
    /// Energy of a bit read in single bursts, pJ.
    pub random_pj_per_bit: BitEnergy,
    /// Traffic of the loop.
    pub traffic: StackTraffic,
    /// Power at that traffic.
    pub power: StackPower,
    /// Power at rest at these temperatures, W.
    pub rest_w: f64,
    /// Temperatures at that traffic.
    pub temperatures: StackTemperatures,
    /// From cold to 63% of the hottest die's rise at that power, s; only in full detail.
    pub warm_up_s: Option<f64>,
    /// Refresh rate of each die, in units of that at rest.
    pub refresh_rates: Vec<f64>,
    /// How the loop ended.
    pub thermal: ThermalState,
    /// Vertical conductivity of the stack, W/(m K).
    pub stack_w_per_mk: f64,
    /// Layers from the bottom.
    pub layers: Vec<StackLayer>,
    /// Height, um.
    pub height_um: f64,
    /// Height that the package allows, um.
    pub height_limit_um: f64,
    /// Supply.
    pub supply: SupplyLoss,
    /// Faults.
    pub faults: FaultRates,
    /// Yield and cost.
    pub cost: StackCost,
    /// Limits that it does not hold, one sentence each.
    pub violations: Vec<String>,
}

/// Evaluates a design with as much traffic as it sustains.
#[must_use]
pub fn evaluate(design: &StackDesign) -> StackEvaluation {
    evaluate_with(design, StackLoad::Saturated, Detail::Full)
}

/// Evaluates a design with this traffic. The design must have passed [`check`](super::file::check).
#[must_use]
pub fn evaluate_with(design: &StackDesign, traffic: StackLoad, detail: Detail) -> StackEvaluation {
    let settled = settle(design, traffic);
    let worst_rate = settled.rate;
    let sustained = SustainedBandwidth {
        stream_read: sustained(design, AccessPattern::stream(design), worst_rate),
        stream_write: sustained(
            design,
            AccessPattern { write_share: 1.0, ..AccessPattern::stream(design) },
            worst_rate,
        ),
        mixed: sustained(design, mixed(), worst_rate),
        random_read: sustained(design, AccessPattern::RANDOM, worst_rate),
    };
    let mean_c = mean(&settled.temperatures.dies_mean_c);
    let per_row = design.interface.row_bytes / banks::burst_bytes(design);
    let rest = energy::power(
        design,
        &StackTraffic::NONE,
        &settled.temperatures.dies_mean_c,
        &settled.rates,
    );
    let mut evaluation = StackEvaluation {
        name: design.name.clone(),
        dies: design.geometry.dies as u32,
        bonding: design.bond.bonding.name(),
        capacity_bytes: design.capacity_bytes(),
        via: tsv::via(design, mean_c.min(RUNAWAY_C)),
        path: tsv::path(design, 85.0),
        pin_rate_gbps: banks::pin_rate_gbps(design),
        tsv_area_share: tsv::area_share(design),
        peak_bytes_per_s: banks::peak_bytes_per_s(design),
        sustained_bytes_per_s: sustained,
        random_bounds_bytes_per_s: banks::bounds(design, AccessPattern::RANDOM, worst_rate),
        idle_latency_ns: banks::idle_ns(design),
        loaded_latency: match detail {
            Detail::Full if sustained.random_read > 0.0 => {
                loaded(design, sustained.random_read, worst_rate)
            }
            _ => Vec::new(),
        },
        stream_pj_per_bit: energy::per_bit(design, false, 1.0 / per_row),
        random_pj_per_bit: energy::per_bit(design, false, 1.0),
        traffic: settled.traffic,
        rest_w: rest.total_w(),
        warm_up_s: match detail {
            Detail::Full => warm_up_s(design, &settled.power, settled.temperatures.hottest_c()),
            Detail::Sweep => None,
        },
        refresh_rates: settled.rates,
        thermal: settled.state,
        stack_w_per_mk: heat::stack_w_per_mk(design),
        layers: layers(design, &settled.temperatures),
        height_um: height::minimum_um(design),
        height_limit_um: design.geometry.height_limit_um,
        supply: loss(design, &settled.power, mean_c.min(RUNAWAY_C)),
        faults: fault_rates(design, mean_c),
        cost: cost(design),
        temperatures: settled.temperatures,
        power: settled.power,
        violations: Vec::new(),
    };
    evaluation.violations = violations(design, &evaluation);
    evaluation
}

/// Rows of four bursts, a third written.
#[must_use]
pub fn mixed() -> AccessPattern {
    AccessPattern { bursts_per_row: 4, write_share: 1.0 / 3.0 }
}

/// What the loop found.
struct Settled {
    temperatures: StackTemperatures,
    power: StackPower,
    rates: Vec<f64>,
    /// Mean rate of the dies, which a channel over all of them sees.
    rate: f64,
    traffic: StackTraffic,
    state: ThermalState,
}

fn settle(design: &StackDesign, traffic: StackLoad) -> Settled {
    let dies = design.geometry.dies as usize;
    let mut heat = PackageHeat::new(design);
    let mut means = vec![design.package.coolant_c; dies];
    let mut rates = refresh::rates(design, &means);
    let mut known: Vec<(f64, StackTraffic)> = Vec::new();
    let mut last_c = f64::NEG_INFINITY;
    let mut last_change = f64::INFINITY;
    let mut step = 0;
    loop {
        step += 1;
        let rate = mean(&rates);
        let served = match known.iter().find(|k| k.0 == rate) {
            Some(found) => found.1,
            None => {
                let found = served(design, traffic, rate);
                known.push((rate, found));
                found
            }
        };
        let power = energy::power(design, &served, &means, &rates);
        let temperatures = heat.steady(&power, 1e-8);
        means.clone_from(&temperatures.dies_mean_c);
        let hottest = temperatures.hottest_c();
        let hotter = refresh::rates(design, &temperatures.dies_c);
        let raised: Vec<f64> = rates.iter().zip(&hotter).map(|(a, b)| a.max(*b)).collect();
        let change = (hottest - last_c).abs();
        let settled = raised == rates && change < SETTLED_K;
        // Steps that grow while nothing else changes have no end.
        let grows = raised == rates && step > 8 && change > last_change;
        let lost = !hottest.is_finite() || hottest > RUNAWAY_C || grows || step >= MAX_STEPS;
        if settled || lost {
            let state = match (lost && !settled, hottest > design.refresh.maximum_c) {
                (true, _) => ThermalState::Runaway,
                (false, true) => ThermalState::TooHot,
                (false, false) => ThermalState::Within,
            };
            return Settled { temperatures, power, rates, rate, traffic: served, state };
        }
        (last_change, last_c, rates) = (change, hottest, raised);
    }
}

/// Traffic that a stack serves of what is asked, at this refresh rate.
fn served(design: &StackDesign, traffic: StackLoad, rate: f64) -> StackTraffic {
    let result = serve(design, mixed(), rate, Arrival::Saturated, BURSTS, SEED);
    let most = result.bytes_per_s * banks::pseudo_channels(design);
    match traffic {
        StackLoad::Saturated => StackTraffic {
            read_bytes_per_s: most * 2.0 / 3.0,
            write_bytes_per_s: most / 3.0,
            activations_per_burst: result.activations_per_burst,
        },
        StackLoad::Demand(asked) => {
            let share = (most / asked.bytes_per_s().max(1.0)).min(1.0);
            StackTraffic {
                read_bytes_per_s: asked.read_bytes_per_s * share,
                write_bytes_per_s: asked.write_bytes_per_s * share,
                ..asked
            }
        }
    }
}

/// Sustained bandwidth of the stack, bytes a second.
#[must_use]
pub fn sustained(design: &StackDesign, pattern: AccessPattern, refresh_rate: f64) -> f64 {
    let result = serve(design, pattern, refresh_rate, Arrival::Saturated, BURSTS, SEED);
    result.bytes_per_s * banks::pseudo_channels(design)
}

fn loaded(design: &StackDesign, random_bytes_per_s: f64, refresh_rate: f64) -> Vec<LoadedLatency> {
    let one = random_bytes_per_s / banks::pseudo_channels(design);
    let path = tsv::path(design, 85.0);
    [0.1, 0.3, 0.5, 0.7, 0.9]
        .into_iter()
        .map(|load_share| {
            let every_ns = banks::burst_bytes(design) / (one * load_share) * 1e9;
            let arrival = Arrival::Every(every_ns);
            let result = serve(design, AccessPattern::RANDOM, refresh_rate, arrival, BURSTS, SEED);
            let vias_ns = 2.0 * path.delay_ns + path.repeater_ns;
            LoadedLatency { load_share, latency_ns: result.mean_latency_ns + vias_ns }
        })
        .collect()
}

/// Time until the hottest die has 1 - 1/e of its steady rise, s.
fn warm_up_s(design: &StackDesign, power: &StackPower, steady_c: f64) -> Option<f64> {
    let coolant = design.package.coolant_c;
    let wanted = coolant + (steady_c - coolant) * (1.0 - (-1.0_f64).exp());
    let mut heat = PackageHeat::new(design);
    let (mut time_s, mut before_c) = (0.0, coolant);
    let mut step_s = FIRST_STEP_S;
    for _ in 0..WARM_UP_STEPS {
        let now_c = heat.transient(power, step_s, 1).first()?.hottest_c();
        if now_c >= wanted {
            return Some(time_s + step_s * (wanted - before_c) / (now_c - before_c));
        }
        (time_s, before_c) = (time_s + step_s, now_c);
        step_s *= STEP_GROWTH;
    }
    None
}

fn layers(design: &StackDesign, t: &StackTemperatures) -> Vec<StackLayer> {
    let g = &design.geometry;
    let mut all = Vec::new();
    if g.base_um > 0.0 {
        all.push(StackLayer { kind: "base", thickness_um: g.base_um, hottest_c: Some(t.base_c) });
    }
    for (index, hottest) in t.dies_c.iter().enumerate() {
        if !all.is_empty() {
            let thickness_um = design.bond.bond_um;
            all.push(StackLayer { kind: "bond", thickness_um, hottest_c: None });
        }
        let thickness_um = if index + 1 == t.dies_c.len() { g.top_um } else { g.die_um };
        all.push(StackLayer { kind: "die", thickness_um, hottest_c: Some(*hottest) });
    }
    all
}

fn violations(design: &StackDesign, e: &StackEvaluation) -> Vec<String> {
    let mut all = Vec::new();
    if !height::fits(design) {
        let limit = design.geometry.height_limit_um;
        all.push(format!("height {:.0} um exceeds the package's {limit:.0} um", e.height_um));
    }
    match e.thermal {
        ThermalState::Within => {}
        ThermalState::TooHot => all.push(format!(
            "the hottest die settles at {:.0} C, above {:.0} C",
            e.temperatures.hottest_c(),
            design.refresh.maximum_c
        )),
        ThermalState::Runaway => all.push(format!(
            "thermal runaway: with {:.1} W a stack the temperature does not settle below {:.0} C",
            e.power.total_w(),
            e.temperatures.hottest_c().min(RUNAWAY_C)
        )),
    }
    if e.supply.static_v() > e.supply.allowed_v {
        all.push(format!(
            "IR drop {:.0} mV exceeds {:.0} mV",
            e.supply.static_v() * 1e3,
            e.supply.allowed_v * 1e3
        ));
    } else if !e.supply.holds() {
        all.push(format!(
            "IR drop and switching noise of {:.0} mV exceed {:.0} mV",
            (e.supply.static_v() + e.supply.switching_v) * 1e3,
            e.supply.allowed_v * 1e3
        ));
    }
    if e.pin_rate_gbps < design.interface.data_rate_gbps * 0.99 {
        all.push(format!(
            "vias allow {:.2} Gbit/s a pin of {:.2}",
            e.pin_rate_gbps, design.interface.data_rate_gbps
        ));
    }
    all
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
