//! A study of stacked memory as tables for people, at most 80 columns.

use crate::stack::{clip, gib, named, PublishedComparison, StackStudy, StudiedDesign};
use std::fmt::Write;
use terrace_device::hbm::evaluate::StackEvaluation;

impl StackStudy {
    /// One design: all its figures; several: a table with those on the Pareto front marked.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.designs[..] {
            [one] if one.settings.is_empty() => self.one(one),
            _ => self.table(),
        }
    }

    fn one(&self, design: &StudiedDesign) -> String {
        let mut out = String::new();
        let Some(e) = &design.evaluation else {
            return format!("{}: {}\n", self.stack, design.impossible.as_deref().unwrap_or("?"));
        };
        let _ = writeln!(
            out,
            "{}: {} dies, {}, {:.0} GiB a stack",
            clip(&self.stack, 40),
            e.dies,
            e.bonding,
            gib(e.capacity_bytes)
        );
        for (name, value) in figures(e) {
            let _ = writeln!(out, "  {name:<24}{}", clip(&value, 54));
        }
        if let Some(published) = &design.published {
            compare(&mut out, published);
        }
        for violation in &e.violations {
            let _ = writeln!(out, "- {}", clip(violation, 78));
        }
        out
    }

    fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{:<24}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}{:>6}",
            "design", "GB/s", "GiB", "ns", "pJ/b", "hot C", "um", "mV", "cost"
        );
        for design in &self.designs {
            let name = named(&design.settings, &self.stack);
            let name = name.replace("bonding=", "").replace("dies=", "");
            let Some(e) = &design.evaluation else {
                let why = design.impossible.as_deref().unwrap_or("?");
                let why = why.split(": ").nth(1).unwrap_or(why);
                let _ = writeln!(out, "{:<24}  {}", clip(&name, 22), clip(why, 53));
                continue;
            };
            let mark = match (design.pareto, e.violations.is_empty()) {
                (true, _) => "*",
                (false, true) => " ",
                (false, false) => "!",
            };
            let _ = writeln!(
                out,
                "{mark}{:<23}{:>7.0}{:>7.0}{:>7.1}{:>7.2}{:>7.1}{:>7.0}{:>7.1}{:>6.1}",
                clip(&name, 22),
                e.sustained_bytes_per_s.mixed / 1e9,
                gib(e.capacity_bytes),
                e.idle_latency_ns,
                e.stream_pj_per_bit.total(),
                e.temperatures.hottest_c(),
                e.height_um,
                (e.supply.static_v() + e.supply.switching_v) * 1e3,
                e.cost.relative_cost,
            );
        }
        out.push_str(
            "* no other design that holds all limits is better in all of bandwidth, GiB,\n",
        );
        out.push_str(
            "  temperature, pJ and cost; ! a limit is not held (see --json). GB/s is what a\n",
        );
        out.push_str(
            "  mix sustains; mV are IR drop and switching noise; cost is in planar dies.\n",
        );
        out
    }
}

fn figures(e: &StackEvaluation) -> Vec<(&'static str, String)> {
    let gb = |bytes: f64| format!("{:.0}", bytes / 1e9);
    let s = &e.sustained_bytes_per_s;
    let t = &e.temperatures;
    let loaded: Vec<String> = e
        .loaded_latency
        .iter()
        .map(|l| format!("{:.0} ({:.0}%)", l.latency_ns, l.load_share * 100.0))
        .collect();
    vec![
        ("peak bandwidth", format!("{} GB/s", gb(e.peak_bytes_per_s))),
        (
            "sustained",
            format!(
                "{} rows, {} mixed, {} single bursts GB/s",
                gb(s.stream_read),
                gb(s.mixed),
                gb(s.random_read)
            ),
        ),
        ("latency, at the pins", format!("{:.1} ns idle", e.idle_latency_ns)),
        ("under load", format!("{} ns", loaded.join(", "))),
        (
            "vias",
            format!(
                "{:.0} mohm, {:.0} fF; {:.2} Gbit/s to the top; {:.1}% area",
                e.via.resistance_ohm * 1e3,
                e.via.capacitance_f * 1e15,
                e.path.rate_gbps,
                e.tsv_area_share * 100.0
            ),
        ),
        (
            "energy of a bit",
            format!(
                "{:.2} pJ in rows, {:.2} in single bursts",
                e.stream_pj_per_bit.total(),
                e.random_pj_per_bit.total()
            ),
        ),
        (
            "power",
            format!(
                "{:.1} W at {} GB/s, {:.2} at rest",
                e.power.total_w(),
                gb(e.traffic.bytes_per_s()),
                e.rest_w
            ),
        ),
        (
            "temperature",
            format!(
                "{:.1} C hottest die, {:.1} coldest, {:.1} processor",
                t.hottest_c(),
                t.coldest_c(),
                t.processor_c
            ),
        ),
        (
            "warm-up",
            e.warm_up_s.map_or("minutes".to_owned(), |s| format!("63% of the rise in {s:.2} s")),
        ),
        ("refresh", format!("{:.0} times", e.refresh_rates.iter().copied().fold(1.0, f64::max))),
        ("height", format!("{:.0} um", e.height_um)),
        (
            "supply loss",
            format!(
                "{:.1} mV IR, {:.1} switching, of {:.0}",
                e.supply.static_v() * 1e3,
                e.supply.switching_v * 1e3,
                e.supply.allowed_v * 1e3
            ),
        ),
        (
            "faults",
            format!(
                "{:.0} FIT, {:.0} not corrected; a via spoils {:.0} bits",
                e.faults.faults_fit, e.faults.uncorrected_fit, e.faults.bits_spoiled
            ),
        ),
        (
            "yield and cost",
            format!(
                "{:.1}% of stacks; {:.1} planar dies",
                e.cost.stack_yield * 100.0,
                e.cost.relative_cost
            ),
        ),
    ]
}

fn compare(out: &mut String, published: &PublishedComparison) {
    let _ = writeln!(out, "  {:<24}{:>10}{:>10}{:>8}", "published", "part", "model", "error");
    let rows = [
        ("peak, GB/s", published.peak_gb_per_s),
        ("capacity, GiB", published.capacity_gib),
        ("height, um", published.height_um),
        ("energy, pJ a bit", published.pj_per_bit),
    ];
    for (name, pair) in rows {
        if let Some([part, model]) = pair {
            let error = (model / part - 1.0) * 100.0;
            let _ = writeln!(out, "  {name:<24}{part:>10.1}{model:>10.1}{error:>+7.1}%");
        }
    }
}
