//! What the paper states, with its numbers, and what was found here.

use crate::plan::{intensity, DEGREES, FACTORS};
use crate::results::{passes, Figure, Results};
use crate::tables::{curve, passed, percent};

/// Where a statement stands, what it says, the paper's number, ours.
type Row = (&'static str, &'static str, &'static str, String);

/// The range of a kernel's efficiency in far memory over some sizes.
fn range(results: &Results, kernels: &[&str], factors: &[u64]) -> String {
    let all = kernels.iter().flat_map(|k| {
        factors.iter().filter_map(|f| results.efficiency(k, *f, "far").map(|f| f.median))
    });
    Figure::from_values(all.collect())
        .map_or("-".to_owned(), |f| format!("{:.0} to {:.0}%", f.least, f.most))
}

/// Efficiency at one size.
fn at(results: &Results, kernel: &str, factor: u64) -> String {
    match results.efficiency(kernel, factor, "far") {
        Some(figure) => format!("{}% at x{}", percent(Some(figure)), factor / 1000),
        None => format!("not measured at x{}", factor / 1000),
    }
}

/// How many times as fast one kernel computes as another.
fn speed(results: &Results, one: &str, other: &str, factor: u64, peer: &str) -> String {
    let rate = |kernel| results.median_of(kernel, factor, peer, "gflops").map(|f| f.median);
    rate(one).zip(rate(other)).map_or("-".to_owned(), |(a, b)| format!("{:.2}", a / b))
}

/// GB/s of STREAM's copy.
fn copy(results: &Results, factor: u64, peer: &str) -> String {
    let bytes = results.median_of("stream", factor, peer, "bytes").map(|f| 2.0 / 3.0 * f.median);
    let seconds = results.median_of("stream-copy", factor, peer, "seconds").map(|f| f.median);
    bytes.zip(seconds).map_or("-".to_owned(), |(b, s)| format!("{:.2}", b / s / 1e9))
}

/// From which FLOP/byte on plain memory computes at nine tenths of its speed at the highest degree.
fn bound(results: &Results, factor: u64) -> String {
    let rate = |d: &usize| {
        results.median_of(&format!("poly1-{d}"), factor, "plain", "gflops").map(|f| f.median)
    };
    let rates: Vec<(f64, f64)> =
        DEGREES.iter().filter_map(|d| Some((intensity(*d), rate(d)?))).collect();
    let Some(top) = rates.last().map(|r| r.1) else { return "-".to_owned() };
    let shares: Vec<(f64, f64)> = rates.iter().map(|r| (r.0, 100.0 * r.1 / top)).collect();
    format!("{} FLOP/byte at x{}; {top:.0} GFLOP/s", passed(passes(&shares, 90.0)), factor / 1000)
}

/// The words that are fetched a second by the least polynomial, and the intensity at which
/// computing takes as long.
fn balance(results: &Results, factor: u64) -> String {
    let number = |kernel: &str, peer: &str, what: &str| {
        results.median_of(kernel, factor, peer, what).map(|f| f.median)
    };
    let speed = number("poly1-16", "far", "bytes").zip(number("poly1-16", "far", "seconds"));
    let top = number("poly1-8192", "plain", "gflops");
    speed.zip(top).map_or("-".to_owned(), |((bytes, seconds), top)| {
        let gb = bytes / seconds / 1e9;
        format!("{gb:.1} GB/s, {:.0} FLOP/byte at x{}", top / gb, factor / 1000)
    })
}

/// From which FLOP/byte on efficiency is at least so many percent.
fn from(results: &Results, percent: f64) -> String {
    let one = |streams: usize, factor: u64| {
        passed(passes(&curve(results, streams, factor, "far"), percent))
    };
    let at = |factor| {
        format!("{} (1 stream) and {} (2) at x{}", one(1, factor), one(2, factor), factor / 1000)
    };
    format!("{percent}%: {}, {}", at(2000), at(4000))
}

fn rows(results: &Results) -> Vec<Row> {
    let fits = &FACTORS[..2];
    let all = ["gemm-plain", "gemm-segmented", "lu-plain", "lu-tiled", "fft", "stream"];
    let swap = |kernel: &str, factor: u64| {
        let ratio = results.ratio(kernel, factor, "swap", "far");
        ratio.map_or(format!("{kernel} -"), |f| format!("{kernel} {:.1}", f.median))
    };
    let swaps: Vec<String> =
        ["poly1-16", "stream", "gemm-segmented", "lu-tiled", "fft"].map(|k| swap(k, 2000)).into();
    vec![
        (
            "5.1.1",
            "STREAM beyond DRAM, the worst case",
            "12.5%",
            format!("{}, {}", at(results, "stream", 2000), at(results, "stream", 4000)),
        ),
        (
            "5.1.1",
            "bandwidth, DRAM and far",
            "80 and 10 GB/s",
            format!(
                "copy at x2: {} and {} GB/s",
                copy(results, 2000, "plain"),
                copy(results, 2000, "far")
            ),
        ),
        ("5.1.1", "STREAM that fits: DRAM's bandwidth", "100%", range(results, &["stream"], fits)),
        (
            "5.1.2, 5.4",
            "polynomials close to 100% from",
            "128 to 256 FLOP/byte",
            from(results, 90.0),
        ),
        ("5.1.2", "the same, half of the speed", "no number", from(results, 50.0)),
        (
            "5.4",
            "far bandwidth, and where computing takes as long",
            "10 GB/s, 128 to 256",
            format!("1 stream: {}, {}", balance(results, 2000), balance(results, 4000)),
        ),
        ("5.4", "DRAM alone: bound by computing from", "64 FLOP/byte", bound(results, 4000)),
        (
            "5.1.2",
            "polynomials that fit",
            "100% and more",
            range(
                results,
                &["poly1-16", "poly1-256", "poly1-8192", "poly2-16", "poly2-256", "poly2-8192"],
                fits,
            ),
        ),
        (
            "5.1.3",
            "segmented product, all sizes",
            "90 to 125%",
            range(results, &["gemm-segmented"], FACTORS),
        ),
        (
            "6",
            "plain product, all sizes",
            "close to peak",
            range(results, &["gemm-plain"], FACTORS),
        ),
        ("5.2.1", "LU that fits", "150 to 180%", range(results, &["lu-plain"], fits)),
        (
            "5.2.1",
            "plain LU, large",
            "30%",
            format!("{}, {}", at(results, "lu-plain", 2000), at(results, "lu-plain", 4000)),
        ),
        (
            "5.2.1",
            "tiled LU, large",
            "90%",
            format!("{}, {}", at(results, "lu-tiled", 2000), at(results, "lu-tiled", 4000)),
        ),
        (
            "5.2.1",
            "tiled LU against plain LU, DRAM and far",
            "1.2 times as fast, both",
            format!(
                "{} and {} at x2",
                speed(results, "lu-tiled", "lu-plain", 2000, "plain"),
                speed(results, "lu-tiled", "lu-plain", 2000, "far")
            ),
        ),
        (
            "5.2.1",
            "LU without pivots, not tiled: little better",
            "no number",
            format!("{}, {}", at(results, "lu-no-pivots", 2000), at(results, "lu-no-pivots", 4000)),
        ),
        ("5.2.2", "FFT that fits", "above 100%", range(results, &["fft"], fits)),
        (
            "5.2.2",
            "FFT, large",
            "40%",
            format!("{}, {}", at(results, "fft", 2000), at(results, "fft", 4000)),
        ),
        ("3.2, 5.5", "what fits: no difference", "100%", range(results, &all, fits)),
        (
            "2, 7",
            "the kernel's swap is worse",
            "no number",
            format!("swap's time over far's at x2: {}", swaps.join(", ")),
        ),
    ]
}

/// All statements.
pub fn table(results: &Results) -> String {
    let rows = rows(results)
        .into_iter()
        .map(|(section, what, paper, ours)| format!("| {section} | {what} | {paper} | {ours} |\n"));
    format!(
        "| section | statement | paper | here |\n|---|---|---|---|\n{}",
        rows.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_have_our_numbers_or_say_that_there_are_none() {
        let mut results = Results::default();
        for (peer, s, g) in [("plain", 1.0, 40.0), ("far", 8.0, 5.0)] {
            let line = |kernel: &str, gflops: f64| {
                format!(
                    r#"{{"kernel":"{kernel}","factor":2000,"peer":"{peer}","seconds":{s},"gflops":{gflops},"bytes":96}}"#
                )
            };
            results.add(&line("stream", g)).unwrap();
            results.add(&line("lu-plain", g)).unwrap();
            results.add(&line("poly1-16", g / 2.0)).unwrap();
            results.add(&line("poly1-8192", g)).unwrap();
            results.add(&line("lu-tiled", 1.5 * g)).unwrap();
        }
        let text = table(&results);
        assert!(text.contains("| 12.5% | 12% at x2, not measured at x4 |"), "{text}");
        // 96 bytes in 8 s, and 40 GFLOP/s.
        assert!(text.contains("0.0 GB/s, 3333333333 FLOP/byte at x2"), "{text}");
        assert!(text.contains("1.50 and 1.50 at x2"), "{text}");
        assert!(text.contains("| 90 to 125% | - |"), "{text}");
    }
}
