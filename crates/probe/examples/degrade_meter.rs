//! What a program gets of each node, for `terrace degrade`: `degrade_meter [ROUNDS] [MIB]
//! [HOT_KIB]`, on the CPUs it may use. Reads in turn that much of each node by all these CPUs, and
//! a small region that caches hold by the first; prints the median of the rounds and their range.
//! Measures on its own, not with the probe's instrument, so that it can check what that found.

use std::hint::black_box;
use terrace_probe::kernels::{run, ElementKernel, Form, GRAIN};
use terrace_probe::team;
use terrace_sys::{own_cpus, zones, AnonymousMapping, MappingPages, Root};
use terrace_types::{Bytes, CpuId};

/// Reads `bytes` of `mapping`, divided among `cpus`, `times` times: GB/s.
fn read(mapping: &AnonymousMapping, bytes: usize, cpus: &[CpuId], times: usize) -> f64 {
    let each = bytes / 8 / cpus.len() / GRAIN * GRAIN;
    let base = mapping.as_ptr() as usize;
    let work = |thread: usize| {
        for _ in 0..times {
            let part = (base + thread * each * 8) as *mut f64;
            // SAFETY: `each` doubles from there lie in the mapping, which is page-aligned, longer
            // than `bytes`, and written by nobody.
            black_box(unsafe { run(ElementKernel::Read, Form::Lines, &[part], each) });
        }
    };
    let span = team::once(cpus, work).map_or(0, |rep| rep.span.get());
    (each * 8 * cpus.len() * times) as f64 / span.max(1) as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |at: usize, otherwise: u64| {
        std::env::args().nth(at).and_then(|a| a.parse().ok()).unwrap_or(otherwise)
    };
    let (rounds, mib, hot) = (number(1, 9).max(1), number(2, 16).max(1), number(3, 2048));
    let cpus = own_cpus()?;
    let bytes = Bytes::mib(mib);
    let mut memory = Vec::new();
    for node in zones::nodes_with_memory(&Root::live()) {
        let mapping = AnonymousMapping::new(bytes, MappingPages::Huge)?;
        mapping.bind(node)?;
        mapping.prefault(0..mapping.len())?;
        mapping.fill();
        memory.push((node, mapping));
    }
    let hot = Bytes(hot << 10).min(bytes).get() as usize;
    let first = &cpus[..1];
    let mut rates: Vec<(String, Vec<f64>)> = Vec::new();
    for round in 0..=rounds {
        let mut now: Vec<(String, f64)> = Vec::new();
        for (node, mapping) in &memory {
            now.push((format!("node {node}"), read(mapping, mapping.len(), &cpus, 1)));
        }
        if let Some((node, mapping)) = memory.first() {
            read(mapping, hot, first, 1);
            now.push((format!("what caches hold of node {node}"), read(mapping, hot, first, 4)));
        }
        // The first warms up.
        if round == 0 {
            rates = now.into_iter().map(|(name, _)| (name, Vec::new())).collect();
        } else {
            rates.iter_mut().zip(now).for_each(|((_, all), (_, rate))| all.push(rate));
        }
    }
    for (name, mut all) in rates {
        all.sort_by(f64::total_cmp);
        println!(
            "{name}: {:.2} GB/s ({:.2} to {:.2})",
            all[all.len() / 2],
            all[0],
            all[all.len() - 1]
        );
    }
    Ok(())
}
