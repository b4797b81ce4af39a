//! Tables of what was measured, as Markdown.

use crate::plan::{intensity, DEGREES, FACTORS};
use crate::results::{passes, Figure, Passed, Results};
use crate::statements;

const PEERS: &[(&str, &str)] = &[("far", "Far memory"), ("swap", "Swap")];
const KERNELS: &[&str] = &[
    "stream-copy",
    "stream-scale",
    "stream-add",
    "stream-triad",
    "gemm-plain",
    "gemm-segmented",
    "lu-plain",
    "lu-no-pivots",
    "lu-tiled",
    "fft",
];

/// Prints all tables of some files.
pub fn print(files: &[&str]) -> Result<(), String> {
    let mut results = Results::default();
    for file in files {
        results.add(&std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?)?;
    }
    print!("{}", all(&results));
    Ok(())
}

/// All tables.
fn all(results: &Results) -> String {
    let mut text = String::new();
    for end in &results.ends {
        let number = |name: &str| end[name].as_f64().unwrap_or(f64::NAN);
        text += &format!(
            "{} MiB of DRAM; {:.0} s; load {} to {}; runs ended after {} s.\n",
            number("dram_mib"),
            number("wall_seconds"),
            end["load_before"].as_str().unwrap_or("?"),
            end["load_after"].as_str().unwrap_or("?"),
            number("limit_s")
        );
    }
    for (peer, who) in PEERS {
        for streams in [1, 2] {
            let rows = DEGREES.iter().map(|degree| {
                (
                    format!("{degree} | {}", intensity(*degree)),
                    efficiencies(results, &format!("poly{streams}-{degree}"), peer),
                )
            });
            text += &format!(
                "\n{who}, polynomials, {streams} stream{}:\n\n",
                if streams > 1 { "s" } else { "" }
            );
            text += &by_size("degree | FLOP/byte", rows);
        }
        text += &format!("\n{who}, the other kernels:\n\n");
        text += &by_size(
            "kernel",
            KERNELS.iter().map(|k| ((*k).to_owned(), efficiencies(results, k, peer))),
        );
    }
    text += "\nFLOP/byte where efficiency passes 50 and 90%:\n\n";
    text += &passing(results);
    text += "\nSeconds:\n\n";
    text += &seconds(results);
    text += "\nThe paper's statements:\n\n";
    text += &statements::table(results);
    for ((kernel, factor, peer, why), times) in results.missing() {
        text +=
            &format!("\nNot measured, {times} times: {kernel} x{}, {peer}: {why}\n", size(factor));
    }
    text
}

/// Data over memory.
fn size(factor: u64) -> f64 {
    factor as f64 / 1000.0
}

/// Percent and half of the spread.
pub fn percent(figure: Option<Figure>) -> String {
    figure.map_or("-".to_owned(), |f| {
        let digits = usize::from(f.median < 9.95);
        let half = (f.most - f.least) / 2.0;
        let spread = if f.count > 1 { format!(" ±{half:.digits$}") } else { String::new() };
        format!("{:.digits$}{spread}", f.median)
    })
}

fn efficiencies(results: &Results, kernel: &str, peer: &str) -> Vec<String> {
    FACTORS.iter().map(|f| percent(results.efficiency(kernel, *f, peer))).collect()
}

fn by_size(head: &str, rows: impl Iterator<Item = (String, Vec<String>)>) -> String {
    let sizes: Vec<String> = FACTORS.iter().map(|f| format!("x{}", size(*f))).collect();
    let columns = head.split('|').count() + sizes.len();
    let mut text = format!("| {head} | {} |\n|{}\n", sizes.join(" | "), "---|".repeat(columns));
    for (name, cells) in rows {
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    text
}

/// Intensity and efficiency of the polynomials with so many streams.
pub fn curve(results: &Results, streams: usize, factor: u64, peer: &str) -> Vec<(f64, f64)> {
    let at = |d: &usize| {
        Some((
            intensity(*d),
            results.efficiency(&format!("poly{streams}-{d}"), factor, peer)?.median,
        ))
    };
    DEGREES.iter().filter_map(at).collect()
}

/// In words.
pub fn passed(found: Option<Passed>) -> String {
    match found {
        Some(Passed::At(at)) => format!("{at:.0}"),
        Some(Passed::Below(least)) => format!("below {least}"),
        Some(Passed::Never) => "not reached".to_owned(),
        None => "-".to_owned(),
    }
}

fn passing(results: &Results) -> String {
    let mut rows = Vec::new();
    for (peer, who) in PEERS {
        for streams in [1, 2] {
            for percent in [50.0, 90.0] {
                let at = |f: &u64| passed(passes(&curve(results, streams, *f, peer), percent));
                rows.push((
                    format!("{who}, {streams} | {percent}%"),
                    FACTORS.iter().map(at).collect(),
                ));
            }
        }
    }
    by_size("who, streams | efficiency", rows.into_iter())
}

fn seconds(results: &Results) -> String {
    let mut text =
        "| kernel | what | plain | far | pager's CPU | swap |\n|---|---|---|---|---|---|\n"
            .to_owned();
    let shown = ["poly1-16", "poly1-8192", "poly2-16", "stream"]
        .into_iter()
        .chain(KERNELS[4..].iter().copied());
    for kernel in shown {
        for factor in &FACTORS[3..] {
            let number = |peer: &str, what: &str| {
                results
                    .median_of(kernel, *factor, peer, what)
                    .map_or("-".to_owned(), |f| format!("{:.2}", f.median))
            };
            let shape = results.word(kernel, *factor, "shape").unwrap_or_default();
            text += &format!(
                "| {kernel} x{} | {shape} | {} | {} | {} | {} |\n",
                size(*factor),
                number("plain", "seconds"),
                number("far", "seconds"),
                number("far", "pager_cpu_s"),
                number("swap", "seconds")
            );
        }
    }
    let most = |peer: &str| {
        results.peak_of(peer, "peak_mib").map_or("-".to_owned(), |m| format!("{m:.0}"))
    };
    text + &format!(
        "\nMost memory of a process, MiB: far {}, swap {}.\n",
        most("far"),
        most("swap")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_what_was_measured_and_what_was_not() {
        let mut results = Results::default();
        for degree in DEGREES {
            for (peer, s) in [("plain", 1.0), ("far", 1.0 + 64.0 / *degree as f64)] {
                let line = format!(
                    r#"{{"kernel":"poly1-{degree}","factor":4000,"peer":"{peer}","seconds":{s}}}"#
                );
                results.add(&line).unwrap();
            }
        }
        results
            .add(r#"{"kernel":"fft","factor":4000,"peer":"swap","why":"longer than 25 s"}"#)
            .unwrap();
        let text = all(&results);
        assert!(text.contains("| 64 | 16 | - | - | - | - | 50 |"), "{text}");
        assert!(text.contains("| Far memory, 1 | 50% | - | - | - | - | 16 |"), "{text}");
        assert!(text.contains("Not measured, 1 times: fft x4, swap: longer than 25 s"), "{text}");
        let before = text.split("The paper's").next().unwrap_or_default();
        assert!(before.lines().all(|l| l.chars().count() <= 80), "{before}");
    }
}
