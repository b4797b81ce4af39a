//! The statements of the paper that can be computed, with our numbers, and the presets beside what
//! is published: the tables of `docs/results/hbm.md`.
//! `cargo run --release -p terrace-device --example statements`

use terrace_device::hbm::design::{Bonding, Placement, RefreshMode, StackDesign, TsvStructure};
use terrace_device::hbm::error::StackError;
use terrace_device::hbm::evaluate::{evaluate_with, mixed, sustained, Detail, StackLoad};
use terrace_device::hbm::{banks, heat, height, presets, reliability, tsv, StackEvaluation};

fn main() -> Result<(), StackError> {
    preset_table()?;
    println!();
    left_out()?;
    println!();
    println!("| statement (section) | our number | agrees |");
    println!("|---|---|---|");
    vias()?;
    structures()?;
    heights_and_heat()?;
    refresh_loss()?;
    faults_and_supply()
}

fn row(statement: &str, number: &str, agrees: bool) {
    println!("| {statement} | {number} | {} |", if agrees { "yes" } else { "no" });
}

fn evaluation(design: &StackDesign) -> StackEvaluation {
    evaluate_with(design, StackLoad::Saturated, Detail::Sweep)
}

fn preset_table() -> Result<(), StackError> {
    println!(
        "| preset | GB/s peak | mixed | GiB | um | pJ/bit rows, single | W | hottest, coldest C | \
         IR + noise of allowed mV | via Gbit/s | cost | limits not held |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for name in presets::names() {
        let design = presets::preset(name)?;
        let e = evaluation(&design);
        let p = design.published;
        let of = |ours: f64, published: Option<f64>| match published {
            Some(p) => format!("{ours:.0} ({p:.0})"),
            None => format!("{ours:.0}"),
        };
        println!(
            "| {name} | {} | {:.0} | {} | {} | {:.2}, {:.2} | {:.1} | {:.1}, {:.1} | \
             {:.1} + {:.1} of {:.0} | {:.2} | {:.1} | {} |",
            of(e.peak_bytes_per_s / 1e9, p.published_gb_per_s),
            e.sustained_bytes_per_s.mixed / 1e9,
            of(e.capacity_bytes as f64 / f64::from(1 << 30), p.published_gib),
            of(e.height_um, p.published_um),
            e.stream_pj_per_bit.total(),
            e.random_pj_per_bit.total(),
            e.power.total_w(),
            e.temperatures.hottest_c(),
            e.temperatures.coldest_c(),
            e.supply.static_v() * 1e3,
            e.supply.switching_v * 1e3,
            e.supply.allowed_v * 1e3,
            e.path.rate_gbps,
            e.cost.relative_cost,
            e.violations.join("; "),
        );
    }
    Ok(())
}

/// The paper's stack with so many dies; channels stay eight.
fn paper(dies: f64) -> StackDesign {
    let mut design = StackDesign::reference("paper");
    if dies > 8.0 {
        design.tsv.structure = TsvStructure::SharedRanks;
    }
    design.set_dies(dies);
    design
}

fn vias() -> Result<(), StackError> {
    let rate = |d: &StackDesign| tsv::path(d, 85.0).rate_gbps;
    let rates: Vec<f64> = [4.0, 8.0, 12.0, 16.0].iter().map(|n| rate(&paper(*n))).collect();
    let text: Vec<String> = rates.iter().map(|r| format!("{r:.2}")).collect();
    row(
        "the rate of vias falls with the number of dies (3.1)",
        &format!("4, 8, 12, 16 dies: {} Gbit/s", text.join(", ")),
        rates.windows(2).all(|w| w[0] > w[1]),
    );
    let delay = |n| tsv::path(&paper(n), 85.0).delay_ns;
    let ratio = delay(16.0) / delay(8.0);
    row(
        "from 8 to 16 dies the delay to the top die increases significantly (3.1)",
        &format!("{:.2} to {:.2} ns, {ratio:.2} times", delay(8.0), delay(16.0)),
        ratio > 1.5,
    );
    let mut repeated = paper(16.0);
    repeated.tsv.repeat_dies = 8.0;
    row(
        "buffers in intermediate layers improve the rate at a delay (3.1)",
        &format!(
            "16 dies: {:.2} to {:.2} Gbit/s, {:.1} ns more",
            rate(&paper(16.0)),
            rate(&repeated),
            tsv::path(&repeated, 85.0).repeater_ns
        ),
        rate(&repeated) > rate(&paper(16.0)),
    );
    let mut wide = paper(16.0);
    wide.tsv.tsv_per_pin = 2.0;
    row(
        "wider buses keep the bandwidth and take area (3.1)",
        &format!(
            "16 dies: {:.0} to {:.0} GB/s, {:.2} to {:.2}% of a die",
            banks::peak_bytes_per_s(&paper(16.0)) / 1e9,
            banks::peak_bytes_per_s(&wide) / 1e9,
            tsv::area_share(&paper(16.0)) * 100.0,
            tsv::area_share(&wide) * 100.0
        ),
        tsv::area_share(&wide) > tsv::area_share(&paper(16.0)),
    );
    for (bonding, name) in [(Bonding::Hybrid, "hybrid"), (Bonding::DirectOxide, "direct oxide")] {
        let mut other = paper(16.0);
        other.set_bonding(bonding);
        row(
            &format!("{name} bonding improves rate and energy (4)"),
            &format!(
                "16 dies: {:.2} to {:.2} Gbit/s, vias {:.2} to {:.2} pJ a bit",
                rate(&paper(16.0)),
                rate(&other),
                tsv::pj_per_bit(&paper(16.0)),
                tsv::pj_per_bit(&other)
            ),
            rate(&other) > rate(&paper(16.0)),
        );
    }
    Ok(())
}

fn structures() -> Result<(), StackError> {
    let mut point = StackDesign::reference("paper");
    point.set_dies(16.0);
    let (eight, sixteen) = (StackDesign::reference("paper"), point);
    // As many vias as keep up in both, so that structure alone differs.
    let peak = |d: &StackDesign| {
        let mut d = d.clone();
        d.tsv.tsv_per_pin = 2.0;
        banks::peak_bytes_per_s(&d) / 1e9
    };
    row(
        "point to point: more dies bring bandwidth and take area (3.2)",
        &format!(
            "8 to 16 dies: {:.0} to {:.0} GB/s, {:.2} to {:.2}% of a die",
            peak(&eight),
            peak(&sixteen),
            tsv::area_share(&eight) * 100.0,
            tsv::area_share(&sixteen) * 100.0
        ),
        peak(&sixteen) > 1.9 * peak(&eight),
    );
    let mut shared = presets::preset("microbump-16")?;
    let figure = |d: &StackDesign| sustained(d, mixed(), 1.0) / 1e9;
    let ranks = figure(&shared);
    shared.tsv.switch_gap_ns = 4.0;
    let long_gap = figure(&shared);
    shared.tsv.structure = TsvStructure::SharedChannel;
    let channel = figure(&shared);
    row(
        "shared vias lose bandwidth to switching unless banks of one channel share them (3.2)",
        &format!(
            "16 dies, two a channel: {channel:.0} GB/s in step; {ranks:.0} with a gap of 1 ns, \
             {long_gap:.0} with 4"
        ),
        long_gap < ranks && ranks < channel,
    );
    Ok(())
}

fn heights_and_heat() -> Result<(), StackError> {
    let microbump = presets::preset("microbump-16")?;
    let hybrid = presets::preset("hybrid-16")?;
    row(
        "16 dies with microbumps are too high (3.3)",
        &format!("{:.0} um of 775", height::minimum_um(&microbump)),
        !height::fits(&microbump),
    );
    row(
        "other bonding reduces the height (3.3, 4)",
        &format!("16 dies, hybrid: {:.0} um", height::minimum_um(&hybrid)),
        height::fits(&hybrid),
    );
    let (a, b) = (evaluation(&microbump), evaluation(&hybrid));
    row(
        "hybrid bonding is cooler (4)",
        &format!(
            "16 dies: hottest {:.1} C, {:.1} with hybrid; {:.1} and {:.1} W/(m K) upwards",
            a.temperatures.hottest_c(),
            b.temperatures.hottest_c(),
            heat::stack_w_per_mk(&microbump),
            heat::stack_w_per_mk(&hybrid)
        ),
        b.temperatures.hottest_c() < a.temperatures.hottest_c(),
    );
    let spread = |e: &StackEvaluation| e.temperatures.hottest_c() - e.temperatures.coldest_c();
    let eight = evaluation(&paper(8.0));
    row(
        "the difference from bottom to top grows with dies (3.4)",
        &format!("8 and 16 dies: {:.2} and {:.2} K", spread(&eight), spread(&a)),
        spread(&a) > spread(&eight),
    );
    let mut plain = paper(16.0);
    plain.bond.dummy_share = 0.0;
    let without = evaluation(&plain);
    plain.bond.dummy_share = 1.0;
    let with = evaluation(&plain);
    let gain = spread(&without) - spread(&with);
    row(
        "dummy microbumps improve it marginally (3.4)",
        &format!(
            "16 dies: {:.1} to {:.1} K from bottom to top, hottest {:.1} to {:.1} C",
            spread(&without),
            spread(&with),
            without.temperatures.hottest_c(),
            with.temperatures.hottest_c()
        ),
        // Marginally: by less than a tenth.
        gain > 0.0 && gain < 0.1 * spread(&without),
    );
    let mut on = paper(8.0);
    on.package.placement = Placement::OnProcessor;
    let on = evaluation(&on);
    row(
        "on the processor the stack and its lowest dies are hotter (3.4)",
        &format!(
            "8 dies: {:.1} C beside, {:.1} on; bottom to top {:.1} and {:.1} K",
            eight.temperatures.hottest_c(),
            on.temperatures.hottest_c(),
            spread(&eight),
            spread(&on)
        ),
        on.temperatures.hottest_c() > eight.temperatures.hottest_c(),
    );
    Ok(())
}

fn refresh_loss() -> Result<(), StackError> {
    for (mode, name) in
        [(RefreshMode::AllBank, "all-bank"), (RefreshMode::SingleBank, "single-bank")]
    {
        let mut design = StackDesign::reference("paper");
        design.refresh.refresh = mode;
        let at = |rate| sustained(&design, mixed(), rate) / 1e9;
        let (cool, hot, hotter) = (at(1.0), at(2.0), at(4.0));
        row(
            &format!("above 85 C refresh takes bandwidth, {name} (3.4)"),
            &format!("{cool:.0} GB/s; {hot:.0} at twice the rate, {hotter:.0} at four times"),
            hot < cool,
        );
    }
    Ok(())
}

fn faults_and_supply() -> Result<(), StackError> {
    let design = StackDesign::reference("paper");
    row(
        "a faulty via spoils up to four bits of a 512-bit line (3.5)",
        &format!(
            "{:.0}; SECDED corrects it: {}",
            reliability::bits_spoiled(&design),
            reliability::corrects_via(&design)
        ),
        reliability::bits_spoiled(&design) == 4.0,
    );
    let fit = |n| reliability::rates(&paper(n), 85.0).faults_fit;
    row(
        "the fault rate of a stack grows with its dies (3.5)",
        &format!("8 and 16 dies at 85 C: {:.0} and {:.0} FIT", fit(8.0), fit(16.0)),
        fit(16.0) > fit(8.0),
    );
    // From point to point, with as many vias as keep up, so that bandwidth grows with the dies.
    let tall = |dies: f64, rows: f64| {
        let mut design = StackDesign::reference("paper");
        design.tsv.tsv_per_pin = 2.0;
        design.tsv.supply_rows = rows;
        design.set_dies(dies);
        evaluation(&design).supply
    };
    let (eight, sixteen, rows) = (tall(8.0, 1.0), tall(16.0, 1.0), tall(16.0, 3.0));
    row(
        "IR drop grows with dies; HBM2 can lose 60 mV (3.7)",
        &format!(
            "8 and 16 dies: up the stack {:.1} and {:.1} mV, with the die's wires {:.1} and {:.1} \
             of {:.0}",
            eight.vertical_v * 1e3,
            sixteen.vertical_v * 1e3,
            eight.static_v() * 1e3,
            sixteen.static_v() * 1e3,
            sixteen.allowed_v * 1e3
        ),
        sixteen.vertical_v > eight.vertical_v,
    );
    row(
        "it is a limit at 16 dies (3.7)",
        &format!(
            "IR drop and noise {:.1} mV of {:.0}",
            (sixteen.static_v() + sixteen.switching_v) * 1e3,
            sixteen.allowed_v * 1e3
        ),
        !sixteen.holds(),
    );
    row(
        "supply vias distributed over the die mitigate it (3.7)",
        &format!(
            "16 dies, three rows: {:.1} to {:.1} mV, {:.0}% less (a sold HBM2E: 62%)",
            sixteen.static_v() * 1e3,
            rows.static_v() * 1e3,
            (1.0 - rows.static_v() / sixteen.static_v()) * 100.0
        ),
        rows.static_v() < sixteen.static_v(),
    );
    row(
        "switching noise grows with dies (3.7)",
        &format!(
            "8 and 16: {:.1} and {:.1} mV",
            eight.switching_v * 1e3,
            sixteen.switching_v * 1e3
        ),
        sixteen.switching_v > eight.switching_v,
    );
    Ok(())
}

/// Base and topmost die together are fitted over the presets with a published height; here each is
/// predicted from the others.
fn left_out() -> Result<(), StackError> {
    let mut known = Vec::new();
    for name in presets::names() {
        let design = presets::preset(name)?;
        if let Some(published) = design.published.published_um {
            let ends = design.geometry.base_um + design.geometry.top_um;
            known.push((name, published, height::minimum_um(&design) - ends));
        }
    }
    println!("| left out | published um | predicted from the others | error |");
    println!("|---|---|---|---|");
    for (name, published, rest) in &known {
        let others: Vec<f64> = known.iter().filter(|k| k.0 != *name).map(|k| k.1 - k.2).collect();
        let predicted = rest + others.iter().sum::<f64>() / others.len() as f64;
        println!(
            "| {name} | {published:.0} | {predicted:.0} | {:+.1}% |",
            (predicted / published - 1.0) * 100.0
        );
    }
    Ok(())
}
