//! Whether a probe read a machine back: `read_back MACHINE FILE` compares the links of a machine file that `terrace probe`
//! wrote with those of a preset (or another file). Prints a table and ends with 1 where latency is 5% off or bandwidth 10%.

use std::process::ExitCode;
use terrace_terrace::machine::{preset, Evidence, Figure, Machine};

const LATENCY: f64 = 5.0;
const BANDWIDTH: f64 = 10.0;

fn read(name: &str) -> Result<Machine, String> {
    if let Some(machine) = preset(name) {
        return Ok(machine);
    }
    let text = std::fs::read_to_string(name).map_err(|e| format!("{name}: {e}"))?;
    Machine::from_toml(&text, name).map_err(|e| e.to_string())
}

/// A measured figure with its unit; `None` where it was not measured.
fn figure<T: Copy>(figure: Option<Figure<T>>, value: impl Fn(T) -> f64) -> Option<f64> {
    figure.filter(|f| f.evidence == Evidence::Measured).map(|f| value(f.value))
}

fn compare(told: &Machine, seen: &Machine) -> bool {
    let mut good = true;
    println!("| link | figure | machine file | probe | off |\n|---|---|---|---|---|");
    for link in &told.links {
        let Some(got) = seen.link(link.initiator, link.target) else {
            println!("| {} to {} | - | | not measured | |", link.initiator, link.target);
            good = false;
            continue;
        };
        let ns = |v: terrace_terrace::types::Nanos| v.get() as f64;
        let gb = |v: terrace_terrace::types::BytesPerSec| v.get() as f64 / 1e9;
        let rows = [
            ("latency, ns", link.read_latency.map(|f| ns(f.value)), figure(got.read_latency, ns), LATENCY),
            ("read, GB/s", link.read_bandwidth.map(|f| gb(f.value)), figure(got.read_bandwidth, gb), BANDWIDTH),
            ("write, GB/s", link.write_bandwidth.map(|f| gb(f.value)), figure(got.write_bandwidth, gb), BANDWIDTH),
        ];
        for (what, wanted, got, allowed) in rows {
            let Some(wanted) = wanted else { continue };
            let place = format!("| {} to {} | {what} | {wanted:.2} |", link.initiator, link.target);
            let Some(got) = got else {
                println!("{place} not measured | |");
                good = false;
                continue;
            };
            let off = (got / wanted - 1.0) * 100.0;
            let mark = if off.abs() > allowed { " **beyond**" } else { "" };
            good &= off.abs() <= allowed;
            println!("{place} {got:.2} | {off:+.1}%{mark} |");
        }
    }
    good
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [told, seen] = arguments.as_slice() else {
        eprintln!("usage: read_back MACHINE FILE");
        return ExitCode::from(2);
    };
    match (read(told), read(seen)) {
        (Ok(told), Ok(seen)) => ExitCode::from(u8::from(!compare(&told, &seen))),
        (Err(why), _) | (_, Err(why)) => {
            eprintln!("read_back: {why}");
            ExitCode::FAILURE
        }
    }
}
