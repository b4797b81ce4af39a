//! A study of stacked memory as tables for people.

use crate::stack::{gib, named, PublishedComparison, StackStudy, StudiedDesign};
use std::fmt::Write;
use terrace_device::hbm::evaluate::StackEvaluation;
use terrace_types::text::{clip, fold, TextTable};

impl StackStudy {
    /// One design: all its figures; several: a table with those on the Pareto front marked. For a
    /// terminal of so many columns.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        match &self.designs[..] {
            [one] if one.settings.is_empty() => self.one(one, columns),
            _ => self.table(columns),
        }
    }

    fn one(&self, design: &StudiedDesign, columns: usize) -> String {
        let mut out = String::new();
        let Some(e) = &design.evaluation else {
            return format!("{}: {}\n", self.stack, design.impossible.as_deref().unwrap_or("?"));
        };
        let _ = writeln!(
            out,
            "{}: {} dies, {}, {:.0} GiB a stack",
            clip(&self.stack, columns / 2),
            e.dies,
            e.bonding,
            gib(e.capacity_bytes)
        );
        for (name, value) in figures(e) {
            // A value that needs more than a line goes on below itself.
            let folded = fold(&value, columns.saturating_sub(26).max(24));
            for (at, line) in folded.lines().enumerate() {
                let _ = writeln!(out, "  {:<24}{line}", if at == 0 { name } else { "" });
            }
        }
        if let Some(published) = &design.published {
            compare(&mut out, published);
        }
        for violation in &e.violations {
            let _ = writeln!(out, "{}", fold(&format!("- {violation}"), columns));
        }
        out
    }

    fn table(&self, columns: usize) -> String {
        let heads = ["design", "GB/s", "GiB", "ns", "pJ/b", "hot C", "um", "mV", "cost"];
        let mut table = TextTable::new(1, &heads);
        for design in &self.designs {
            let name = named(&design.settings, &self.stack);
            let name = name.replace("bonding=", "").replace("dies=", "");
            let Some(e) = &design.evaluation else {
                let why = design.impossible.as_deref().unwrap_or("?");
                table.row([format!(" {name}")]);
                table.remark(why.split(": ").nth(1).unwrap_or(why));
                continue;
            };
            let mark = match (design.pareto, e.violations.is_empty()) {
                (true, _) => "*",
                (false, true) => " ",
                (false, false) => "!",
            };
            table.row([
                format!("{mark}{name}"),
                format!("{:.0}", e.sustained_bytes_per_s.mixed / 1e9),
                format!("{:.0}", gib(e.capacity_bytes)),
                format!("{:.1}", e.idle_latency_ns),
                format!("{:.2}", e.stream_pj_per_bit.total()),
                format!("{:.1}", e.temperatures.hottest_c()),
                format!("{:.0}", e.height_um),
                format!("{:.1}", (e.supply.static_v() + e.supply.switching_v) * 1e3),
                format!("{:.1}", e.cost.relative_cost),
            ]);
        }
        let explained = "* no other design that holds all limits is better in all of bandwidth, \
                         GiB, temperature, pJ and cost; ! a limit is not held (see --json). GB/s \
                         is what a mix sustains; mV are IR drop and switching noise; cost is in \
                         planar dies.";
        format!("{}{}\n", table.text(columns), fold(explained, columns))
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
