//! A package as boxes of heat: a processor, the stacks beside one of its edges or on it, the
//! interposer below and the lid above.
//!
//! The plan is half a package: x from the processor's middle outwards (a plane of symmetry), y
//! along its edge with half of the stacks. Upwards: interposer, bump layer, base die, and for each
//! DRAM die its bond layer and silicon; then interface material and lid. Each layer is one box
//! high, since heat crosses layers and is made on their lower faces; the lid is three. The
//! processor is silicon as high as the stack and makes its heat in its lowest layer. Valid for a
//! lid not much larger than what is below it.

use super::design::{Bonding, Placement, StackDesign};
use super::energy::StackPower;
use super::materials as m;
use super::solver::{HeatCell, HeatGrid};
use std::f64::consts::FRAC_PI_4;

/// Thickness of the interposer, um: ours, the usual 100 um.
const INTERPOSER_UM: f64 = 100.0;
/// Thickness of the processor below stacks, um: ours, thinned.
const THIN_PROCESSOR_UM: f64 = 100.0;
/// Thickness of the bump layer below base die and processor, um: the same as of a microbump bond.
const BUMPS_UM: f64 = 30.0;
/// Thickness of the interface material, um: ours.
const INTERFACE_UM: f64 = 50.0;
/// From the interposer through substrate and board to the ambient, mm2 K/W: ours, of little weight
/// beside any lid.
const BOARD_MM2K_PER_W: f64 = 2000.0;
/// Lid beyond the stacks, mm: ours.
const MARGIN_MM: f64 = 1.0;
/// Boxes across half of the processor, a stack's width, and its depth: ours; twice as many move the
/// hottest die by less than 2% of its rise (a test).
const PLAN: [usize; 3] = [5, 4, 4];
/// Boxes of the lid, upwards.
const LID_BOXES: usize = 3;

/// Temperatures of a package, C.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StackTemperatures {
    /// Hottest place of each DRAM die, the lowest die first.
    pub dies_c: Vec<f64>,
    /// Mean of each DRAM die.
    pub dies_mean_c: Vec<f64>,
    /// Hottest place of the base die.
    pub base_c: f64,
    /// Hottest place of the processor.
    pub processor_c: f64,
}

impl StackTemperatures {
    /// Hottest DRAM die.
    #[must_use]
    pub fn hottest_c(&self) -> f64 {
        self.dies_c.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Coldest DRAM die, by its hottest place.
    #[must_use]
    pub fn coldest_c(&self) -> f64 {
        self.dies_c.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// What a column of the plan holds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Processor,
    Stack,
    Mold,
}

/// What a layer holds where there is a stack.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Layer {
    Interposer,
    Processor,
    Bumps,
    Base,
    Bond,
    Die(usize),
    Interface,
    Lid,
}

/// A package whose powers can change.
pub struct PackageHeat {
    grid: HeatGrid,
    columns: Vec<Vec<Column>>,
    layers: Vec<Layer>,
    /// Share of a stack's, and of half a processor's, area by plan position.
    shares: Vec<Vec<f64>>,
    processor_w: f64,
    processor_layer: usize,
    on_processor: bool,
    coolant_c: f64,
    rise_k: Vec<f64>,
}

/// Vertical conductivity of the layer between dies, W/(m K): underfill and the share of bumps in
/// it, measured for microbumps; insulator alone for the others, whose pads end in wiring layers.
#[must_use]
pub fn bond_w_per_mk(design: &StackDesign) -> f64 {
    let bond = &design.bond;
    match bond.bonding {
        Bonding::Microbump => {
            let field = bond.bump_field_mm2 / design.die_mm2();
            let covered = field + (1.0 - field) * bond.dummy_share;
            let share = FRAC_PI_4 * (bond.bump_um / bond.bump_pitch_um).powi(2) * covered;
            bond.underfill_w_per_mk + m::BUMP_W_PER_MK * share
        }
        Bonding::Hybrid | Bonding::DirectOxide => m::INSULATOR_W_PER_MK,
    }
}

/// Vertical conductivity of a die, W/(m K): silicon and the copper of its vias side by side.
#[must_use]
pub fn die_w_per_mk(design: &StackDesign) -> f64 {
    let via_mm2 = FRAC_PI_4 * (design.tsv.tsv_um * 1e-3).powi(2);
    let copper = (super::tsv::count(design) * via_mm2 / design.die_mm2()).min(1.0);
    m::SILICON_W_PER_MK + (m::COPPER_W_PER_MK - m::SILICON_W_PER_MK) * copper
}

/// Vertical conductivity of dies and bond layers in series, W/(m K).
#[must_use]
pub fn stack_w_per_mk(design: &StackDesign) -> f64 {
    let (die, bond) = (design.geometry.die_um, design.bond.bond_um);
    (die + bond) / (die / die_w_per_mk(design) + bond / bond_w_per_mk(design))
}

impl PackageHeat {
    /// The package of this design.
    #[must_use]
    pub fn new(design: &StackDesign) -> Self {
        Self::with_plan(design, PLAN)
    }

    fn with_plan(design: &StackDesign, plan: [usize; 3]) -> Self {
        let on_processor = design.package.placement == Placement::OnProcessor;
        let (dx, kinds_x) = across(design, plan, on_processor);
        let (dy, kinds_y) = along(design, plan);
        let (layers, dz) = layers(design, on_processor);
        let columns: Vec<Vec<Column>> = (0..dy.len())
            .map(|y| {
                let kind = |x: usize| match (kinds_x[x], kinds_y[y].0, kinds_y[y].1) {
                    (Column::Stack, true, _) => Column::Stack,
                    (Column::Processor, _, true) => Column::Processor,
                    _ => Column::Mold,
                };
                (0..dx.len()).map(kind).collect()
            })
            .collect();
        let shares = areas(design, &columns, &dx, &dy);
        // Beside the stacks the processor's heat is made in the lowest layer above interposer and
        // bumps.
        let processor_layer = layers.iter().position(|l| *l == Layer::Processor).unwrap_or(2);
        let properties = Properties::new(design);
        let grid = HeatGrid::new(
            [&dx, &dy, &dz],
            |x, y, z| properties.cell(layers[z], columns[y][x], on_processor, dz[z]),
            1e6 / BOARD_MM2K_PER_W,
            1e6 / design.package.cooling_mm2k_per_w,
        );
        Self {
            rise_k: vec![0.0; dx.len() * dy.len() * dz.len()],
            grid,
            columns,
            layers,
            shares,
            processor_w: design.package.processor_w,
            processor_layer,
            on_processor,
            coolant_c: design.package.coolant_c,
        }
    }

    /// Sets what each die of each stack makes.
    fn set_power(&mut self, power: &StackPower) {
        let (layers, columns, shares) = (&self.layers, &self.columns, &self.shares);
        let half_w = self.processor_w / 2.0;
        let (processor_layer, on_processor) = (self.processor_layer, self.on_processor);
        self.grid.set_sources(|x, y, z| {
            let column = columns[y][x];
            let under_stack = on_processor && column != Column::Mold;
            let processor = if z == processor_layer && (under_stack || column == Column::Processor)
            {
                half_w * shares[y][x * 2]
            } else {
                0.0
            };
            let stack = match (column, layers[z]) {
                (Column::Stack, Layer::Base) => power.base_w,
                (Column::Stack, Layer::Die(i)) => power.dies_w.get(i).copied().unwrap_or(0.0),
                _ => 0.0,
            };
            processor + stack * shares[y][x * 2 + 1]
        });
    }

    /// Steady temperatures at this power; the last ones are the guess.
    pub fn steady(&mut self, power: &StackPower, tolerance: f64) -> StackTemperatures {
        self.set_power(power);
        self.rise_k = self.grid.steady(Some(&self.rise_k), tolerance).rise_k;
        self.temperatures()
    }

    /// Temperatures over time from the last ones on: one entry a step of `step_s`.
    pub fn transient(
        &mut self,
        power: &StackPower,
        step_s: f64,
        steps: usize,
    ) -> Vec<StackTemperatures> {
        self.set_power(power);
        (0..steps)
            .map(|_| {
                let mut rise = std::mem::take(&mut self.rise_k);
                self.grid.step(&mut rise, step_s, 1e-9);
                self.rise_k = rise;
                self.temperatures()
            })
            .collect()
    }

    /// Heat made less heat that leaves, of what is made.
    #[must_use]
    pub fn imbalance(&self) -> f64 {
        let made = self.grid.made_w();
        (made - self.grid.leaving_w(&self.rise_k)) / made.max(f64::MIN_POSITIVE)
    }

    fn temperatures(&self) -> StackTemperatures {
        let dies = self.layers.iter().filter(|l| matches!(l, Layer::Die(_))).count();
        let mut out = StackTemperatures {
            dies_c: vec![f64::NEG_INFINITY; dies],
            dies_mean_c: vec![0.0; dies],
            base_c: f64::NEG_INFINITY,
            processor_c: f64::NEG_INFINITY,
        };
        let mut weight = 0.0;
        for (y, row) in self.columns.iter().enumerate() {
            for (x, column) in row.iter().enumerate() {
                let share = self.shares[y][x * 2 + 1];
                weight += share;
                for (z, layer) in self.layers.iter().enumerate() {
                    let c = self.coolant_c + self.rise_k[self.grid.index(x, y, z)];
                    let processor = *column == Column::Processor
                        || (self.on_processor && *column == Column::Stack);
                    if z == self.processor_layer && processor {
                        out.processor_c = out.processor_c.max(c);
                    }
                    match layer {
                        Layer::Die(i) if *column == Column::Stack => {
                            out.dies_c[*i] = out.dies_c[*i].max(c);
                            out.dies_mean_c[*i] += c * share;
                        }
                        Layer::Base if *column == Column::Stack => out.base_c = out.base_c.max(c),
                        _ => {}
                    }
                }
            }
        }
        out.dies_mean_c.iter_mut().for_each(|c| *c /= weight);
        if out.base_c == f64::NEG_INFINITY {
            out.base_c = out.dies_c.first().copied().unwrap_or(self.coolant_c);
        }
        out
    }
}

/// Widths of columns away from the processor's middle (m), and what is there.
fn across(design: &StackDesign, plan: [usize; 3], on_processor: bool) -> (Vec<f64>, Vec<Column>) {
    let p = &design.package;
    let width = design.geometry.die_width_mm;
    let half = p.processor_width_mm / 2.0;
    let parts: Vec<(f64, usize, Column)> = if on_processor {
        // In the middle of its half; what is left of the processor has filler silicon above.
        let side = ((half - width) / 2.0).max(0.1);
        vec![
            (side, 1, Column::Processor),
            (width, plan[1], Column::Stack),
            (side, 1, Column::Processor),
        ]
    } else {
        vec![
            (half, plan[0], Column::Processor),
            (p.spacing_mm, 1, Column::Mold),
            (width, plan[1], Column::Stack),
            (MARGIN_MM, 1, Column::Mold),
        ]
    };
    let mut widths = Vec::new();
    let mut kinds = Vec::new();
    for (mm, boxes, kind) in parts {
        for _ in 0..boxes {
            widths.push(mm * 1e-3 / boxes as f64);
            kinds.push(kind);
        }
    }
    (widths, kinds)
}

/// Depths of rows along the processor's edge (m), and whether there is a stack and the processor.
fn along(design: &StackDesign, plan: [usize; 3]) -> (Vec<f64>, Vec<(bool, bool)>) {
    let p = &design.package;
    let stacks = stacks_of_half(design);
    let taken = stacks * design.geometry.die_depth_mm + (stacks - 1.0) * p.spacing_mm;
    let rest = ((p.processor_depth_mm - taken) / 2.0).max(MARGIN_MM);
    let with_processor = p.processor_depth_mm > taken;
    let (mut depths, mut kinds) = (vec![rest * 1e-3], vec![(false, with_processor)]);
    for stack in 0..stacks as usize {
        if stack > 0 {
            depths.push(p.spacing_mm * 1e-3);
            kinds.push((false, true));
        }
        for _ in 0..plan[2] {
            depths.push(design.geometry.die_depth_mm * 1e-3 / plan[2] as f64);
            kinds.push((true, true));
        }
    }
    depths.push(rest * 1e-3);
    kinds.push((false, with_processor));
    (depths, kinds)
}

fn stacks_of_half(design: &StackDesign) -> f64 {
    (design.package.stacks / 2.0).ceil()
}

/// Layers from the bottom, and their thickness (m).
fn layers(design: &StackDesign, on_processor: bool) -> (Vec<Layer>, Vec<f64>) {
    let g = &design.geometry;
    let mut all = vec![(Layer::Interposer, INTERPOSER_UM)];
    if on_processor {
        all.push((Layer::Bumps, BUMPS_UM));
        all.push((Layer::Processor, THIN_PROCESSOR_UM));
    }
    all.push((Layer::Bumps, BUMPS_UM));
    if g.base_um > 0.0 {
        all.push((Layer::Base, g.base_um));
    }
    let dies = g.dies as usize;
    for die in 0..dies {
        if die > 0 || g.base_um > 0.0 {
            all.push((Layer::Bond, design.bond.bond_um));
        }
        let thickness = if die + 1 == dies { g.top_um } else { g.die_um };
        all.push((Layer::Die(die), thickness));
    }
    all.push((Layer::Interface, INTERFACE_UM));
    for _ in 0..LID_BOXES {
        all.push((Layer::Lid, design.package.lid_mm * 1e3 / LID_BOXES as f64));
    }
    all.into_iter().map(|(layer, um)| (layer, um * 1e-6)).unzip()
}

/// By row, two numbers a column: its share of the half processor, and of one stack.
fn areas(design: &StackDesign, columns: &[Vec<Column>], dx: &[f64], dy: &[f64]) -> Vec<Vec<f64>> {
    let on_processor = design.package.placement == Placement::OnProcessor;
    let of_processor = |c: Column| c == Column::Processor || (on_processor && c == Column::Stack);
    let mut processor = 0.0;
    for (row, depth) in columns.iter().zip(dy) {
        for (column, width) in row.iter().zip(dx) {
            if of_processor(*column) {
                processor += depth * width;
            }
        }
    }
    let stack = design.die_mm2() * 1e-6;
    columns
        .iter()
        .zip(dy)
        .map(|(row, depth)| {
            let of = |(column, width): (&Column, &f64)| {
                let area = depth * width;
                let p = if of_processor(*column) { area / processor } else { 0.0 };
                let s = if *column == Column::Stack { area / stack } else { 0.0 };
                [p, s]
            };
            row.iter().zip(dx).flat_map(of).collect()
        })
        .collect()
}

/// Conductivities of this design, computed once.
struct Properties {
    die_w_per_mk: f64,
    bond_w_per_mk: f64,
    underfill_w_per_mk: f64,
    microchannel_w_per_m2k: f64,
}

impl Properties {
    fn new(design: &StackDesign) -> Self {
        Self {
            die_w_per_mk: die_w_per_mk(design),
            bond_w_per_mk: bond_w_per_mk(design),
            underfill_w_per_mk: design.bond.underfill_w_per_mk,
            microchannel_w_per_m2k: design.package.microchannel_w_per_m2k,
        }
    }

    fn cell(&self, layer: Layer, column: Column, on_processor: bool, dz: f64) -> HeatCell {
        let of = |lateral: f64, vertical: f64, j_per_m3k: f64| HeatCell {
            lateral_w_per_mk: lateral,
            vertical_w_per_mk: vertical,
            j_per_m3k,
            w_per_m3: 0.0,
            sink_w_per_m3k: 0.0,
        };
        let even = |k: f64, c: f64| of(k, k, c);
        let silicon = even(m::SILICON_W_PER_MK, m::SILICON_J_PER_M3K);
        let mold = even(m::MOLD_W_PER_MK, m::POLYMER_J_PER_M3K);
        let bumps =
            m::UNDERFILL_W_PER_MK + m::BUMP_W_PER_MK * FRAC_PI_4 * (25.0_f64 / 55.0).powi(2);
        match (layer, column) {
            (Layer::Interposer, _) => silicon,
            (Layer::Interface, _) => even(m::INTERFACE_W_PER_MK, m::POLYMER_J_PER_M3K),
            (Layer::Lid, _) => even(m::COPPER_W_PER_MK, m::COPPER_J_PER_M3K),
            (_, Column::Mold) if !on_processor => mold,
            (Layer::Processor, _) => silicon,
            (Layer::Bumps, _) => of(m::UNDERFILL_W_PER_MK, bumps, m::POLYMER_J_PER_M3K),
            (_, Column::Mold) => mold,
            (_, Column::Processor) => silicon,
            (Layer::Base | Layer::Die(_), Column::Stack) => {
                of(m::SILICON_W_PER_MK, self.die_w_per_mk, m::SILICON_J_PER_M3K)
            }
            (Layer::Bond, Column::Stack) => HeatCell {
                sink_w_per_m3k: self.microchannel_w_per_m2k / dz,
                ..of(self.underfill_w_per_mk, self.bond_w_per_mk, m::POLYMER_J_PER_M3K)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watts(design: &StackDesign, die_w: f64) -> StackPower {
        StackPower { base_w: 2.0, dies_w: vec![die_w; design.geometry.dies as usize] }
    }

    #[test]
    fn all_heat_leaves() {
        for placement in [Placement::Beside, Placement::OnProcessor] {
            let mut design = StackDesign::reference("x");
            design.package.placement = placement;
            let mut heat = PackageHeat::new(&design);
            heat.steady(&watts(&design, 1.0), 1e-13);
            // Two stacks of ten watts and half of the processor.
            assert!((heat.grid.made_w() / (20.0 + 150.0) - 1.0).abs() < 1e-9);
            assert!(heat.imbalance().abs() < 1e-9, "{}", heat.imbalance());
        }
    }

    #[test]
    fn the_lowest_die_is_the_hottest_and_a_finer_plan_agrees() {
        let design = StackDesign::reference("x");
        let coarse = PackageHeat::new(&design).steady(&watts(&design, 1.0), 1e-10);
        assert!(coarse.dies_c.windows(2).all(|w| w[0] > w[1]), "{coarse:?}");
        let fine = PackageHeat::with_plan(&design, PLAN.map(|n| 2 * n))
            .steady(&watts(&design, 1.0), 1e-10);
        let rise = |t: &StackTemperatures| t.hottest_c() - design.package.coolant_c;
        assert!((rise(&coarse) / rise(&fine) - 1.0).abs() < 0.02, "{coarse:?} {fine:?}");
    }

    #[test]
    fn each_way_of_cooling_cools() {
        let design = StackDesign::reference("x");
        let hottest = |change: fn(&mut StackDesign)| {
            let mut design = design.clone();
            change(&mut design);
            PackageHeat::new(&design).steady(&watts(&design, 1.0), 1e-10).hottest_c()
        };
        let plain = hottest(|_| {});
        assert!(hottest(|d| d.bond.dummy_share = 0.0) > plain + 0.5, "dummy bumps");
        assert!(hottest(|d| d.bond.underfill_w_per_mk = 4.0) < plain - 0.5, "underfill");
        assert!(hottest(|d| d.tsv.thermal_tsvs = 200_000.0) < plain, "thermal vias");
        assert!(hottest(|d| d.package.microchannel_w_per_m2k = 2e4) < plain - 1.0, "channels");
        assert!(hottest(|d| d.set_bonding(Bonding::Hybrid)) < plain - 0.5, "hybrid bonding");
        assert!(hottest(|d| d.package.placement = Placement::OnProcessor) > plain, "on it");
    }

    #[test]
    fn a_stack_conducts_about_as_was_measured() {
        // D. Chalise and D. Cahill, "Anisotropic thermal conductivity of high bandwidth memory",
        // arXiv 2303.06785 (withdrawn by its authors; nothing else is published): 2 W/(m K) through
        // the bump layer, 7 through the whole; the latter from thinner gaps than the paper's 30 um.
        let design = StackDesign::reference("x");
        assert!((1.5..2.5).contains(&bond_w_per_mk(&design)), "{}", bond_w_per_mk(&design));
        assert!((4.0..8.0).contains(&stack_w_per_mk(&design)), "{}", stack_w_per_mk(&design));
    }

    #[test]
    fn a_transient_ends_where_the_steady_field_is() {
        let design = StackDesign::reference("x");
        let power = watts(&design, 1.0);
        let steady = PackageHeat::new(&design).steady(&power, 1e-10);
        let late = PackageHeat::new(&design).transient(&power, 2.0, 60).pop().unwrap();
        assert!((late.hottest_c() - steady.hottest_c()).abs() < 0.05, "{late:?} {steady:?}");
    }
}
